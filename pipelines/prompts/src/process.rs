//! Slices that need many answers: a slice prepares its requests, the queue has them answered, and the slice is called
//! back to save them. The call-back is itself a job that waits for the run, so a restart knows whom to call.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use longhaul_queue::job::{OnFailure, Retention};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::{JobContext, Json, NewJob, Outcome, State, Worker};
use serde::{Deserialize, Serialize};

use super::request::RequestResult;
use super::run::{CALLBACK, CRASHES_MAX};
use super::submit::{NewRequest, Submission};
use super::{Error, Prompts, Result, Run, RunId, RunSettings};

/// The kind of the call-back.
pub const KIND: &str = "llm.callback";

/// Work that needs many answers, in two phases; no model is asked inside of it.
#[async_trait]
pub trait Slice: Send + Sync + 'static {
    /// Its name, by which a call-back finds it after a restart.
    fn name(&self) -> &str;

    /// The requests for an input, in order.
    async fn prepare(&self, input: &Json) -> Result<Vec<NewRequest>>;

    /// Stores the answers, in the order of the requests; a request that failed has its error instead. May be called again
    /// with the same answers after a crash.
    async fn save(
        &self,
        input: &Json,
        answers: Vec<std::result::Result<RequestResult, String>>,
    ) -> Result<()>;
}

/// What a call-back is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Callback {
    slice: String,
    run: String,
    input: Json,
}

/// The slices of a program.
#[derive(Clone, Default)]
pub struct Slices {
    by_name: HashMap<String, Arc<dyn Slice>>,
}

impl Slices {
    /// Adds a slice.
    pub fn add(&mut self, slice: Arc<dyn Slice>) -> &mut Self {
        self.by_name.insert(slice.name().to_owned(), slice);
        self
    }

    fn get(&self, name: &str) -> Result<&Arc<dyn Slice>> {
        self.by_name
            .get(name)
            .ok_or_else(|| Error::Invalid(format!("there is no slice {name:?} in this program")))
    }

    /// Registers the call-back.
    pub fn register(&self, prompts: &Prompts, worker: &mut Worker) {
        let (slices, prompts) = (self.clone(), prompts.clone());
        worker.handle(KIND, move |context: JobContext, callback: Callback| {
            let (slices, prompts) = (slices.clone(), prompts.clone());
            async move { slices.call_back(&prompts, &context, callback).await }
        });
    }

    /// Prepares and submits; the answers are saved when all of them are there.
    pub async fn start(
        &self,
        prompts: &Prompts,
        name: &str,
        input: Json,
        settings: RunSettings,
    ) -> Result<RunId> {
        let requests = self.get(name)?.prepare(&input).await?;
        if requests.is_empty() {
            return Err(Error::Invalid(format!("slice {name:?} has no requests for this input")));
        }
        let mut submission = Submission::begin(prompts, settings).await?;
        let run = submission.id().clone();
        // Before the requests: a crash in between leaves a call-back that waits, and submitting again goes on.
        let callback = Callback { slice: name.to_owned(), run: run.as_str().to_owned(), input };
        let job = NewJob::new(KIND, Json::of(&callback)?)
            .id(run.job(CALLBACK))
            .queue(run.as_str())
            .max_crashes(CRASHES_MAX)
            // After the run's last word, and not beside it: nothing of the run is under way when it is consumed.
            .after_with(run.manifest(), OnFailure::Run)
            .retention(Retention::DeleteOnSuccess);
        prompts.queue().enqueue(job).await?;
        for request in requests {
            submission.push(request).await?;
        }
        submission.finish().await
    }

    async fn call_back(
        &self,
        prompts: &Prompts,
        context: &JobContext,
        callback: Callback,
    ) -> Result<Outcome> {
        let slice = match self.get(&callback.slice) {
            Ok(slice) => slice,
            // Another program may know it: retrying the job there goes on.
            Err(error) => return Ok(Outcome::Fail(JobError::new(Reason::Failure, error))),
        };
        let run = RunId::named(&callback.run);
        if Run::find(prompts.queue(), &run).await?.is_none() {
            // Saved and consumed before: only this job's own end got lost.
            return Ok(Outcome::Done(Json::null()));
        }
        let answers = answers(prompts, &run).await?;
        context.log(format!("{} answers for {}", answers.len(), callback.slice));
        slice.save(&callback.input, answers).await?;
        super::manage::remove(prompts, &run).await?;
        Ok(Outcome::Done(Json::null()))
    }
}

/// All answers of a run, in order.
async fn answers(prompts: &Prompts, run: &RunId) -> Result<Vec<std::result::Result<RequestResult, String>>> {
    let mut answers = Vec::new();
    let mut after = 0;
    loop {
        let page = prompts.queue().results(&run.process(), after, PAGE_MAX).await?;
        for result in page.items {
            answers.push(match (result.state, result.result) {
                (State::Succeeded, Some(value)) => Ok(value.to()?),
                (state, _) => Err(result.error.map_or_else(|| state.to_string(), |error| error.to_string())),
            });
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(answers),
        }
    }
}
