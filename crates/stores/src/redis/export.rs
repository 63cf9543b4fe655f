//! Everything that lasts, piece by piece. A cursor is the stage of the walk and where it stands there: a seq, a process, or
//! the cursor of a scan and how many of its batch have been given.

use std::str::FromStr;

use longhaul_queue::job::ProcessId;
use longhaul_queue::limits::PIECES_MAX;
use longhaul_queue::store::{
    EdgePiece, ExportPage, ExportRecord, JobPiece, ProcessInfo, QueuePiece, UniquePiece,
};
use longhaul_queue::{Error, Result, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, NOT_ENDED, Reader, corrupt, text};
use super::encode::Args;
use super::read::{Stored, ledger_row};
use super::reply;
use super::scripts::Function;
use super::{records, settings};

/// Stages in the order of [`ExportRecord`]; those in between are hashes.
const LAST_SEQ: usize = 0;
const PROCESSES: usize = 2;
const JOBS: usize = 3;
const HASHES: [Hash; 6] = [
    Hash { stage: 1, name: "queues", count: 500, piece: queue_piece },
    Hash { stage: 4, name: "uniques", count: 500, piece: unique_piece },
    Hash { stage: 5, name: "signals", count: 16, piece: signal_piece },
    Hash { stage: 6, name: "schedules", count: 16, piece: schedule_piece },
    Hash { stage: 7, name: "ledger", count: 500, piece: ledger_piece },
    Hash { stage: 8, name: "records", count: 100, piece: record_piece },
];
const STAGES: usize = 9;

/// A field of a hash and its value.
type Field = (Vec<u8>, Vec<u8>);

/// A hash with a piece a field.
struct Hash {
    stage: usize,
    name: &'static str,
    /// Fields that one look asks for, by how large they may be. Always the same, so that a cursor within a batch keeps its
    /// meaning.
    count: usize,
    piece: fn(&[u8], &[u8]) -> Result<ExportRecord>,
}

pub(super) async fn export(store: &RedisStore, after: Option<String>, limit: usize) -> Result<ExportPage> {
    let limit = limit.clamp(1, PIECES_MAX);
    let (mut stage, mut place) = match after {
        None => (LAST_SEQ, String::new()),
        Some(cursor) => parse(&cursor)?,
    };
    let mut pieces = Vec::new();
    // A page ends with its stage at the latest when that had anything to give: what follows is the next page's.
    while stage < STAGES && pieces.is_empty() {
        let (found, next) = at_stage(store, stage, &place, limit).await?;
        pieces = found;
        (stage, place) = next.map_or_else(|| (stage + 1, String::new()), |place| (stage, place));
    }
    let next = (stage < STAGES).then(|| format!("{stage} {place}"));
    Ok(ExportPage { pieces, next })
}

fn wrong_cursor() -> Error {
    Error::invalid("no cursor of an export; begin again without one")
}

fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| wrong_cursor())
}

fn parse(cursor: &str) -> Result<(usize, String)> {
    let (stage, place) = cursor.split_once(' ').ok_or_else(wrong_cursor)?;
    Ok((number(stage)?, place.to_owned()))
}

/// Pieces of a stage from a place on, and where it goes on if it does.
async fn at_stage(
    store: &RedisStore,
    stage: usize,
    place: &str,
    limit: usize,
) -> Result<(Vec<ExportRecord>, Option<String>)> {
    match stage {
        LAST_SEQ => Ok((last_seq(store).await?.into_iter().collect(), None)),
        PROCESSES => open_processes(store, place, limit).await,
        JOBS => jobs(store, place, limit).await,
        _ => {
            let hash = HASHES.iter().find(|hash| hash.stage == stage).ok_or_else(wrong_cursor)?;
            scan(store, hash, place, limit).await
        }
    }
}

async fn last_seq(store: &RedisStore) -> Result<Option<ExportRecord>> {
    let mut command = redis::cmd("HGET");
    command.arg(store.link.key("meta")).arg("seq");
    let last: Option<i64> = store.link.ask(&command).await?;
    Ok(last.filter(|last| *last > 0).map(ExportRecord::LastSeq))
}

async fn open_processes(
    store: &RedisStore,
    place: &str,
    limit: usize,
) -> Result<(Vec<ExportRecord>, Option<String>)> {
    let after = (!place.is_empty()).then(|| ProcessId::new(place));
    let page = settings::processes(store, after, limit).await?;
    let next = (page.len() == limit).then(|| page.last().map(|last| last.id.to_string())).flatten();
    let open = |process: ProcessInfo| (!process.sealed).then_some(ExportRecord::OpenProcess(process.id));
    Ok((page.into_iter().filter_map(open).collect(), next))
}

async fn jobs(store: &RedisStore, place: &str, limit: usize) -> Result<(Vec<ExportRecord>, Option<String>)> {
    let after: i64 = if place.is_empty() { 0 } else { number(place)? };
    let args: Args = vec![after.to_string().into_bytes(), limit.to_string().into_bytes()];
    let found = store.link.run(Function::ExportJobs, Timestamp::default(), args).await?;
    let mut pieces = Vec::new();
    let mut last = None;
    for value in reply::list(found)? {
        let piece = job_piece(value)?;
        last = Some(piece.job.seq.to_string());
        pieces.push(ExportRecord::Job(Box::new(piece)));
    }
    Ok((pieces, last))
}

fn job_piece(value: Value) -> Result<JobPiece> {
    let mut values = reply::list(value)?;
    let parents = reply::list(values.pop().ok_or_else(|| corrupt("an answer"))?)?;
    let parents: Vec<i64> = parents.iter().map(reply::int).collect::<Result<_>>()?;
    let Stored { detail, edges, wake, remove_at, waits_for_process, .. } =
        Stored::read(Value::Array(values))?;
    let edge = |edge: codec::Edge| EdgePiece {
        parent_id: edge.status.job_id,
        parent_seq: parents.contains(&edge.parent).then_some(edge.parent),
        on_failure: edge.status.on_failure,
        satisfied: edge.status.satisfied,
        ended: edge.status.ended,
        result: edge.result,
        error: edge.error,
    };
    Ok(JobPiece {
        job: detail.job,
        payload: detail.payload,
        data: detail.data,
        result: detail.result,
        edges: edges.into_iter().map(edge).collect(),
        after_process: detail.after_process,
        waits_for_process,
        wake,
        runs: detail.runs,
        progress: detail.progress,
        log: detail.log,
        remove_at,
    })
}

/// Fields of a hash. Nothing else looks at it meanwhile, so that a scan meets each of them once.
async fn scan(
    store: &RedisStore,
    hash: &Hash,
    place: &str,
    limit: usize,
) -> Result<(Vec<ExportRecord>, Option<String>)> {
    let (cursor, given): (u64, usize) = match place.split_once(' ') {
        None => (0, 0),
        Some((cursor, given)) => (number(cursor)?, number(given)?),
    };
    let mut command = redis::cmd("HSCAN");
    command.arg(store.link.key(hash.name)).arg(cursor).arg("COUNT").arg(hash.count);
    let (next, fields): (u64, Vec<Field>) = store.link.ask(&command).await?;
    let pieces: Vec<ExportRecord> = fields
        .iter()
        .skip(given)
        .take(limit)
        .map(|(name, value)| (hash.piece)(name, value))
        .collect::<Result<_>>()?;
    let given = given + pieces.len();
    let place = match (given < fields.len(), next) {
        (true, _) => Some(format!("{cursor} {given}")),
        (false, 0) => None,
        (false, next) => Some(format!("{next} 0")),
    };
    Ok((pieces, place))
}

fn queue_piece(name: &[u8], value: &[u8]) -> Result<ExportRecord> {
    let settings::Queue { settings, last_key } = settings::Queue::read(value)?;
    Ok(ExportRecord::Queue(QueuePiece { name: text(name)?, settings, last_key }))
}

fn unique_piece(name: &[u8], value: &[u8]) -> Result<ExportRecord> {
    let scope = text(name)?;
    let mut parts = scope.splitn(3, '\u{1f}').map(str::to_owned);
    let (Some(queue), Some(kind), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(corrupt("a unique key"));
    };
    let mut reader = Reader::new(value);
    let (job_id, seq, ended) = (reader.id()?, reader.seq()?, reader.byte()?);
    let ended = (ended != NOT_ENDED).then(|| codec::state(ended)).transpose()?;
    Ok(ExportRecord::Unique(UniquePiece {
        queue,
        kind,
        key,
        job_id,
        seq,
        ended,
        taken_until: reader.time()?,
    }))
}

fn signal_piece(name: &[u8], value: &[u8]) -> Result<ExportRecord> {
    let mut reader = Reader::new(value);
    let expires_at = reader.time()?.ok_or_else(|| corrupt("a signal"))?;
    let signal = codec::from_json("a signal", reader.rest())?;
    Ok(ExportRecord::Signal { key: text(name)?, signal, expires_at })
}

fn schedule_piece(_: &[u8], value: &[u8]) -> Result<ExportRecord> {
    settings::schedule(value).map(ExportRecord::Schedule)
}

fn ledger_piece(name: &[u8], value: &[u8]) -> Result<ExportRecord> {
    ledger_row(name, value).map(ExportRecord::Ledger)
}

fn record_piece(name: &[u8], value: &[u8]) -> Result<ExportRecord> {
    let record = records::read(value)?;
    Ok(ExportRecord::Record { name: text(name)?, version: record.version, value: record.value })
}
