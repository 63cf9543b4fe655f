//! How far a run is and what it cost: one event for bars, pages and logs. Read from the store and the ledger, so every
//! process tells the same.

use longhaul_llm::{Error as LlmError, Scope, Totals};
use longhaul_queue::State;
use serde::Serialize;

use super::gate::{self, Held, Holds};
use super::run::{Mode, Run, RunId, RunSettings};
use super::{Bulk, Result};

/// Where a run stands. `correlation_id` is its process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// The run.
    pub correlation_id: String,
    /// What it does.
    pub status: Status,
    /// For people: why it is held, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Why it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// How requests are sent.
    pub mode: Mode,
    /// All requests; 0 while they are being submitted and the number is not known.
    pub total: u64,
    /// Answered.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Being asked right now.
    pub running: u64,
    /// Waiting for a provider batch, or held.
    pub parked: u64,
    /// What was expected to be spent, in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_micros: Option<u64>,
    /// What was spent, and what may have been.
    pub spent: Totals,
}

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Requests are being answered, or can be once a worker runs.
    InProgress,
    /// Somebody paused it.
    Paused,
    /// It cannot go on by itself; `held` and `message` say why.
    Held,
    /// All requests have an answer.
    Completed,
    /// All requests have ended, some without an answer.
    Failed,
}

/// Hears of progress. It can never stop the work: it answers nothing.
pub trait Listener: Send + Sync {
    /// Called when something changed.
    fn progressed(&self, progress: &Progress);
}

/// Hears nothing.
impl Listener for () {
    fn progressed(&self, _: &Progress) {}
}

impl Progress {
    /// Where a run stands now.
    pub async fn of(bulk: &Bulk, id: &RunId, settings: &RunSettings) -> Result<Self> {
        let info = bulk.queue().process(&id.process()).await?;
        let count = |state: State| info.counts[state as usize];
        let spent = bulk.llm().ledger().totals(&Scope::run(id.as_str())).await.map_err(LlmError::from)?;
        let (total, unfinished) = (info.total(), info.unfinished());
        let (failed, cancelled) = (count(State::Failed), count(State::Cancelled));
        let (running, parked) = (count(State::Running), count(State::Parked));
        let helpers = |state: State| info.helpers[state as usize];
        let holds = match parked + helpers(State::Parked) {
            0 => Holds::default(),
            _ => gate::holds(bulk, id).await?,
        };
        let held = holds.why;
        // Batches that are under way and not held; the run's own job is blocked until the end.
        let batches = [State::Scheduled, State::Ready, State::Running, State::Parked].map(helpers);
        let moving = batches.iter().sum::<u64>() - holds.batches.min(batches[3]);
        let paused = bulk.queue().store().queues().await?;
        let paused = paused.iter().any(|queue| queue.name == id.as_str() && queue.paused);
        let waiting = count(State::Ready) + count(State::Scheduled) + running;
        let status = match held {
            _ if info.sealed && unfinished == 0 && failed + cancelled == 0 => Status::Completed,
            _ if info.sealed && unfinished == 0 => Status::Failed,
            _ if paused => Status::Paused,
            Some(_) if waiting + moving == 0 => Status::Held,
            _ => Status::InProgress,
        };
        let (held, message) = held.map_or((None, None), |(held, message)| (Some(held), Some(message)));
        Ok(Self {
            correlation_id: id.as_str().to_owned(),
            status,
            message: message.or_else(|| settings.mode_note.clone()),
            held,
            mode: settings.mode,
            total: if info.sealed { total } else { settings.source.requests.max(total) },
            completed: count(State::Succeeded),
            failed,
            cancelled,
            running,
            parked,
            estimated_micros: settings.estimate_micros,
            spent,
        })
    }

    /// Requests that have ended.
    pub fn ended(&self) -> u64 {
        self.completed + self.failed + self.cancelled
    }

    /// What the whole run will cost if it goes on as so far.
    pub fn projected_micros(&self) -> Option<u64> {
        if self.completed == 0 || self.spent.unpriced_calls > 0 {
            return None;
        }
        let spent = u128::from(self.spent.cost.0);
        u64::try_from(spent * u128::from(self.total) / u128::from(self.completed)).ok()
    }
}

/// Tells a listener of a run until it has ended or is held, and answers where it stands then.
pub async fn watch(bulk: &Bulk, run: &Run, listener: &dyn Listener) -> Result<Progress> {
    let mut changes = bulk.queue().changes();
    loop {
        changes.mark_unchanged();
        let progress = Progress::of(bulk, &run.id, &run.settings).await?;
        listener.progressed(&progress);
        match progress.status {
            Status::Completed | Status::Failed | Status::Held => return Ok(progress),
            Status::InProgress | Status::Paused => {}
        }
        // A hint that comes too often is enough once in a while, and one that does not come is not waited for.
        tokio::time::sleep(LOOK_GAP).await;
        let _ = tokio::time::timeout(LOOK_AT_LEAST, changes.changed()).await;
    }
}

/// Least and greatest time between two looks at a run.
const LOOK_GAP: std::time::Duration = std::time::Duration::from_millis(100);
const LOOK_AT_LEAST: std::time::Duration = std::time::Duration::from_secs(2);
