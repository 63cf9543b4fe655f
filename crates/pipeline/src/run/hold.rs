//! What stops a whole run: a budget, a key, a quota, an outage. Its jobs are parked instead of failing one by one, and [`open`]
//! lets them go on when the cause is gone.

use std::fmt;

use longhaul_queue::job::Wake;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::Park;
use longhaul_queue::store::{Filter, ListRequest, Page, Signal};
use longhaul_queue::{Job, JobContext, JobId, Json, Outcome, Queue, State};
use serde::{Deserialize, Serialize};

use super::RunId;
use crate::Result;

/// Parked jobs that are looked at to tell why a run is held.
const LOOKED_AT_MAX: usize = 20;

/// Why a run is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The next call might exceed a limit on spending.
    Budget,
    /// The provider does not accept the key.
    Auth,
    /// The account is out of money or of its daily quota.
    Quota,
    /// The provider does not answer. Goes on by itself.
    Outage,
    /// The provider does not take a batch of this size.
    BatchLimit,
    /// A batch's fate is unknown, and a person must decide.
    Ambiguous,
    /// Results cannot be written where they belong.
    Sink,
}

impl Hold {
    /// Every reason.
    pub const ALL: [Self; 7] =
        [Self::Budget, Self::Auth, Self::Quota, Self::Outage, Self::BatchLimit, Self::Ambiguous, Self::Sink];
    /// Causes that may be gone at the next attempt; a batch whose fate is unknown needs a decision.
    pub const RESUMED: [Self; 6] =
        [Self::Budget, Self::Auth, Self::Quota, Self::Outage, Self::BatchLimit, Self::Sink];

    /// Whether the run goes on by itself when the cause is gone.
    pub const fn ends_by_itself(self) -> bool {
        match self {
            Self::Outage => true,
            Self::Budget | Self::Auth | Self::Quota | Self::BatchLimit | Self::Ambiguous | Self::Sink => {
                false
            }
        }
    }

    /// Its name in output and keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Auth => "auth",
            Self::Quota => "quota",
            Self::Outage => "outage",
            Self::BatchLimit => "batch_limit",
            Self::Ambiguous => "ambiguous",
            Self::Sink => "sink",
        }
    }

    /// What jobs of a run wait for when they are held for this.
    pub fn key(self, run: &RunId) -> String {
        format!("{run}/{}", self.as_str())
    }

    /// The reason in a key of a run.
    pub fn of_key(run: &RunId, key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hold| hold.key(run) == key)
    }

    /// The reason for which a job of a run is held.
    pub fn of_job(run: &RunId, job: &Job) -> Option<Self> {
        Self::of_key(run, &job.park.as_ref()?.key)
    }

    /// The answer of a job that is held until somebody resumes its run. `state` is kept, and the message beside it.
    pub fn outcome<T: Serialize>(self, run: &RunId, message: &str, state: &T) -> Result<Outcome> {
        let park = Park { key: self.key(run), until: None, on_timeout: Default::default() };
        outcome_at(park, message, state)
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The same, for as long as `park` says.
pub fn outcome_at<T: Serialize>(park: Park, message: &str, state: &T) -> Result<Outcome> {
    let mut data = serde_json::to_value(state).unwrap_or_default();
    if !data.is_object() {
        data = serde_json::Value::Object(serde_json::Map::new());
    }
    if let Some(fields) = data.as_object_mut() {
        fields.insert("held".to_owned(), message.into());
    }
    Ok(Outcome::Park { park, data: Some(Json::of(&data)?) })
}

/// What a held job remembers beside its own state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldNote {
    /// What happened, for people.
    pub held: String,
}

/// A run whose jobs are held, as it is told.
#[derive(Debug, Clone, Copy)]
pub struct HeldRun<'a> {
    /// Which.
    pub run: &'a RunId,
    /// Why.
    pub hold: Hold,
    /// The last time that it was resumed, as a number; 0 before the first. Each job that is held tells of it: those of one run,
    /// reason and opening are one and the same news.
    pub opening: u64,
}

/// What a held job is told when its run is resumed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Resumed {
    /// Names the opening: clocks of several processes do not agree on which was the last.
    pub resume: u64,
}

/// The opening that a job has come through, if it was held before.
pub fn opening(context: &JobContext) -> u64 {
    let Some(Wake::Signal(value)) = context.wake() else { return 0 };
    value.to::<Resumed>().map_or(0, |resumed| resumed.resume)
}

/// Why a run is held, with the message of one of its jobs; `None` when none of those that were looked at is.
pub async fn why(queue: &Queue, run: &RunId) -> Result<Option<(Hold, String)>> {
    let jobs = parked(queue, run, None, None, LOOKED_AT_MAX).await?.items;
    why_of(queue, run, &jobs).await
}

/// The same, among these jobs.
pub async fn why_of(queue: &Queue, run: &RunId, jobs: &[Job]) -> Result<Option<(Hold, String)>> {
    let held = jobs.iter().find_map(|job| Some((job.id, Hold::of_job(run, job)?)));
    let Some((id, hold)) = held else { return Ok(None) };
    let note = queue.get(id).await?.data.and_then(|data| data.to::<HeldNote>().ok());
    Ok(Some((hold, note.map_or_else(|| hold.to_string(), |note| note.held))))
}

/// Lets the jobs of a run go on that are held for these reasons, and says how many.
pub async fn open(queue: &Queue, run: &RunId, reasons: &[Hold]) -> Result<u64> {
    let parked_now =
        queue.store().process(run.process()).await?.is_some_and(|info| {
            info.counts[State::Parked as usize] + info.helpers[State::Parked as usize] > 0
        });
    if !parked_now {
        return Ok(0);
    }
    let mut opened = 0;
    let mut cursor = None;
    let resumed = Json::of(&Resumed { resume: fastrand::u64(..) })?;
    loop {
        let page = parked(queue, run, None, cursor, PAGE_MAX).await?;
        for hold in reasons {
            let key = hold.key(run);
            let waits = |job: &&Job| job.park.as_ref().is_some_and(|park| park.key == key);
            let ids: Vec<JobId> = page.items.iter().filter(waits).map(|job| job.id).collect();
            if !ids.is_empty() {
                let signal = Signal::Resume(resumed.clone());
                opened += queue.unpark_waiting(&key, ids, signal).await?.jobs.len() as u64;
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(opened);
        }
    }
}

/// Parked jobs of a run, of one kind if so wanted.
pub async fn parked(
    queue: &Queue,
    run: &RunId,
    kind: Option<&str>,
    cursor: Option<i64>,
    limit: usize,
) -> Result<Page<Job>> {
    let filter = Filter {
        states: vec![State::Parked],
        kind: kind.map(str::to_owned),
        process_id: Some(run.process()),
        ..Filter::default()
    };
    Ok(queue.list(ListRequest { filter, newest_first: false, cursor, limit }).await?)
}
