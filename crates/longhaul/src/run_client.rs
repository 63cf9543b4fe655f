//! Runs, wherever they are: in a store that this process has opened, or behind a server (`--server`). Commands about runs are written
//! against these traits, so that both say and do the same.

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use longhaul_api::Listed;
use longhaul_api::runs::{Decision, Run, RunDetail};
use longhaul_llm::Llm;
use longhaul_pipeline::{Error, FollowedRun, Found, Retry, RunId, Status, serve};
use longhaul_prompts::batch::BatchTold;
use longhaul_prompts::manage;
use longhaul_queue::Queue;

use crate::app::App;
use crate::args::SpendingArgs;
use crate::exit::{Code, Failure};
use crate::pipelines::{Pipelines, Place};
use crate::remote::RemoteRuns;
use crate::store::{self, Missing};
use crate::{models, outputs};

/// All runs.
#[async_trait]
pub(crate) trait RunsClient: Send + Sync {
    /// Runs, newest first, of one pipeline if so wanted, and from a place on.
    async fn list(&self, pipeline: Option<&str>, cursor: Option<i64>, limit: usize) -> Result<Listed<Run>>;

    /// The run of this name, with or without the prefix of its pipeline.
    async fn find(&self, name: &str) -> Result<Option<Box<dyn RunClient>>>;

    /// The same, which must exist.
    async fn get(&self, name: &str) -> Result<Box<dyn RunClient>> {
        self.find(name).await?.ok_or_else(|| {
            Failure::new(Code::NothingMatched, format!("there is no run {name}"))
                .hint("list runs with: longhaul runs ls")
                .into()
        })
    }
}

/// One run.
#[async_trait]
pub(crate) trait RunClient: FollowedRun {
    /// It, as it is listed.
    async fn run(&self) -> Result<Run>;

    /// All that is known of it, with at most `parts` of its parts.
    async fn detail(&self, parts: usize) -> Result<RunDetail>;

    /// Stops its units from being begun.
    async fn pause(&self) -> Result<Run>;

    /// Lets it go on, and says how many of its jobs were held.
    async fn resume(&self, spending: &SpendingArgs) -> Result<u64>;

    /// Ends it early, and says how many of its jobs were cancelled at once.
    async fn cancel(&self) -> Result<u64>;

    /// Tries again what failed, and says how many units that are.
    async fn retry(&self, which: Retry) -> Result<u64>;

    /// Decides about provider batches, and says how many there were.
    async fn resolve(&self, decision: Decision) -> Result<u64>;

    /// Deletes it with its results, and says how many jobs it had.
    async fn remove(&self) -> Result<u64>;

    /// Writes its results as its pipeline delivers them.
    async fn write_results(&self, app: &App, place: &Place<'_>) -> Result<Code>;
}

/// The runs that the settings lead to.
pub(crate) async fn open(app: &App) -> Result<Box<dyn RunsClient>> {
    if let Some(server) = store::remote(&app.settings)? {
        return Ok(Box::new(RemoteRuns::new(server)));
    }
    let (engine, data) = app.engine_with_data(Missing::Refuse).await?;
    let llm = models::Setup::new(app, None)?.llm(app)?;
    let pipelines = Pipelines::open(app, (&engine, data), llm, Arc::new(())).await?;
    pipelines.runs.book_abandoned().await?;
    Ok(Box::new(LocalRuns(Arc::new(pipelines))))
}

/// Runs in a store that is open here.
struct LocalRuns(Arc<Pipelines>);

#[async_trait]
impl RunsClient for LocalRuns {
    async fn list(&self, pipeline: Option<&str>, cursor: Option<i64>, limit: usize) -> Result<Listed<Run>> {
        let runs = &self.0.runs;
        let page = runs.list(pipeline, cursor, limit).await.map_err(|error| match error {
            Error::Invalid(text) => Failure::new(Code::Usage, format!("--pipeline: {text}")).into(),
            error => anyhow::Error::from(error),
        })?;
        let served = serve::served(runs.queue()).await?;
        let mut items = Vec::with_capacity(page.items.len());
        for job in &page.items {
            // One that was removed between two reads is not there any more.
            let Some(found) = runs.of_manifest(job).await? else { continue };
            let status = found.status().await?;
            let served = served.contains(&status.id);
            items.push(Run::new(status, served));
        }
        let next = page.next.map(longhaul_api::page::cursor_of);
        Ok(Listed { items, next, partial: page.partial })
    }

    async fn find(&self, name: &str) -> Result<Option<Box<dyn RunClient>>> {
        match self.0.runs.get(name).await {
            Ok(found) => Ok(Some(Box::new(LocalRun { found, pipelines: Arc::clone(&self.0) }))),
            Err(Error::NoRun(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// A run in a store that is open here.
struct LocalRun {
    found: Found,
    pipelines: Arc<Pipelines>,
}

#[async_trait]
impl FollowedRun for LocalRun {
    fn id(&self) -> &RunId {
        self.found.id()
    }

    fn unit(&self) -> &str {
        self.found.unit()
    }

    fn queue(&self) -> &Queue {
        self.found.queue()
    }

    fn llm(&self) -> Option<&Llm> {
        self.found.llm()
    }

    async fn status(&self) -> longhaul_pipeline::Result<Status> {
        self.found.status().await
    }
}

#[async_trait]
impl RunClient for LocalRun {
    async fn run(&self) -> Result<Run> {
        let served = serve::served(self.queue()).await?.contains(self.id().as_str());
        Ok(Run::new(self.status().await?, served))
    }

    async fn detail(&self, parts: usize) -> Result<RunDetail> {
        Ok(RunDetail::of(&self.found, self.run().await?, parts).await?)
    }

    async fn pause(&self) -> Result<Run> {
        self.found.pause().await?;
        self.run().await
    }

    async fn resume(&self, spending: &SpendingArgs) -> Result<u64> {
        let SpendingArgs { max_cost, allow_unpriced } = *spending;
        self.pipelines.runs.set_limits(self.id(), max_cost, allow_unpriced).await?;
        Ok(self.found.resume().await?)
    }

    async fn cancel(&self) -> Result<u64> {
        Ok(self.found.cancel().await?)
    }

    async fn retry(&self, which: Retry) -> Result<u64> {
        self.found.retry(which).await.map_err(|error| match error {
            Error::Invalid(text) => Failure::new(Code::Usage, text).into(),
            error => anyhow::Error::from(error),
        })
    }

    async fn resolve(&self, decision: Decision) -> Result<u64> {
        let told = match decision {
            Decision::Resubmit => BatchTold::Resubmit,
            Decision::Wait => BatchTold::Wait,
            Decision::OneByOne => BatchTold::Alone,
            Decision::Drop => BatchTold::Drop,
        };
        Ok(manage::resolve(&self.pipelines.prompts, self.id(), told).await?)
    }

    async fn remove(&self) -> Result<u64> {
        // One that has not ended is there for good reason: no wrong usage, whichever pipeline says so.
        let deleted = self.found.remove().await.map_err(|error| match error {
            Error::Invalid(text) => Failure::new(Code::Failure, text).into(),
            error => anyhow::Error::from(error),
        })?;
        outputs::forget(&self.pipelines.engine, self.id().as_str()).await?;
        Ok(deleted)
    }

    async fn write_results(&self, app: &App, place: &Place<'_>) -> Result<Code> {
        self.pipelines.write_results(app, &self.found, place).await
    }
}
