//! Rows of `lh_jobs`, to and from the queue's types.

use std::collections::HashMap;

use longhaul_queue::job::{
    Claimed, Job, JobId, JobOptions, Lease, OnFailure, ParentResult, ProcessId, Wake, WorkerId,
};
use longhaul_queue::state::{JobError, Park, Spent};
use longhaul_queue::{Json, State, Timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

use super::error::{DbResult, corrupt};
use super::tx::Tx;
use crate::changes::JobKey;
pub(super) use crate::row_flags as flag;

/// The columns of [`JobRow`], in its order. Payload, data and result are not among them: they may be large.
macro_rules! job_columns {
    () => {
        "seq, id, queue, kind, state, priority, run_at, fence, flags, process, attempt, crashes, throttles, continues, \
         parks, waits_for, cancel, created_at, started_at, finished_at, expires_at, worker, due_at, park, wake, error, \
         options, moved_at"
    };
}
pub(super) use job_columns;

/// The condition that a job's id is one of `$1`.
macro_rules! by_ids {
    () => {
        "seq = ANY (ARRAY(SELECT i.seq FROM lh_ids i WHERE i.id = ANY ($1)))"
    };
}
pub(super) use by_ids;

/// The number of [`job_columns`].
pub(super) const JOB_COLUMNS: usize = 28;

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
    pub(super) park: Option<String>,
    pub(super) wake: Option<String>,
    pub(super) error: Option<String>,
    pub(super) options: Option<String>,
    pub(super) moved_at: Option<Timestamp>,
}

impl JobRow {
    /// Reads the columns of `job_columns!` from the start of a row.
    pub(super) fn read(row: &Row) -> DbResult<Self> {
        let time = |index: usize| -> DbResult<Option<Timestamp>> {
            Ok(row.try_get::<_, Option<i64>>(index)?.map(Timestamp::from_millis))
        };
        let count = |index: usize| -> DbResult<u32> { read_count(row, index) };
        Ok(Self {
            seq: row.try_get(0)?,
            id: read_id(row, 1)?,
            queue: row.try_get(2)?,
            kind: row.try_get(3)?,
            state: read_state(row, 4)?,
            priority: row.try_get(5)?,
            run_at: Timestamp::from_millis(row.try_get(6)?),
            fence: read_fence(row, 7)?,
            flags: row.try_get(8)?,
            process: row.try_get(9)?,
            spent: Spent {
                attempt: count(10)?,
                crashes: count(11)?,
                throttles: count(12)?,
                continues: count(13)?,
                parks: count(14)?,
            },
            waits_for: count(15)?,
            cancel: row.try_get(16)?,
            created_at: Timestamp::from_millis(row.try_get(17)?),
            started_at: time(18)?,
            finished_at: time(19)?,
            expires_at: time(20)?,
            worker: row.try_get(21)?,
            due_at: time(22)?,
            park: row.try_get(23)?,
            wake: row.try_get(24)?,
            error: row.try_get(25)?,
            options: row.try_get(26)?,
            moved_at: time(27)?,
        })
    }

    /// Whether it was not started in time. One that has run before is not bound to it any more.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.started_at.is_none() && self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    pub(super) fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
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

    pub(super) fn options(&self) -> DbResult<JobOptions> {
        Ok(from_text("a job's options", self.options.clone())?.unwrap_or_default())
    }

    pub(super) fn park(&self) -> DbResult<Option<Park>> {
        from_text("a park", self.park.clone())
    }

    pub(super) fn wake(&self) -> DbResult<Option<Wake>> {
        from_text("a signal", self.wake.clone())
    }

    pub(super) fn error(&self) -> DbResult<Option<JobError>> {
        from_text("a job's error", self.error.clone())
    }

    pub(super) fn into_job(self) -> DbResult<Job> {
        let moved_at = self.moved_at;
        let job = Job {
            helper: self.has(flag::HELPER),
            park: if self.state == State::Parked { self.park()? } else { None },
            error: self.error()?,
            options: self.options()?,
            updated_at: self.created_at,
            id: self.id,
            seq: self.seq,
            queue: self.queue,
            kind: self.kind,
            state: self.state,
            process_id: self.process.map(ProcessId::from),
            priority: self.priority,
            run_at: self.run_at,
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            expires_at: self.expires_at,
            spent: self.spent,
            fence: self.fence,
            lease_until: self.due_at.filter(|_| self.state == State::Running),
            worker: self.worker.map(WorkerId::from),
            cancel_requested: self.cancel,
            waits_for: self.waits_for,
        };
        Ok(Job { updated_at: job.last_change(moved_at), ..job })
    }

    /// The claim of a job that has just become running.
    pub(super) fn into_claimed(
        self,
        payload: Json,
        data: Option<Json>,
        parents: Vec<ParentResult>,
    ) -> DbResult<Claimed> {
        let lease = Lease {
            job_id: self.id,
            seq: self.seq,
            fence: self.fence,
            worker: WorkerId::from(self.worker.clone().unwrap_or_default()),
            until: self.due_at.unwrap_or_default(),
        };
        let wake = self.wake()?;
        Ok(Claimed { job: self.into_job()?, lease, payload, data, parents, wake })
    }
}

/// The options as stored: nothing when all are at their default.
pub(super) fn options_text(options: &JobOptions) -> DbResult<Option<String>> {
    if *options == JobOptions::default() {
        return Ok(None);
    }
    to_text("a job's options", options).map(Some)
}

/// A row of `lh_jobs` by its place.
pub(super) async fn job_by_seq(tx: &Tx<'_>, seq: i64) -> DbResult<Option<JobRow>> {
    let sql = concat!("SELECT ", job_columns!(), " FROM lh_jobs WHERE seq = $1");
    tx.one(sql, &[&seq]).await?.map(|row| JobRow::read(&row)).transpose()
}

/// A row of `lh_jobs` by its id.
pub(super) async fn job_by_id(tx: &Tx<'_>, id: JobId) -> DbResult<Option<JobRow>> {
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        " FROM lh_jobs WHERE seq = (SELECT i.seq FROM lh_ids i WHERE i.id = $1)"
    );
    tx.one(sql, &[&uuid(id)]).await?.map(|row| JobRow::read(&row)).transpose()
}

/// The rows that exist of these ids.
pub(super) async fn jobs_by_id(tx: &Tx<'_>, ids: &[JobId]) -> DbResult<HashMap<JobId, JobRow>> {
    let sql = concat!("SELECT ", job_columns!(), " FROM lh_jobs WHERE ", by_ids!());
    let rows = tx.all(sql, &[&uuids(ids)]).await?;
    rows.iter().map(|row| JobRow::read(row).map(|row| (row.id, row))).collect()
}

pub(super) fn uuid(id: JobId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

pub(super) fn uuids(ids: &[JobId]) -> Vec<Uuid> {
    ids.iter().copied().map(uuid).collect()
}

pub(super) fn read_id(row: &Row, index: usize) -> DbResult<JobId> {
    Ok(JobId::from_bytes(*row.try_get::<_, Uuid>(index)?.as_bytes()))
}

pub(super) fn state_number(state: State) -> i16 {
    match state {
        State::Blocked => 0,
        State::Scheduled => 1,
        State::Ready => 2,
        State::Running => 3,
        State::Parked => 4,
        State::Succeeded => 5,
        State::Failed => 6,
        State::Cancelled => 7,
    }
}

pub(super) fn state_of(number: i16) -> DbResult<State> {
    let known = usize::try_from(number).ok().and_then(|number| State::ALL.get(number).copied());
    known.ok_or_else(|| corrupt("a job's state", number))
}

pub(super) fn read_state(row: &Row, index: usize) -> DbResult<State> {
    state_of(row.try_get(index)?)
}

pub(super) fn read_state_or_null(row: &Row, index: usize) -> DbResult<Option<State>> {
    row.try_get::<_, Option<i16>>(index)?.map(state_of).transpose()
}

/// A number that is never negative.
pub(super) fn read_count(row: &Row, index: usize) -> DbResult<u32> {
    u32::try_from(row.try_get::<_, i32>(index)?).map_err(|error| corrupt("a counter", error))
}

pub(super) fn read_fence(row: &Row, index: usize) -> DbResult<u64> {
    u64::try_from(row.try_get::<_, i64>(index)?).map_err(|error| corrupt("a fence", error))
}

pub(super) fn stored_count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(super) fn stored_fence(fence: u64) -> i64 {
    i64::try_from(fence).unwrap_or(i64::MAX)
}

/// A limit as SQL takes it.
pub(super) fn stored_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(super) fn millis(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_millis)
}

pub(super) fn on_failure_number(on_failure: OnFailure) -> i16 {
    match on_failure {
        OnFailure::Cancel => 0,
        OnFailure::Run => 1,
        OnFailure::Hold => 2,
    }
}

pub(super) fn read_on_failure(row: &Row, index: usize) -> DbResult<OnFailure> {
    match row.try_get::<_, i16>(index)? {
        0 => Ok(OnFailure::Cancel),
        1 => Ok(OnFailure::Run),
        2 => Ok(OnFailure::Hold),
        number => Err(corrupt("an edge", number)),
    }
}

pub(super) fn read_json(row: &Row, index: usize) -> DbResult<Option<Json>> {
    Ok(row.try_get::<_, Option<String>>(index)?.map(Json::trusted))
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
