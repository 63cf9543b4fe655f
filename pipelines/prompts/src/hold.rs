//! How runs of prompts are held. An outage ends by itself: each request that waits for its end has a time at which it looks,
//! and the first that is answered lets the others go on.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_llm::Scope;
use longhaul_pipeline::run::hold::{self, HeldRun, Hold, Resumed};
use longhaul_queue::job::Wake;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{OnTimeout, Park};
use longhaul_queue::{JobContext, Outcome};
use serde::Serialize;

use super::{LiveRun, Prompts, Result, RunId, RunSettings, batch, request};

/// In an outage, how much later than the first the others look whether it is over: longer than such a look may take.
const LOOK_LATER: Duration = Duration::from_secs(15);
/// Parked requests that are looked at to tell why a run is held.
const LOOKED_AT_MAX: usize = 20;

/// Where spending of a run is counted, and may be limited.
pub(super) fn scopes(id: &RunId, settings: &RunSettings) -> Vec<Scope> {
    let mut scopes = vec![Scope::run(id.as_str())];
    scopes.extend(settings.tags.iter().map(Scope::tag));
    scopes
}

/// A job of a run that is to be held, and who hears of it.
#[derive(Clone, Copy)]
pub(super) struct Holding<'a> {
    pub(super) prompts: &'a Prompts,
    pub(super) live: &'a LiveRun,
    pub(super) context: &'a JobContext,
}

impl Holding<'_> {
    /// The answer of the job. `state` is kept, and the message beside it.
    pub(super) fn hold<T: Serialize>(self, hold: Hold, message: &str, state: &T) -> Result<Outcome> {
        let park = Park { key: hold.key(&self.live.id), until: None, on_timeout: Default::default() };
        self.hold_at(hold, park, message, state)
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
        let until = self.prompts.queue().clock().now() + look_in;
        let key = Hold::Outage.key(&self.live.id);
        let park = Park { key, until: Some(until), on_timeout: OnTimeout::Resume };
        self.hold_at(Hold::Outage, park, message, state)
    }

    /// The same, for as long as `park` says.
    pub(super) fn hold_at<T: Serialize>(
        self,
        hold: Hold,
        park: Park,
        message: &str,
        state: &T,
    ) -> Result<Outcome> {
        if !hold.ends_by_itself() {
            let opening = self.live.openings.lock().unwrap_or_else(PoisonError::into_inner).last;
            let now = self.prompts.queue().clock().now();
            let held = HeldRun { run: &self.live.id, hold, opening };
            self.prompts.listener.held(self.context, &held, now);
        }
        hold::outcome_at(park, message, state)
    }
}

/// The openings of a gate that a process has heard of.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    heard: HashSet<u64>,
    last: u64,
}

/// What is held of a run.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// The first reason found, with its message.
    pub(super) why: Option<(Hold, String)>,
    /// Batches that are held.
    pub(super) batches: u64,
}

/// Looks for what is held. Batches first: there are few, and while one is under way its requests are parked and not
/// held. When none is left, whatever is parked is held.
pub(super) async fn holds(prompts: &Prompts, run: &RunId) -> Result<Holds> {
    let queue = prompts.queue();
    let batches = hold::parked(queue, run, Some(batch::KIND), None, PAGE_MAX).await?.items;
    let held = batches.iter().filter(|job| Hold::of_job(run, job).is_some()).count() as u64;
    let why = match (held, batches.is_empty()) {
        (0, true) => {
            let requests = hold::parked(queue, run, Some(request::KIND), None, LOOKED_AT_MAX).await?.items;
            hold::why_of(queue, run, &requests).await?
        }
        _ => hold::why_of(queue, run, &batches).await?,
    };
    Ok(Holds { why, batches: held })
}

/// Lets everybody through after an outage. Called with each answer, since that is what shows that it is over; unless it was
/// on its way before the provider went away.
pub(super) async fn outage_ended(prompts: &Prompts, live: &LiveRun) -> Result<()> {
    if !live.is_out() && live.in_outage.swap(false, Ordering::AcqRel) {
        hold::open(prompts.queue(), &live.id, &[Hold::Outage]).await?;
    }
    Ok(())
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
