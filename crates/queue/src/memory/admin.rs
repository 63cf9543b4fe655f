//! Cancel and delete; queues, processes, schedules and workers.

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::job::{JobId, ProcessId, WorkerId};
use crate::json::Json;
use crate::limits::WORKER_KEPT;
use crate::state::{JobError, State};
use crate::store::{CancelReply, Deleted, Firing, QueueChange, Record, WorkerInfo, refusals};

impl Tables {
    pub(super) fn cancel(&mut self, ids: &[JobId], now: Timestamp) -> Vec<CancelReply> {
        ids.iter().map(|id| self.cancel_one(*id, now)).collect()
    }

    fn cancel_one(&mut self, id: JobId, now: Timestamp) -> CancelReply {
        let Some(job) = self.row(id).map(|row| &row.job) else { return CancelReply::NotFound };
        let seq = job.seq;
        match job.state {
            State::Blocked | State::Scheduled | State::Ready | State::Parked => {
                self.end(seq, State::Cancelled, Some(JobError::cancelled()), now);
                CancelReply::Cancelled
            }
            State::Running => {
                self.update(seq, |row| row.job.cancel_requested = true);
                CancelReply::Requested
            }
            ended @ (State::Succeeded | State::Failed | State::Cancelled) => CancelReply::Ended(ended),
        }
    }

    pub(super) fn cancelling(&self, worker: &WorkerId) -> Vec<JobId> {
        let jobs = self.jobs.values().map(|row| &row.job);
        let running = jobs.filter(|job| job.state == State::Running && job.worker.as_ref() == Some(worker));
        running.filter(|job| job.cancel_requested).map(|job| job.id).collect()
    }

    pub(super) fn delete(&mut self, ids: &[JobId]) -> Deleted {
        let mut reply = Deleted::default();
        for &id in ids {
            let Some(seq) = self.seq_of.get(&id).copied() else { continue };
            match self.check_deletable(id) {
                Ok(()) => {
                    self.remove(seq);
                    reply.deleted += 1;
                }
                Err(error) => reply.refused.push((id, error)),
            }
        }
        if reply.deleted > 0 {
            self.forget_events();
        }
        reply
    }

    /// An event goes once every job that it names is gone. The newest stays, without them: its number counts on.
    fn forget_events(&mut self) {
        let newest = self.events.back().map(|event| event.id);
        let seq_of = &self.seq_of;
        self.events.retain_mut(|event| {
            let named = event.changes.iter().any(|change| seq_of.contains_key(&change.job_id));
            if !named {
                event.changes.clear();
            }
            named || Some(event.id) == newest
        });
    }

    fn check_deletable(&self, id: JobId) -> Result<()> {
        let Some(row) = self.row(id) else { return Ok(()) };
        if !row.job.state.is_terminal() {
            return Err(Error::wrong_state(id, row.job.state, "deleted"));
        }
        // Without its parent nobody could see why the child waits, nor retry the parent.
        if let Some(child) = self.held_child(id) {
            return Err(refusals::holds_child(id, row.job.state, child));
        }
        Ok(())
    }

    /// Changes a queue's settings. One whose settings are all at their default has none.
    pub(super) fn set_queue(&mut self, change: QueueChange) {
        let queue = self.queues.remove(&change.name).unwrap_or_default().changed_by(&change);
        if !queue.is_default() {
            self.queues.insert(change.name, queue);
        }
    }

    /// Opens or seals a process. Sealing one that does not exist changes nothing.
    pub(super) fn seal(&mut self, id: &ProcessId, sealed: bool, now: Timestamp) {
        self.touched = true;
        if !sealed {
            self.processes.entry(id.clone()).or_default().sealed = false;
        } else if let Some(process) = self.processes.get_mut(id) {
            process.sealed = true;
            self.tell_waiters(id, now);
            self.drop_empty_process(id);
        }
    }

    pub(super) fn fire(&mut self, firing: Firing, now: Timestamp) -> Result<bool> {
        let due =
            self.schedules.get(&firing.name).is_some_and(|schedule| schedule.next_at == firing.expected_at);
        if !due {
            return Ok(false);
        }
        self.insert(firing.jobs, now)?;
        if let Some(schedule) = self.schedules.get_mut(&firing.name) {
            schedule.next_at = firing.next_at;
            schedule.last_at = Some(now);
        }
        Ok(true)
    }

    pub(super) fn put_record(&mut self, name: String, expected: u64, value: Json) -> bool {
        if self.records.get(&name).map_or(0, |record| record.version) != expected {
            return false;
        }
        self.records.insert(name, Record { version: expected + 1, value });
        true
    }

    pub(super) fn heartbeat(&mut self, worker: WorkerInfo) {
        if worker.gone {
            self.workers.remove(&worker.id);
        } else {
            self.workers.insert(worker.id.clone(), worker);
        }
    }

    pub(super) fn workers(&self, now: Timestamp) -> Vec<WorkerInfo> {
        self.workers.values().filter(|worker| worker.seen_at + WORKER_KEPT > now).cloned().collect()
    }
}
