//! Ended runs on their way to the store. A result is kept, and its lease renewed, until the store has answered.

use std::sync::Arc;

use tracing::{error, warn};

use crate::error::{Error, Result};
use crate::executor::{self, Ended};
use crate::live_run::{LiveRun, LiveRuns};
use crate::logs::SLICE;
use crate::state::{Event, JobError, Outcome, Reason, RunOutcome, State};
use crate::store::{SettleItem, Settled};

use super::options::WorkerReport;

/// A run that has ended, and what the store is to be told of it.
pub(super) type Unsettled = (Arc<LiveRun>, SettleItem);

/// Results that are to be sent to the store, and the tally of those that it has taken.
pub(super) struct Settling {
    runs: Arc<LiveRuns>,
    unsettled: Vec<Unsettled>,
    /// The store refused a whole batch for one of its members: find out which.
    one_by_one: bool,
    pub(super) report: WorkerReport,
}

impl Settling {
    pub(super) fn new(runs: Arc<LiveRuns>) -> Self {
        Self { runs, unsettled: Vec::new(), one_by_one: false, report: WorkerReport::default() }
    }

    /// Takes an ended run. One without an item was lost: its outcome counts nowhere.
    pub(super) fn add(&mut self, ended: Ended) {
        match ended.item {
            Some(item) => self.unsettled.push((ended.run, item)),
            None => self.lost(&ended.run),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// What to send next.
    pub(super) fn take(&mut self) -> Vec<Unsettled> {
        let count = if self.one_by_one { 1 } else { self.unsettled.len() };
        self.unsettled.drain(..count.min(self.unsettled.len())).collect()
    }

    /// Takes the store's answer to what was sent; what it has not taken is to be sent again.
    pub(super) fn answered(&mut self, sent: Vec<Unsettled>, answer: Result<Vec<Settled>>) -> Result<()> {
        let count = sent.len();
        match answer {
            Ok(replies) => {
                self.one_by_one = false;
                self.apply(sent, replies);
                Ok(())
            }
            Err(error) if error.is_transient() => {
                self.unsettled.splice(..0, sent);
                Err(error)
            }
            Err(error) if count > 1 => {
                warn!(%error, count, "settlements refused together, settling one by one");
                self.one_by_one = true;
                self.unsettled.splice(..0, sent);
                Ok(())
            }
            Err(error) => {
                // Nothing can be done for it here: its lease runs out and the rescuer takes it back.
                for (run, _) in sent {
                    error!(job_id = %run.job.id, %error, "settlement refused, the outcome is dropped");
                    run.services.engine.outages().suspect();
                    self.runs.remove(std::iter::once(&run.lease));
                }
                Ok(())
            }
        }
    }

    fn apply(&mut self, answered: Vec<Unsettled>, replies: Vec<Settled>) {
        self.runs.remove(answered.iter().zip(&replies).filter_map(|((run, _), reply)| match reply {
            Settled::Applied(_) | Settled::LostLease => Some(&run.lease),
            Settled::Refused(_) => None,
        }));
        for ((run, item), reply) in answered.into_iter().zip(replies) {
            match reply {
                Settled::Applied(state) => {
                    self.report.count(state, item.settlement.outcome);
                    if state == State::Failed {
                        let reason = item.settlement.error.as_ref().map(|error| error.reason.as_str());
                        warn!(slice = SLICE, job_id = %run.job.id, kind = run.job.kind, reason, "job failed for good");
                    }
                }
                Settled::LostLease => self.lost(&run),
                Settled::Refused(error) => {
                    let item = refused(&run, item, &error);
                    self.unsettled.push((run, item));
                }
            }
        }
    }

    /// Drops what the store does not take, and says how many results are lost with it.
    pub(super) fn give_up(&mut self) -> u64 {
        let outcomes = self.unsettled.iter().map(|(_, item)| item.settlement.outcome);
        let results = outcomes.filter(|outcome| *outcome == RunOutcome::Done).count() as u64;
        self.report.unstored += results;
        results
    }

    fn lost(&mut self, run: &LiveRun) {
        self.report.lost_leases += 1;
        self.runs.remove(std::iter::once(&run.lease));
        warn!(job_id = %run.job.id, kind = run.job.kind, fence = run.lease.fence, "lease lost, the outcome is dropped");
    }
}

/// The follow-ups were no good: the run failed with them, and says why.
fn refused(run: &LiveRun, refused: SettleItem, error: &Error) -> SettleItem {
    let error = JobError::new(Reason::Failure, format!("jobs enqueued by the handler were refused: {error}"));
    let outcome = Outcome::Retry { error, after: None, data: None };
    let mut item = executor::settle_with(run, Event::Outcome(outcome), Vec::new());
    // It was taken from the run's notes with the first settlement, and was spent whatever became of that.
    item.settlement.usage = refused.settlement.usage;
    item
}
