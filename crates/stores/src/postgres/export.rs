//! Everything that lasts, piece by piece: one kind after the other, each along its primary key.

use longhaul_queue::job::ProcessId;
use longhaul_queue::limits::PIECES_MAX;
use longhaul_queue::store::{ExportPage, ExportRecord, JobPiece, QueuePiece, UniquePiece, refusals};
use longhaul_queue::{Json, Timestamp};
use serde::{Deserialize, Serialize};

use super::error::{DbResult, corrupt};
use super::read::{job_pieces, ledger};
use super::rows::{from_text, read_fence, read_id, read_state_or_null, stored_limit, to_text};
use super::tx::{Tx, queue_columns, read_queue};

/// Bytes of payloads, data and results on one page; at least one job is on it.
const PAGE_BYTES_MAX: i64 = 8_000_000;

/// Where an export goes on: behind the piece with this key, or at the start of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cursor {
    LastSeq,
    Queue(String),
    Process(String),
    Job(i64),
    Unique(String, String, String),
    Signal(String),
    Schedule(String),
    /// So many lines were given: they have no order of their own.
    Ledger(usize),
    Record(String),
}

impl Cursor {
    /// The start of what comes behind everything of this kind.
    fn next_kind(&self) -> Option<Self> {
        let none = String::new;
        Some(match self {
            Self::LastSeq => Self::Queue(none()),
            Self::Queue(_) => Self::Process(none()),
            Self::Process(_) => Self::Job(i64::MIN),
            Self::Job(_) => Self::Unique(none(), none(), none()),
            Self::Unique(..) => Self::Signal(none()),
            Self::Signal(_) => Self::Schedule(none()),
            Self::Schedule(_) => Self::Ledger(0),
            Self::Ledger(_) => Self::Record(none()),
            Self::Record(_) => return None,
        })
    }
}

/// Some pieces of one kind, each with the cursor behind it.
type Pieces = Vec<(Cursor, ExportRecord)>;

/// One page.
pub(super) async fn export(tx: &Tx<'_>, after: Option<&str>, limit: usize) -> DbResult<ExportPage> {
    let mut cursor = match after {
        None => Cursor::LastSeq,
        Some(text) => serde_json::from_str(text).map_err(|_| refusals::no_export_cursor())?,
    };
    let limit = limit.clamp(1, PIECES_MAX);
    let mut pieces = Vec::new();
    loop {
        // One more than fits, to know whether there is a next page.
        let wanted = limit - pieces.len() + 1;
        let next_kind = cursor.next_kind();
        let (found, cut) = read(tx, &cursor, wanted).await?;
        for (behind, piece) in found {
            if pieces.len() == limit {
                return Ok(ExportPage { pieces, next: Some(to_text("a cursor", &cursor)?) });
            }
            pieces.push(piece);
            cursor = behind;
        }
        if cut {
            return Ok(ExportPage { pieces, next: Some(to_text("a cursor", &cursor)?) });
        }
        match next_kind {
            Some(next) => cursor = next,
            None => return Ok(ExportPage { pieces, next: None }),
        }
    }
}

/// The next pieces of the cursor's kind, and whether there are more although fewer than wanted were found.
async fn read(tx: &Tx<'_>, cursor: &Cursor, wanted: usize) -> DbResult<(Pieces, bool)> {
    let found = match cursor {
        Cursor::LastSeq => last_seq(tx).await?,
        Cursor::Queue(after) => queues(tx, after, wanted).await?,
        Cursor::Process(after) => open_processes(tx, after, wanted).await?,
        Cursor::Job(after) => return jobs(tx, *after, wanted).await,
        Cursor::Unique(queue, kind, key) => uniques(tx, [queue, kind, key], wanted).await?,
        Cursor::Signal(after) => signals(tx, after, wanted).await?,
        Cursor::Schedule(after) => schedules(tx, after, wanted).await?,
        Cursor::Ledger(given) => {
            let lines = ledger(tx).await?.into_iter().enumerate().skip(*given).take(wanted);
            lines.map(|(place, line)| (Cursor::Ledger(place + 1), ExportRecord::Ledger(line))).collect()
        }
        Cursor::Record(after) => records(tx, after, wanted).await?,
    };
    Ok((found, false))
}

async fn last_seq(tx: &Tx<'_>) -> DbResult<Pieces> {
    let row = tx.one("SELECT value FROM lh_meta WHERE key = 'seq' AND value > 0", &[]).await?;
    let Some(row) = row else { return Ok(Vec::new()) };
    // Nothing of this kind stands behind it.
    Ok(vec![(Cursor::Queue(String::new()), ExportRecord::LastSeq(row.try_get(0)?))])
}

async fn queues(tx: &Tx<'_>, after: &str, wanted: usize) -> DbResult<Pieces> {
    let sql = concat!(
        "SELECT ",
        queue_columns!(),
        ", name, last_key FROM lh_queues WHERE name > $1 ORDER BY name LIMIT $2"
    );
    let mut pieces = Vec::new();
    for row in tx.all(sql, &[&after, &stored_limit(wanted)]).await? {
        let settings = read_queue(&row)?.settings;
        let (name, last_key): (String, _) = (row.try_get(6)?, row.try_get(7)?);
        let cursor = Cursor::Queue(name.clone());
        pieces.push((cursor, ExportRecord::Queue(QueuePiece { name, settings, last_key })));
    }
    Ok(pieces)
}

async fn open_processes(tx: &Tx<'_>, after: &str, wanted: usize) -> DbResult<Pieces> {
    let sql = "SELECT id FROM lh_processes WHERE NOT sealed AND id > $1 ORDER BY id LIMIT $2";
    let mut pieces = Vec::new();
    for row in tx.all(sql, &[&after, &stored_limit(wanted)]).await? {
        let id: String = row.try_get(0)?;
        pieces.push((Cursor::Process(id.clone()), ExportRecord::OpenProcess(ProcessId::from(id))));
    }
    Ok(pieces)
}

/// As many of the next jobs as fit on a page by the size of their values; the sizes are known without reading these.
const NEXT_JOBS: &str = "WITH next AS (
         SELECT seq, octet_length(payload) + coalesce(octet_length(data), 0) + coalesce(octet_length(result), 0) AS bytes
         FROM lh_jobs WHERE seq > $1 ORDER BY seq LIMIT $2)
     SELECT seq, sum(bytes) OVER (ORDER BY seq) - bytes <= $3 FROM next ORDER BY seq";

async fn jobs(tx: &Tx<'_>, after: i64, wanted: usize) -> DbResult<(Pieces, bool)> {
    let rows = tx.all(NEXT_JOBS, &[&after, &stored_limit(wanted), &PAGE_BYTES_MAX]).await?;
    let mut seqs: Vec<i64> = Vec::with_capacity(rows.len());
    for row in &rows {
        if row.try_get(1)? {
            seqs.push(row.try_get(0)?);
        }
    }
    let cut = seqs.len() < rows.len();
    let pieces = job_pieces(tx, &seqs).await?;
    let with_cursor = |piece: JobPiece| (Cursor::Job(piece.job.seq), ExportRecord::Job(Box::new(piece)));
    Ok((pieces.into_iter().map(with_cursor).collect(), cut))
}

async fn uniques(tx: &Tx<'_>, after: [&String; 3], wanted: usize) -> DbResult<Pieces> {
    let sql = "SELECT queue, kind, key, job_id, seq, ended, taken_until FROM lh_uniques
         WHERE (queue, kind, key) > ($1, $2, $3) ORDER BY queue, kind, key LIMIT $4";
    let [queue, kind, key] = after;
    let mut pieces = Vec::new();
    for row in tx.all(sql, &[queue, kind, key, &stored_limit(wanted)]).await? {
        let piece = UniquePiece {
            queue: row.try_get(0)?,
            kind: row.try_get(1)?,
            key: row.try_get(2)?,
            job_id: read_id(&row, 3)?,
            seq: row.try_get(4)?,
            ended: read_state_or_null(&row, 5)?,
            taken_until: row.try_get::<_, Option<i64>>(6)?.map(Timestamp::from_millis),
        };
        let cursor = Cursor::Unique(piece.queue.clone(), piece.kind.clone(), piece.key.clone());
        pieces.push((cursor, ExportRecord::Unique(piece)));
    }
    Ok(pieces)
}

async fn signals(tx: &Tx<'_>, after: &str, wanted: usize) -> DbResult<Pieces> {
    let sql = "SELECT key, signal, expires_at FROM lh_signals WHERE key > $1 ORDER BY key LIMIT $2";
    let mut pieces = Vec::new();
    for row in tx.all(sql, &[&after, &stored_limit(wanted)]).await? {
        let key: String = row.try_get(0)?;
        let signal = from_text("a signal", row.try_get(1)?)?.ok_or_else(|| corrupt("a signal", "nothing"))?;
        let expires_at = Timestamp::from_millis(row.try_get(2)?);
        pieces.push((Cursor::Signal(key.clone()), ExportRecord::Signal { key, signal, expires_at }));
    }
    Ok(pieces)
}

async fn schedules(tx: &Tx<'_>, after: &str, wanted: usize) -> DbResult<Pieces> {
    let sql = "SELECT name, schedule FROM lh_schedules WHERE name > $1 ORDER BY name LIMIT $2";
    let mut pieces = Vec::new();
    for row in tx.all(sql, &[&after, &stored_limit(wanted)]).await? {
        let schedule = from_text("a schedule", row.try_get(1)?)?;
        let schedule = schedule.ok_or_else(|| corrupt("a schedule", "nothing"))?;
        pieces.push((Cursor::Schedule(row.try_get(0)?), ExportRecord::Schedule(schedule)));
    }
    Ok(pieces)
}

async fn records(tx: &Tx<'_>, after: &str, wanted: usize) -> DbResult<Pieces> {
    let sql = "SELECT name, version, value FROM lh_records WHERE name > $1 ORDER BY name LIMIT $2";
    let mut pieces = Vec::new();
    for row in tx.all(sql, &[&after, &stored_limit(wanted)]).await? {
        let name: String = row.try_get(0)?;
        let piece = ExportRecord::Record {
            name: name.clone(),
            version: read_fence(&row, 1)?,
            value: Json::trusted(row.try_get::<_, String>(2)?),
        };
        pieces.push((Cursor::Record(name), piece));
    }
    Ok(pieces)
}
