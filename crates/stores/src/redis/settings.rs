//! Queues, processes, schedules and workers.

use std::collections::BTreeMap;

use longhaul_queue::job::ProcessId;
use longhaul_queue::limits::{PAGE_MAX, WORKER_KEPT};
use longhaul_queue::store::{ProcessInfo, QueueChange, QueueInfo, Schedule, WorkerInfo};
use longhaul_queue::{Json, Result, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, Reader, corrupt, put_retention, put_time, text};
use super::encode::Args;
use super::read::{Lane, lane_counts};
use super::reply;
use super::scripts::Function;

pub(super) async fn queues(store: &RedisStore) -> Result<Vec<QueueInfo>> {
    let mut commands = redis::pipe();
    commands.atomic().cmd("HGETALL").arg(store.link.key("counts"));
    commands.cmd("HGETALL").arg(store.link.key("queues"));
    let [counts, settings]: [Value; 2] =
        store.link.ask_all::<Vec<Value>>(&commands).await?.try_into().map_err(|_| corrupt("an answer"))?;
    let mut infos: BTreeMap<String, QueueInfo> = BTreeMap::new();
    let empty = |name: &str| QueueInfo {
        name: name.to_owned(),
        paused: false,
        max_running: None,
        max_running_per_key: None,
        ageing: None,
        retention: None,
        counts: [0; 8],
    };
    for (Lane { queue, state, .. }, jobs) in lane_counts(counts)? {
        infos.entry(queue.clone()).or_insert_with(|| empty(&queue)).counts[state as usize] += jobs;
    }
    for (name, value) in reply::pairs(settings)? {
        let name = text(&name)?;
        let info = infos.entry(name.clone()).or_insert_with(|| empty(&name));
        let mut reader = Reader::new(&value);
        info.paused = reader.byte()? == 1;
        // A number of jobs, kept like a time.
        info.max_running = reader.time()?.map(|max| u32::try_from(max.as_millis()).unwrap_or(u32::MAX));
        info.retention = reader.retention()?;
        info.max_running_per_key =
            reader.time()?.map(|max| u32::try_from(max.as_millis()).unwrap_or(u32::MAX));
        info.ageing = reader.time()?.map(|ageing| ageing.since(Timestamp::default()));
    }
    // What only remembers whose turn it was is no setting.
    infos.retain(|name, info| *info != empty(name));
    Ok(infos.into_values().collect())
}

pub(super) async fn set_queue(store: &RedisStore, change: QueueChange) -> Result<()> {
    let QueueChange { name, paused, max_running, max_running_per_key, ageing, retention } = change;
    let none = || b"none".to_vec();
    let number = |change: Option<Option<u128>>| {
        change.map_or_else(Vec::new, |number| {
            number.map_or_else(none, |number| number.to_string().into_bytes())
        })
    };
    let paused = paused.map_or_else(Vec::new, |paused| if paused { b"1".to_vec() } else { b"0".to_vec() });
    let max_running = number(max_running.map(|max| max.map(u128::from)));
    let per_key = number(max_running_per_key.map(|max| max.map(u128::from)));
    let ageing = number(ageing.map(|ageing| ageing.map(|ageing| ageing.as_millis())));
    let retention = retention.map_or_else(Vec::new, |rule| {
        rule.map_or_else(none, |rule| {
            let mut bytes = Vec::new();
            put_retention(&mut bytes, rule);
            bytes
        })
    });
    let args: Args = vec![name.into_bytes(), paused, max_running, retention, per_key, ageing];
    store.link.run(Function::SetQueue, Timestamp::default(), args).await.map(|_| ())
}

pub(super) async fn processes(
    store: &RedisStore,
    after: Option<ProcessId>,
    limit: usize,
) -> Result<Vec<ProcessInfo>> {
    let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
    let args: Args = vec![from.into_bytes(), limit.clamp(1, PAGE_MAX).to_string().into_bytes()];
    let found = reply::list(store.link.run(Function::Processes, Timestamp::default(), args).await?)?;
    let info = |value: Value| {
        let [id, fields] = reply::fixed(value)?;
        process_info(text(reply::bytes(&id)?)?.into(), fields)
    };
    found.into_iter().map(info).collect()
}

pub(super) async fn process(store: &RedisStore, id: ProcessId) -> Result<Option<ProcessInfo>> {
    let mut command = redis::cmd("HGETALL");
    command.arg(store.link.key(&format!("p:{id}")));
    let fields: Vec<Value> = store.link.ask(&command).await?;
    if fields.is_empty() {
        return Ok(None);
    }
    process_info(id, Value::Array(fields)).map(Some)
}

/// From the fields of its hash: `open`, and jobs by state, helpers from 8 on.
fn process_info(id: ProcessId, fields: Value) -> Result<ProcessInfo> {
    let mut info = ProcessInfo { id, sealed: true, counts: [0; 8], helpers: [0; 8] };
    for (name, value) in reply::pairs(fields)? {
        let name = text(&name)?;
        if name == "open" {
            info.sealed = false;
            continue;
        }
        let at: usize = name.parse().map_err(|_| corrupt("a process"))?;
        let slot = info.counts.iter_mut().chain(&mut info.helpers).nth(at);
        *slot.ok_or_else(|| corrupt("a process"))? = codec::from_json("a count", &value)?;
    }
    Ok(info)
}

pub(super) async fn seal(store: &RedisStore, id: &ProcessId, sealed: bool, now: Timestamp) -> Result<()> {
    let sealed = if sealed { b"1" } else { b"0" };
    let args: Args = vec![id.as_str().as_bytes().to_vec(), sealed.to_vec()];
    store.link.run(Function::Seal, now, args).await.map(|_| ())
}

pub(super) async fn schedules(store: &RedisStore) -> Result<Vec<Schedule>> {
    let mut command = redis::cmd("HGETALL");
    command.arg(store.link.key("schedules"));
    let found = reply::pairs(Value::Array(store.link.ask(&command).await?))?;
    let mut schedules = Vec::with_capacity(found.len());
    for (_, value) in found {
        let mut reader = Reader::new(&value);
        let (next_at, last_at) = (reader.time()?, reader.time()?);
        let schedule: Schedule = codec::from_json("a schedule", reader.rest())?;
        schedules.push(Schedule { next_at: next_at.unwrap_or(schedule.next_at), last_at, ..schedule });
    }
    schedules.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(schedules)
}

pub(super) async fn put_schedule(store: &RedisStore, schedule: &Schedule) -> Result<()> {
    let mut value = Vec::new();
    put_time(&mut value, Some(schedule.next_at));
    put_time(&mut value, schedule.last_at);
    value.extend(Json::of(schedule)?.as_str().as_bytes());
    let mut commands = redis::pipe();
    commands.atomic().cmd("HSET").arg(store.link.key("schedules")).arg(&schedule.name).arg(value);
    commands.cmd("PUBLISH").arg(store.link.key("changed")).arg("");
    store.link.ask_all::<Value>(&commands).await.map(|_| ())
}

pub(super) async fn delete_schedule(store: &RedisStore, name: &str) -> Result<bool> {
    let mut commands = redis::pipe();
    commands.atomic().cmd("HDEL").arg(store.link.key("schedules")).arg(name);
    commands.cmd("PUBLISH").arg(store.link.key("changed")).arg("");
    let replies: Vec<i64> = store.link.ask_all(&commands).await?;
    Ok(replies.first() == Some(&1))
}

pub(super) async fn beat(store: &RedisStore, worker: &WorkerInfo) -> Result<()> {
    let (workers, seen) = (store.link.key("workers"), store.link.key("seen"));
    let id = worker.id.as_str();
    let mut commands = redis::pipe();
    commands.atomic();
    if worker.gone {
        commands.cmd("HDEL").arg(workers).arg(id);
        commands.cmd("ZREM").arg(seen).arg(id);
    } else {
        commands.cmd("HSET").arg(workers).arg(id).arg(Json::of(worker)?.as_str());
        commands.cmd("ZADD").arg(seen).arg(codec::millis(worker.seen_at)).arg(id);
    }
    store.link.ask_all::<Value>(&commands).await.map(|_| ())
}

pub(super) async fn workers(store: &RedisStore, now: Timestamp) -> Result<Vec<WorkerInfo>> {
    let mut command = redis::cmd("HVALS");
    command.arg(store.link.key("workers"));
    let found: Vec<Vec<u8>> = store.link.ask(&command).await?;
    let mut workers: Vec<WorkerInfo> =
        found.iter().map(|worker| codec::from_json("a worker", worker)).collect::<Result<_>>()?;
    workers.retain(|worker| worker.seen_at + WORKER_KEPT > now);
    workers.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    Ok(workers)
}
