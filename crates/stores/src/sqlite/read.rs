//! Reads, on read-only connections beside the writer.

use std::collections::BTreeMap;

use longhaul_queue::events::{Event, EventPage};
use longhaul_queue::job::{JobDetail, JobId, JobResult, LogLine, ParentStatus, ProcessId, Run, WorkerId};
use longhaul_queue::limits::{PAGE_MAX, WORKER_KEPT};
use longhaul_queue::state::RunOutcome;
use longhaul_queue::store::{Count, LedgerRow, Page, ProcessInfo, QueueInfo, Schedule, WorkerInfo};
use longhaul_queue::{Json, Timestamp};
use rusqlite::{Connection, OptionalExtension, Params, Row};

use crate::history::{Newest, with_newest};

use super::error::DbResult;
use super::rows::{
    Body, JobRow, flag, from_text, job_by_id, read_data, read_on_failure, read_optional_state, read_result,
    read_state,
};
use super::settings::{queue_columns, read_queue, whole_queue};

pub(super) fn all<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> DbResult<Vec<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params, read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Jobs with everything known of them, in the order asked.
pub(super) fn get(connection: &Connection, ids: &[JobId]) -> DbResult<Vec<JobDetail>> {
    let mut details = Vec::with_capacity(ids.len());
    for id in ids {
        if let Some(row) = job_by_id(connection, *id)? {
            details.push(detail(connection, row)?);
        }
    }
    Ok(details)
}

pub(super) fn detail(connection: &Connection, row: JobRow) -> DbResult<JobDetail> {
    let seq = row.seq;
    let body = Body::read(connection, &row)?;
    let progress: Option<String> = connection
        .prepare_cached("SELECT progress FROM lh_progress WHERE seq = ?1")?
        .query_row([seq], |row| row.get(0))
        .optional()?;
    let after: Option<String> = connection
        .prepare_cached("SELECT process FROM lh_waiters WHERE child = ?1")?
        .query_row([seq], |row| row.get(0))
        .optional()?;
    Ok(JobDetail {
        payload: body.payload,
        data: read_data(connection, seq)?,
        result: read_result(connection, seq)?,
        depends_on: parents(connection, seq)?,
        after_process: after.map(ProcessId::from),
        runs: runs(connection, &row)?,
        progress: from_text("progress", progress)?,
        log: log(connection, seq)?,
        job: row.into_job(connection, body.options)?,
    })
}

fn parents(connection: &Connection, seq: i64) -> DbResult<Vec<ParentStatus>> {
    let sql =
        "SELECT parent_id, on_failure, satisfied, ended FROM lh_edges WHERE child = ?1 ORDER BY position";
    all(connection, sql, [seq], |row| {
        Ok(ParentStatus {
            job_id: JobId::from_bytes(row.get(0)?),
            on_failure: read_on_failure(row, 1)?,
            satisfied: row.get(2)?,
            ended: read_optional_state(row, 3)?,
        })
    })
}

fn log(connection: &Connection, seq: i64) -> DbResult<Vec<LogLine>> {
    all(connection, "SELECT at, text FROM lh_logs WHERE seq = ?1 ORDER BY line", [seq], |row| {
        Ok(LogLine { at: Timestamp::from_millis(row.get(0)?), text: row.get(1)? })
    })
}

/// Past runs, with the plain success that the job row itself tells.
fn runs(connection: &Connection, row: &JobRow) -> DbResult<Vec<Run>> {
    let sql = "SELECT fence, worker, started_at, ended_at, outcome, error, usage FROM lh_runs WHERE seq = ?1 ORDER BY fence";
    let stored = all(connection, sql, [row.seq], |row| {
        let text = |index| row.get::<_, Option<String>>(index);
        Ok((
            Run {
                fence: row.get(0)?,
                worker: WorkerId::from(row.get::<_, String>(1)?),
                started_at: Timestamp::from_millis(row.get(2)?),
                ended_at: Timestamp::from_millis(row.get(3)?),
                outcome: RunOutcome::Done,
                error: None,
                usage: text(6)?.map(Json::trusted),
            },
            text(4)?,
            text(5)?,
        ))
    })?;
    let mut runs = Vec::with_capacity(stored.len() + 1);
    for (run, outcome, error) in stored {
        let outcome = from_text("an outcome", outcome)?.unwrap_or(RunOutcome::Done);
        runs.push(Run { outcome, error: from_text("an error", error)?, ..run });
    }
    let newest = Newest {
        state: row.state,
        fence: row.fence,
        worker: row.worker.as_deref(),
        started_at: row.started_at,
        finished_at: row.finished_at,
    };
    Ok(with_newest(runs, &newest))
}

/// Index lh_jobs_process, whose entries stand in `seq` order.
pub(super) const RESULTS: &str = "SELECT j.seq, j.id, j.kind, j.state, r.result, r.error
     FROM lh_jobs j LEFT JOIN lh_results r ON r.seq = j.seq
     WHERE j.process = ?1 AND j.seq > ?2 AND j.state >= 5 AND j.flags & ?3 = 0
     ORDER BY j.seq LIMIT ?4";

/// Ended jobs of a process, in `seq` order.
pub(super) fn results(
    connection: &Connection,
    process: &str,
    after: i64,
    limit: usize,
) -> DbResult<Page<JobResult>> {
    let limit = limit.clamp(1, PAGE_MAX);
    let rows = all(connection, RESULTS, (process, after, flag::HELPER, limit + 1), |row| {
        let result = JobResult {
            seq: row.get(0)?,
            id: JobId::from_bytes(row.get(1)?),
            kind: row.get(2)?,
            state: read_state(row, 3)?,
            result: row.get::<_, Option<String>>(4)?.map(Json::trusted),
            error: None,
        };
        Ok((result, row.get::<_, Option<String>>(5)?))
    })?;
    let more = rows.len() > limit;
    let mut items = Vec::with_capacity(rows.len());
    for (result, error) in rows.into_iter().take(limit) {
        items.push(JobResult { error: from_text("an error", error)?, ..result });
    }
    let next = items.last().map(|result| result.seq).filter(|_| more);
    Ok(Page { items, next, partial: false })
}

/// This worker's running jobs that somebody wants to end.
pub(super) fn cancelling(connection: &Connection, worker: &WorkerId) -> DbResult<Vec<JobId>> {
    let sql =
        "SELECT j.id FROM lh_cancels c JOIN lh_jobs j ON j.seq = c.seq WHERE c.worker = ?1 AND j.state = 3";
    all(connection, sql, [worker.as_str()], |row| Ok(JobId::from_bytes(row.get(0)?)))
}

/// The maintained counters.
pub(super) fn counts(connection: &Connection) -> DbResult<Vec<Count>> {
    let sql = "SELECT queue, kind, state, jobs FROM lh_counts WHERE jobs > 0 ORDER BY queue, kind, state";
    all(connection, sql, [], |row| {
        Ok(Count { queue: row.get(0)?, kind: row.get(1)?, state: read_state(row, 2)?, jobs: row.get(3)? })
    })
}

/// Queues with jobs or settings.
pub(super) fn queues(connection: &Connection) -> DbResult<Vec<QueueInfo>> {
    let sql = concat!("SELECT ", queue_columns!(), ", name FROM lh_queues");
    let rows = all(connection, sql, [], |row| Ok((row.get::<_, String>(6)?, read_queue(row)?)))?;
    let mut queues = BTreeMap::new();
    for (name, columns) in rows {
        let settings = whole_queue(columns)?.settings;
        if !settings.is_default() {
            queues.insert(name.clone(), QueueInfo { settings, ..QueueInfo::bare(name) });
        }
    }
    for count in counts(connection)? {
        let info = queues.entry(count.queue.clone()).or_insert_with(|| QueueInfo::bare(count.queue));
        info.counts[count.state as usize] += count.jobs;
    }
    Ok(queues.into_values().collect())
}

/// Processes by id.
pub(super) fn processes(
    connection: &Connection,
    after: Option<&ProcessId>,
    limit: usize,
) -> DbResult<Vec<ProcessInfo>> {
    let after = after.map_or("", |process| process.as_str());
    let sql = "SELECT id, sealed FROM lh_processes WHERE id > ?1 ORDER BY id LIMIT ?2";
    let found =
        all(connection, sql, (after, limit.clamp(1, PAGE_MAX)), |row| Ok((row.get(0)?, row.get(1)?)))?;
    found.into_iter().map(|(id, sealed): (String, bool)| process_info(connection, id, sealed)).collect()
}

/// One process.
pub(super) fn process(connection: &Connection, id: &ProcessId) -> DbResult<Option<ProcessInfo>> {
    let mut statement = connection.prepare_cached("SELECT sealed FROM lh_processes WHERE id = ?1")?;
    let sealed: Option<bool> = statement.query_row([id.as_str()], |row| row.get(0)).optional()?;
    sealed.map(|sealed| process_info(connection, id.as_str().to_owned(), sealed)).transpose()
}

fn process_info(connection: &Connection, id: String, sealed: bool) -> DbResult<ProcessInfo> {
    let sql = "SELECT helper, state, jobs FROM lh_process_counts WHERE process = ?1";
    let counts = all(connection, sql, [&id], |row| {
        Ok((row.get::<_, bool>(0)?, read_state(row, 1)?, row.get::<_, u64>(2)?))
    })?;
    let mut info = ProcessInfo { id: ProcessId::from(id), sealed, counts: [0; 8], helpers: [0; 8] };
    for (helper, state, jobs) in counts {
        let by_state = if helper { &mut info.helpers } else { &mut info.counts };
        by_state[state as usize] = jobs;
    }
    Ok(info)
}

/// Schedules by name.
pub(super) fn schedules(connection: &Connection) -> DbResult<Vec<Schedule>> {
    let texts = all(connection, "SELECT schedule FROM lh_schedules ORDER BY name", [], |row| row.get(0))?;
    texts.into_iter().filter_map(|text| from_text("a schedule", Some(text)).transpose()).collect()
}

/// Workers heard of lately.
pub(super) fn workers(connection: &Connection, now: Timestamp) -> DbResult<Vec<WorkerInfo>> {
    let sql = "SELECT info FROM lh_workers WHERE seen_at > ?1 ORDER BY id";
    let texts = all(connection, sql, [(now - WORKER_KEPT).as_millis()], |row| row.get(0))?;
    texts.into_iter().filter_map(|text| from_text("a worker", Some(text)).transpose()).collect()
}

/// Events after an id, or the newest.
pub(super) fn events(connection: &Connection, after: Option<u64>, limit: usize) -> DbResult<EventPage> {
    let limit = limit.clamp(1, PAGE_MAX);
    let oldest: Option<u64> =
        connection.prepare_cached("SELECT min(id) FROM lh_events")?.query_row([], |row| row.get(0))?;
    let sql = match after {
        Some(_) => "SELECT id, at, changes, more FROM lh_events WHERE id > ?1 ORDER BY id LIMIT ?2",
        None => {
            "SELECT * FROM (SELECT id, at, changes, more FROM lh_events WHERE id > ?1 ORDER BY id DESC LIMIT ?2) ORDER BY id"
        }
    };
    let rows = all(connection, sql, (after.unwrap_or(0), limit), |row| {
        Ok((
            row.get::<_, u64>(0)?,
            row.get::<_, i64>(1)?,
            row.get::<_, Option<String>>(2)?,
            row.get::<_, u64>(3)?,
        ))
    })?;
    let mut events = Vec::with_capacity(rows.len());
    for (id, at, changes, more) in rows {
        let changes = from_text("an event", changes)?.unwrap_or_default();
        events.push(Event { id, at: Timestamp::from_millis(at), changes, more });
    }
    let resync = after.zip(oldest).is_some_and(|(after, oldest)| oldest > after + 1);
    Ok(EventPage { events, resync })
}

/// Ended jobs per day.
pub(super) fn ledger(connection: &Connection) -> DbResult<Vec<LedgerRow>> {
    let sql = "SELECT day, queue, kind, state, jobs FROM lh_ledger ORDER BY day, queue, kind, state";
    all(connection, sql, [], read_ledger_row)
}

/// Day, queue, kind, state and jobs.
pub(super) fn read_ledger_row(row: &Row<'_>) -> rusqlite::Result<LedgerRow> {
    let state = read_state(row, 3)?;
    Ok(LedgerRow { day: row.get(0)?, queue: row.get(1)?, kind: row.get(2)?, state, jobs: row.get(4)? })
}
