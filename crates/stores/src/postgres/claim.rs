//! Claim: who may run a job, and for how long.
//!
//! The general way, for what [`super::claim_fast`] leaves over: queues with settings of their own, with fair keys, and jobs that
//! have expired. Which jobs it gives is decided in [`super::fairness`]. A queue where what was given before counts (a limit,
//! turns, ageing) is claimed from by one at a time; claims of other queues do not wait for it.

use std::collections::HashMap;

use longhaul_queue::job::{Job, ParentResult, ProcessId};
use longhaul_queue::limits::CLAIM_MAX;
use longhaul_queue::state::JobError;
use longhaul_queue::store::ClaimRequest;
use longhaul_queue::{Claimed, Json, State, Timestamp};
use tokio_postgres::Row;

use super::error::DbResult;
use super::fairness::{self, Wanted};
use super::rows::{
    JOB_COLUMNS, JobRow, flag, from_text, job_by_seq, job_columns, read_id, read_json, read_state,
};
use super::settle::cancel_waiting;
use super::tx::Tx;
use super::{graph, totals};
use crate::changes::JobKey;
use crate::settle_order::SettleOrder;

/// Hands out ready jobs of the first queue that the request names.
pub(super) async fn claim(
    tx: &mut Tx<'_>,
    request: &ClaimRequest,
    now: Timestamp,
    order: &SettleOrder,
) -> DbResult<Vec<Claimed>> {
    let Some(queue) = request.queues.first() else { return Ok(Vec::new()) };
    let known = tx.queue(queue).await?;
    if known.one_at_a_time() && !tx.is_alone() {
        let key = tx.keys().queue(queue);
        tx.one("SELECT pg_advisory_xact_lock($1)", &[&key]).await?;
    }
    let jobs = room(tx, queue, request.limit.min(CLAIM_MAX)).await?;
    if jobs == 0 {
        return Ok(Vec::new());
    }
    let wanted = Wanted {
        queue,
        kinds: kinds(tx, queue, request).await?,
        settings: known.settings,
        last_key: if known.keyed { last_key(tx, queue).await? } else { None },
        jobs,
        suspects: request.suspects_max.min(CLAIM_MAX),
        now,
    };
    let chosen = fairness::choose(tx, &wanted).await?;
    if !known.one_at_a_time() && !tx.is_alone() {
        // Nothing has expired here, and what could be had beside others, the quick claim has tried to get.
        return Ok(Vec::new());
    }
    cancel_expired(tx, &chosen.expired, now).await?;
    if chosen.seqs.is_empty() {
        return Ok(Vec::new());
    }
    if known.keyed {
        let sql = "UPDATE lh_queues SET last_key = $2 WHERE name = $1";
        tx.run(sql, &[queue, &chosen.last_key]).await?;
    }
    let until = (now + request.lease_for).as_millis();
    let rows = tx.all(TAKE_ROWS, &[&chosen.seqs, &until, &request.worker.as_str(), &now.as_millis()]).await?;
    let mut claimed = hand_out(tx, rows, order).await?.into_iter().collect::<DbResult<Vec<_>>>()?;
    let places: HashMap<i64, usize> = chosen.seqs.iter().copied().zip(0..).collect();
    claimed.sort_unstable_by_key(|claimed| places.get(&claimed.job.seq).copied());
    for claimed in &claimed {
        tx.moved(subject(&claimed.job), Some(State::Ready), Some(State::Running));
    }
    Ok(claimed)
}

fn subject(job: &Job) -> JobKey<'_> {
    JobKey {
        id: job.id,
        queue: &job.queue,
        kind: &job.kind,
        process: job.process_id.as_ref().map(ProcessId::as_str),
        helper: job.helper,
    }
}

/// How many jobs this queue may give.
async fn room(tx: &mut Tx<'_>, queue: &str, limit: usize) -> DbResult<usize> {
    let settings = tx.queue(queue).await?.settings;
    if settings.paused || limit == 0 {
        return Ok(0);
    }
    let Some(max_running) = settings.max_running else { return Ok(limit) };
    let free = i64::from(max_running) - totals::running_in(tx, queue).await?;
    Ok(limit.min(usize::try_from(free.max(0)).unwrap_or(0)))
}

/// Steps from kind to kind along the indexes of ready jobs, however many jobs each has.
const KINDS_READY: &str = "WITH RECURSIVE plain AS (
         (SELECT kind AS k_kind FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND queue = $1 ORDER BY kind LIMIT 1)
         UNION ALL
         SELECT (SELECT kind FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND queue = $1 AND kind > k_kind
             ORDER BY kind LIMIT 1)
         FROM plain WHERE k_kind IS NOT NULL),
     keyed AS (
         (SELECT kind AS k_kind FROM lh_jobs WHERE state = 2 AND fair_key IS NOT NULL AND queue = $1
             ORDER BY kind LIMIT 1)
         UNION ALL
         SELECT (SELECT kind FROM lh_jobs WHERE state = 2 AND fair_key IS NOT NULL AND queue = $1 AND kind > k_kind
             ORDER BY kind LIMIT 1)
         FROM keyed WHERE k_kind IS NOT NULL)
     SELECT k_kind FROM plain WHERE k_kind IS NOT NULL UNION SELECT k_kind FROM keyed WHERE k_kind IS NOT NULL";

async fn kinds(tx: &Tx<'_>, queue: &str, request: &ClaimRequest) -> DbResult<Vec<String>> {
    if let Some(kinds) = &request.kinds {
        let mut kinds = kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        return Ok(kinds);
    }
    let rows = tx.all(KINDS_READY, &[&queue]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// Read after the queue was taken: whoever had it before may have moved on.
async fn last_key(tx: &Tx<'_>, queue: &str) -> DbResult<Option<String>> {
    let row = tx.one("SELECT last_key FROM lh_queues WHERE name = $1", &[&queue]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?.flatten())
}

async fn cancel_expired(tx: &mut Tx<'_>, expired: &[i64], now: Timestamp) -> DbResult<()> {
    for seq in expired {
        if let Some(row) = job_by_seq(tx, *seq).await?.filter(|row| row.state == State::Ready) {
            cancel_waiting(tx, &row, &JobError::expired(), now).await?;
            graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, now).await?;
        }
    }
    Ok(())
}

/// A quick claim may just have taken some that have no key.
const TAKE_ROWS: &str = concat!(
    "UPDATE lh_jobs SET state = 3, fence = fence + 1, due_at = $2, worker = $3, started_at = $4, cancel = false
     WHERE seq = ANY ($1) AND state = 2 RETURNING ",
    job_columns!(),
    ", payload, data"
);

/// Turns rows that have just become running into claims, by priority, `run_at` and `seq`; first those that cannot be read.
pub(super) async fn hand_out(
    tx: &Tx<'_>,
    rows: Vec<Row>,
    order: &SettleOrder,
) -> DbResult<Vec<DbResult<Claimed>>> {
    let (mut jobs, mut claimed) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in &rows {
        match read_taken(row) {
            Ok(job) => jobs.push(job),
            Err(error) => claimed.push(Err(error)),
        }
    }
    jobs.sort_unstable_by_key(|(row, _, _)| (row.priority, row.run_at, row.seq));
    let is_alone = |row: &JobRow| !row.has(flag::CHILDREN) && row.process.is_none();
    order.alone(jobs.iter().filter(|(row, _, _)| is_alone(row)).map(|(row, _, _)| (row.id, row.fence)));
    let children = jobs.iter().filter(|(row, _, _)| row.has(flag::PARENTS)).map(|(row, _, _)| row.seq);
    let mut parents = read_parents(tx, &children.collect::<Vec<_>>()).await?;
    for (row, payload, data) in jobs {
        let parents = parents.remove(&row.seq).unwrap_or_default();
        claimed.push(row.into_claimed(payload, data, parents));
    }
    Ok(claimed)
}

fn read_taken(row: &Row) -> DbResult<(JobRow, Json, Option<Json>)> {
    let payload: String = row.try_get(JOB_COLUMNS)?;
    Ok((JobRow::read(row)?, Json::trusted(payload), read_json(row, JOB_COLUMNS + 1)?))
}

/// Parents' ends by child, in the order of `depends_on`.
async fn read_parents(tx: &Tx<'_>, children: &[i64]) -> DbResult<HashMap<i64, Vec<ParentResult>>> {
    let mut parents: HashMap<i64, Vec<ParentResult>> = HashMap::new();
    if children.is_empty() {
        return Ok(parents);
    }
    let sql = "SELECT child, parent_id, ended, result, error FROM lh_edges
         WHERE child = ANY ($1) AND satisfied AND ended IS NOT NULL ORDER BY child, position";
    for row in tx.all(sql, &[&children]).await? {
        let parent = ParentResult {
            job_id: read_id(&row, 1)?,
            state: read_state(&row, 2)?,
            result: read_json(&row, 3)?,
            error: from_text("a parent's error", row.try_get(4)?)?,
        };
        parents.entry(row.try_get(0)?).or_default().push(parent);
    }
    Ok(parents)
}
