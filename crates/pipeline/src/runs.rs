//! What a person can do with runs, whatever their pipeline: find, list, watch, pause, resume, cancel, try again, remove.

use std::sync::Arc;

use longhaul_llm::{Llm, NanoUsd, Scope};
use longhaul_queue::store::{Filter, ListRequest, Page};
use longhaul_queue::{Job, Queue};

use crate::own_names::OwnNames;
use crate::pipeline::{List, Pipeline, Retry};
use crate::run::status::{Status, is_paused};
use crate::run::{Run, RunId, TAG};
use crate::{Error, Result};

/// The runs of all pipelines. Cheap to clone.
#[derive(Clone)]
pub struct Runs {
    queue: Queue,
    llm: Llm,
    pipelines: Arc<List>,
}

/// A run with its pipeline.
#[derive(Clone)]
pub struct Found {
    /// Whose it is.
    pub pipeline: Arc<dyn Pipeline>,
    /// The run.
    pub run: Run,
}

impl Runs {
    /// The runs of these pipelines.
    pub fn new(queue: Queue, llm: Llm, pipelines: List) -> Self {
        Self { queue, llm, pipelines: Arc::new(pipelines) }
    }

    /// The pipelines.
    pub fn pipelines(&self) -> &List {
        &self.pipelines
    }

    /// The names of a program with these pipelines.
    pub fn own_names(&self) -> OwnNames {
        OwnNames::new(self.pipelines.iter().map(|pipeline| pipeline.about()).collect())
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The models.
    pub fn llm(&self) -> &Llm {
        &self.llm
    }

    /// The pipeline of a run's name, by its prefix. No two prefixes begin alike.
    pub fn pipeline_of(&self, run: &str) -> Option<&Arc<dyn Pipeline>> {
        self.pipelines.iter().find(|pipeline| run.starts_with(pipeline.about().prefix))
    }

    /// The run of this name, with or without the prefix of its pipeline.
    pub async fn get(&self, name: &str) -> Result<Found> {
        let whole = self.pipeline_of(name).map(|pipeline| (pipeline, name.to_owned()));
        let short =
            self.pipelines.iter().map(|pipeline| (pipeline, format!("{}{name}", pipeline.about().prefix)));
        for (pipeline, name) in whole.into_iter().chain(short) {
            let run = Run::find(&self.queue, &RunId::named(name)).await?;
            if let Some(run) = run.filter(|run| run.job.kind == pipeline.about().manifest) {
                return Ok(Found { pipeline: Arc::clone(pipeline), run });
            }
        }
        Err(Error::NoRun(name.to_owned()))
    }

    /// The manifests of runs, newest first, of one pipeline if so wanted.
    pub async fn list(&self, pipeline: Option<&str>, cursor: Option<i64>, limit: usize) -> Result<Page<Job>> {
        let kind = match pipeline {
            Some(name) => Some(self.named(name)?.about().manifest.to_owned()),
            None => None,
        };
        let filter = Filter { tag: Some(TAG.to_owned()), kind, ..Filter::default() };
        Ok(self.queue.list(ListRequest { filter, newest_first: true, cursor, limit }).await?)
    }

    fn named(&self, name: &str) -> Result<&Arc<dyn Pipeline>> {
        let found = self.pipelines.iter().find(|pipeline| pipeline.about().name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.pipelines.iter().map(|pipeline| pipeline.about().name).collect();
            Error::Invalid(format!("there is no pipeline {name:?}; there are: {}", names.join(", ")))
        })
    }

    /// The run of a manifest; `None` if it was removed meanwhile.
    pub async fn of_manifest(&self, job: &Job) -> Result<Option<Found>> {
        let Some(process) = &job.process_id else { return Ok(None) };
        match self.get(process.as_str()).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NoRun(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What calls of a killed process left under way may have been billed, and is part of what its run cost.
    pub async fn book_abandoned(&self) -> Result<()> {
        let now = self.queue.clock().now().as_millis();
        Ok(self.llm.ledger().abandon_dead(now).await.map_err(longhaul_llm::Error::from).map(drop)?)
    }

    /// What a run may cost, if that is limited.
    pub async fn cap(&self, run: &RunId) -> Result<Option<NanoUsd>> {
        let scope = self.llm.ledger().scope(&Scope::run(run.as_str())).await;
        Ok(scope.map_err(longhaul_llm::Error::from)?.and_then(|scope| scope.cap))
    }

    /// Limits what a run may cost, as [`longhaul_llm::Ledger::set_limits`] does for any scope.
    pub async fn set_limits(&self, run: &RunId, cap: Option<NanoUsd>, allow_unpriced: bool) -> Result<()> {
        let set = self.llm.ledger().set_limits(&Scope::run(run.as_str()), cap, allow_unpriced).await;
        Ok(set.map_err(longhaul_llm::Error::from)?)
    }
}

impl Found {
    /// Where it stands.
    pub async fn status(&self) -> Result<Status> {
        Status::of(&*self.pipeline, &self.run).await
    }

    /// Stops its units from being begun; what is under way goes on. Refused once it has ended.
    pub async fn pause(&self) -> Result<()> {
        let state = self.status().await?.standing.state;
        if state.is_end() {
            return Err(Error::Invalid(format!("{} has ended: it is {state}", self.run.id)));
        }
        Ok(self.pipeline.queue().pause(self.run.id.as_str()).await?)
    }

    /// Lets it go on, be it paused or held, and says how many of its jobs were held.
    pub async fn resume(&self) -> Result<u64> {
        self.pipeline.queue().resume(self.run.id.as_str()).await?;
        self.pipeline.resume(&self.run).await
    }

    /// Goes on with it when it is started again, paused or not, and says how many units are tried once more.
    pub async fn go_on(&self) -> Result<u64> {
        self.pipeline.queue().resume(self.run.id.as_str()).await?;
        self.pipeline.go_on(&self.run).await
    }

    /// Ends it early. A paused run goes on to its end: its manifest, and batches that are to be cancelled at the provider, must run.
    pub async fn cancel(&self) -> Result<u64> {
        let cancelled = self.pipeline.cancel(&self.run).await?;
        self.unpause().await?;
        Ok(cancelled)
    }

    /// Tries again what failed.
    pub async fn retry(&self, which: Retry) -> Result<u64> {
        self.pipeline.retry(&self.run, which).await
    }

    /// Deletes it for good, with its part of the ledger. The same run can be started again, and is not paused then.
    pub async fn remove(&self) -> Result<u64> {
        self.unpause().await?;
        self.pipeline.remove(&self.run).await
    }

    async fn unpause(&self) -> Result<()> {
        let queue = self.pipeline.queue();
        if is_paused(queue, &self.run.id).await? {
            queue.resume(self.run.id.as_str()).await?;
        }
        Ok(())
    }
}
