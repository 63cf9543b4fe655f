//! Claim, and what the holder of a lease does before it settles: extend and save.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

use super::tables::{Row, Tables};
use crate::error::{Error, Result};
use crate::fairness::{from_next, rank, take_turns};
use crate::job::{Claimed, Job, Lease};
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
            claimed.extend(chosen.iter().filter_map(|seq| self.hand_out(*seq, request)));
            if let (Some(last), Some(seq)) = (self.turns.get_mut(queue), chosen.last())
                && let Some(row) = self.jobs.get(seq)
            {
                key_of(&row.job).clone_into(last);
            }
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
        let mut expired = Vec::new();
        let last = self.turns.get(queue).map_or("", String::as_str);
        let mut lines = self.lines(queue, request);
        let keys = from_next(lines.keys().copied().collect(), last);
        let lines: Vec<_> = keys
            .into_iter()
            .map(|key| {
                let running = self.running_of_key(queue, key);
                (running, (lines.remove(key).unwrap_or_default(), self.free_of_key(queue, key, running)))
            })
            .collect();
        let chosen = take_turns(lines, free, |(line, room)| {
            if *room == 0 {
                return Ok::<_, Infallible>(None);
            }
            while let Some(job) = line.pop_front() {
                let suspect = job.spent.crashes > 0;
                if suspect && *suspects_left == 0 {
                    continue;
                }
                if job.started_at.is_none() && job.expires_at.is_some_and(|at| at <= request.now) {
                    expired.push(job.seq);
                    continue;
                }
                *suspects_left -= usize::from(suspect);
                *room -= 1;
                return Ok(Some(job.seq));
            }
            Ok(None)
        });
        (chosen.unwrap_or_else(|never| match never {}), expired)
    }

    /// The ready jobs of a queue that the claim asks for, by key and in the order of each.
    fn lines(&self, queue: &str, request: &ClaimRequest) -> BTreeMap<&str, VecDeque<&Job>> {
        let ageing = self.queues.get(queue).and_then(|queue| queue.ageing);
        let ready = self.ready.get(queue).into_iter().flatten();
        let mut jobs: Vec<&Job> =
            ready.filter_map(|(_, _, seq)| self.jobs.get(seq)).map(|row| &row.job).collect();
        jobs.retain(|job| request.kinds.as_ref().is_none_or(|kinds| kinds.contains(&job.kind)));
        jobs.sort_by_key(|job| rank(job.priority, job.run_at, job.seq, ageing));
        let mut lines = BTreeMap::<&str, VecDeque<&Job>>::new();
        for job in jobs {
            lines.entry(key_of(job)).or_default().push_back(job);
        }
        lines
    }

    fn running_of_key(&self, queue: &str, key: &str) -> usize {
        let jobs = self.jobs.values().map(|row| &row.job);
        jobs.filter(|job| job.state == State::Running && job.queue == queue && key_of(job) == key).count()
    }

    /// How many more jobs of a key may run.
    fn free_of_key(&self, queue: &str, key: &str, running: usize) -> usize {
        let limit = self.queues.get(queue).and_then(|queue| queue.max_running_per_key);
        let limit = limit.filter(|_| !key.is_empty());
        limit.map_or(usize::MAX, |limit| (limit as usize).saturating_sub(running))
    }

    fn hand_out(&mut self, seq: i64, request: &ClaimRequest) -> Option<Claimed> {
        let until = request.now + request.lease_for;
        self.update(seq, |row| {
            row.move_to(State::Running, request.now);
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

/// Whose turn the job waits for.
fn key_of(job: &Job) -> &str {
    job.options.fair_key.as_deref().unwrap_or_default()
}
