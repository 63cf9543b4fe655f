//! Rows of `lh_jobs` and its side tables, to and from the queue's types.

use longhaul_queue::job::{
    Claimed, Job, JobId, JobOptions, Lease, OnFailure, ParentResult, ProcessId, Wake, WorkerId,
};
use longhaul_queue::state::{JobError, Park, Spent};
use longhaul_queue::{Json, State, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::error::{DbResult, corrupt};
use super::tx::Tx;
use crate::changes::JobKey;
pub(super) use crate::row_flags as flag;

/// Payload and options together may stand in the job's row up to this size. A claim and a settlement rewrite the row,
/// so what is longer costs them more than it spares the enqueue.
const BODY_IN_ROW_MAX: usize = 512;

/// The columns of [`JobRow`], in its order.
macro_rules! job_columns {
    () => {
        "seq, id, queue, kind, state, priority, run_at, fence, flags, process, attempt, crashes, throttles, continues, \
         parks, waits_for, cancel, created_at, started_at, finished_at, expires_at, worker, due_at, moved_at"
    };
}
pub(super) use job_columns;

/// How many they are.
const JOB_COLUMNS: usize = 24;

/// One row of `lh_jobs`.
#[derive(Debug, Clone)]
pub(super) struct JobRow {
    pub(super) seq: i64,
    pub(super) id: JobId,
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) state: State,
    pub(super) priority: i32,
    pub(super) run_at: Timestamp,
    pub(super) fence: u64,
    pub(super) flags: i32,
    pub(super) process: Option<String>,
    pub(super) spent: Spent,
    pub(super) waits_for: u32,
    pub(super) cancel: bool,
    pub(super) created_at: Timestamp,
    pub(super) started_at: Option<Timestamp>,
    pub(super) finished_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) worker: Option<String>,
    pub(super) due_at: Option<Timestamp>,
    pub(super) moved_at: Option<Timestamp>,
}

impl JobRow {
    /// Reads the columns of `job_columns!` from the start of a row.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let time = |index| row.get::<_, Option<i64>>(index).map(|millis| millis.map(Timestamp::from_millis));
        Ok(Self {
            seq: row.get(0)?,
            id: JobId::from_bytes(row.get(1)?),
            queue: row.get(2)?,
            kind: row.get(3)?,
            state: read_state(row, 4)?,
            priority: row.get(5)?,
            run_at: Timestamp::from_millis(row.get(6)?),
            fence: row.get(7)?,
            flags: row.get(8)?,
            process: row.get(9)?,
            spent: Spent {
                attempt: row.get(10)?,
                crashes: row.get(11)?,
                throttles: row.get(12)?,
                continues: row.get(13)?,
                parks: row.get(14)?,
            },
            waits_for: row.get(15)?,
            cancel: row.get(16)?,
            created_at: Timestamp::from_millis(row.get(17)?),
            started_at: time(18)?,
            finished_at: time(19)?,
            expires_at: time(20)?,
            worker: row.get(21)?,
            due_at: time(22)?,
            moved_at: time(23)?,
        })
    }

    /// Whether it was not started in time. One that has run before is not bound to it any more.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.started_at.is_none() && self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    pub(super) fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Whether its worker died the last time.
    pub(super) fn is_suspect(&self) -> bool {
        self.spent.crashes > 0
    }

    pub(super) fn subject(&self) -> JobKey<'_> {
        JobKey {
            id: self.id,
            queue: &self.queue,
            kind: &self.kind,
            process: self.process.as_deref(),
            helper: self.has(flag::HELPER),
        }
    }

    /// The job, with what its side tables say.
    pub(super) fn into_job(self, connection: &Connection, options: JobOptions) -> DbResult<Job> {
        let error = if self.has(flag::RESULT) { read_error(connection, self.seq)? } else { None };
        let park = if self.state == State::Parked { read_park(connection, self.seq)? } else { None };
        let moved_at = self.moved_at;
        let job = Job {
            helper: self.has(flag::HELPER),
            id: self.id,
            seq: self.seq,
            queue: self.queue,
            kind: self.kind,
            state: self.state,
            process_id: self.process.map(ProcessId::from),
            priority: self.priority,
            run_at: self.run_at,
            created_at: self.created_at,
            updated_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            expires_at: self.expires_at,
            spent: self.spent,
            fence: self.fence,
            lease_until: self.due_at.filter(|_| self.state == State::Running),
            worker: self.worker.map(WorkerId::from),
            cancel_requested: self.cancel,
            waits_for: self.waits_for,
            park,
            error,
            options,
        };
        Ok(Job { updated_at: job.last_change(moved_at), ..job })
    }

    /// The claim of a job that has just become running.
    pub(super) fn into_claimed(self, connection: &Connection, body: Body) -> DbResult<Claimed> {
        let data = if self.has(flag::DATA) { read_data(connection, self.seq)? } else { None };
        let parents = if self.has(flag::PARENTS) { read_parents(connection, self.seq)? } else { Vec::new() };
        let wake = if self.has(flag::PARK) { read_wake(connection, self.seq)? } else { None };
        let lease = Lease {
            job_id: self.id,
            seq: self.seq,
            fence: self.fence,
            worker: WorkerId::from(self.worker.clone().unwrap_or_default()),
            until: self.due_at.unwrap_or_default(),
        };
        Ok(Claimed {
            job: self.into_job(connection, body.options)?,
            lease,
            payload: body.payload,
            data,
            parents,
            wake,
        })
    }
}

/// What was written at enqueue.
pub(super) struct Body {
    pub(super) payload: Json,
    pub(super) options: JobOptions,
}

impl Body {
    pub(super) fn read(connection: &Connection, row: &JobRow) -> DbResult<Self> {
        let sql = if row.has(flag::BODY) {
            "SELECT options, payload FROM lh_bodies WHERE seq = ?1"
        } else {
            "SELECT options, payload FROM lh_jobs WHERE seq = ?1"
        };
        let mut statement = connection.prepare_cached(sql)?;
        let (options, payload) = statement.query_row([row.seq], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Self::from_columns(options, payload)
    }

    /// Puts it in the place of another. It may be longer than a row should be, so it goes beside the row, whatever its size.
    pub(super) fn write(&self, tx: &Tx<'_>, seq: i64) -> DbResult<()> {
        tx.run(
            "INSERT INTO lh_bodies (seq, options, payload) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET options = excluded.options, payload = excluded.payload",
            (seq, options_text(&self.options)?, self.payload.as_str()),
        )?;
        let beside = "UPDATE lh_jobs SET options = NULL, payload = NULL, flags = flags | ?2 WHERE seq = ?1";
        tx.run(beside, (seq, flag::BODY))?;
        Ok(())
    }

    fn from_columns(options: Option<String>, payload: String) -> DbResult<Self> {
        Ok(Self { payload: Json::trusted(payload), options: read_options(options)? })
    }
}

/// Whether a body is short enough to stand in the job's row.
pub(super) fn fits_row(options: Option<&str>, payload: &str) -> bool {
    options.map_or(0, str::len) + payload.len() <= BODY_IN_ROW_MAX
}

/// The options alone: never walks a large payload.
pub(super) fn options_of(tx: &Tx<'_>, row: &JobRow) -> DbResult<JobOptions> {
    let sql = if row.has(flag::BODY) {
        "SELECT options FROM lh_bodies WHERE seq = ?1"
    } else {
        "SELECT options FROM lh_jobs WHERE seq = ?1"
    };
    read_options(tx.one(sql, [row.seq], |row| row.get(0))?.flatten())
}

pub(super) fn read_options(text: Option<String>) -> DbResult<JobOptions> {
    text.map_or_else(
        || Ok(JobOptions::default()),
        |text| serde_json::from_str(&text).map_err(|error| corrupt("a job's options", error)),
    )
}

/// The options as stored: nothing when all are at their default.
pub(super) fn options_text(options: &JobOptions) -> DbResult<Option<String>> {
    if *options == JobOptions::default() {
        return Ok(None);
    }
    serde_json::to_string(options).map(Some).map_err(|error| corrupt("a job's options", error))
}

/// A row of `lh_jobs` by its place.
pub(super) fn job_by_seq(tx: &Tx<'_>, seq: i64) -> DbResult<Option<JobRow>> {
    tx.one(concat!("SELECT ", job_columns!(), " FROM lh_jobs WHERE seq = ?1"), [seq], JobRow::read)
}

/// A row of `lh_jobs` and what was written at enqueue, in one look.
pub(super) fn job_with_body(tx: &Tx<'_>, seq: i64) -> DbResult<Option<(JobRow, Body)>> {
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        ", coalesce(j.options, b.options), coalesce(j.payload, b.payload)
         FROM lh_jobs j LEFT JOIN lh_bodies b USING (seq) WHERE seq = ?1"
    );
    let read = |row: &Row<'_>| {
        Ok((
            JobRow::read(row)?,
            row.get::<_, Option<String>>(JOB_COLUMNS)?,
            row.get::<_, String>(JOB_COLUMNS + 1)?,
        ))
    };
    let Some((row, options, payload)) = tx.one(sql, [seq], read)? else { return Ok(None) };
    Ok(Some((row, Body::from_columns(options, payload)?)))
}

/// A row of `lh_jobs` and its options.
pub(super) fn job_with_options(connection: &Connection, seq: i64) -> DbResult<Option<(JobRow, JobOptions)>> {
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        ", coalesce(j.options, b.options) FROM lh_jobs j LEFT JOIN lh_bodies b USING (seq) WHERE seq = ?1"
    );
    let read = |row: &Row<'_>| Ok((JobRow::read(row)?, row.get(JOB_COLUMNS)?));
    let Some((row, options)) = connection.prepare_cached(sql)?.query_row([seq], read).optional()? else {
        return Ok(None);
    };
    Ok(Some((row, read_options(options)?)))
}

/// A row of `lh_jobs` by its id.
pub(super) fn job_by_id(connection: &Connection, id: JobId) -> DbResult<Option<JobRow>> {
    let sql = concat!("SELECT ", job_columns!(), " FROM lh_jobs WHERE id = ?1");
    Ok(connection.prepare_cached(sql)?.query_row([id.as_bytes()], JobRow::read).optional()?)
}

pub(super) fn state_number(state: State) -> i64 {
    state as i64
}

pub(super) fn read_state(row: &Row<'_>, index: usize) -> rusqlite::Result<State> {
    let number: i64 = row.get(index)?;
    let known = usize::try_from(number).ok().and_then(|number| State::ALL.get(number).copied());
    known.ok_or(rusqlite::Error::IntegralValueOutOfRange(index, number))
}

/// A state that may be NULL.
pub(super) fn read_optional_state(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<State>> {
    if row.get::<_, Option<i64>>(index)?.is_none() {
        return Ok(None);
    }
    read_state(row, index).map(Some)
}

pub(super) fn on_failure_number(on_failure: OnFailure) -> i64 {
    match on_failure {
        OnFailure::Cancel => 0,
        OnFailure::Run => 1,
        OnFailure::Hold => 2,
    }
}

pub(super) fn read_on_failure(row: &Row<'_>, index: usize) -> rusqlite::Result<OnFailure> {
    match row.get(index)? {
        0 => Ok(OnFailure::Cancel),
        1 => Ok(OnFailure::Run),
        2 => Ok(OnFailure::Hold),
        number => Err(rusqlite::Error::IntegralValueOutOfRange(index, number)),
    }
}

fn side_value(connection: &Connection, sql: &str, seq: i64) -> DbResult<Option<String>> {
    let value =
        connection.prepare_cached(sql)?.query_row([seq], |row| row.get::<_, Option<String>>(0)).optional()?;
    Ok(value.flatten())
}

pub(super) fn read_data(connection: &Connection, seq: i64) -> DbResult<Option<Json>> {
    Ok(side_value(connection, "SELECT data FROM lh_data WHERE seq = ?1", seq)?.map(Json::trusted))
}

pub(super) fn read_result(connection: &Connection, seq: i64) -> DbResult<Option<Json>> {
    Ok(side_value(connection, "SELECT result FROM lh_results WHERE seq = ?1", seq)?.map(Json::trusted))
}

pub(super) fn read_error(connection: &Connection, seq: i64) -> DbResult<Option<JobError>> {
    let text = side_value(connection, "SELECT error FROM lh_results WHERE seq = ?1", seq)?;
    from_text("a job's error", text)
}

pub(super) fn read_park(connection: &Connection, seq: i64) -> DbResult<Option<Park>> {
    from_text("a park", side_value(connection, "SELECT park FROM lh_parks WHERE seq = ?1", seq)?)
}

pub(super) fn read_wake(connection: &Connection, seq: i64) -> DbResult<Option<Wake>> {
    from_text("a signal", side_value(connection, "SELECT wake FROM lh_parks WHERE seq = ?1", seq)?)
}

/// Parents' ends, in the order of `depends_on`.
fn read_parents(connection: &Connection, seq: i64) -> DbResult<Vec<ParentResult>> {
    let sql = "SELECT parent_id, ended, result, error FROM lh_edges
         WHERE child = ?1 AND ended IS NOT NULL ORDER BY position";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([seq])?;
    let mut parents = Vec::new();
    while let Some(row) = rows.next()? {
        parents.push(ParentResult {
            job_id: JobId::from_bytes(row.get(0)?),
            state: read_state(row, 1)?,
            result: row.get::<_, Option<String>>(2)?.map(Json::trusted),
            error: from_text("a parent's error", row.get(3)?)?,
        });
    }
    Ok(parents)
}

/// A JSON column that may be NULL.
pub(super) fn from_text<T: serde::de::DeserializeOwned>(
    what: &str,
    text: Option<String>,
) -> DbResult<Option<T>> {
    text.map(|text| serde_json::from_str(&text).map_err(|error| corrupt(what, error))).transpose()
}

/// A value for a JSON column.
pub(super) fn to_text<T: serde::Serialize>(what: &str, value: &T) -> DbResult<String> {
    serde_json::to_string(value).map_err(|error| corrupt(what, error))
}
