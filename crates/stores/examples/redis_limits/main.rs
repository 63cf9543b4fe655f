//! The Redis store against what the server can do at all, in one run: bulk enqueue against pipelined XADD, drain against
//! XREADGROUP 100 + XACK + XDEL, also with a million queued, pickup against raw ones, and bytes a job. Read the
//! ratios.
//!
//! `cargo run --release -p longhaul-stores --example redis_limits -- redis://127.0.0.1:PORT [JOBS] [rates|depth|pickup]`, on a
//! server of its own: everything in it is deleted.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt as _};
use longhaul_queue::job::{JobId, NewJob, Retention, WorkerId};
use longhaul_queue::state::{Event, Outcome, Policy, settle};
use longhaul_queue::store::{ClaimRequest, SettleItem};
use longhaul_queue::{Clock, Json, Store, SystemClock};
use longhaul_stores::redis::{RedisStore, RedisUrl};
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult, Value};

type Failure = Box<dyn std::error::Error>;

const BULK: usize = 1_000;
const BATCH: usize = 100;
const PICKUPS: usize = 500;
const ROUNDS: usize = 3;
/// What is drained of a short and of a long backlog, and how long these are.
const DRAINED: usize = 20_000;
const BACKLOGS: [usize; 2] = [20_000, 1_000_000];

/// Microseconds of processor time that the server has used.
async fn server_time(connection: &mut MultiplexedConnection) -> RedisResult<f64> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(connection).await?;
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    Ok((of("used_cpu_user:").unwrap_or(0.0) + of("used_cpu_sys:").unwrap_or(0.0)) * 1e6)
}

async fn memory(connection: &mut MultiplexedConnection) -> RedisResult<f64> {
    let info: String = redis::cmd("INFO").arg("memory").query_async(connection).await?;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
    Ok(line.unwrap_or(0.0))
}

/// Jobs a second, and the server's microseconds a job.
struct Speed {
    rate: f64,
    server: f64,
}

struct Timer {
    start: Instant,
    server: f64,
}

impl Timer {
    async fn start(connection: &mut MultiplexedConnection) -> RedisResult<Self> {
        Ok(Self { server: server_time(connection).await?, start: Instant::now() })
    }

    async fn stop(self, connection: &mut MultiplexedConnection, jobs: usize) -> RedisResult<Speed> {
        let rate = jobs as f64 / self.start.elapsed().as_secs_f64();
        Ok(Speed { rate, server: (server_time(connection).await? - self.server) / jobs as f64 })
    }
}

async fn raw_fill(connection: &mut MultiplexedConnection, payload: &str, jobs: usize) -> RedisResult<()> {
    for _ in 0..jobs / BULK {
        let mut pipe = redis::pipe();
        for _ in 0..BULK {
            pipe.cmd("XADD").arg("raw").arg("*").arg("p").arg(payload).ignore();
        }
        pipe.query_async::<()>(connection).await?;
    }
    Ok(())
}

async fn raw_drain(connection: &mut MultiplexedConnection, jobs: usize) -> RedisResult<()> {
    for _ in 0..jobs / BATCH {
        let reply: Value = redis::cmd("XREADGROUP")
            .arg(&["GROUP", "g", "w", "COUNT", "100", "STREAMS", "raw", ">"])
            .query_async(connection)
            .await?;
        let ids = entry_ids(&reply);
        let mut pipe = redis::pipe();
        pipe.cmd("XACK").arg("raw").arg("g").arg(&ids).ignore();
        pipe.cmd("XDEL").arg("raw").arg(&ids).ignore();
        pipe.query_async::<()>(connection).await?;
    }
    Ok(())
}

async fn raw_group(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    redis::cmd("XGROUP").arg(&["CREATE", "raw", "g", "0"]).query_async(connection).await
}

async fn raw(connection: &mut MultiplexedConnection, payload: &str, jobs: usize) -> RedisResult<[Speed; 2]> {
    let timer = Timer::start(connection).await?;
    raw_fill(connection, payload, jobs).await?;
    let bulk = timer.stop(connection, jobs).await?;
    raw_group(connection).await?;
    let timer = Timer::start(connection).await?;
    raw_drain(connection, jobs).await?;
    Ok([bulk, timer.stop(connection, jobs).await?])
}

/// How fast a part of a backlog is drained, raw and ours.
async fn backlog(
    connection: &mut MultiplexedConnection,
    url: &str,
    payload: &Json,
    queued: usize,
) -> Result<[Speed; 2], Failure> {
    redis::cmd("FLUSHALL").query_async::<()>(connection).await?;
    raw_fill(connection, payload.as_str(), queued).await?;
    raw_group(connection).await?;
    let timer = Timer::start(connection).await?;
    raw_drain(connection, DRAINED).await?;
    let raw = timer.stop(connection, DRAINED).await?;
    redis::cmd("FLUSHALL").query_async::<()>(connection).await?;
    let store = RedisStore::connect(&format!("{url}?name=backlog").parse::<RedisUrl>()?).await?;
    for _ in 0..queued / BULK {
        let jobs = (0..BULK).map(|_| job(payload, None)).collect();
        store.insert(jobs, SystemClock.now()).await?;
    }
    let timer = Timer::start(connection).await?;
    drain(&store, DRAINED).await?;
    Ok([raw, timer.stop(connection, DRAINED).await?])
}

/// Drains a short and a long backlog; ours should not slow down more than raw does.
async fn backlogs(connection: &mut MultiplexedConnection, url: &str, payload: &Json) -> Result<(), Failure> {
    let mut ratios = Vec::new();
    for queued in BACKLOGS {
        let [raw, ours] = backlog(connection, url, payload, queued).await?;
        let ratio = ours.rate / raw.rate;
        println!(
            "drain of {queued:7} queued {:7.0}/s of {:7.0}/s = {ratio:.2}; server {:.1} µs a job, raw {:.1} µs",
            ours.rate, raw.rate, ours.server, raw.server
        );
        ratios.push(ratio);
    }
    if let [short, long] = ratios.as_slice() {
        println!("the long backlog's ratio is {:.2} of the short one's", long / short);
    }
    Ok(())
}

fn entry_ids(reply: &Value) -> Vec<Vec<u8>> {
    let mut ids = Vec::new();
    if let Value::Array(streams) = reply
        && let Some(Value::Array(stream)) = streams.first()
        && let Some(Value::Array(entries)) = stream.get(1)
    {
        for entry in entries {
            if let Value::Array(entry) = entry
                && let Some(Value::BulkString(id)) = entry.first()
            {
                ids.push(id.clone());
            }
        }
    }
    ids
}

fn job(payload: &Json, retention: Option<Retention>) -> NewJob {
    let id = JobId::generate(SystemClock.now(), fastrand::u128(..));
    let job = NewJob::new("work", payload.clone()).id(id);
    match retention {
        None => job,
        Some(retention) => job.retention(retention),
    }
}

fn claim_request(limit: usize) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new("0198c5a2-7d1e-7000-8000-00000000002a"),
        limit,
        suspects_max: 1,
        lease_for: Duration::from_secs(60),
        now: SystemClock.now(),
    }
}

/// As a worker does it: the next jobs are claimed while the last ones are settled.
async fn drain(store: &RedisStore, jobs: usize) -> Result<(), Failure> {
    let result = Json::parse(r#"{"ok":true}"#)?;
    let mut settled = 0;
    let mut claimed = Vec::new();
    while settled < jobs {
        let now = SystemClock.now();
        let item = |claimed: longhaul_queue::Claimed| SettleItem {
            settlement: settle(
                Event::Outcome(Outcome::Done(result.clone())),
                claimed.job.spent,
                &Policy::default(),
                now,
                0.5,
            ),
            lease: claimed.lease,
            follow_ups: Vec::new(),
        };
        let items = claimed.into_iter().map(item).collect();
        let (replies, next) = tokio::join!(store.settle(items, now), store.claim(claim_request(BATCH)));
        settled += replies?.len();
        claimed = next?;
    }
    Ok(())
}

/// The store's speeds, and what a queued job takes.
async fn ours(
    connection: &mut MultiplexedConnection,
    store: &RedisStore,
    payload: &Json,
    jobs: usize,
    retention: Option<Retention>,
) -> Result<([Speed; 2], f64), Failure> {
    let before = memory(connection).await?;
    let submissions: Vec<Vec<NewJob>> =
        (0..jobs / BULK).map(|_| (0..BULK).map(|_| job(payload, retention)).collect()).collect();
    let timer = Timer::start(connection).await?;
    for submission in submissions {
        store.insert(submission, SystemClock.now()).await?;
    }
    let bulk = timer.stop(connection, jobs).await?;
    let bytes = (memory(connection).await? - before) / jobs as f64;
    let timer = Timer::start(connection).await?;
    drain(store, jobs).await?;
    Ok(([bulk, timer.stop(connection, jobs).await?], bytes))
}

/// From the enqueue of one job to its claim by who heard the notice, on an idle queue, in milliseconds. Beside it, raw: an XADD
/// with a PUBLISH, and XREADGROUP by who heard it; an XADD that ends a blocked XREADGROUP; and a bare round trip.
struct Pickups {
    ours: Vec<Duration>,
    notified: Vec<Duration>,
    blocked: Vec<Duration>,
    round_trip: Vec<Duration>,
}

impl Pickups {
    async fn measure(client: &Client, store: &RedisStore, payload: &Json) -> Result<Self, Failure> {
        let mut connection = client.get_multiplexed_async_connection().await?;
        for stream in ["wake", "notify"] {
            let group = ["CREATE", stream, "g", "$", "MKSTREAM"];
            redis::cmd("XGROUP").arg(&group).query_async::<()>(&mut connection).await?;
        }
        let mut blocked = client.get_multiplexed_async_connection().await?;
        let mut heard = client.get_async_pubsub().await?;
        heard.subscribe("notify").await?;
        let mut heard = heard.into_on_message();
        let mut all =
            Self { ours: Vec::new(), notified: Vec::new(), blocked: Vec::new(), round_trip: Vec::new() };
        for _ in 0..PICKUPS {
            all.ours.extend(ours_picked_up(store, payload).await?);
            all.notified.push(notified(&mut connection, &mut blocked, &mut heard, payload).await?);
            all.blocked.push(unblocked(&mut connection, &mut blocked, payload).await?);
            let start = Instant::now();
            redis::cmd("PING").query_async::<()>(&mut connection).await?;
            all.round_trip.push(start.elapsed());
        }
        Ok(all)
    }

    fn tell(&self, percent: usize) {
        let [ours, notified, blocked, round_trip] =
            [&self.ours, &self.notified, &self.blocked, &self.round_trip]
                .map(|times| percentile(times, percent));
        println!(
            "pickup p{percent} {ours:.2} ms; raw: notified {notified:.2} ms = {:.2}, blocked {blocked:.2} ms = {:.2}, round trip {round_trip:.2} ms",
            ours / notified,
            ours / blocked
        );
    }
}

async fn ours_picked_up(store: &RedisStore, payload: &Json) -> Result<Option<Duration>, Failure> {
    let mut changes = store.watch();
    let start = Instant::now();
    let enqueue = store.insert(vec![job(payload, None)], SystemClock.now());
    let take = async {
        changes.changed().await?;
        let claimed = store.claim(claim_request(1)).await?;
        Ok::<_, Failure>((start.elapsed(), claimed))
    };
    let (enqueued, taken) = tokio::join!(enqueue, take);
    enqueued?;
    let (elapsed, claimed) = taken?;
    Ok((claimed.len() == 1).then_some(elapsed))
}

async fn notified(
    connection: &mut MultiplexedConnection,
    reader: &mut MultiplexedConnection,
    heard: &mut (impl Stream<Item = redis::Msg> + Unpin),
    payload: &Json,
) -> Result<Duration, Failure> {
    let mut add = redis::pipe();
    add.cmd("XADD").arg(&["notify", "*", "p", payload.as_str()]).cmd("PUBLISH").arg(&["notify", "1"]);
    let mut read = redis::cmd("XREADGROUP");
    read.arg(&["GROUP", "g", "w", "COUNT", "1", "STREAMS", "notify", ">"]);
    let start = Instant::now();
    let take = async {
        heard.next().await;
        let taken: Value = read.query_async(reader).await?;
        Ok::<_, Failure>((start.elapsed(), taken))
    };
    let (added, taken) = tokio::join!(add.query_async::<Value>(connection), take);
    added?;
    let (elapsed, taken) = taken?;
    if taken == Value::Nil { Err("nothing was read".into()) } else { Ok(elapsed) }
}

async fn unblocked(
    connection: &mut MultiplexedConnection,
    reader: &mut MultiplexedConnection,
    payload: &Json,
) -> Result<Duration, Failure> {
    let (mut read, mut add) = (redis::cmd("XREADGROUP"), redis::cmd("XADD"));
    read.arg(&["GROUP", "g", "w", "COUNT", "1", "BLOCK", "400", "STREAMS", "wake", ">"]);
    add.arg(&["wake", "*", "p", payload.as_str()]);
    let start = Instant::now();
    let take = async { read.query_async::<Value>(reader).await.map(|_| start.elapsed()) };
    let (taken, added) = tokio::join!(take, add.query_async::<Value>(connection));
    added?;
    Ok(taken?)
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) * percent / 100).map_or(f64::NAN, Duration::as_secs_f64) * 1e3
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("give the URL of a Redis server that may be emptied")?;
    let jobs = std::env::args().nth(2).map_or(Ok(100_000), |text| text.parse())?;
    // Emptying a server takes its time.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    let client = Client::open(url.as_str())?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
    let payload = Json::of(&serde_json::json!({ "text": "x".repeat(189) }))?;
    let part = std::env::args().nth(3);
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if wanted("rates") {
        rates(&mut connection, &url, &payload, jobs).await?;
    }
    if wanted("depth") {
        for _ in 0..ROUNDS {
            backlogs(&mut connection, &url, &payload).await?;
        }
    }
    if wanted("pickup") {
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await?;
        let store = RedisStore::connect(&format!("{url}?name=pickup").parse::<RedisUrl>()?).await?;
        let pickups = Pickups::measure(&client, &store, &payload).await?;
        [50, 99].into_iter().for_each(|percent| pickups.tell(percent));
    }
    Ok(())
}

async fn rates(
    connection: &mut MultiplexedConnection,
    url: &str,
    payload: &Json,
    jobs: usize,
) -> Result<(), Failure> {
    for round in 1..=ROUNDS {
        for (name, retention) in [("kept", None), ("deleted", Some(Retention::DeleteOnSuccess))] {
            redis::cmd("FLUSHALL").query_async::<()>(connection).await?;
            let [raw_bulk, raw_drain] = raw(connection, payload.as_str(), jobs).await?;
            let store = RedisStore::connect(&format!("{url}?name={name}").parse::<RedisUrl>()?).await?;
            let ([bulk, drained], bytes) = ours(connection, &store, payload, jobs, retention).await?;
            for (what, ours, raw) in [("bulk", bulk, raw_bulk), ("drain", drained, raw_drain)] {
                println!(
                    "{round} {name:7} {what:5} {:7.0}/s of {:7.0}/s = {:.2}; server {:.1} µs a job, raw {:.1} µs",
                    ours.rate,
                    raw.rate,
                    ours.rate / raw.rate,
                    ours.server,
                    raw.server
                );
            }
            println!("{round} {name:7} {bytes:.0} bytes a job");
        }
    }
    Ok(())
}
