//! Runs that happen elsewhere: a worker that is no [`crate::Worker`], in any language, claims, saves and settles through somebody
//! who holds the store. This is the door for the last of these: it judges the end of such a run as the executor judges those of
//! its own, by [`state::settle`] with the job's own policy, so that nobody else has to know when a retry becomes a failure.
//!
//! Limits of a kind live in workers. One that is not ours has none to tell, so the job's own and the defaults count.

use crate::client::Queue;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::executor;
use crate::job::{Job, Lease, NewJob};
use crate::json::Json;
use crate::limits::Limits;
use crate::state::{self, Event, JobError, Outcome, Policy, Reason};
use crate::store::SettleItem;

/// The end of a run, as its worker tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The right to end it.
    pub lease: Lease,
    /// How it ended.
    pub event: Event,
    /// Jobs that it enqueues; dropped when the run will be repeated, since its repetition enqueues them again.
    pub follow_ups: Vec<NewJob>,
    /// What it used, for the history.
    pub usage: Option<Json>,
}

/// What the end of a run does to its job. `job` is the job as it is stored now; `jitter` is drawn from 0..1. Fails when the
/// follow-up jobs cannot be stored.
pub fn settle(job: &Job, ended: Ended, limits: &Limits, now: Timestamp, jitter: f64) -> Result<SettleItem> {
    let Ended { lease, event, follow_ups, usage } = ended;
    let event = match event {
        Event::Outcome(outcome) => Event::Outcome(executor::within_bounds(limits, outcome)),
        event @ (Event::Crash | Event::Release | Event::Cancel) => event,
    };
    let follow_ups =
        if executor::is_repeated(&event) { Vec::new() } else { prepared(job, follow_ups, limits, now)? };
    let policy = Policy::default().with(&job.options);
    let mut settlement = state::settle(event, job.spent, &policy, now, jitter);
    settlement.usage = usage;
    Ok(SettleItem { lease, settlement, follow_ups })
}

/// The end of a run that its worker has had time enough for, if that is so: it is settled as the executor would.
pub fn over_its_time(job: &Job, now: Timestamp) -> Option<Event> {
    let limit = Policy::default().with(&job.options).run_limit;
    let started_at = job.started_at?;
    if now < started_at + limit {
        return None;
    }
    let error = JobError::new(Reason::RunLimit, format!("ran longer than {limit:?}"));
    Some(Event::Outcome(Outcome::Retry { error, after: None, data: None }))
}

fn prepared(job: &Job, mut follow_ups: Vec<NewJob>, limits: &Limits, now: Timestamp) -> Result<Vec<NewJob>> {
    for follow_up in &mut follow_ups {
        follow_up.options.parent_id.get_or_insert(job.id);
        if follow_up.options.trace.is_none() {
            follow_up.options.trace.clone_from(&job.options.trace);
        }
    }
    Queue::prepare_jobs(follow_ups, limits, now)
}

#[cfg(test)]
#[path = "remote/tests.rs"]
mod tests;
