//! Unpark: reads who waits, judges in Rust, and writes if nothing has changed since.

use longhaul_queue::job::{JobId, JobOptions};
use longhaul_queue::limits::SIGNAL_KEPT;
use longhaul_queue::state::Settlement;
use longhaul_queue::store::rules::{self, WakeChange};
use longhaul_queue::store::{Signal, UnparkRequest, UnparkTarget, Unparked};
use longhaul_queue::{Json, Result, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, Row, millis};
use super::encode::{Args, Item};
use super::reply;
use super::scripts::Function;
use super::settle::{TRIES_MAX, too_busy};

/// Nobody asks for the payload here, and the options come apart.
const EMPTY_BODY: &[u8] = &[0; 4];

/// A job as it was when it was judged.
pub(super) struct Seen {
    pub(super) row: Row,
    pub(super) options: JobOptions,
    /// The row's very bytes: when they have changed, the judgement is void.
    pub(super) bytes: Vec<u8>,
}

impl Seen {
    /// From seq, row and options.
    pub(super) fn read(seq: &Value, row: &Value, options: &Value) -> Result<Self> {
        let bytes = reply::bytes(row)?.to_vec();
        Ok(Self {
            row: Row::read(reply::int(seq)?, &bytes, Some(EMPTY_BODY))?,
            options: codec::options(reply::maybe(options)?)?,
            bytes,
        })
    }
}

/// What becomes of a parked job.
pub(super) struct Waking {
    pub(super) seen: Seen,
    pub(super) settlement: Settlement,
    pub(super) wake: WakeChange,
}

/// What a signal leaves behind for jobs that park later.
struct Kept<'a> {
    key: &'a str,
    signal: Json,
    until: Timestamp,
}

pub(super) async fn unpark(store: &RedisStore, request: UnparkRequest) -> Result<Unparked> {
    let UnparkRequest { target, signal, now, jitter } = request;
    for _ in 0..TRIES_MAX {
        let Some(seen) = parked(store, &target, now).await? else { return Ok(Unparked::default()) };
        let jobs: Vec<JobId> = seen.iter().map(|seen| seen.row.job.id).collect();
        let wakings = seen.into_iter().map(|seen| waking(seen, signal.clone(), now, jitter)).collect();
        let key = match &target {
            UnparkTarget::Key(key) => Some(key.as_str()),
            UnparkTarget::Ids(_) | UnparkTarget::Waiting { .. } => None,
        };
        if key.is_none() && jobs.is_empty() {
            return Ok(Unparked::default());
        }
        let kept = match key {
            Some(key) => Some(Kept { key, signal: Json::of(&signal)?, until: now + SIGNAL_KEPT }),
            None => None,
        };
        match end_parks(store, kept, wakings, now).await?.as_str() {
            "done" => return Ok(Unparked { kept: key.is_some() && jobs.is_empty(), jobs }),
            "told" => return Ok(Unparked::default()),
            _ => {}
        }
    }
    Err(too_busy())
}

fn waking(seen: Seen, signal: Signal, now: Timestamp, jitter: f64) -> Waking {
    let (settlement, wake) = rules::woken(&seen.options, seen.row.job.spent, signal, now, jitter);
    Waking { seen, settlement, wake }
}

/// The parked jobs that a request is about; `None` when the key has had its signal.
async fn parked(store: &RedisStore, target: &UnparkTarget, now: Timestamp) -> Result<Option<Vec<Seen>>> {
    let (kind, key, ids): (_, _, &[JobId]) = match target {
        UnparkTarget::Key(key) => ("key", key.as_str(), &[]),
        UnparkTarget::Ids(ids) => ("ids", "", ids),
        UnparkTarget::Waiting { key, ids } => ("waiting", key.as_str(), ids),
    };
    let mut args: Args = vec![kind.as_bytes().to_vec(), key.as_bytes().to_vec()];
    args.extend(ids.iter().map(|id| id.as_bytes().to_vec()));
    let Value::Array(values) = store.link.run(Function::Parked, now, args).await? else {
        return Ok(None);
    };
    let seen = |chunk: &[Value]| match chunk {
        [seq, row, options] => Seen::read(seq, row, options),
        _ => Err(codec::corrupt("an answer")),
    };
    values.chunks(3).map(seen).collect::<Result<_>>().map(Some)
}

/// Ends parks that no signal ended.
pub(super) async fn end_parks_by_time(
    store: &RedisStore,
    wakings: Vec<Waking>,
    now: Timestamp,
) -> Result<bool> {
    Ok(end_parks(store, None, wakings, now).await? == "done")
}

async fn end_parks(
    store: &RedisStore,
    kept: Option<Kept<'_>>,
    wakings: Vec<Waking>,
    now: Timestamp,
) -> Result<String> {
    let mut args: Args = match kept {
        Some(Kept { key, signal, until }) => vec![
            key.as_bytes().to_vec(),
            signal.as_str().as_bytes().to_vec(),
            millis(until).to_string().into_bytes(),
        ],
        None => vec![Vec::new(), Vec::new(), b"0".to_vec()],
    };
    args.push(wakings.len().to_string().into_bytes());
    for Waking { seen, settlement, wake } in wakings {
        let job = &seen.row.job;
        args.push(seen.bytes);
        Item { wake, ..Item::of((job.seq, job.id, job.fence), &settlement) }.put(&mut args)?;
    }
    let done = store.link.run(Function::Unpark, now, args).await?;
    codec::text(reply::bytes(&done)?)
}
