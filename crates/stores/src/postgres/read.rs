//! Reads that change nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use longhaul_queue::events::{Event, EventPage};
use longhaul_queue::job::{JobDetail, JobId, JobResult, LogLine, ParentStatus, ProcessId, Run, WorkerId};
use longhaul_queue::limits::{PAGE_MAX, WORKER_KEPT};
use longhaul_queue::state::RunOutcome;
use longhaul_queue::store::{
    Count, EdgePiece, JobPiece, LedgerRow, Page, ProcessInfo, QueueInfo, Schedule, WorkerInfo,
};
use longhaul_queue::{Json, Timestamp};
use tokio_postgres::Row;

use crate::history::{Newest, with_newest};

use super::error::{DbResult, corrupt};
use super::rows::{
    JOB_COLUMNS, JobRow, by_ids, flag, from_text, job_columns, read_fence, read_id, read_json,
    read_on_failure, read_state, read_state_or_null, stored_limit, uuids,
};
use super::tx::{Tx, queue_columns, read_queue};

/// What stands beside the rows of some jobs, by job.
#[derive(Default)]
struct Sides {
    parents: HashMap<i64, Vec<ParentStatus>>,
    after: HashMap<i64, String>,
    /// Those whose process is not done.
    waiting: HashSet<i64>,
    runs: HashMap<i64, Vec<Run>>,
    progress: HashMap<i64, String>,
    log: HashMap<i64, Vec<LogLine>>,
}

/// Jobs with everything known of them, in the order asked.
pub(super) async fn get(tx: &Tx<'_>, ids: &[JobId]) -> DbResult<Vec<JobDetail>> {
    let sql = concat!("SELECT ", job_columns!(), ", payload, data, result FROM lh_jobs WHERE ", by_ids!());
    let mut rows = Vec::new();
    for row in tx.all(sql, &[&uuids(ids)]).await? {
        let values: (String, Option<Json>, Option<Json>) =
            (row.try_get(JOB_COLUMNS)?, read_json(&row, JOB_COLUMNS + 1)?, read_json(&row, JOB_COLUMNS + 2)?);
        rows.push((JobRow::read(&row)?, values));
    }
    let mut sides = read_sides(tx, rows.iter().map(|(row, _)| row)).await?;
    let mut details = HashMap::with_capacity(rows.len());
    for (row, (payload, data, result)) in rows {
        let seq = row.seq;
        let detail = JobDetail {
            payload: Json::trusted(payload),
            data,
            result,
            depends_on: sides.parents.remove(&seq).unwrap_or_default(),
            after_process: sides.after.remove(&seq).map(ProcessId::from),
            runs: runs(&row, sides.runs.remove(&seq).unwrap_or_default()),
            progress: from_text("progress", sides.progress.remove(&seq))?,
            log: sides.log.remove(&seq).unwrap_or_default(),
            job: row.into_job()?,
        };
        details.insert(detail.job.id, detail);
    }
    Ok(ids.iter().filter_map(|id| details.get(id).cloned()).collect())
}

/// Jobs with everything that is their own, by place.
pub(super) async fn job_pieces(tx: &Tx<'_>, seqs: &[i64]) -> DbResult<Vec<JobPiece>> {
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        ", payload, data, result FROM lh_jobs WHERE seq = ANY ($1) ORDER BY seq"
    );
    let mut rows = Vec::with_capacity(seqs.len());
    for row in tx.all(sql, &[&seqs]).await? {
        let values: (String, Option<Json>, Option<Json>) =
            (row.try_get(JOB_COLUMNS)?, read_json(&row, JOB_COLUMNS + 1)?, read_json(&row, JOB_COLUMNS + 2)?);
        rows.push((JobRow::read(&row)?, values));
    }
    let mut sides = read_sides(tx, rows.iter().map(|(row, _)| row)).await?;
    let mut edges = read_edges(tx, rows.iter().map(|(row, _)| row)).await?;
    let mut pieces = Vec::with_capacity(rows.len());
    for (row, (payload, data, result)) in rows {
        let seq = row.seq;
        pieces.push(JobPiece {
            payload: Json::trusted(payload),
            data,
            result,
            edges: edges.remove(&seq).unwrap_or_default(),
            waits_for_process: sides.waiting.contains(&seq),
            after_process: sides.after.remove(&seq).map(ProcessId::from),
            wake: row.wake()?,
            runs: runs(&row, sides.runs.remove(&seq).unwrap_or_default()),
            progress: from_text("progress", sides.progress.remove(&seq))?,
            log: sides.log.remove(&seq).unwrap_or_default(),
            remove_at: row.due_at.filter(|_| row.state.is_terminal()),
            job: row.into_job()?,
        });
    }
    Ok(pieces)
}

async fn read_edges(
    tx: &Tx<'_>,
    rows: impl Iterator<Item = &JobRow>,
) -> DbResult<HashMap<i64, Vec<EdgePiece>>> {
    let children = rows.filter(|row| row.has(flag::PARENTS)).map(|row| row.seq).collect();
    let sql = "SELECT child, parent_id, on_failure, satisfied, ended, result,
             (SELECT p.seq FROM lh_jobs p WHERE p.seq = e.parent), error
         FROM lh_edges e WHERE child = ANY ($1) ORDER BY child, position";
    let mut edges: HashMap<i64, Vec<EdgePiece>> = HashMap::new();
    for row in some(tx, sql, children).await? {
        edges.entry(row.try_get(0)?).or_default().push(EdgePiece {
            parent_id: read_id(&row, 1)?,
            parent_seq: row.try_get(6)?,
            on_failure: read_on_failure(&row, 2)?,
            satisfied: row.try_get(3)?,
            ended: read_state_or_null(&row, 4)?,
            result: read_json(&row, 5)?,
            error: from_text("a parent's error", row.try_get(7)?)?,
        });
    }
    Ok(edges)
}

async fn read_sides(tx: &Tx<'_>, rows: impl Iterator<Item = &JobRow> + Clone) -> DbResult<Sides> {
    let flagged =
        |flag: i32| -> Vec<i64> { rows.clone().filter(|row| row.has(flag)).map(|row| row.seq).collect() };
    let mut sides = Sides::default();
    let sql = "SELECT child, parent_id, on_failure, satisfied, ended FROM lh_edges WHERE child = ANY ($1)
         ORDER BY child, position";
    for row in some(tx, sql, flagged(flag::PARENTS)).await? {
        let parent = ParentStatus {
            job_id: read_id(&row, 1)?,
            on_failure: read_on_failure(&row, 2)?,
            satisfied: row.try_get(3)?,
            ended: read_state_or_null(&row, 4)?,
        };
        sides.parents.entry(row.try_get(0)?).or_default().push(parent);
    }
    let sql = "SELECT child, process, satisfied FROM lh_waiters WHERE child = ANY ($1)";
    for row in some(tx, sql, flagged(flag::AFTER)).await? {
        sides.after.insert(row.try_get(0)?, row.try_get(1)?);
        if !row.try_get::<_, bool>(2)? {
            sides.waiting.insert(row.try_get(0)?);
        }
    }
    let sql = "SELECT seq, fence, worker, started_at, ended_at, outcome, error, usage FROM lh_runs
         WHERE seq = ANY ($1) ORDER BY seq, fence";
    for row in some(tx, sql, flagged(flag::RUNS)).await? {
        sides.runs.entry(row.try_get(0)?).or_default().push(read_run(&row)?);
    }
    let notes = flagged(flag::NOTES);
    for row in some(tx, "SELECT seq, progress FROM lh_progress WHERE seq = ANY ($1)", notes.clone()).await? {
        sides.progress.insert(row.try_get(0)?, row.try_get(1)?);
    }
    let sql = "SELECT seq, entry FROM lh_logs WHERE seq = ANY ($1) ORDER BY seq, line";
    for row in some(tx, sql, notes).await? {
        let line = from_text("a log line", row.try_get(1)?)?;
        sides.log.entry(row.try_get(0)?).or_default().extend(line);
    }
    Ok(sides)
}

/// Asks only where there is somebody to ask for.
async fn some(tx: &Tx<'_>, sql: &'static str, seqs: Vec<i64>) -> DbResult<Vec<Row>> {
    if seqs.is_empty() { Ok(Vec::new()) } else { tx.all(sql, &[&seqs]).await }
}

fn read_run(row: &Row) -> DbResult<Run> {
    Ok(Run {
        fence: read_fence(row, 1)?,
        worker: WorkerId::from(row.try_get::<_, String>(2)?),
        started_at: Timestamp::from_millis(row.try_get(3)?),
        ended_at: Timestamp::from_millis(row.try_get(4)?),
        outcome: from_text("an outcome", row.try_get(5)?)?.unwrap_or(RunOutcome::Done),
        error: from_text("an error", row.try_get(6)?)?,
        usage: read_json(row, 7)?,
    })
}

/// Past runs, with the plain success that the job row itself tells.
fn runs(row: &JobRow, runs: Vec<Run>) -> Vec<Run> {
    let newest = Newest {
        state: row.state,
        fence: row.fence,
        worker: row.worker.as_deref(),
        started_at: row.started_at,
        finished_at: row.finished_at,
    };
    with_newest(runs, &newest)
}

/// Ended jobs of a process, in `seq` order. Index lh_jobs_process.
pub(super) async fn results(
    tx: &Tx<'_>,
    process: &ProcessId,
    after: i64,
    limit: usize,
) -> DbResult<Page<JobResult>> {
    let limit = limit.clamp(1, PAGE_MAX);
    let sql = "SELECT seq, id, kind, state, result, error FROM lh_jobs
         WHERE process IS NOT NULL AND process = $1 AND seq > $2 AND state >= 5 AND flags & $3 = 0
         ORDER BY process, seq LIMIT $4";
    let rows = tx.all(sql, &[&process.as_str(), &after, &flag::HELPER, &stored_limit(limit + 1)]).await?;
    let more = rows.len() > limit;
    let mut items = Vec::with_capacity(rows.len());
    for row in rows.iter().take(limit) {
        items.push(JobResult {
            seq: row.try_get(0)?,
            id: read_id(row, 1)?,
            kind: row.try_get(2)?,
            state: read_state(row, 3)?,
            result: read_json(row, 4)?,
            error: from_text("an error", row.try_get(5)?)?,
        });
    }
    let next = items.last().map(|result| result.seq).filter(|_| more);
    Ok(Page { items, next, partial: false })
}

/// This worker's running jobs that somebody wants to end. Index lh_jobs_cancel.
pub(super) async fn cancelling(tx: &Tx<'_>, worker: &WorkerId) -> DbResult<Vec<JobId>> {
    let sql = "SELECT id FROM lh_jobs WHERE cancel AND worker = $1 AND state = 3 ORDER BY seq";
    tx.all(sql, &[&worker.as_str()]).await?.iter().map(|row| read_id(row, 0)).collect()
}

/// The maintained counters.
pub(super) async fn counts(tx: &Tx<'_>) -> DbResult<Vec<Count>> {
    let sql = "SELECT name, kind, state, sum(jobs)::bigint FROM (
             SELECT name, kind, state, jobs FROM lh_totals WHERE what = 0
             UNION ALL SELECT name, kind, state, jobs FROM lh_deltas WHERE what = 0) counted
         GROUP BY name, kind, state HAVING sum(jobs) > 0 ORDER BY name, kind, state";
    let read = |row: &Row| {
        Ok(Count {
            queue: row.try_get(0)?,
            kind: row.try_get(1)?,
            state: read_state(row, 2)?,
            jobs: unsigned(row, 3)?,
        })
    };
    tx.all(sql, &[]).await?.iter().map(read).collect()
}

fn unsigned(row: &Row, index: usize) -> DbResult<u64> {
    u64::try_from(row.try_get::<_, i64>(index)?).map_err(|error| corrupt("a counter", error))
}

/// Queues with jobs or settings.
pub(super) async fn queues(tx: &Tx<'_>) -> DbResult<Vec<QueueInfo>> {
    let mut queues = BTreeMap::new();
    let sql = concat!("SELECT ", queue_columns!(), ", name FROM lh_queues");
    for row in tx.all(sql, &[]).await? {
        let (settings, name): (_, String) = (read_queue(&row)?.settings, row.try_get(6)?);
        if !settings.is_default() {
            queues.insert(name.clone(), QueueInfo { settings, ..QueueInfo::bare(name) });
        }
    }
    for count in counts(tx).await? {
        let info = queues.entry(count.queue.clone()).or_insert_with(|| QueueInfo::bare(count.queue));
        info.counts[count.state as usize] += count.jobs;
    }
    Ok(queues.into_values().collect())
}

/// Processes by id.
pub(super) async fn processes(
    tx: &Tx<'_>,
    after: Option<&ProcessId>,
    limit: usize,
) -> DbResult<Vec<ProcessInfo>> {
    let after = after.map_or("", |process| process.as_str());
    let sql = "SELECT id, sealed FROM lh_processes WHERE id > $1 ORDER BY id LIMIT $2";
    let rows = tx.all(sql, &[&after, &stored_limit(limit.clamp(1, PAGE_MAX))]).await?;
    process_infos(tx, &rows).await
}

/// One process.
pub(super) async fn process(tx: &Tx<'_>, id: &ProcessId) -> DbResult<Option<ProcessInfo>> {
    let rows = tx.all("SELECT id, sealed FROM lh_processes WHERE id = $1", &[&id.as_str()]).await?;
    Ok(process_infos(tx, &rows).await?.pop())
}

async fn process_infos(tx: &Tx<'_>, rows: &[Row]) -> DbResult<Vec<ProcessInfo>> {
    let ids: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let sql = "SELECT name, part, state, sum(jobs)::bigint FROM (
             SELECT name, part, state, jobs FROM lh_totals WHERE what = 1 AND name = ANY ($1)
             UNION ALL SELECT name, part, state, jobs FROM lh_deltas WHERE what = 1 AND name = ANY ($1)) counted
         GROUP BY name, part, state HAVING sum(jobs) > 0";
    let mut counts: HashMap<String, [[u64; 8]; 2]> = HashMap::new();
    for row in tx.all(sql, &[&ids]).await? {
        let by_state = counts.entry(row.try_get(0)?).or_default();
        let helper = usize::from(row.try_get::<_, i64>(1)? != 0);
        by_state[helper][read_state(&row, 2)? as usize] = unsigned(&row, 3)?;
    }
    let mut infos = Vec::with_capacity(rows.len());
    for (row, id) in rows.iter().zip(ids) {
        let [jobs, helpers] = counts.remove(&id).unwrap_or_default();
        infos.push(ProcessInfo { id: ProcessId::from(id), sealed: row.try_get(1)?, counts: jobs, helpers });
    }
    Ok(infos)
}

/// Schedules by name.
pub(super) async fn schedules(tx: &Tx<'_>) -> DbResult<Vec<Schedule>> {
    let rows = tx.all("SELECT schedule FROM lh_schedules ORDER BY name", &[]).await?;
    texts("a schedule", &rows)
}

/// Workers heard of lately.
pub(super) async fn workers(tx: &Tx<'_>, now: Timestamp) -> DbResult<Vec<WorkerInfo>> {
    let sql = "SELECT info FROM lh_workers WHERE seen_at > $1 ORDER BY id";
    texts("a worker", &tx.all(sql, &[&(now - WORKER_KEPT).as_millis()]).await?)
}

fn texts<T: serde::de::DeserializeOwned>(what: &str, rows: &[Row]) -> DbResult<Vec<T>> {
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        values.extend(from_text(what, row.try_get(0)?)?);
    }
    Ok(values)
}

/// Events after an id, or the newest.
pub(super) async fn events(tx: &Tx<'_>, after: Option<u64>, limit: usize) -> DbResult<EventPage> {
    let limit = stored_limit(limit.clamp(1, PAGE_MAX));
    let oldest = tx.one("SELECT id FROM lh_events ORDER BY id LIMIT 1", &[]).await?;
    let oldest = oldest.map(|row| read_fence(&row, 0)).transpose()?;
    let sql = match after {
        Some(_) => "SELECT id, at, changes, more FROM lh_events WHERE id > $1 ORDER BY id LIMIT $2",
        None => {
            "SELECT * FROM (SELECT id, at, changes, more FROM lh_events WHERE id > $1 ORDER BY id DESC LIMIT $2) newest
             ORDER BY id"
        }
    };
    let from = i64::try_from(after.unwrap_or(0)).unwrap_or(i64::MAX);
    let mut events = Vec::new();
    for row in tx.all(sql, &[&from, &limit]).await? {
        events.push(Event {
            id: read_fence(&row, 0)?,
            at: Timestamp::from_millis(row.try_get(1)?),
            changes: from_text("an event", row.try_get(2)?)?.unwrap_or_default(),
            more: unsigned(&row, 3)?,
        });
    }
    let resync = after.zip(oldest).is_some_and(|(after, oldest)| oldest > after.saturating_add(1));
    Ok(EventPage { events, resync })
}

/// Ended jobs per day.
pub(super) async fn ledger(tx: &Tx<'_>) -> DbResult<Vec<LedgerRow>> {
    let sql = "SELECT part, name, kind, state, sum(jobs)::bigint FROM (
             SELECT part, name, kind, state, jobs FROM lh_totals WHERE what = 2
             UNION ALL SELECT part, name, kind, state, jobs FROM lh_deltas WHERE what = 2) counted
         GROUP BY part, name, kind, state ORDER BY part, name, kind, state";
    let read = |row: &Row| {
        Ok(LedgerRow {
            day: row.try_get(0)?,
            queue: row.try_get(1)?,
            kind: row.try_get(2)?,
            state: read_state(row, 3)?,
            jobs: unsigned(row, 4)?,
        })
    };
    tx.all(sql, &[]).await?.iter().map(read).collect()
}
