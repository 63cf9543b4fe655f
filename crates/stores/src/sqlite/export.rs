//! Everything that lasts, piece by piece, for another store; `import` is the other way.

use longhaul_queue::job::JobId;
use longhaul_queue::limits::PIECES_MAX;
use longhaul_queue::store::{
    EdgePiece, ExportPage, ExportRecord, JobPiece, QueuePiece, Signal, UniquePiece, refusals,
};
use longhaul_queue::{Json, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};

use super::error::DbResult;
use super::read::{all, detail, read_ledger_row};
use super::rows::{
    JobRow, from_text, job_columns, read_on_failure, read_optional_state, read_wake, state_number, to_text,
};
use super::settings::{queue_columns, read_queue, whole_queue};

/// Bytes of values on one page, at about which it ends.
const PAGE_BYTES: usize = 8_000_000;

/// Where an export stands: after this piece. In the order of [`ExportRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    Start,
    LastSeq,
    Queue(String),
    OpenProcess(String),
    Job(i64),
    Unique(String, String, String),
    Signal(String),
    Schedule(String),
    Ledger(i64, String, String, i64),
    Record(String),
}

impl Place {
    fn after(piece: &ExportRecord) -> Self {
        match piece {
            ExportRecord::LastSeq(_) => Self::LastSeq,
            ExportRecord::Queue(queue) => Self::Queue(queue.name.clone()),
            ExportRecord::OpenProcess(id) => Self::OpenProcess(id.as_str().to_owned()),
            ExportRecord::Job(piece) => Self::Job(piece.job.seq),
            ExportRecord::Unique(unique) => {
                Self::Unique(unique.queue.clone(), unique.kind.clone(), unique.key.clone())
            }
            ExportRecord::Signal { key, .. } => Self::Signal(key.clone()),
            ExportRecord::Schedule(schedule) => Self::Schedule(schedule.name.clone()),
            ExportRecord::Ledger(row) => {
                Self::Ledger(row.day, row.queue.clone(), row.kind.clone(), state_number(row.state))
            }
            ExportRecord::Record { name, .. } => Self::Record(name.clone()),
        }
    }
}

/// A page of everything.
pub(super) fn export(connection: &Connection, after: Option<&str>, limit: usize) -> DbResult<ExportPage> {
    let no_cursor = |_| refusals::no_export_cursor();
    let place = after.map_or(Ok(Place::Start), serde_json::from_str).map_err(no_cursor)?;
    let limit = limit.clamp(1, PIECES_MAX);
    let mut page = Page { connection, limit, bytes: 0, pieces: Vec::new(), more: false };
    // Each part begins after the place, if that is in it, and at its beginning, if the place is before it.
    let parts = [
        Page::last_seq,
        Page::queues,
        Page::open_processes,
        Page::jobs,
        Page::uniques,
        Page::signals,
        Page::schedules,
        Page::ledger,
        Page::records,
    ];
    let passed = match &place {
        Place::Start => 0,
        Place::LastSeq | Place::Queue(_) => 1,
        Place::OpenProcess(_) => 2,
        Place::Job(_) => 3,
        Place::Unique(..) => 4,
        Place::Signal(_) => 5,
        Place::Schedule(_) => 6,
        Place::Ledger(..) => 7,
        Place::Record(_) => 8,
    };
    for part in parts.into_iter().skip(passed) {
        part(&mut page, &place)?;
        if page.more {
            break;
        }
    }
    let next = page.pieces.last().filter(|_| page.more).map(Place::after);
    let next = next.map(|place| to_text("a cursor", &place)).transpose()?;
    Ok(ExportPage { pieces: page.pieces, next })
}

/// A page that is being filled.
struct Page<'a> {
    connection: &'a Connection,
    limit: usize,
    bytes: usize,
    pieces: Vec<ExportRecord>,
    /// Something was left for the next page.
    more: bool,
}

impl Page<'_> {
    /// How many rows to read: one more than fit, to know whether there are more.
    fn rows(&self) -> usize {
        self.limit - self.pieces.len() + 1
    }

    /// Adds pieces while they fit.
    fn fill<T>(
        &mut self,
        rows: Vec<T>,
        mut piece: impl FnMut(&Connection, T) -> DbResult<Option<ExportRecord>>,
    ) -> DbResult<()> {
        for row in rows {
            if self.pieces.len() == self.limit || self.bytes >= PAGE_BYTES {
                self.more = true;
                break;
            }
            if let Some(piece) = piece(self.connection, row)? {
                self.bytes += bytes_of(&piece);
                self.pieces.push(piece);
            }
        }
        Ok(())
    }

    fn last_seq(&mut self, _: &Place) -> DbResult<()> {
        let sql = "SELECT max(value, (SELECT coalesce(max(seq), 0) FROM lh_jobs)) AS last
                   FROM lh_meta WHERE key = 'deleted_seq' AND last > 0";
        let rows = all(self.connection, sql, [], |row| row.get(0))?;
        self.fill(rows, |_, seq| Ok(Some(ExportRecord::LastSeq(seq))))
    }

    fn queues(&mut self, place: &Place) -> DbResult<()> {
        let after = if let Place::Queue(name) = place { name } else { "" };
        let sql = concat!(
            "SELECT ",
            queue_columns!(),
            ", name, last_key FROM lh_queues WHERE name > ?1 ORDER BY name LIMIT ?2"
        );
        let read = |row: &Row<'_>| Ok((read_queue(row)?, row.get(6)?, row.get(7)?));
        let rows = all(self.connection, sql, (after, self.rows()), read)?;
        self.fill(rows, |_, (columns, name, last_key)| {
            let settings = whole_queue(columns)?.settings;
            Ok(Some(ExportRecord::Queue(QueuePiece { name, settings, last_key })))
        })
    }

    fn open_processes(&mut self, place: &Place) -> DbResult<()> {
        let after = if let Place::OpenProcess(id) = place { id } else { "" };
        let sql = "SELECT id FROM lh_processes WHERE sealed = 0 AND id > ?1 ORDER BY id LIMIT ?2";
        let rows = all(self.connection, sql, (after, self.rows()), |row| row.get::<_, String>(0))?;
        self.fill(rows, |_, id| Ok(Some(ExportRecord::OpenProcess(id.into()))))
    }

    fn jobs(&mut self, place: &Place) -> DbResult<()> {
        let after = if let Place::Job(seq) = place { *seq } else { i64::MIN };
        let sql = concat!("SELECT ", job_columns!(), " FROM lh_jobs WHERE seq > ?1 ORDER BY seq LIMIT ?2");
        let rows = all(self.connection, sql, (after, self.rows()), JobRow::read)?;
        self.fill(rows, |connection, row| Ok(Some(ExportRecord::Job(Box::new(job_piece(connection, row)?)))))
    }

    fn uniques(&mut self, place: &Place) -> DbResult<()> {
        let empty = String::new();
        let after = match place {
            Place::Unique(queue, kind, key) => (queue, kind, key),
            _ => (&empty, &empty, &empty),
        };
        let sql = "SELECT queue, kind, key, job_id, seq, ended, taken_until FROM lh_uniques
                   WHERE (queue, kind, key) > (?1, ?2, ?3) ORDER BY queue, kind, key LIMIT ?4";
        let rows = all(self.connection, sql, (after.0, after.1, after.2, self.rows()), |row| {
            Ok(ExportRecord::Unique(UniquePiece {
                queue: row.get(0)?,
                kind: row.get(1)?,
                key: row.get(2)?,
                job_id: JobId::from_bytes(row.get(3)?),
                seq: row.get(4)?,
                ended: read_optional_state(row, 5)?,
                taken_until: row.get::<_, Option<i64>>(6)?.map(Timestamp::from_millis),
            }))
        })?;
        self.fill(rows, |_, piece| Ok(Some(piece)))
    }

    fn signals(&mut self, place: &Place) -> DbResult<()> {
        let after = if let Place::Signal(key) = place { key } else { "" };
        let sql = "SELECT key, signal, expires_at FROM lh_signals WHERE key > ?1 ORDER BY key LIMIT ?2";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?));
        let rows = all(self.connection, sql, (after, self.rows()), read)?;
        self.fill(rows, |_, (key, signal, expires_at)| {
            let signal = from_text::<Signal>("a signal", Some(signal))?;
            let expires_at = Timestamp::from_millis(expires_at);
            Ok(signal.map(|signal| ExportRecord::Signal { key, signal, expires_at }))
        })
    }

    fn schedules(&mut self, place: &Place) -> DbResult<()> {
        let after = if let Place::Schedule(name) = place { name } else { "" };
        let sql = "SELECT schedule FROM lh_schedules WHERE name > ?1 ORDER BY name LIMIT ?2";
        let rows = all(self.connection, sql, (after, self.rows()), |row| row.get::<_, String>(0))?;
        self.fill(rows, |_, text| Ok(from_text("a schedule", Some(text))?.map(ExportRecord::Schedule)))
    }

    fn ledger(&mut self, place: &Place) -> DbResult<()> {
        let empty = String::new();
        let after = match place {
            Place::Ledger(day, queue, kind, state) => (*day, queue, kind, *state),
            _ => (i64::MIN, &empty, &empty, 0),
        };
        let sql = "SELECT day, queue, kind, state, jobs FROM lh_ledger
                   WHERE (day, queue, kind, state) > (?1, ?2, ?3, ?4) ORDER BY day, queue, kind, state LIMIT ?5";
        let params = (after.0, after.1, after.2, after.3, self.rows());
        let rows = all(self.connection, sql, params, read_ledger_row)?;
        self.fill(rows, |_, row| Ok(Some(ExportRecord::Ledger(row))))
    }

    fn records(&mut self, place: &Place) -> DbResult<()> {
        let after = if let Place::Record(name) = place { name } else { "" };
        let sql = "SELECT name, version, value FROM lh_records WHERE name > ?1 ORDER BY name LIMIT ?2";
        let rows = all(self.connection, sql, (after, self.rows()), |row| {
            let value = Json::trusted(row.get::<_, String>(2)?);
            Ok(ExportRecord::Record { name: row.get(0)?, version: row.get(1)?, value })
        })?;
        self.fill(rows, |_, piece| Ok(Some(piece)))
    }
}

/// About how much a piece weighs.
fn bytes_of(piece: &ExportRecord) -> usize {
    match piece {
        ExportRecord::Job(piece) => {
            let results = piece.edges.iter().filter_map(|edge| edge.result.as_ref());
            let values = [&piece.data, &piece.result].into_iter().flatten().chain(results);
            let lines = piece.log.iter().map(|line| line.text.len());
            piece.payload.len() + values.map(Json::len).chain(lines).sum::<usize>()
        }
        ExportRecord::Signal { signal: Signal::Resume(value) | Signal::Done(value), .. }
        | ExportRecord::Record { value, .. } => value.len(),
        ExportRecord::Schedule(schedule) => schedule.job.payload.len(),
        ExportRecord::LastSeq(_)
        | ExportRecord::Queue(_)
        | ExportRecord::OpenProcess(_)
        | ExportRecord::Unique(_)
        | ExportRecord::Signal { signal: Signal::Retry(_) | Signal::Fail(_), .. }
        | ExportRecord::Ledger(_) => 0,
    }
}

fn job_piece(connection: &Connection, row: JobRow) -> DbResult<JobPiece> {
    let seq = row.seq;
    let remove_at = row.due_at.filter(|_| row.state.is_terminal());
    let waits_for_process = connection
        .prepare_cached("SELECT satisfied = 0 FROM lh_waiters WHERE child = ?1")?
        .query_row([seq], |row| row.get(0))
        .optional()?
        .unwrap_or(false);
    let detail = detail(connection, row)?;
    Ok(JobPiece {
        edges: edges(connection, seq)?,
        wake: read_wake(connection, seq)?,
        waits_for_process,
        remove_at,
        job: detail.job,
        payload: detail.payload,
        data: detail.data,
        result: detail.result,
        after_process: detail.after_process,
        runs: detail.runs,
        progress: detail.progress,
        log: detail.log,
    })
}

fn edges(connection: &Connection, seq: i64) -> DbResult<Vec<EdgePiece>> {
    let sql = "SELECT e.parent_id, j.seq, e.on_failure, e.satisfied, e.ended, e.result, e.error
               FROM lh_edges e LEFT JOIN lh_jobs j ON j.seq = e.parent WHERE e.child = ?1 ORDER BY e.position";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([seq])?;
    let mut edges = Vec::new();
    while let Some(row) = rows.next()? {
        edges.push(EdgePiece {
            parent_id: JobId::from_bytes(row.get(0)?),
            parent_seq: row.get(1)?,
            on_failure: read_on_failure(row, 2)?,
            satisfied: row.get(3)?,
            ended: read_optional_state(row, 4)?,
            result: row.get::<_, Option<String>>(5)?.map(Json::trusted),
            error: from_text("a parent's error", row.get(6)?)?,
        });
    }
    Ok(edges)
}
