//! What a pipeline is to the rest of the program: a name, handlers, and runs that a person can look at and steer.

use std::sync::Arc;

use async_trait::async_trait;
use longhaul_llm::Llm;
use longhaul_queue::{JobContext, Json, Queue, State, Timestamp, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::run::Run;
use crate::run::hold::{self, HeldRun, Hold};
use crate::run::status::{RunState, Standing, Status};
use crate::{Result, unit_jobs};

/// What Longhaul is used for: one value for each pipeline, held in one list by the binary.
///
/// What has a default here suits a pipeline whose units are the jobs of a run.
#[async_trait]
pub trait Pipeline: Send + Sync {
    /// Its names.
    fn about(&self) -> &'static About;

    /// Registers its handlers.
    fn register(&self, worker: &mut Worker);

    /// The queue that its jobs are in.
    fn queue(&self) -> &Queue;

    /// The models that it asks, if it does.
    fn llm(&self) -> Option<&Llm> {
        None
    }

    /// Where a run stands.
    async fn standing(&self, run: &Run) -> Result<Standing> {
        Standing::of_jobs(self.queue(), &run.id).await
    }

    /// Ends a run early, and says how many of its jobs were cancelled. What was done is kept.
    async fn cancel(&self, run: &Run) -> Result<u64> {
        unit_jobs::cancel(self.queue(), &run.id).await
    }

    /// Lets the held jobs of a run go on, and says how many. Its queue is not paused any more.
    async fn resume(&self, run: &Run) -> Result<u64> {
        hold::open(self.queue(), &run.id, &Hold::RESUMED).await
    }

    /// Puts back what failed or was cancelled, with its checkpoint, and says how many units that are.
    async fn retry(&self, run: &Run, which: Retry) -> Result<u64> {
        match which {
            Retry::Failed => unit_jobs::retry(self.queue(), run).await,
            Retry::Part(_) => Err(which.unknown_to(self.about())),
        }
    }

    /// Goes on with a run that is started again: whatever held it may be gone, and what has no result is tried once more. Says how many
    /// units that are.
    async fn go_on(&self, run: &Run) -> Result<u64> {
        match self.standing(run).await?.state {
            RunState::Held => self.resume(run).await.map(|_| 0),
            RunState::PartlyFailed | RunState::Failed | RunState::Cancelled => {
                self.retry(run, Retry::Failed).await
            }
            RunState::Running | RunState::Paused | RunState::Completed => Ok(0),
        }
    }

    /// Deletes a run for good, and says how many jobs it had. Refused while it has not ended. Repeatable: what was cut off goes on.
    async fn remove(&self, run: &Run) -> Result<u64> {
        unit_jobs::remove(self.queue(), self.llm(), &run.id).await
    }

    /// The settings of a run, as they are shown.
    async fn settings(&self, run: &Run) -> Result<Value> {
        Ok(run.settings.to()?)
    }

    /// The parts of a run that are shown with it, from one on, at most so many.
    async fn parts(&self, _run: &Run, _first: u64, _limit: usize) -> Result<Vec<Part>> {
        Ok(Vec::new())
    }

    /// Results of a run from a place on, at most so many. Those of units that have not ended are left out.
    async fn results(&self, run: &Run, after: i64, limit: usize) -> Result<Results> {
        let page = self.queue().results(&run.id.process(), after, limit).await?;
        let items = page.items.iter().map(Json::of).collect::<longhaul_queue::Result<_>>()?;
        Ok(Results { items, next: page.next })
    }

    /// Whether results are a model's words, which are shown as they are. In other results, values under the names of secrets are hidden
    /// from callers who may not see them.
    fn results_are_answers(&self) -> bool {
        false
    }

    /// The first units of a run that failed, at most `limit`.
    async fn failures(&self, run: &Run, limit: usize) -> Result<Vec<FailedUnit>> {
        unit_jobs::failures(self.queue(), &run.id, limit).await
    }

    /// What this process does, for `/metrics`.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

/// The names of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// Its own: `prompts`.
    pub name: &'static str,
    /// Names of its runs begin so, and nobody else's do: `run-`.
    pub prefix: &'static str,
    /// Its kinds begin so, and nobody else's do: `llm.`.
    pub kind_prefix: &'static str,
    /// Queues of its jobs that belong to no run; most pipelines have none.
    pub queues: &'static [&'static str],
    /// The kind of the job that holds the settings of a run and ends it.
    pub manifest: &'static str,
    /// What one of its units is called: `request`.
    pub unit: &'static str,
}

impl About {
    /// Whether a name of one could be taken for a name of the other.
    pub fn clashes_with(&self, other: &Self) -> bool {
        let overlap = |one: &str, other: &str| one.starts_with(other) || other.starts_with(one);
        self.name == other.name
            || overlap(self.prefix, other.prefix)
            || overlap(self.kind_prefix, other.kind_prefix)
    }
}

/// What of a run is tried again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retry {
    /// All that failed.
    #[default]
    Failed,
    /// What failed in one part of it, by its number from 0.
    Part(u64),
}

impl Retry {
    /// The refusal of a pipeline whose runs have no parts.
    pub fn unknown_to(self, about: &About) -> crate::Error {
        crate::Error::Invalid(format!(
            "runs of {} have no parts: omit the part to retry everything that failed",
            about.name
        ))
    }
}

/// A figure of this process, for `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// Its name, after the program's: `score_queue_units`. Figures of one name follow each other.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Whether it only grows.
    pub counts: bool,
    /// What tells it from others of the same name.
    pub label: Option<(&'static str, &'static str)>,
    /// How much.
    pub value: f64,
}

/// A part of a run that is shown with it: a provider batch, a chunk, a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name: `chunk-0001`.
    pub name: String,
    /// The state of its job.
    pub state: State,
    /// How many units it holds.
    pub units: u64,
    /// Where it stands, and why it is not further, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What only this pipeline knows.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
}

/// A unit of a run without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedUnit {
    /// Where it is in the input.
    pub unit: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Results of a run, one JSON object for each unit, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Results {
    /// These.
    pub items: Vec<Json>,
    /// Where the next ones begin, if there may be any.
    pub next: Option<i64>,
}

/// Hears of runs. Jobs that it enqueues through the context are stored in one transaction with what it hears of.
pub trait Listener: Send + Sync {
    /// A run ends.
    fn ended(&self, context: &JobContext, status: &Status, now: Timestamp);

    /// A job of a run is held until a person acts.
    fn held(&self, context: &JobContext, held: &HeldRun<'_>, now: Timestamp);
}

/// Hears nothing.
impl Listener for () {
    fn ended(&self, _: &JobContext, _: &Status, _: Timestamp) {}

    fn held(&self, _: &JobContext, _: &HeldRun<'_>, _: Timestamp) {}
}

/// All pipelines of a program.
pub type List = Vec<Arc<dyn Pipeline>>;

#[cfg(test)]
mod tests {
    use super::About;

    #[test]
    fn names_that_could_be_taken_for_each_other_clash() {
        let about = |name, prefix, kind_prefix| About {
            name,
            prefix,
            kind_prefix,
            manifest: "m",
            unit: "u",
            queues: &[],
        };
        let ours = about("words", "words-", "words.");
        let table = [
            (about("poems", "poem-", "poem."), false),
            (about("words", "poem-", "poem."), true),
            (about("poems", "words-", "poem."), true),
            (about("poems", "words-long-", "poem."), true),
            (about("poems", "poem-", "words.poem."), true),
        ];
        for (other, clash) in table {
            assert_eq!((ours.clashes_with(&other), other.clashes_with(&ours)), (clash, clash), "{other:?}");
        }
    }
}
