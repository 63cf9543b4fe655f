//! What time moves: promote, rescue, prune. Each takes the most overdue rows first and says when to come back.

use std::time::Duration;

use super::tables::{Row, Tables};
use crate::clock::Timestamp;
use crate::job::JobId;
use crate::limits::{SWEEP_MAX, WORKER_KEPT};
use crate::state::{JobError, State};
use crate::store::{Swept, rules};

/// How long a removal waits that a held child forbids.
const HELD_AGAIN: Duration = Duration::from_secs(24 * 3600);

/// What a waiting job's time brings, in the order in which a sweep does it: what has expired has done so whatever
/// else happens in the same sweep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Expire,
    Start,
    EndPark,
}

impl Tables {
    pub(super) fn promote_due(&mut self, now: Timestamp, limit: usize) -> Swept {
        self.sweep(
            now,
            limit,
            |row| next_due(row, now),
            |tables, seq| {
                let due =
                    tables.jobs.get(&seq).and_then(|row| next_due(row, now)).filter(|(_, at)| *at <= now);
                let Some((due, _)) = due else { return false };
                match due {
                    Due::Expire => tables.end(seq, State::Cancelled, Some(JobError::expired()), now),
                    Due::Start => tables.update(seq, |row| row.move_to(State::Ready, now)),
                    Due::EndPark => tables.time_out(seq, now),
                }
                true
            },
        )
    }

    /// Ends a park without its signal, as the park says.
    fn time_out(&mut self, seq: i64, now: Timestamp) {
        let Some(job) = self.jobs.get(&seq).map(|row| &row.job) else { return };
        let Some(park) = &job.park else { return };
        let ended = rules::park_timed_out(park, &job.options, job.spent, now);
        self.end_park(seq, ended, now);
    }

    pub(super) fn rescue_expired(&mut self, now: Timestamp, limit: usize) -> Swept {
        self.sweep(
            now,
            limit,
            |row| Some(((), row.job.lease_until?)),
            |tables, seq| {
                let Some(job) = tables.jobs.get(&seq).map(|row| &row.job) else { return false };
                let settlement = rules::crashed(&job.options, job.spent, job.cancel_requested, now);
                tables.end_run(seq, settlement, now);
                true
            },
        )
    }

    pub(super) fn prune(&mut self, now: Timestamp, limit: usize) -> Swept {
        let mut swept = self.sweep(
            now,
            limit,
            |row| Some(((), row.remove_at?)),
            |tables, seq| {
                let id: Option<JobId> = tables.jobs.get(&seq).map(|row| row.job.id);
                if id.and_then(|id| tables.held_child(id)).is_some() {
                    tables.update(seq, |row| row.remove_at = Some(now + HELD_AGAIN));
                    return false;
                }
                tables.remove(seq);
                true
            },
        );
        let before = self.uniques.len() + self.signals.len() + self.workers.len();
        self.uniques.retain(|_, unique| unique.is_taken(now));
        self.signals.retain(|_, signal| signal.expires_at > now);
        self.workers.retain(|_, worker| worker.seen_at + WORKER_KEPT > now);
        swept.changed += (before - self.uniques.len() - self.signals.len() - self.workers.len()) as u64;
        let uniques = self.uniques.values().filter(|unique| unique.ended.is_some());
        let expiries = uniques.filter_map(|unique| unique.taken_until);
        let expiries = expiries.chain(self.signals.values().map(|signal| signal.expires_at));
        swept.next_at = swept.next_at.into_iter().chain(expiries).min();
        swept
    }

    /// Runs `act` on the rows that `time_of` says are due, by rank, then most overdue first, then by `seq`. An
    /// earlier one's cascade may have settled a later one: `act` says whether there was something to do.
    fn sweep<Rank: Ord>(
        &mut self,
        now: Timestamp,
        limit: usize,
        time_of: impl Fn(&Row) -> Option<(Rank, Timestamp)>,
        mut act: impl FnMut(&mut Self, i64) -> bool,
    ) -> Swept {
        let limit = limit.min(SWEEP_MAX);
        let mut due: Vec<(Rank, Timestamp, i64)> = Vec::new();
        for row in self.jobs.values() {
            due.extend(time_of(row).filter(|(_, at)| *at <= now).map(|(rank, at)| (rank, at, row.job.seq)));
        }
        due.sort_unstable();
        let cut = due.len() > limit;
        due.truncate(limit);
        let changed = due.into_iter().filter(|(_, _, seq)| act(self, *seq)).count() as u64;
        let next_at =
            if cut { Some(now) } else { self.jobs.values().filter_map(time_of).map(|(_, at)| at).min() };
        Swept { changed, next_at }
    }
}

/// When and how time moves a waiting job. An expiry that has come wins over a start that has come.
fn next_due(row: &Row, now: Timestamp) -> Option<(Due, Timestamp)> {
    let job = &row.job;
    let start = match job.state {
        State::Scheduled => Some((Due::Start, job.run_at)),
        State::Parked => job.park.as_ref().and_then(|park| park.until).map(|until| (Due::EndPark, until)),
        State::Blocked | State::Ready => None,
        State::Running | State::Succeeded | State::Failed | State::Cancelled => return None,
    };
    // One that has run before is not bound to it any more.
    let expiry = job.expires_at.filter(|_| job.started_at.is_none()).map(|at| (Due::Expire, at));
    match expiry {
        Some((_, at)) if at <= now => expiry,
        _ => [expiry, start].into_iter().flatten().min_by_key(|(_, at)| *at),
    }
}
