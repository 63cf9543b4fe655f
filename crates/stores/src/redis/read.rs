//! Everything that only looks, except lists.

use longhaul_queue::events::{Change, Event, EventPage};
use longhaul_queue::job::{JobDetail, JobId, JobResult, ProcessId, Wake};
use longhaul_queue::limits::{PAGE_MAX, RUNS_KEPT_MAX};
use longhaul_queue::store::{Count, LedgerRow, Page};
use longhaul_queue::{Result, State, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, Edge, Reader, Row, corrupt, text};
use super::list::{Place, Wanted, walk};
use super::reply;
use super::scripts::Function;

pub(super) async fn get(store: &RedisStore, ids: &[JobId]) -> Result<Vec<JobDetail>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let args = ids.iter().map(|id| id.as_bytes().to_vec()).collect();
    let found = reply::list(store.link.run(Function::Get, Timestamp::default(), args).await?)?;
    found.into_iter().map(|value| Stored::read(value).map(|stored| stored.detail)).collect()
}

/// Everything that is stored of a job.
pub(super) struct Stored {
    pub(super) detail: JobDetail,
    pub(super) digest: u64,
    pub(super) edges: Vec<Edge>,
    pub(super) wake: Option<Wake>,
    pub(super) remove_at: Option<Timestamp>,
    pub(super) waits_for_process: bool,
}

impl Stored {
    /// From what `everything` in `scripts/reading.lua` answers.
    pub(super) fn read(value: Value) -> Result<Self> {
        let [seq, row, fields, edges, log] = reply::fixed(value)?;
        let [long, data, long_result, error, park, runs, progress, after, wake] = reply::fixed(fields)?;
        let row = Row::read(reply::int(&seq)?, reply::bytes(&row)?, reply::maybe(&long)?)?;
        let (last_run, waits_for_process) = (row.last_run(), row.waits_for_process());
        let Row { mut job, digest, payload, result, remove_at, .. } = row;
        job.error = reply::maybe(&error)?.map(codec::error).transpose()?;
        job.park = reply::maybe(&park)?.map(codec::park).transpose()?;
        let edges = codec::edges(&reply::pairs(edges)?)?;
        let mut runs = reply::maybe(&runs)?.map(codec::runs).transpose()?.unwrap_or_default();
        runs.extend(last_run);
        let surplus = runs.len().saturating_sub(RUNS_KEPT_MAX);
        runs.drain(..surplus);
        let line = |line: Value| codec::from_json("a log line", reply::bytes(&line)?);
        let detail = JobDetail {
            job,
            payload,
            data: reply::maybe(&data)?.map(codec::json).transpose()?,
            result: reply::maybe(&long_result)?.map(codec::json).transpose()?.or(result),
            depends_on: edges.iter().map(|edge| edge.status.clone()).collect(),
            after_process: reply::maybe(&after)?.map(text).transpose()?.map(ProcessId::new),
            runs,
            progress: reply::maybe(&progress)?.map(|text| codec::from_json("progress", text)).transpose()?,
            log: reply::list(log)?.into_iter().map(line).collect::<Result<_>>()?,
        };
        let wake = reply::maybe(&wake)?.map(|wake| codec::from_json("a wake", wake)).transpose()?;
        Ok(Self { detail, digest, edges, wake, remove_at, waits_for_process })
    }
}

/// Where jobs are counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane {
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) state: State,
}

/// The counters of a hash whose fields end with a lane.
pub(super) fn lane_counts(fields: Value) -> Result<Vec<(Lane, u64)>> {
    let mut counts = Vec::new();
    for (name, value) in reply::pairs(fields)? {
        counts.push((lane(&text(&name)?)?, codec::from_json("a count", &value)?));
    }
    counts.sort_unstable();
    Ok(counts)
}

fn lane(name: &str) -> Result<Lane> {
    let mut parts = name.split('\u{1f}');
    let (Some(queue), Some(kind), Some(number), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(corrupt("a counter"));
    };
    let state = codec::state(number.parse().map_err(|_| corrupt("a counter"))?)?;
    Ok(Lane { queue: queue.to_owned(), kind: kind.to_owned(), state })
}

async fn hash(store: &RedisStore, name: &str) -> Result<Value> {
    let mut command = redis::cmd("HGETALL");
    command.arg(store.link.key(name));
    store.link.ask(&command).await.map(Value::Array)
}

pub(super) async fn counts(store: &RedisStore) -> Result<Vec<Count>> {
    let counts = lane_counts(hash(store, "counts").await?)?;
    let count = |(Lane { queue, kind, state }, jobs)| Count { queue, kind, state, jobs };
    Ok(counts.into_iter().map(count).collect())
}

pub(super) async fn ledger(store: &RedisStore) -> Result<Vec<LedgerRow>> {
    let mut rows = Vec::new();
    for (name, value) in reply::pairs(hash(store, "ledger").await?)? {
        rows.push(ledger_row(&name, &value)?);
    }
    rows.sort_unstable();
    Ok(rows)
}

/// A field of the ledger's hash.
pub(super) fn ledger_row(name: &[u8], value: &[u8]) -> Result<LedgerRow> {
    let name = text(name)?;
    let (day, rest) = name.split_once('\u{1f}').ok_or_else(|| corrupt("the ledger"))?;
    let Lane { queue, kind, state } = lane(rest)?;
    let day = day.parse().map_err(|_| corrupt("the ledger"))?;
    Ok(LedgerRow { day, queue, kind, state, jobs: codec::from_json("the ledger", value)? })
}

pub(super) async fn results(
    store: &RedisStore,
    process: &ProcessId,
    after: i64,
    limit: usize,
) -> Result<Page<JobResult>> {
    let limit = limit.clamp(1, PAGE_MAX);
    let index = format!(":pe:{process}");
    let place = Place { index: &index, cursor: Some(after), newest_first: false };
    // One more, to know whether there is another page.
    let wanted = Wanted { count: limit + 1, payloads: false, letter: "x" };
    let (mut seen, cut) = walk(store, &place, &wanted).await?;
    let more = cut || seen.len() > limit;
    seen.truncate(limit);
    let next = seen.last().map(|seen| seen.row.job.seq).filter(|_| more);
    let items = seen
        .into_iter()
        .map(|seen| {
            let job = seen.row.job;
            let result = seen.value.as_deref().map(codec::json).transpose()?.or(seen.row.result);
            let (id, seq, kind, state) = (job.id, job.seq, job.kind, job.state);
            Ok(JobResult { id, seq, kind, state, result, error: job.error })
        })
        .collect::<Result<_>>()?;
    Ok(Page { items, next, partial: false })
}

pub(super) async fn events(store: &RedisStore, after: Option<u64>, limit: usize) -> Result<EventPage> {
    let limit = limit.clamp(1, PAGE_MAX);
    let key = store.link.key("events");
    let Some(after) = after else {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(key).arg("+").arg("-").arg("COUNT").arg(limit);
        let newest: Vec<Value> = store.link.ask(&command).await?;
        let events = newest.into_iter().rev().map(event).collect::<Result<_>>()?;
        return Ok(EventPage { events, resync: false });
    };
    let mut commands = redis::pipe();
    commands.atomic().cmd("XRANGE").arg(&key).arg("-").arg("+").arg("COUNT").arg(1);
    let from = format!("({after}-0");
    commands.cmd("XRANGE").arg(&key).arg(from).arg("+").arg("COUNT").arg(limit);
    commands.cmd("HGET").arg(store.link.key("meta")).arg("event");
    let (oldest, found, newest): (Vec<Value>, Vec<Value>, Option<u64>) =
        store.link.ask_all(&commands).await?;
    let oldest = oldest.into_iter().next().map(event).transpose()?;
    // Newer than the newest: a failover has lost what this reader has seen.
    let lost = after > newest.unwrap_or(0) && after != 0;
    let missed = |oldest: u64| oldest > after.saturating_add(1);
    // Without any, all up to the newest number are gone.
    let resync = lost
        || oldest.map_or_else(|| newest.is_some_and(|newest| after < newest), |oldest| missed(oldest.id));
    Ok(EventPage { events: found.into_iter().map(event).collect::<Result<_>>()?, resync })
}

/// An entry of the stream of events.
fn event(entry: Value) -> Result<Event> {
    let [id, fields] = reply::fixed(entry)?;
    let id = text(reply::bytes(&id)?)?;
    let id = id.split('-').next().and_then(|id| id.parse().ok()).ok_or_else(|| corrupt("an event"))?;
    let (mut at, mut more, mut changes) = (Timestamp::default(), 0, Vec::new());
    for (name, value) in reply::pairs(fields)? {
        match name.as_slice() {
            b"at" => at = Timestamp::from_millis(codec::from_json::<f64>("an event", &value)? as i64),
            b"more" => more = codec::from_json("an event", &value)?,
            b"changes" => changes = self::changes(&value)?,
            _ => {}
        }
    }
    Ok(Event { id, at, changes, more })
}

fn changes(bytes: &[u8]) -> Result<Vec<Change>> {
    let mut reader = Reader::new(bytes);
    let mut changes = Vec::new();
    while !reader.is_empty() {
        let (job_id, state) = (reader.id()?, reader.state()?);
        let (queue, kind, process) = (reader.name()?, reader.name()?, reader.name()?);
        let progress = reader.long()?.map(|text| codec::from_json("progress", text)).transpose()?;
        let process_id = (!process.is_empty()).then(|| ProcessId::new(process));
        changes.push(Change { job_id, queue, kind, process_id, state, progress });
    }
    Ok(changes)
}
