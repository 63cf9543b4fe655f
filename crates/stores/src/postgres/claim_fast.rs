//! The usual claim: a queue without limits and without fair keys, in one statement and one trip to the server. It looks at the lanes, locks so
//! many jobs of each as it gives, marks them and writes the bookkeeping. A queue with settings of its own and a queue
//! whose first jobs have expired are left to [`super::claim`].

use longhaul_queue::limits::{CLAIM_MAX, EVENT_CHANGES_MAX};
use longhaul_queue::store::ClaimRequest;
use longhaul_queue::{Claimed, Result, Timestamp};
use tracing::{error, warn};

use super::claim;
use super::db::{Db, Mode, transact};
use super::error::DbResult;
use super::rows::{job_columns, stored_limit};
use super::tx::{Params, Tx};
use crate::settle_order::SettleOrder;

/// Counter rows that a claim of one kind adds.
const DELTA_ROWS: usize = 2;

/// Hands out ready jobs, queue by queue: each in a transaction of its own, so that none is kept waiting by another.
pub(super) async fn claim(db: &Db, request: ClaimRequest) -> Result<Vec<Claimed>> {
    let mut claimed: Vec<Claimed> = Vec::new();
    let mut left = ClaimRequest {
        limit: request.limit.min(CLAIM_MAX),
        suspects_max: request.suspects_max.min(CLAIM_MAX),
        ..request
    };
    for queue in std::mem::take(&mut left.queues) {
        if left.limit == 0 {
            break;
        }
        left.queues = vec![queue];
        let more = match claim_one(db, &left).await {
            Ok(more) => more,
            // What was handed out before stands.
            Err(error) if !claimed.is_empty() => {
                warn!(queue = left.queues[0], %error, "this queue could not be claimed from");
                break;
            }
            Err(error) => return Err(error),
        };
        left.limit = left.limit.saturating_sub(more.len());
        let suspects = more.iter().filter(|claimed| claimed.job.spent.crashes > 0).count();
        left.suspects_max = left.suspects_max.saturating_sub(suspects);
        claimed.extend(more);
    }
    Ok(claimed)
}

async fn claim_one(db: &Db, request: &ClaimRequest) -> Result<Vec<Claimed>> {
    let quick = transact!(db, Mode::Shared, request.now, |tx| {
        take(tx, request, db.time(request.now), &db.settle_order)
    })?;
    if let Some(claimed) = quick {
        return Ok(claimed);
    }
    transact!(db, Mode::Shared, request.now, |tx| {
        claim::claim(tx, request, db.time(request.now), &db.settle_order)
    })
}

/// The kinds asked for.
macro_rules! kinds_asked {
    () => {
        "WITH kinds AS (SELECT DISTINCT k_kind FROM unnest($2::text[]) AS k (k_kind))"
    };
}

/// All kinds: steps from kind to kind along the index, however many jobs each has.
macro_rules! kinds_ready {
    () => {
        "WITH RECURSIVE kinds AS (
             (SELECT kind AS k_kind FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND queue = $1 ORDER BY kind LIMIT 1)
             UNION ALL
             SELECT (SELECT kind FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND queue = $1 AND kind > k_kind
                 ORDER BY kind LIMIT 1)
             FROM kinds WHERE k_kind IS NOT NULL AND $2::text[] IS NULL)"
    };
}

/// One queue's jobs. A single lane gives what it has; of several, each gives as many as are among the first of all.
/// Locked rows stay where they are, so they are found again by their address; one that was changed and became ready again
/// since this statement began has another, and is left for the next claim. So only what was taken is counted. A lane is looked at for whether it has any
/// job, with a limit of its own: without, the planner reads all of it. The only lane there is need not be looked at,
/// which would mean to step over all that was just taken from it.
macro_rules! take {
    ($kinds:expr) => {
        concat!(
            $kinds,
            ", lanes AS MATERIALIZED (
                 SELECT k_kind, l_suspect, l_limit
                 FROM kinds CROSS JOIN (VALUES (0::smallint, $4::bigint), (1::smallint, $5::bigint)) AS lane (l_suspect, l_limit)
                 CROSS JOIN LATERAL (
                     SELECT 1 WHERE l_suspect = 0 AND cardinality($2::text[]) = 1
                     UNION ALL
                     SELECT 1 FROM lh_jobs
                     WHERE state = 2 AND fair_key IS NULL AND queue = $1 AND kind = k_kind AND suspect = l_suspect
                     LIMIT 1) AS any_job
                 WHERE l_limit > 0
                     AND NOT EXISTS (SELECT 1 FROM lh_queues WHERE name = $1
                         AND (paused OR max_running IS NOT NULL OR ageing IS NOT NULL OR last_key IS NOT NULL))),
             heads AS (
                 SELECT kind, suspect, priority, run_at, seq,
                     row_number() OVER (PARTITION BY suspect ORDER BY priority, run_at, seq) AS place
                 FROM lanes CROSS JOIN LATERAL (
                     SELECT kind, suspect, priority, run_at, seq FROM lh_jobs
                     WHERE state = 2 AND fair_key IS NULL AND queue = $1 AND kind = k_kind AND suspect = l_suspect
                     ORDER BY priority, run_at, seq LIMIT l_limit) AS head
                 WHERE (SELECT count(*) FROM lanes) > 1),
             shares AS MATERIALIZED (
                 SELECT k_kind, l_suspect, l_limit AS share FROM lanes WHERE (SELECT count(*) FROM lanes) = 1
                 UNION ALL
                 SELECT kind, suspect, count(*) FROM (
                     SELECT kind, suspect FROM heads WHERE suspect = 0 OR place <= $5
                     ORDER BY priority, run_at, seq LIMIT $4) AS first
                 GROUP BY kind, suspect),
             picked AS MATERIALIZED (
                 SELECT locked.* FROM shares CROSS JOIN LATERAL (
                     SELECT ctid AS place, expires_at <= $3 AND started_at IS NULL AS late
                     FROM lh_jobs
                     WHERE state = 2 AND fair_key IS NULL AND queue = $1 AND kind = k_kind AND suspect = l_suspect
                     ORDER BY priority, run_at, seq LIMIT share FOR UPDATE SKIP LOCKED) AS locked),
             taken AS (
                 UPDATE lh_jobs SET state = 3, fence = fence + 1, due_at = $6, worker = $7, started_at = $3, cancel = false
                 WHERE ctid = ANY (ARRAY(SELECT place FROM picked WHERE NOT EXISTS (SELECT 1 FROM picked WHERE late)))
                 RETURNING ",
            job_columns!(),
            ", payload, data),
             given AS MATERIALIZED (
                 SELECT kind, process, flags & 1 AS helper, count(*) AS jobs FROM taken GROUP BY 1, 2, 3),
             counted AS (
                 INSERT INTO lh_deltas (what, name, part, state, kind, jobs)
                 SELECT 0, $1, 0, m_state, kind, sum(m_jobs * jobs)
                 FROM given, (VALUES (2, -1), (3, 1)) AS move (m_state, m_jobs) GROUP BY kind, m_state
                 UNION ALL
                 SELECT 1, process, helper, m_state, '', sum(m_jobs * jobs)
                 FROM given, (VALUES (2, -1), (3, 1)) AS move (m_state, m_jobs)
                 WHERE process IS NOT NULL GROUP BY process, helper, m_state),
             told AS (
                 INSERT INTO lh_news (at, changes, more)
                 SELECT $3, '[' || string_agg('{\"job_id\":\"' || id || '\",\"queue\":' || to_json($1) || ',\"kind\":' || to_json(kind)
                     || ',\"process_id\":' || coalesce(to_json(process)::text, 'null') || ',\"state\":\"running\"}', ','
                     ORDER BY priority, run_at, seq) || ']',
                     (SELECT greatest(sum(jobs) - $8, 0) FROM given)
                 FROM (SELECT id, kind, process, priority, run_at, seq FROM taken ORDER BY priority, run_at, seq LIMIT $8) AS first
                 HAVING count(*) > 0)
             SELECT ",
            job_columns!(),
            ", payload, data FROM taken"
        )
    };
}

const TAKE_KINDS: &str = take!(kinds_asked!());
const TAKE_ALL: &str = take!(kinds_ready!());

/// Whether the general way may find more: the queue has settings of its own, or ready jobs all the same. NULL when rows
/// were locked, which is then answered by what was taken; to look would mean to step over it.
const LOOK: &str = "SELECT CASE WHEN txid_current_if_assigned() IS NULL THEN
         EXISTS (SELECT 1 FROM lh_queues WHERE name = $1
             AND (max_running IS NOT NULL OR ageing IS NOT NULL OR last_key IS NOT NULL) AND NOT paused)
         OR ($2::text[] IS NULL AND EXISTS (
             SELECT 1 FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND queue = $1))
         OR EXISTS (SELECT 1 FROM unnest($2::text[]) AS k (k_kind) CROSS JOIN LATERAL (
             SELECT 1 FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND queue = $1 AND kind = k_kind LIMIT 1) AS any_job)
     END";

/// `None` when this queue is not a usual one.
async fn take(
    tx: &mut Tx<'_>,
    request: &ClaimRequest,
    now: Timestamp,
    order: &SettleOrder,
) -> DbResult<Option<Vec<Claimed>>> {
    let Some(queue) = request.queues.first().filter(|_| !tx.is_alone()) else { return Ok(None) };
    let sql = if request.kinds.is_some() { TAKE_KINDS } else { TAKE_ALL };
    let (jobs, suspects) =
        (stored_limit(request.limit), stored_limit(request.suspects_max.min(request.limit)));
    let (at, until, worker) =
        (now.as_millis(), (now + request.lease_for).as_millis(), request.worker.as_str());
    let told = stored_limit(EVENT_CHANGES_MAX);
    let params: Params<'_> = &[queue, &request.kinds, &at, &jobs, &suspects, &until, &worker, &told];
    let mut replies = tx.last(&[(sql, params), (LOOK, &[queue, &request.kinds])]).await?.into_iter();
    let (taken, look) = (replies.next().unwrap_or_default(), replies.next().unwrap_or_default());
    if taken.is_empty() {
        let more: Option<bool> = look.first().map_or(Ok(None), |row| row.try_get(0))?;
        return Ok((more == Some(false)).then(Vec::new));
    }
    tx.booked_by_last(DELTA_ROWS);
    // It is committed: one that cannot be read must not leave all of them running without anybody who runs them.
    let readable = |claimed: DbResult<Claimed>| {
        claimed.inspect_err(|error| error!(queue, %error, "a job was claimed that nobody can run")).ok()
    };
    Ok(Some(claim::hand_out(tx, taken, order).await?.into_iter().filter_map(readable).collect()))
}
