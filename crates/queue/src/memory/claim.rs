//! Claim, and what the holder of a lease does before it settles: extend and save.

use super::tables::{Row, Tables};
use crate::error::{Error, Result};
use crate::job::{Claimed, Lease};
use crate::limits::{CLAIM_MAX, LOG_LINES_MAX};
use crate::state::{JobError, State};
use crate::store::{ClaimRequest, ExtendRequest, Renewal, Save};

impl Tables {
    pub(super) fn claim(&mut self, request: &ClaimRequest) -> Vec<Claimed> {
        let limit = request.limit.min(CLAIM_MAX);
        let mut suspects_left = request.suspects_max;
        let mut claimed = Vec::new();
        for queue in &request.queues {
            let free = self.free_slots(queue).min(limit - claimed.len());
            let (chosen, expired) = self.choose(queue, request, free, &mut suspects_left);
            for seq in expired {
                self.end(seq, State::Cancelled, Some(JobError::expired()), request.now);
            }
            claimed.extend(chosen.into_iter().filter_map(|seq| self.hand_out(seq, request)));
        }
        claimed
    }

    /// How many more jobs of a queue may run.
    fn free_slots(&self, queue: &str) -> usize {
        let Some(settings) = self.queues.get(queue) else { return usize::MAX };
        match settings.max_running {
            _ if settings.paused => 0,
            None => usize::MAX,
            Some(max) => {
                let runs = |row: &&Row| row.job.state == State::Running && row.job.queue == queue;
                (max as usize).saturating_sub(self.jobs.values().filter(runs).count())
            }
        }
    }

    /// Up to `free` jobs of a queue, in the order of claims, and the expired ones met on the way.
    fn choose(
        &self,
        queue: &str,
        request: &ClaimRequest,
        free: usize,
        suspects_left: &mut usize,
    ) -> (Vec<i64>, Vec<i64>) {
        let (mut chosen, mut expired) = (Vec::new(), Vec::new());
        let ready = self.ready.get(queue).into_iter().flatten();
        for row in ready.filter_map(|(_, _, seq)| self.jobs.get(seq)) {
            if chosen.len() >= free {
                break;
            }
            let job = &row.job;
            if request.kinds.as_ref().is_some_and(|kinds| !kinds.contains(&job.kind)) {
                continue;
            }
            let suspect = job.spent.crashes > 0;
            if suspect && *suspects_left == 0 {
                continue;
            }
            if job.started_at.is_none() && job.expires_at.is_some_and(|at| at <= request.now) {
                expired.push(job.seq);
                continue;
            }
            *suspects_left -= usize::from(suspect);
            chosen.push(job.seq);
        }
        (chosen, expired)
    }

    fn hand_out(&mut self, seq: i64, request: &ClaimRequest) -> Option<Claimed> {
        let until = request.now + request.lease_for;
        self.update(seq, |row| {
            row.job.state = State::Running;
            row.job.fence += 1;
            row.job.worker = Some(request.worker.clone());
            row.job.started_at = Some(request.now);
            row.job.lease_until = Some(until);
            row.job.cancel_requested = false;
        });
        let row = self.jobs.get(&seq)?;
        let (job_id, fence, worker) = (row.job.id, row.job.fence, request.worker.clone());
        Some(Claimed {
            job: row.job.clone(),
            lease: Lease { job_id, seq, fence, worker, until },
            payload: row.payload.clone(),
            data: row.data.clone(),
            parents: row.parents(),
            wake: row.wake.clone(),
        })
    }

    /// The row of a lease that still holds. Time alone revokes nothing: the rescue does.
    pub(super) fn held(&self, lease: &Lease) -> Option<&Row> {
        let holds = |row: &&Row| row.job.state == State::Running && row.job.fence == lease.fence;
        self.jobs.get(&lease.seq).filter(holds)
    }

    pub(super) fn extend(&mut self, request: &ExtendRequest) -> Vec<Renewal> {
        let until = request.now + request.lease_for;
        let renew = |lease: &Lease| {
            let Some(row) = self.held(lease) else { return Renewal::Lost };
            let cancel_requested = row.job.cancel_requested;
            // Not news for anybody, so not an update.
            if let Some(row) = self.jobs.get_mut(&lease.seq) {
                row.job.lease_until = Some(until);
            }
            Renewal::Extended { until, cancel_requested }
        };
        request.leases.iter().map(renew).collect()
    }

    pub(super) fn save(&mut self, lease: &Lease, save: Save) -> Result<()> {
        if self.held(lease).is_none() {
            return Err(Error::LostLease(lease.job_id));
        }
        let progressed = save.progress.is_some();
        self.update(lease.seq, |row| {
            if save.data.is_some() && save.data != row.data {
                row.job.spent.crashes = 0;
                row.data = save.data;
            }
            if progressed {
                row.progress = save.progress;
            }
            row.log.extend(save.log);
            let surplus = row.log.len().saturating_sub(LOG_LINES_MAX);
            row.log.drain(..surplus);
        });
        if progressed {
            self.note_progress(lease.seq);
        }
        Ok(())
    }
}
