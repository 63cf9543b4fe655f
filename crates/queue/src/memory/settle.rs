//! Settle and unpark: what ends a run or a wait.

use super::tables::{SignalRow, Tables};
use crate::clock::Timestamp;
use crate::job::{JobId, Run};
use crate::limits::{RUNS_KEPT_MAX, SIGNAL_KEPT};
use crate::state::{Park, Settlement, State};
use crate::store::rules::{self, JITTER_MEAN, WakeChange};
use crate::store::{SettleItem, Settled, Signal, UnparkRequest, UnparkTarget, Unparked};

impl Tables {
    pub(super) fn settle(&mut self, items: Vec<SettleItem>, now: Timestamp) -> Vec<Settled> {
        items.into_iter().map(|item| self.settle_one(item, now)).collect()
    }

    fn settle_one(&mut self, item: SettleItem, now: Timestamp) -> Settled {
        let SettleItem { lease, settlement, follow_ups } = item;
        let Some(row) = self.held(&lease) else { return Settled::LostLease };
        let cancelled = row.job.cancel_requested && !settlement.state.is_terminal();
        let settlement = if cancelled { settlement.under_cancel() } else { settlement };
        if let Err(error) = settlement.check() {
            return Settled::Refused(error);
        }
        // What the handler planned before it was cancelled is not to happen.
        let follow_ups = if cancelled { Vec::new() } else { follow_ups };
        // Follow-ups first: they belong to the process before this job's end could complete it.
        if let Err(error) = self.insert(follow_ups, now) {
            return Settled::Refused(error);
        }
        Settled::Applied(self.end_run(lease.seq, settlement, now))
    }

    /// Ends a run: notes it in the history and applies its settlement. Returns where the job stands then.
    pub(super) fn end_run(&mut self, seq: i64, settlement: Settlement, now: Timestamp) -> State {
        self.update(seq, |row| {
            if let (Some(worker), Some(started_at)) = (row.job.worker.clone(), row.job.started_at) {
                let (error, usage) = (settlement.error.clone(), settlement.usage.clone());
                row.runs.push(Run {
                    fence: row.job.fence,
                    worker,
                    started_at,
                    ended_at: now,
                    outcome: settlement.outcome,
                    error,
                    usage,
                });
            }
            let surplus = row.runs.len().saturating_sub(RUNS_KEPT_MAX);
            row.runs.drain(..surplus);
        });
        self.apply(seq, settlement, now)
    }

    /// Writes a settlement to a running or parked job, and takes a waiting signal for a park. Returns where the job
    /// stands then.
    pub(super) fn apply(&mut self, seq: i64, settlement: Settlement, now: Timestamp) -> State {
        let Settlement { state, run_at, spent, data, result, error, park, outcome, usage: _ } = settlement;
        let signal = park.as_ref().filter(|_| state == State::Parked);
        let signal = signal.and_then(|park| self.signals.get(&park.key));
        let signal = signal.filter(|row| row.expires_at > now).map(|row| row.signal.clone());
        self.update(seq, |row| {
            row.job.run_at = run_at.unwrap_or(row.job.run_at);
            row.job.spent = spent;
            row.data = data.or(row.data.take());
            row.result = result.or(row.result.take());
            // A run that did not come to an answer of its own leaves the value to the next one.
            if WakeChange::after(outcome) == WakeChange::Clear {
                row.wake = None;
            }
            if !state.is_terminal() {
                row.move_to(state, now);
                row.job.lease_until = None;
                row.job.park = park;
                row.job.error = error.clone().or(row.job.error.take());
            }
        });
        if state.is_terminal() {
            self.end(seq, state, error, now);
            return state;
        }
        match signal {
            Some(signal) => self.wake(seq, signal, now, JITTER_MEAN),
            None => state,
        }
    }

    pub(super) fn unpark(&mut self, request: UnparkRequest) -> Unparked {
        let UnparkRequest { target, signal, now, jitter } = request;
        let (targets, key) = match target {
            UnparkTarget::Ids(ids) => (self.parked_of(&ids, |_| true), None),
            UnparkTarget::Waiting { key, ids } => (self.parked_of(&ids, |park| park.key == key), None),
            UnparkTarget::Key(key) => {
                if self.signals.get(&key).is_some_and(|row| row.expires_at > now) {
                    return Unparked::default();
                }
                (self.parked_on(&key), Some(key))
            }
        };
        let kept = key.is_some() && targets.is_empty();
        if let Some(key) = key {
            let row = SignalRow { signal: signal.clone(), expires_at: now + SIGNAL_KEPT };
            self.signals.insert(key, row);
        }
        let mut jobs = Vec::with_capacity(targets.len());
        for (seq, id) in targets {
            self.wake(seq, signal.clone(), now, jitter);
            jobs.push(id);
        }
        Unparked { jobs, kept }
    }

    fn parked_of(&self, ids: &[JobId], waits: impl Fn(&Park) -> bool) -> Vec<(i64, JobId)> {
        let mut found: Vec<_> = ids
            .iter()
            .filter_map(|id| self.row(*id))
            .filter(|row| row.job.state == State::Parked && row.job.park.as_ref().is_some_and(&waits))
            .map(|row| (row.job.seq, row.job.id))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn parked_on(&self, key: &str) -> Vec<(i64, JobId)> {
        let parked = self.jobs.values().filter(|row| row.job.state == State::Parked);
        let waits = parked.filter(|row| row.job.park.as_ref().is_some_and(|park| park.key == key));
        waits.map(|row| (row.job.seq, row.job.id)).collect()
    }

    /// Tells a parked job. Returns where it stands then.
    fn wake(&mut self, seq: i64, signal: Signal, now: Timestamp, jitter: f64) -> State {
        let Some(job) = self.jobs.get(&seq).map(|row| &row.job) else { return State::Cancelled };
        let woken = rules::woken(&job.options, job.spent, signal, now, jitter);
        self.end_park(seq, woken, now)
    }

    /// Ends a park as if its job had run and answered. No run is noted: there was none.
    pub(super) fn end_park(
        &mut self,
        seq: i64,
        (settlement, wake): (Settlement, WakeChange),
        now: Timestamp,
    ) -> State {
        let state = self.apply(seq, settlement, now);
        if let WakeChange::Set(wake) = wake {
            self.update(seq, |row| row.wake = Some(wake));
        }
        state
    }
}
