//! Claim and extend: who may run a job, and for how long.
//!
//! The cost of a claim is flat: it reads the heads of the partial index `lh_jobs_ready`, one per kind it serves, and
//! touches only the rows it hands out, and a bounded number of expired ones that stand before them. Nothing else is
//! swept here, and only the heads of several kinds are sorted. Where fair keys or ageing ask for another order, the
//! jobs are chosen in `turns`.

use std::collections::HashSet;

use longhaul_queue::limits::CLAIM_MAX;
use longhaul_queue::state::JobError;
use longhaul_queue::store::{ClaimRequest, ExtendRequest, Renewal};
use longhaul_queue::{Claimed, State};
use rusqlite::Connection;

use super::error::DbResult;
use super::fairness::Ask;
use super::rows::{Body, JobRow, job_with_body};
use super::settle::cancel_waiting;
use super::tx::Tx;
use super::{fairness, graph, sweep};

/// Expired jobs that one claim cancels on its way; each costs a row.
pub(super) const EXPIRED_MET_MAX: usize = 100;

/// A ready job's place in the claim's order: priority, `run_at`, `seq`; and whether its worker died.
type Head = (i32, i64, i64, bool);

/// Index lh_jobs_ready: an index-only scan that stops at the limit.
pub(super) const HEADS: &str = "SELECT priority, run_at, seq FROM lh_jobs
     WHERE state = 2 AND fair_key IS NULL AND queue = ?1 AND kind = ?2 AND suspect = ?3
     ORDER BY priority, run_at, seq LIMIT ?4";

/// Whether there may be anything to claim: asked before the write lock is taken, so idle workers cost no lock.
pub(super) fn anything_ready(connection: &Connection, queues: &[String]) -> DbResult<bool> {
    let mut statement = connection
        .prepare_cached("SELECT 1 FROM lh_counts WHERE queue = ?1 AND state = 2 AND jobs > 0 LIMIT 1")?;
    for queue in queues {
        if statement.exists([queue])? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Hands out ready jobs.
pub(super) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> DbResult<Vec<Claimed>> {
    let limit = request.limit.min(CLAIM_MAX);
    let mut claimed = Vec::with_capacity(limit);
    let mut suspects_left = request.suspects_max.min(CLAIM_MAX);
    for queue in &request.queues {
        let room = room(tx, queue, limit - claimed.len())?;
        if room == 0 {
            continue;
        }
        let choice = choose(tx, queue, request, Look { jobs: room, suspects: suspects_left })?;
        for row in choice.expired {
            cancel_waiting(tx, &row, &JobError::expired(), request.now)?;
            graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, request.now)?;
        }
        if tx.queue(queue)?.keyed
            && let Some((_, body)) = choice.jobs.last()
        {
            fairness::served(tx, queue, body.options.fair_key.as_deref().unwrap_or_default())?;
        }
        for (row, body) in choice.jobs {
            suspects_left -= usize::from(row.is_suspect());
            claimed.push(hand_out(tx, row, body, request)?);
        }
    }
    Ok(claimed)
}

/// How many jobs this queue may give.
fn room(tx: &mut Tx<'_>, queue: &str, limit: usize) -> DbResult<usize> {
    let settings = tx.queue(queue)?.settings;
    if settings.paused || limit == 0 {
        return Ok(0);
    }
    let Some(max_running) = settings.max_running else { return Ok(limit) };
    let free = i64::from(max_running) - running_in(tx, queue)?;
    Ok(limit.min(usize::try_from(free.max(0)).unwrap_or(0)))
}

/// Running jobs of a queue.
pub(super) fn running_in(tx: &Tx<'_>, queue: &str) -> DbResult<i64> {
    let sql = "SELECT coalesce(sum(jobs), 0) FROM lh_counts WHERE queue = ?1 AND state = 3";
    Ok(tx.one(sql, [queue], |row| row.get(0))?.unwrap_or(0) + tx.booked(queue, State::Running))
}

/// How many jobs to look for.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) jobs: usize,
    /// At most so many of them with crashes.
    pub(super) suspects: usize,
}

/// What a queue has to give, before anything is changed.
#[derive(Default)]
pub(super) struct Choice {
    pub(super) jobs: Vec<(JobRow, Body)>,
    /// Met on the way.
    pub(super) expired: Vec<JobRow>,
    /// Their places, for another look.
    pub(super) met: HashSet<i64>,
}

/// The first jobs of a queue, as it stands now. Only the row tells that a job has expired; so a look that met expired
/// ones, which is rare, is repeated further until it is filled or has met enough of them: a backlog of expired jobs is
/// the promoter's to clear, and a short answer is asked again after the commit.
fn choose(tx: &mut Tx<'_>, queue: &str, request: &ClaimRequest, wanted: Look) -> DbResult<Choice> {
    let known = tx.queue(queue)?;
    let ready;
    let kinds = match request.kinds.as_deref() {
        Some(kinds) => kinds,
        None => {
            ready = ready_kinds(tx, queue)?;
            &ready
        }
    };
    if known.in_lines() {
        return fairness::choose(tx, &Ask { queue, kinds, wanted, now: request.now }, known);
    }
    let mut choice = Choice::default();
    loop {
        let known = choice.expired.len();
        // Suspects have run before, so none of them has expired.
        let look = Look { jobs: wanted.jobs + 2 * known, ..wanted };
        let heads = heads(tx, queue, kinds, look)?;
        choice.jobs.clear();
        walk(tx, &heads, request, wanted, look, &mut choice)?;
        let met_enough = choice.expired.len() >= EXPIRED_MET_MAX;
        if choice.jobs.len() == wanted.jobs || choice.expired.len() == known || met_enough {
            return Ok(choice);
        }
    }
}

/// Takes jobs from the heads in their order, as far as the look can tell it.
fn walk(
    tx: &Tx<'_>,
    heads: &[Head],
    request: &ClaimRequest,
    wanted: Look,
    look: Look,
    choice: &mut Choice,
) -> DbResult<()> {
    let mut suspects_left = wanted.suspects;
    let mut suspects_seen = 0;
    for &(_, _, seq, suspect) in heads {
        // Further suspects, out of sight, may come before this job.
        let blind = suspects_left > 0 && suspects_seen == look.suspects;
        if blind || choice.jobs.len() == wanted.jobs {
            break;
        }
        suspects_seen += usize::from(suspect);
        if (suspect && suspects_left == 0) || choice.met.contains(&seq) {
            continue;
        }
        let Some((row, body)) = job_with_body(tx, seq)? else { continue };
        if row.is_expired(request.now) {
            choice.met.insert(seq);
            choice.expired.push(row);
            if choice.expired.len() >= EXPIRED_MET_MAX {
                break;
            }
            continue;
        }
        suspects_left -= usize::from(suspect);
        choice.jobs.push((row, body));
    }
    Ok(())
}

/// The kinds that have ready jobs.
fn ready_kinds(tx: &Tx<'_>, queue: &str) -> DbResult<Vec<String>> {
    let sql = "SELECT kind FROM lh_counts WHERE queue = ?1 AND state = 2 AND jobs > 0";
    let mut kinds = tx.all(sql, [queue], |row| row.get::<_, String>(0))?;
    // What expired in an earlier queue of this claim may have released some here.
    kinds.extend(tx.booked_kinds(queue).map(str::to_owned));
    Ok(kinds)
}

/// The first jobs in claim order over the kinds asked for.
fn heads(tx: &Tx<'_>, queue: &str, kinds: &[String], look: Look) -> DbResult<Vec<Head>> {
    let mut heads: Vec<Head> = Vec::new();
    for kind in kinds {
        heads.extend(read_heads(tx, queue, kind, false, look.jobs)?);
    }
    if look.suspects > 0 {
        let mut suspects = Vec::new();
        for kind in kinds {
            suspects.extend(read_heads(tx, queue, kind, true, look.suspects)?);
        }
        in_order(&mut suspects, look.suspects);
        heads.append(&mut suspects);
    }
    in_order(&mut heads, look.jobs);
    Ok(heads)
}

/// Sorts, drops what a kind named twice has brought twice, and keeps the first.
fn in_order(heads: &mut Vec<Head>, limit: usize) {
    heads.sort_unstable();
    heads.dedup();
    heads.truncate(limit);
}

fn read_heads(tx: &Tx<'_>, queue: &str, kind: &str, suspect: bool, limit: usize) -> DbResult<Vec<Head>> {
    tx.all(HEADS, (queue, kind, suspect, limit), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, suspect)))
}

/// Makes one job running.
fn hand_out(tx: &mut Tx<'_>, row: JobRow, body: Body, request: &ClaimRequest) -> DbResult<Claimed> {
    // The lease counts from when the lock was held: waiting for it must not eat the lease.
    let now = request.now.max(tx.locked_at());
    let until = now + request.lease_for;
    tx.run(
        "UPDATE lh_jobs SET state = 3, fence = fence + 1, due_at = ?2, worker = ?3, started_at = ?4, cancel = 0
         WHERE seq = ?1",
        (row.seq, until.as_millis(), request.worker.as_str(), now.as_millis()),
    )?;
    sweep::forget(tx, &row)?;
    tx.moved(row.subject(), Some(row.state), Some(State::Running));
    let row = JobRow {
        state: State::Running,
        fence: row.fence + 1,
        due_at: Some(until),
        worker: Some(request.worker.as_str().to_owned()),
        started_at: Some(now),
        cancel: false,
        ..row
    };
    row.into_claimed(tx.connection(), body)
}

/// Renews leases. Expiry alone revokes nothing: a renewal that comes before the rescue is good.
pub(super) fn extend(tx: &Tx<'_>, request: &ExtendRequest) -> DbResult<Vec<Renewal>> {
    let until = request.now.max(tx.locked_at()) + request.lease_for;
    let sql = "UPDATE lh_jobs SET due_at = ?3 WHERE seq = ?1 AND fence = ?2 AND state = 3 RETURNING cancel";
    let mut renewals = Vec::with_capacity(request.leases.len());
    for lease in &request.leases {
        let cancel = tx.one(sql, (lease.seq, lease.fence, until.as_millis()), |row| row.get::<_, bool>(0))?;
        renewals.push(
            cancel.map_or(Renewal::Lost, |cancel_requested| Renewal::Extended { until, cancel_requested }),
        );
    }
    Ok(renewals)
}
