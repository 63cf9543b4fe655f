//! Queues, processes, schedules and workers.

use std::collections::BTreeMap;

use longhaul_queue::job::ProcessId;
use longhaul_queue::limits::{PAGE_MAX, WORKER_KEPT};
use longhaul_queue::store::{ProcessInfo, QueueChange, QueueInfo, QueueSettings, Schedule, WorkerInfo};
use longhaul_queue::{Json, Result, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, Reader, corrupt, put_millis, put_retention, put_time, text};
use super::encode::Args;
use super::read::{Lane, lane_counts};
use super::reply;
use super::scripts::Function;

/// What is stored of a queue: `SETTINGS` in `scripts/tables.lua`.
pub(super) struct Queue {
    pub(super) settings: QueueSettings,
    /// Whose turn it was last; `None` when the queue never had a fair key.
    pub(super) last_key: Option<String>,
}

impl Queue {
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        // A number of jobs, kept like a time.
        let jobs = |time: Timestamp| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let paused = reader.byte()? == 1;
        let max_running = reader.time()?.map(jobs);
        let retention = reader.retention()?;
        let max_running_per_key = reader.time()?.map(jobs);
        let ageing = reader.time()?.map(|ageing| ageing.since(Timestamp::default()));
        let keyed = reader.byte()? == 1;
        let last_key = keyed.then(|| text(reader.rest())).transpose()?;
        let settings = QueueSettings { paused, max_running, max_running_per_key, ageing, retention };
        Ok(Self { settings, last_key })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let jobs = |max: Option<u32>| max.map(|max| Timestamp::from_millis(max.into()));
        let QueueSettings { paused, max_running, max_running_per_key, ageing, retention } = self.settings;
        let mut bytes = vec![u8::from(paused)];
        put_time(&mut bytes, jobs(max_running));
        match retention {
            Some(retention) => put_retention(&mut bytes, retention),
            None => {
                bytes.push(0);
                put_time(&mut bytes, None);
                put_time(&mut bytes, None);
            }
        }
        put_time(&mut bytes, jobs(max_running_per_key));
        put_millis(&mut bytes, ageing);
        bytes.push(u8::from(self.last_key.is_some()));
        bytes.extend(self.last_key.as_deref().unwrap_or_default().as_bytes());
        bytes
    }
}

pub(super) async fn queues(store: &RedisStore) -> Result<Vec<QueueInfo>> {
    let mut commands = redis::pipe();
    commands.atomic().cmd("HGETALL").arg(store.link.key("counts"));
    commands.cmd("HGETALL").arg(store.link.key("queues"));
    let [counts, settings]: [Value; 2] =
        store.link.ask_all::<Vec<Value>>(&commands).await?.try_into().map_err(|_| corrupt("an answer"))?;
    let mut infos: BTreeMap<String, QueueInfo> = BTreeMap::new();
    for (Lane { queue, state, .. }, jobs) in lane_counts(counts)? {
        infos.entry(queue.clone()).or_insert_with(|| QueueInfo::bare(queue.clone())).counts
            [state as usize] += jobs;
    }
    for (name, value) in reply::pairs(settings)? {
        let name = text(&name)?;
        let info = infos.entry(name.clone()).or_insert_with(|| QueueInfo::bare(name.clone()));
        info.settings = Queue::read(&value)?.settings;
    }
    // What only remembers whose turn it was is no setting.
    infos.retain(|name, info| *info != QueueInfo::bare(name.clone()));
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
        schedules.push(schedule(&value)?);
    }
    schedules.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(schedules)
}

/// A schedule: its next and last time for the scripts, then all of it.
pub(super) fn schedule(bytes: &[u8]) -> Result<Schedule> {
    let mut reader = Reader::new(bytes);
    let (next_at, last_at) = (reader.time()?, reader.time()?);
    let schedule: Schedule = codec::from_json("a schedule", reader.rest())?;
    Ok(Schedule { next_at: next_at.unwrap_or(schedule.next_at), last_at, ..schedule })
}

pub(super) fn schedule_bytes(schedule: &Schedule) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    put_time(&mut bytes, Some(schedule.next_at));
    put_time(&mut bytes, schedule.last_at);
    bytes.extend(Json::of(schedule)?.as_str().as_bytes());
    Ok(bytes)
}

pub(super) async fn put_schedule(store: &RedisStore, schedule: &Schedule) -> Result<()> {
    let value = schedule_bytes(schedule)?;
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

pub(super) async fn heartbeat(store: &RedisStore, worker: &WorkerInfo) -> Result<()> {
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
