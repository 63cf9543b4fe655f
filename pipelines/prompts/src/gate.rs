//! What stops a whole run: a budget, a key, a quota, an outage. Its requests are parked at a gate instead of failing one by
//! one, and [`open`] lets them through when the cause is gone. An outage opens by itself: each request that waits for its end
//! has a time at which it looks, and the first that is answered lets the others through.

use std::collections::HashSet;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_llm::Scope;
use longhaul_queue::job::Wake;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{OnTimeout, Park};
use longhaul_queue::store::{Filter, ListRequest, Page, Signal};
use longhaul_queue::{Job, JobContext, JobId, Json, Outcome, State};
use serde::{Deserialize, Serialize};

use super::{Bulk, LiveRun, Result, RunId, RunSettings, batch, request};

/// In an outage, how much later than the first the others look whether it is over: longer than such a look may take.
const LOOK_LATER: Duration = Duration::from_secs(15);
/// Parked requests that are looked at to tell why a run is held.
const LOOKED_AT_MAX: usize = 20;

/// Why a run is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
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
}

impl Held {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::Budget, Self::Auth, Self::Quota, Self::Outage, Self::BatchLimit, Self::Ambiguous];
    /// Causes that may be gone at the next attempt; a batch whose fate is unknown needs a decision.
    pub const RESUMED: [Self; 5] = [Self::Budget, Self::Auth, Self::Quota, Self::Outage, Self::BatchLimit];

    /// Whether the run goes on by itself when the cause is gone.
    pub const fn ends_by_itself(self) -> bool {
        match self {
            Self::Outage => true,
            Self::Budget | Self::Auth | Self::Quota | Self::BatchLimit | Self::Ambiguous => false,
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
        }
    }

    /// What jobs of a run wait for when they are held for this.
    pub fn key(self, run: &RunId) -> String {
        format!("{run}/{}", self.as_str())
    }

    /// The reason in a key of a run.
    pub fn of_key(run: &RunId, key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|held| held.key(run) == key)
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a held job remembers beside its own state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldNote {
    /// What happened, for people.
    pub held: String,
}

/// Where spending of a run is counted, and may be limited.
pub(super) fn scopes(id: &RunId, settings: &RunSettings) -> Vec<Scope> {
    let mut scopes = vec![Scope::run(id.as_str())];
    scopes.extend(settings.tags.iter().map(Scope::tag));
    scopes
}

/// A job of a run that is to be held, and who hears of it.
#[derive(Clone, Copy)]
pub(super) struct Holding<'a> {
    pub(super) bulk: &'a Bulk,
    pub(super) live: &'a LiveRun,
    pub(super) context: &'a JobContext,
}

impl Holding<'_> {
    /// The answer of the job. `state` is kept, and the message beside it.
    pub(super) fn hold<T: Serialize>(self, held: Held, message: &str, state: &T) -> Result<Outcome> {
        let park = Park { key: held.key(&self.live.id), until: None, on_timeout: Default::default() };
        self.hold_at(held, park, message, state)
    }

    /// Held until the outage is over, or for so long: then it looks for itself. Only the first does so as soon as it may; others
    /// wait until the one that looks has come back, so that the run is seen to be held meanwhile.
    pub(super) fn hold_in_outage<T: Serialize>(
        self,
        probe_in: Duration,
        message: &str,
        state: &T,
    ) -> Result<Outcome> {
        let is_first = !self.live.in_outage.swap(true, Ordering::AcqRel);
        let look_in = if is_first { probe_in } else { probe_in + LOOK_LATER };
        let until = self.bulk.queue().clock().now() + look_in;
        let key = Held::Outage.key(&self.live.id);
        let park = Park { key, until: Some(until), on_timeout: OnTimeout::Resume };
        self.hold_at(Held::Outage, park, message, state)
    }

    /// The same, for as long as `park` says.
    pub(super) fn hold_at<T: Serialize>(
        self,
        held: Held,
        park: Park,
        message: &str,
        state: &T,
    ) -> Result<Outcome> {
        let mut data = serde_json::to_value(state).unwrap_or_default();
        if let Some(fields) = data.as_object_mut() {
            fields.insert("held".to_owned(), message.into());
        }
        if let Some(heard) = self.bulk.held.as_ref().filter(|_| !held.ends_by_itself()) {
            let opening = self.live.openings.lock().unwrap_or_else(PoisonError::into_inner).last;
            let now = self.bulk.queue().clock().now();
            heard(self.context, &HeldRun { run: &self.live.id, held, opening }, now);
        }
        Ok(Outcome::Park { park, data: Some(Json::of(&data)?) })
    }
}

/// A run whose jobs are held, as it is told.
#[derive(Debug, Clone, Copy)]
pub struct HeldRun<'a> {
    /// Which.
    pub run: &'a RunId,
    /// Why.
    pub held: Held,
    /// The last opening of its gate that was heard of; 0 before the first. Each job that is held tells of it: those of one run, reason
    /// and opening are one and the same news.
    pub opening: u64,
}

/// The openings of a gate that a process has heard of.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    heard: HashSet<u64>,
    last: u64,
}

/// Why a run is held, with the message of one of its jobs; `None` when it is not.
pub async fn why(bulk: &Bulk, run: &RunId) -> Result<Option<(Held, String)>> {
    Ok(holds(bulk, run).await?.why)
}

/// What is held of a run.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// The first reason found, with its message.
    pub(super) why: Option<(Held, String)>,
    /// Batches that are held.
    pub(super) batches: u64,
}

/// Looks for what is held. Batches first: there are few, and while one is under way its requests are parked and not
/// held. When none is left, whatever is parked is held.
pub(super) async fn holds(bulk: &Bulk, run: &RunId) -> Result<Holds> {
    let batches = parked(bulk, run, Some(batch::KIND), None, PAGE_MAX).await?.items;
    let of_batches: Vec<_> = batches.iter().filter_map(|job| held_job(run, job)).collect();
    let mut first = of_batches.first().copied();
    if first.is_none() && batches.is_empty() {
        let requests = parked(bulk, run, Some(request::KIND), None, LOOKED_AT_MAX).await?.items;
        first = requests.iter().find_map(|job| held_job(run, job));
    }
    let why = match first {
        Some((id, held)) => {
            let detail = bulk.queue().get(id).await?;
            let note = detail.data.and_then(|data| data.to::<HeldNote>().ok());
            Some((held, note.map_or_else(|| held.to_string(), |note| note.held)))
        }
        None => None,
    };
    Ok(Holds { why, batches: of_batches.len() as u64 })
}

fn held_job(run: &RunId, job: &Job) -> Option<(JobId, Held)> {
    Some((job.id, Held::of_key(run, &job.park.as_ref()?.key)?))
}

/// Lets the held jobs of a run go on, and says how many.
pub async fn open(bulk: &Bulk, run: &RunId, reasons: &[Held]) -> Result<u64> {
    let parked_now =
        bulk.queue().store().process(run.process()).await?.is_some_and(|info| {
            info.counts[State::Parked as usize] + info.helpers[State::Parked as usize] > 0
        });
    if !parked_now {
        return Ok(0);
    }
    let mut opened = 0;
    let mut cursor = None;
    let resumed = Json::of(&Resumed { resume: fastrand::u64(..) })?;
    loop {
        let page = parked(bulk, run, None, cursor, PAGE_MAX).await?;
        for held in reasons {
            let key = held.key(run);
            let waits = |park: &Park| park.key == key;
            let ids: Vec<JobId> = page
                .items
                .iter()
                .filter(|job| job.park.as_ref().is_some_and(waits))
                .map(|job| job.id)
                .collect();
            if !ids.is_empty() {
                let signal = Signal::Resume(resumed.clone());
                opened += bulk.queue().unpark_waiting(&key, ids, signal).await?.jobs.len() as u64;
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(opened);
        }
    }
}

/// Lets everybody through after an outage. Called with each answer, since that is what shows that it is over; unless it was
/// on its way before the provider went away.
pub(super) async fn outage_ended(bulk: &Bulk, live: &LiveRun) -> Result<()> {
    if !live.is_out() && live.in_outage.swap(false, Ordering::AcqRel) {
        open(bulk, &live.id, &[Held::Outage]).await?;
    }
    Ok(())
}

/// What a held job is told when the gate opens.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Resumed {
    /// Names the opening: clocks of several processes do not agree on which was the last.
    resume: u64,
}

/// Reopens the routes of a run for a request that comes through the gate. Whoever opened it may be another process, which
/// cannot reach the routes of this one; the first request that tells of it does.
pub(super) fn passed(context: &JobContext, live: &LiveRun) {
    let Some(Wake::Signal(value)) = context.wake() else { return };
    let Ok(Resumed { resume }) = value.to() else { return };
    let mut openings = live.openings.lock().unwrap_or_else(PoisonError::into_inner);
    if openings.heard.insert(resume) {
        openings.last = resume;
        live.route.reopen();
        if let Some(fallback) = &live.fallback {
            fallback.reopen();
        }
    }
}

async fn parked(
    bulk: &Bulk,
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
    Ok(bulk.queue().list(ListRequest { filter, newest_first: false, cursor, limit }).await?)
}
