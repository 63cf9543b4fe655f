//! How far a run is and what it cost: one event for bars, pages and logs. Read from the store and the ledger, so every
//! process tells the same.

use longhaul_llm::{Error as LlmError, Scope, Totals};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{State, Timestamp};
use serde::Serialize;

use super::gate::{self, Held, Holds};
use super::run::{Mode, Run, RunId, RunSettings};
use super::{Bulk, Result, batch};

/// States of a batch that has not ended. The run's own job, a helper too, is blocked until the end.
const BATCH_STATES: [State; 4] = [State::Scheduled, State::Ready, State::Running, State::Parked];

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
    /// What the provider said of the batches that are waited for, once one was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_provider: Option<AtProvider>,
    /// What was expected to be spent, in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_micros: Option<u64>,
    /// What was spent, and what may have been.
    pub spent: Totals,
}

/// Batches of a run at their provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AtProvider {
    /// Answered there and not yet here.
    pub answered: u64,
    /// When the last of them was looked at.
    pub looked_at: Timestamp,
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
        let status = match held {
            _ if info.sealed && unfinished == 0 && failed + cancelled == 0 => Status::Completed,
            _ if info.sealed && unfinished == 0 => Status::Failed,
            _ if paused => Status::Paused,
            Some(_) if waiting + moving == 0 => Status::Held,
            _ => Status::InProgress,
        };
        let (held, message) = held.map_or((None, None), |(held, message)| (Some(held), Some(message)));
        let at_provider = if moving > 0 { AtProvider::of(bulk, id).await? } else { None };
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
            at_provider,
            estimated_micros: settings.estimate_micros,
            spent,
        })
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
    pub fn projected_micros(&self) -> Option<u64> {
        if self.completed == 0 || self.spent.unpriced_calls > 0 {
            return None;
        }
        let spent = u128::from(self.spent.cost.0);
        u64::try_from(spent * u128::from(self.total) / u128::from(self.completed)).ok()
    }
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

/// Tells a listener of a run until it has ended or is held, and answers where it stands then.
pub async fn watch(bulk: &Bulk, run: &Run, listener: &dyn Listener) -> Result<Progress> {
    let mut changes = bulk.queue().changes();
    let mut told = None;
    loop {
        changes.mark_unchanged();
        let progress = Progress::of(bulk, &run.id, &run.settings).await?;
        tell(listener, told.replace(progress.clone()), &progress);
        match progress.status {
            Status::Completed | Status::Failed | Status::Held => return Ok(progress),
            Status::InProgress | Status::Paused => {}
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
            status: Status::InProgress,
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
            estimated_micros: None,
            spent: Totals::default(),
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
