//! Claim: who may run a job, and for how long.
//!
//! The general way, for what [`super::take`] leaves over: queues with settings of their own, and jobs that have expired.
//! It reads the heads of the partial index `lh_jobs_ready`, one lane per kind it serves, works out how many jobs each lane
//! gives, and locks exactly so many, passing over rows that others have locked. Claims never wait for each other. Only a
//! queue with a limit is claimed from by one at a time. A claim that meets expired jobs, whose cancellation may reach
//! far, begins again alone.

use std::collections::{BTreeMap, HashMap, HashSet};

use longhaul_queue::job::{Job, ParentResult, ProcessId};
use longhaul_queue::limits::CLAIM_MAX;
use longhaul_queue::state::JobError;
use longhaul_queue::store::ClaimRequest;
use longhaul_queue::{Claimed, Json, State, Timestamp};
use tokio_postgres::Row;

use super::error::{DbError, DbResult};
use super::rows::{
    JOB_COLUMNS, JobRow, flag, job_by_seq, job_columns, read_id, read_json, read_state, stored_limit,
};
use super::settle::cancel_waiting;
use super::tx::Tx;
use super::{graph, totals};
use crate::changes::Subject;

/// Expired jobs that one claim cancels on its way; each costs a few statements.
const EXPIRED_MET_MAX: usize = 100;

/// A ready job's place in the claim's order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    priority: i32,
    run_at: i64,
    seq: i64,
    suspect: bool,
    kind: String,
    expired: bool,
}

/// Hands out ready jobs of the first queue that the request names.
pub(super) async fn claim(tx: &mut Tx<'_>, request: &ClaimRequest, now: Timestamp) -> DbResult<Vec<Claimed>> {
    let Some(queue) = request.queues.first() else { return Ok(Vec::new()) };
    lock_limited(tx, queue).await?;
    let jobs = room(tx, queue, request.limit.min(CLAIM_MAX)).await?;
    if jobs == 0 {
        return Ok(Vec::new());
    }
    let look = Look { jobs, suspects: request.suspects_max.min(CLAIM_MAX) };
    let rows = if tx.is_alone() {
        choose(tx, queue, request, look, now).await?
    } else {
        let heads = heads(tx, queue, request, look, now).await?;
        pick(tx, queue, request, &heads, now).await?
    };
    let claimed = hand_out(tx, rows).await?;
    for claimed in &claimed {
        tx.moved(subject(&claimed.job), Some(State::Ready), Some(State::Running));
    }
    Ok(claimed)
}

fn subject(job: &Job) -> Subject<'_> {
    Subject {
        id: job.id,
        queue: &job.queue,
        kind: &job.kind,
        process: job.process_id.as_ref().map(ProcessId::as_str),
        helper: job.helper,
    }
}

/// How many jobs to look for.
#[derive(Debug, Clone, Copy)]
struct Look {
    jobs: usize,
    /// At most so many of them with crashes.
    suspects: usize,
}

/// Takes a queue with a limit for this claim alone: what runs there is counted, and nobody may add to it in between.
async fn lock_limited(tx: &mut Tx<'_>, queue: &str) -> DbResult<()> {
    if tx.queue_settings(queue).await?.max_running.is_some() {
        let key = tx.keys().queue(queue);
        tx.one("SELECT pg_advisory_xact_lock($1)", &[&key]).await?;
    }
    Ok(())
}

/// How many jobs this queue may give.
async fn room(tx: &mut Tx<'_>, queue: &str, limit: usize) -> DbResult<usize> {
    let settings = tx.queue_settings(queue).await?;
    if settings.paused || limit == 0 {
        return Ok(0);
    }
    let Some(max_running) = settings.max_running else { return Ok(limit) };
    let free = i64::from(max_running) - totals::running_in(tx, queue).await?;
    Ok(limit.min(usize::try_from(free.max(0)).unwrap_or(0)))
}

/// The first jobs of each lane: kinds asked for, and jobs whose worker died apart from the others. Index lh_jobs_ready.
macro_rules! heads {
    ($kinds:expr) => {
        concat!(
            $kinds,
            " SELECT priority, run_at, seq, suspect, kind,
                 expires_at IS NOT NULL AND expires_at <= $3 AND started_at IS NULL
             FROM kinds CROSS JOIN (VALUES (0::smallint, $4::bigint), (1::smallint, $5::bigint)) AS lane (l_suspect, l_limit)
             CROSS JOIN LATERAL (
                 SELECT priority, run_at, seq, suspect, kind, expires_at, started_at FROM lh_jobs
                 WHERE state = 2 AND queue = $1 AND kind = k_kind AND suspect = l_suspect
                 ORDER BY priority, run_at, seq LIMIT l_limit) AS heads"
        )
    };
}

/// The kinds asked for.
macro_rules! kinds_asked {
    () => {
        "WITH kinds AS (SELECT DISTINCT k_kind FROM unnest($2::text[]) AS k (k_kind))"
    };
}
pub(super) use kinds_asked;

/// All kinds: steps from kind to kind along the index, however many jobs each has.
macro_rules! kinds_ready {
    () => {
        "WITH RECURSIVE kinds AS (
             (SELECT kind AS k_kind FROM lh_jobs WHERE state = 2 AND queue = $1 ORDER BY kind LIMIT 1)
             UNION ALL
             SELECT (SELECT kind FROM lh_jobs WHERE state = 2 AND queue = $1 AND kind > k_kind ORDER BY kind LIMIT 1)
             FROM kinds WHERE k_kind IS NOT NULL AND $2::text[] IS NULL)"
    };
}
pub(super) use kinds_ready;

const HEADS_OF_KINDS: &str = heads!(kinds_asked!());
const HEADS_OF_ALL: &str = heads!(kinds_ready!());

/// The first jobs in claim order, as they stand now.
async fn heads(
    tx: &Tx<'_>,
    queue: &str,
    request: &ClaimRequest,
    look: Look,
    now: Timestamp,
) -> DbResult<Vec<Head>> {
    let sql = if request.kinds.is_some() { HEADS_OF_KINDS } else { HEADS_OF_ALL };
    let (jobs, suspects) = (stored_limit(look.jobs), stored_limit(look.suspects.min(look.jobs)));
    let rows = tx.all(sql, &[&queue, &request.kinds, &now.as_millis(), &jobs, &suspects]).await?;
    let mut heads = Vec::with_capacity(rows.len());
    for row in rows {
        heads.push(Head {
            priority: row.try_get(0)?,
            run_at: row.try_get(1)?,
            seq: row.try_get(2)?,
            suspect: row.try_get::<_, i16>(3)? != 0,
            kind: row.try_get(4)?,
            expired: row.try_get(5)?,
        });
    }
    heads.sort_unstable();
    // Each kind brought its own first suspects; only so many of all may go.
    let mut suspects_left = look.suspects;
    heads.retain(|head| {
        let kept = !head.suspect || suspects_left > 0;
        suspects_left -= usize::from(head.suspect && kept);
        kept
    });
    heads.truncate(look.jobs);
    Ok(heads)
}

/// Locks and marks jobs of one lane, passing over those that others are handing out. A locked row stays where it is, so
/// it is found again by its address.
const TAKE_LANE: &str = concat!(
    "WITH picked AS (
         SELECT ctid AS place FROM lh_jobs
         WHERE state = 2 AND queue = $1 AND kind = $2 AND suspect = $3
             AND (expires_at IS NULL OR expires_at > $4 OR started_at IS NOT NULL)
         ORDER BY priority, run_at, seq LIMIT $5 FOR UPDATE SKIP LOCKED)
     UPDATE lh_jobs SET state = 3, fence = fence + 1, due_at = $6, worker = $7, started_at = $4, cancel = false
     WHERE ctid = ANY (ARRAY(SELECT place FROM picked)) RETURNING ",
    job_columns!(),
    ", payload, data"
);

/// Takes the first jobs of a queue beside other claims. These may take some of the same heads at the same time, so each
/// lane gives as many as its heads promised, not the very ones.
async fn pick(
    tx: &Tx<'_>,
    queue: &str,
    request: &ClaimRequest,
    heads: &[Head],
    now: Timestamp,
) -> DbResult<Vec<Row>> {
    if heads.iter().any(|head| head.expired) {
        return Err(DbError::Alone);
    }
    let mut lanes: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for head in heads {
        *lanes.entry((head.kind.as_str(), head.suspect)).or_default() += 1;
    }
    let until = (now + request.lease_for).as_millis();
    let mut rows = Vec::with_capacity(heads.len());
    for ((kind, suspect), jobs) in lanes {
        let worker = request.worker.as_str();
        rows.append(
            &mut tx
                .all(
                    TAKE_LANE,
                    &[
                        &queue,
                        &kind,
                        &i16::from(suspect),
                        &now.as_millis(),
                        &stored_limit(jobs),
                        &until,
                        &worker,
                    ],
                )
                .await?,
        );
    }
    Ok(rows)
}

const TAKE_ROWS: &str = concat!(
    "UPDATE lh_jobs SET state = 3, fence = fence + 1, due_at = $2, worker = $3, started_at = $4, cancel = false
     WHERE seq = ANY ($1) RETURNING ",
    job_columns!(),
    ", payload, data"
);

/// Takes the first jobs of a queue with nobody else about, and cancels the expired ones on the way. A look that met
/// expired ones is repeated further until it is filled or has met enough of them: a backlog of expired jobs is the
/// promoter's to clear, and a short answer is asked again after the commit.
async fn choose(
    tx: &mut Tx<'_>,
    queue: &str,
    request: &ClaimRequest,
    wanted: Look,
    now: Timestamp,
) -> DbResult<Vec<Row>> {
    let mut expired: Vec<i64> = Vec::new();
    let chosen = loop {
        let known: HashSet<i64> = expired.iter().copied().collect();
        // Suspects have run before, so none of them has expired.
        let look = Look { jobs: wanted.jobs + 2 * known.len(), ..wanted };
        let mut chosen = Vec::new();
        for head in heads(tx, queue, request, look, now).await? {
            if chosen.len() == wanted.jobs || expired.len() >= EXPIRED_MET_MAX {
                break;
            }
            if !head.expired {
                chosen.push(head.seq);
            } else if !known.contains(&head.seq) {
                expired.push(head.seq);
            }
        }
        let met_enough = expired.len() >= EXPIRED_MET_MAX;
        if chosen.len() == wanted.jobs || expired.len() == known.len() || met_enough {
            break chosen;
        }
    };
    for seq in expired {
        if let Some(row) = job_by_seq(tx, seq).await?.filter(|row| row.state == State::Ready) {
            cancel_waiting(tx, &row, &JobError::expired(), now).await?;
            graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, now).await?;
        }
    }
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let until = (now + request.lease_for).as_millis();
    tx.all(TAKE_ROWS, &[&chosen, &until, &request.worker.as_str(), &now.as_millis()]).await
}

/// Turns rows that have just become running into claims, in the order of claims.
pub(super) async fn hand_out(tx: &Tx<'_>, rows: Vec<Row>) -> DbResult<Vec<Claimed>> {
    let mut jobs = Vec::with_capacity(rows.len());
    for row in &rows {
        let payload: String = row.try_get(JOB_COLUMNS)?;
        jobs.push((JobRow::read(row)?, Json::trusted(payload), read_json(row, JOB_COLUMNS + 1)?));
    }
    jobs.sort_unstable_by_key(|(row, _, _)| (row.priority, row.run_at, row.seq));
    let children = jobs.iter().filter(|(row, _, _)| row.has(flag::PARENTS)).map(|(row, _, _)| row.seq);
    let mut parents = read_parents(tx, &children.collect::<Vec<_>>()).await?;
    let mut claimed = Vec::with_capacity(jobs.len());
    for (row, payload, data) in jobs {
        let parents = parents.remove(&row.seq).unwrap_or_default();
        claimed.push(row.into_claimed(payload, data, parents)?);
    }
    Ok(claimed)
}

/// Parents' ends by child, in the order of `depends_on`.
async fn read_parents(tx: &Tx<'_>, children: &[i64]) -> DbResult<HashMap<i64, Vec<ParentResult>>> {
    let mut parents: HashMap<i64, Vec<ParentResult>> = HashMap::new();
    if children.is_empty() {
        return Ok(parents);
    }
    let sql = "SELECT child, parent_id, ended, result FROM lh_edges
         WHERE child = ANY ($1) AND satisfied AND ended IS NOT NULL ORDER BY child, position";
    for row in tx.all(sql, &[&children]).await? {
        let parent = ParentResult {
            job_id: read_id(&row, 1)?,
            state: read_state(&row, 2)?,
            result: read_json(&row, 3)?,
        };
        parents.entry(row.try_get(0)?).or_default().push(parent);
    }
    Ok(parents)
}
