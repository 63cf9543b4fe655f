//! Code for one kind of job. A handler gets a [`JobContext`] and the payload as its own type, and answers with an
//! outcome; it never touches job state.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::context::JobContext;
use crate::json::Json;
use crate::state::{JobError, Outcome, Policy, Reason};

mod failure;
mod kind_options;

pub use failure::{Failure, IntoOutcome};
pub use kind_options::KindOptions;

/// How the jobs of a batch handler are gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchOptions {
    /// Most jobs in one call. Each takes one of the worker's slots, so more than its concurrency never come together.
    pub size_max: usize,
    /// How long the first job waits for more to come; zero takes what one claim brought.
    pub wait: Duration,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { size_max: 100, wait: Duration::ZERO }
    }
}

/// A handler call under way.
pub(crate) type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs one job.
pub(crate) type OneHandler = Arc<dyn Fn(JobContext) -> Call<Outcome> + Send + Sync>;

/// Runs many jobs and answers each, in their order.
pub(crate) type BatchHandler = Arc<dyn Fn(Vec<JobContext>) -> Call<Vec<Outcome>> + Send + Sync>;

/// A handler and what its kind is allowed.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) policy: Policy,
    pub(crate) handler: Handler,
}

/// The two shapes of handlers.
#[derive(Clone)]
pub(crate) enum Handler {
    One(OneHandler),
    Batch(BatchOptions, BatchHandler),
}

/// The handlers of a worker, by kind.
#[derive(Default)]
pub(crate) struct Registry {
    by_kind: HashMap<String, Arc<Registered>>,
    any: Option<Arc<Registered>>,
}

impl Registry {
    pub(crate) fn insert(&mut self, kind: String, registered: Registered) {
        self.by_kind.insert(kind, Arc::new(registered));
    }

    pub(crate) fn insert_any(&mut self, registered: Registered) {
        self.any = Some(Arc::new(registered));
    }

    pub(crate) fn find(&self, kind: &str) -> Option<&Arc<Registered>> {
        self.by_kind.get(kind).or(self.any.as_ref())
    }

    /// The kinds to claim, `None` for any; `only` narrows them.
    pub(crate) fn kinds(&self, only: Option<&[String]>) -> Option<Vec<String>> {
        if self.any.is_some() {
            return only.map(<[String]>::to_vec);
        }
        let wanted = |kind: &&String| only.is_none_or(|only| only.contains(kind));
        let mut kinds: Vec<String> = self.by_kind.keys().filter(wanted).cloned().collect();
        kinds.sort_unstable();
        Some(kinds)
    }
}

/// A handler with a typed payload. One that does not parse fails the job: trying again cannot help.
pub(crate) fn typed<F, T, Fut>(handler: F) -> OneHandler
where
    F: Fn(JobContext, T) -> Fut + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    Arc::new(move |context| match context.payload().to() {
        Ok(payload) => {
            let answer = handler(context, payload);
            Box::pin(async move { answer.await.into_outcome() })
        }
        Err(error) => {
            let outcome = payload_mismatch(&context, &error);
            Box::pin(std::future::ready(outcome))
        }
    })
}

/// A handler that takes any payload as it is.
pub(crate) fn raw<F, Fut>(handler: F) -> OneHandler
where
    F: Fn(JobContext, Json) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    Arc::new(move |context| {
        let payload = context.payload().clone();
        let answer = handler(context, payload);
        Box::pin(async move { answer.await.into_outcome() })
    })
}

/// A batch handler with typed payloads. A member whose payload does not parse fails alone; the others run without it.
pub(crate) fn typed_batch<F, T, Fut>(handler: F) -> BatchHandler
where
    F: Fn(Vec<(JobContext, T)>) -> Fut + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Fut: Future<Output = Vec<Outcome>> + Send + 'static,
{
    Arc::new(move |contexts| {
        let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(contexts.len());
        let mut batch = Vec::with_capacity(contexts.len());
        for context in contexts {
            match context.payload().to() {
                Ok(payload) => {
                    outcomes.push(None);
                    batch.push((context, payload));
                }
                Err(error) => outcomes.push(Some(payload_mismatch(&context, &error))),
            }
        }
        let expected = batch.len();
        let answer = if batch.is_empty() { None } else { Some(handler(batch)) };
        Box::pin(async move {
            let answers = match answer {
                Some(answer) => answer.await,
                None => Vec::new(),
            };
            let wrong_number = (answers.len() != expected).then(|| wrong_number(answers.len(), expected));
            let mut answers = answers.into_iter();
            let mut next = || wrong_number.clone().or_else(|| answers.next());
            outcomes.into_iter().filter_map(|outcome| outcome.or_else(&mut next)).collect()
        })
    })
}

fn payload_mismatch(context: &JobContext, error: &crate::Error) -> Outcome {
    let text = format!("payload does not fit what {} expects: {error}", context.kind());
    Outcome::Fail(JobError::new(Reason::Failure, text))
}

fn wrong_number(answered: usize, expected: usize) -> Outcome {
    let text = format!("the batch handler answered {answered} outcomes for {expected} jobs");
    Outcome::Retry { error: JobError::new(Reason::Failure, text), after: None, data: None }
}
