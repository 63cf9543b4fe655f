//! How far a run is and what it cost: one event for bars, pages and logs. Read from the store and the ledger, so every
//! process tells the same.

use std::fmt;

use longhaul_llm::{CostRange, Error as LlmError, NanoUsd, Scope, Totals};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{State, Timestamp};
use serde::Serialize;

use super::gate::{self, Held, Holds};
use super::run::{Mode, Run, RunId, RunSettings};
use super::{Bulk, Result, batch, request};

/// States of a batch that has not ended. The run's own job, a helper too, is blocked until the end.
const BATCH_STATES: [State; 4] = [State::Scheduled, State::Ready, State::Running, State::Parked];

/// Where a run stands. `correlation_id` is its process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// The run.
    pub correlation_id: String,
    /// What it does.
    pub status: Status,
    /// For people: why it is held, what it waits for, or what is missing at its end.
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
    /// What the provider said of the batches that are waited for, once one was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_provider: Option<AtProvider>,
    /// What was expected to be spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_usd: Option<NanoUsd>,
    /// The upper end of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_max_usd: Option<NanoUsd>,
    /// What was spent, and what may have been.
    pub spent: Totals,
    /// Answers and prices are made up.
    pub simulated: bool,
}

/// Batches of a run at their provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AtProvider {
    /// Answered there and not yet here.
    pub answered: u64,
    /// When the last of them was looked at.
    pub looked_at: Timestamp,
}

/// What a run does. The same words in output, events, documents and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Requests are being answered, or can be once a worker runs.
    Running,
    /// Somebody paused it.
    Paused,
    /// Nothing can be sent; `held` and `message` say why, and [`Held::ends_by_itself`] whether a person has to act.
    Held,
    /// All requests have an answer.
    Completed,
    /// All requests have ended, some without an answer.
    PartlyFailed,
    /// All requests have ended, none with an answer.
    Failed,
    /// It was cancelled; answers so far are kept.
    Cancelled,
}

impl Status {
    /// Its name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Held => "held",
            Self::Completed => "completed",
            Self::PartlyFailed => "partly_failed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether all requests have ended.
    pub const fn is_end(self) -> bool {
        match self {
            Self::Completed | Self::PartlyFailed | Self::Failed | Self::Cancelled => true,
            Self::Running | Self::Paused | Self::Held => false,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Hears of progress. It can never stop the work: it answers nothing.
pub trait Listener: Send + Sync {
    /// Called for each request that ended, where they are sent one by one; for each look at the provider's batches, where
    /// they are not; and when anything else changed. Who shows it to people shows as much of it as they can follow.
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
        // Batches that are under way and not held.
        let batches = BATCH_STATES.map(helpers);
        let moving = batches.iter().sum::<u64>() - holds.batches.min(batches[3]);
        let paused = bulk.queue().store().queues().await?;
        let paused = paused.iter().any(|queue| queue.name == id.as_str() && queue.settings.paused);
        let waiting = count(State::Ready) + count(State::Scheduled) + running;
        let completed = count(State::Succeeded);
        let status = match held {
            _ if info.sealed && unfinished == 0 => end(completed, failed, cancelled),
            _ if paused => Status::Paused,
            // In an outage others wait for their turn to find out.
            Some((Held::Outage, _)) => Status::Held,
            Some(_) if waiting + moving == 0 => Status::Held,
            _ => Status::Running,
        };
        let (held, message) = held.map_or((None, None), |(held, message)| (Some(held), Some(message)));
        let message = match status.is_end() {
            true => last_word(bulk, id, (completed, failed, cancelled)).await?,
            false => message,
        };
        let at_provider = if moving > 0 { AtProvider::of(bulk, id).await? } else { None };
        Ok(Self {
            correlation_id: id.as_str().to_owned(),
            status,
            message: message.or_else(|| settings.mode_note.clone()),
            held,
            mode: settings.mode,
            total: if info.sealed { total } else { settings.source.requests.max(total) },
            completed,
            failed,
            cancelled,
            running,
            parked,
            at_provider,
            estimated_usd: settings.expected.and_then(|expected| expected.cost_usd),
            estimated_max_usd: settings.expected.and_then(|expected| expected.cost_max_usd),
            spent,
            simulated: bulk.llm().is_simulated(&settings.profile, &settings.model),
        })
    }

    /// Whether nothing more happens by itself: it has ended, or a person has to act.
    pub fn is_over(&self) -> bool {
        let waits = |held: Held| !held.ends_by_itself();
        self.status.is_end() || (self.status == Status::Held && self.held.is_none_or(waits))
    }

    /// What it was expected to cost.
    pub fn estimated(&self) -> Option<CostRange> {
        Some(CostRange { low: self.estimated_usd?, high: self.estimated_max_usd? })
    }

    /// Requests that have ended.
    pub fn ended(&self) -> u64 {
        self.completed + self.failed + self.cancelled
    }

    /// The count in which this is behind a later look. A run that was retried since has gone back: there is none then.
    fn next_ended(&mut self, later: &Self) -> Option<&mut u64> {
        let counts = [
            (&mut self.completed, later.completed),
            (&mut self.failed, later.failed),
            (&mut self.cancelled, later.cancelled),
        ];
        counts.into_iter().find_map(|(count, later)| (*count < later).then_some(count))
    }

    /// What the whole run will cost if it goes on as so far.
    pub fn projected(&self) -> Option<NanoUsd> {
        if self.completed == 0 || self.spent.unpriced_calls > 0 {
            return None;
        }
        Some(self.spent.cost.scaled(self.total as f64 / self.completed as f64))
    }
}

/// How a run has ended.
fn end(completed: u64, failed: u64, cancelled: u64) -> Status {
    match (completed, failed, cancelled) {
        (_, 0, 0) => Status::Completed,
        (_, _, 1..) => Status::Cancelled,
        (0, _, 0) => Status::Failed,
        (_, _, 0) => Status::PartlyFailed,
    }
}

/// What is missing at the end of a run, and why; nothing where nothing is.
async fn last_word(
    bulk: &Bulk,
    run: &RunId,
    (completed, failed, cancelled): (u64, u64, u64),
) -> Result<Option<String>> {
    let total = completed + failed + cancelled;
    let mut parts = Vec::new();
    if failed > 0 {
        let filter = Filter {
            states: vec![State::Failed],
            kind: Some(request::KIND.to_owned()),
            process_id: Some(run.process()),
            ..Filter::default()
        };
        let first = ListRequest { filter, newest_first: false, cursor: None, limit: 1 };
        let first = bulk.queue().list(first).await?.items.pop().and_then(|job| job.error);
        let why = first.map_or_else(String::new, |error| format!(", the first with: {}", error.text));
        parts.push(format!("{failed} of {total} requests failed{why}"));
    }
    if cancelled > 0 {
        parts.push(format!("{cancelled} of {total} requests were cancelled"));
    }
    Ok((!parts.is_empty()).then(|| parts.join("; ")))
}

impl AtProvider {
    async fn of(bulk: &Bulk, run: &RunId) -> Result<Option<Self>> {
        let filter = Filter {
            states: BATCH_STATES.to_vec(),
            kind: Some(batch::KIND.to_owned()),
            process_id: Some(run.process()),
            ..Filter::default()
        };
        let batches = ListRequest { filter, newest_first: false, cursor: None, limit: PAGE_MAX };
        let batches = bulk.queue().list(batches).await?.items.iter().map(|job| job.id).collect();
        let batches = bulk.queue().store().get(batches).await?;
        let said: Vec<_> = batches.iter().filter_map(|batch| batch.progress.as_ref()).collect();
        let looked_at = said.iter().map(|said| said.at).max();
        Ok(looked_at.map(|looked_at| Self { answered: said.iter().map(|said| said.done).sum(), looked_at }))
    }
}

/// Tells a listener of a run until it has ended or cannot go on by itself, and answers where it stands then.
pub async fn watch(bulk: &Bulk, run: &Run, listener: &dyn Listener) -> Result<Progress> {
    let mut changes = bulk.queue().changes();
    let mut told = None;
    loop {
        changes.mark_unchanged();
        let progress = Progress::of(bulk, &run.id, &run.settings).await?;
        tell(listener, told.replace(progress.clone()), &progress);
        if progress.is_over() {
            return Ok(progress);
        }
        // A hint that comes too often is enough once in a while, and one that does not come is not waited for.
        tokio::time::sleep(LOOK_GAP).await;
        let _ = tokio::time::timeout(LOOK_AT_LEAST, changes.changed()).await;
    }
}

/// Tells what is new. Requests that ended between two looks are told of one by one, where they were sent so; what was
/// spent is known as of the last of them.
fn tell(listener: &dyn Listener, told: Option<Progress>, now: &Progress) {
    let Some(mut step) = told else { return listener.progressed(now) };
    if step == *now {
        return;
    }
    if now.mode == Mode::Sync {
        while let Some(ended) = step.next_ended(now) {
            *ended += 1;
            if step.ended() >= now.ended() {
                break;
            }
            listener.progressed(&step);
        }
    }
    listener.progressed(now);
}

/// Least and greatest time between two looks at a run.
const LOOK_GAP: std::time::Duration = std::time::Duration::from_millis(100);
const LOOK_AT_LEAST: std::time::Duration = std::time::Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Progress>>);

    impl Listener for Heard {
        fn progressed(&self, progress: &Progress) {
            self.0.lock().unwrap().push(progress.clone());
        }
    }

    fn stands(mode: Mode, completed: u64, failed: u64) -> Progress {
        Progress {
            correlation_id: "run".to_owned(),
            status: Status::Running,
            message: None,
            held: None,
            mode,
            total: 10,
            completed,
            failed,
            cancelled: 0,
            running: 0,
            parked: 0,
            at_provider: None,
            estimated_usd: None,
            estimated_max_usd: None,
            spent: Totals::default(),
            simulated: false,
        }
    }

    /// What is told between two looks, as (completed, failed).
    fn told(before: Progress, now: &Progress) -> Vec<(u64, u64)> {
        let heard = Heard::default();
        tell(&heard, Some(before), now);
        let heard = heard.0.into_inner().unwrap();
        assert!(heard.is_empty() || heard.last() == Some(now));
        heard.iter().map(|event| (event.completed, event.failed)).collect()
    }

    #[test]
    fn requests_sent_alone_are_told_of_one_by_one() {
        let sync = |completed, failed| stands(Mode::Sync, completed, failed);
        assert_eq!(told(sync(1, 0), &sync(3, 1)), [(2, 0), (3, 0), (3, 1)]);
        assert_eq!(told(sync(3, 1), &sync(3, 1)), [], "no news");
        assert_eq!(told(sync(3, 2), &sync(4, 0)), [(4, 0)], "failed ones were put back");
        let busy = Progress { running: 4, ..sync(3, 1) };
        assert_eq!(told(sync(3, 1), &busy), [(3, 1)]);
    }

    #[test]
    fn each_look_at_a_batch_is_told_of_once() {
        let batch = |completed| stands(Mode::Batch, completed, 0);
        assert_eq!(told(batch(0), &batch(5)), [(5, 0)]);
        let looked = |millis| {
            let looked_at = Timestamp::from_millis(millis);
            Progress { at_provider: Some(AtProvider { answered: 2, looked_at }), ..batch(0) }
        };
        assert_eq!(told(batch(0), &looked(1)), [(0, 0)]);
        assert_eq!(told(looked(1), &looked(2)), [(0, 0)], "nothing more was answered, but it was looked at");
        assert_eq!(told(looked(2), &looked(2)), []);
    }
}
