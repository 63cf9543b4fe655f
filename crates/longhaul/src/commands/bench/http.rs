//! HTTP: what the server adds to the engine. Enqueues over many connections beside the library's own; then a million jobs
//! behind a server that also runs jobs: its pages, and what a crowd of slow clients does to everybody else.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use longhaul_queue::{JobId, NewJob};
use longhaul_stores::sqlite::Durability;
use serde::Deserialize;
use tokio::task::JoinSet;

use self::client::{Connection, get, post};
use self::crowd::Crowd;
use self::served::{Served, Workers};
use super::enqueue::open;
use super::lists::{GOAL_MS, PAGE, millis, stock};
use super::measure::{Goal, Measurement, Unit, percentile};
use super::{Bench, LEVELS, RATE, payload, per_second};

mod client;
mod crowd;
mod served;

const CALLERS: usize = 64;
const PAYLOAD_BYTES: usize = 200;
/// What of the library's rate the server keeps.
const ENQUEUE_RATIO: f64 = 0.5;
/// Connections that ask for jobs.
const READERS: usize = 8;
const SHOW_P99_MS: f64 = 50.0;
/// From the enqueue of a job to the answer that it has succeeded: far below a second, or somebody starves.
const ECHO_P99_MS: f64 = 250.0;
/// What a thousand connections may add to the server's memory: 64 KB each.
const CROWD_MB: f64 = 64.0;

/// Lists and searches as a client asks for them.
const PAGES: [(&str, &str); 7] = [
    ("everything", ""),
    ("state failed", "&state=failed"),
    ("kind, one in 100,000", "&kind=rare"),
    ("text in every tenth", "&search=%22a+word+in+ten%22"),
    ("text in one", "&search=needle-in-the-middle"),
    ("text in none", "&search=nowhere-to-be-found"),
    ("field in 20", "&search=user.id%3A4711"),
];

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for (durability, level) in LEVELS {
        all.extend(enqueues(bench, durability, level).await?);
    }
    all.extend(million(bench).await?);
    Ok(all)
}

/// The library's callers and the server's connections, each on a fresh store. Raw is the library. Beside them what the
/// server, the client and the system between them reach when there is nothing to do.
async fn enqueues(bench: &Bench, durability: Durability, level: &'static str) -> Result<[Measurement; 2]> {
    let payload = payload(PAYLOAD_BYTES)?;
    let request = post("/api/v1/jobs", &format!(r#"{{"kind":"noop","payload":{}}}"#, payload.as_str()));
    let mut nothing = Measurement::new(format!("HTTP nothing, {CALLERS} connections"), level, RATE, None);
    let name = format!("HTTP enqueue, {CALLERS} connections");
    let mut measurement = Measurement::new(name, level, RATE, Some(Goal::Ratio(ENQUEUE_RATIO)));
    let time = Duration::from_secs(bench.scale.served_seconds) / 2;
    for _ in 0..bench.scale.repetitions {
        let file = bench.file()?;
        let library = library_rate(&file, durability, time).await?;
        Bench::discard(&file);
        let file = bench.file()?;
        let served = Served::start(&file, level, Workers::None).await?;
        measurement.add(http_rate(&served, &request, time).await?, Some(library));
        nothing.add(http_rate(&served, &get("/healthz"), time / 2).await?, Some(library));
        drop(served);
        Bench::discard(&file);
    }
    Ok([measurement, nothing])
}

async fn library_rate(file: &Path, durability: Durability, time: Duration) -> Result<f64> {
    let queue = open(file, durability)?;
    let payload = payload(PAYLOAD_BYTES)?;
    rate(time, |until| {
        let (queue, payload) = (queue.clone(), payload.clone());
        async move {
            let mut count = 0;
            while Instant::now() < until {
                queue.enqueue(NewJob::new("noop", payload.clone())).await?;
                count += 1;
            }
            Ok(count)
        }
    })
    .await
}

/// Calls per second of one request over all connections.
async fn http_rate(served: &Served, request: &[u8], time: Duration) -> Result<f64> {
    let mut connections = Vec::with_capacity(CALLERS);
    for _ in 0..CALLERS {
        connections.push(Connection::open(served.address).await?);
    }
    rate(time, |until| {
        let (connection, request) = (connections.pop(), request.to_vec());
        async move {
            let mut connection = connection.context("a caller without a connection")?;
            let mut count = 0;
            while Instant::now() < until {
                connection.call(&request).await?;
                count += 1;
            }
            Ok(count)
        }
    })
    .await
}

/// Calls per second of all callers.
async fn rate<F>(time: Duration, mut caller: impl FnMut(Instant) -> F) -> Result<f64>
where
    F: Future<Output = Result<usize>> + Send + 'static,
{
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(caller(started + time));
    }
    let mut count = 0;
    while let Some(ended) = callers.join_next().await {
        count += ended??;
    }
    Ok(per_second(count, started.elapsed().as_secs_f64()))
}

/// A server with workers on a store with many jobs.
async fn million(bench: &Bench) -> Result<Vec<Measurement>> {
    let file = bench.file()?;
    let ids = {
        let queue = open(&file, Durability::Relaxed)?;
        stock(&queue, bench.scale.listed_jobs).await?
    };
    let served = Served::start(&file, "fsync", Workers::Some).await?;
    let mut all = pages(bench, &served).await?;
    let time = Duration::from_secs(bench.scale.served_seconds);
    let alone = busy(&served, &ids, time).await?;
    let before = served.memory_mb("VmRSS");
    let crowd = Crowd::gather(served.address).await?;
    let gathered = served.memory_mb("VmRSS");
    let crowded = busy(&served, &ids, time).await?;
    let after = served.memory_mb("VmRSS");
    let held = crowd.held();
    ensure!(held >= crowd::SIZE * 9 / 10, "only {held} of {} slow clients are connected", crowd::SIZE);
    drop(crowd);
    for (what, alone, crowded, goal) in [
        ("show of a job", alone.shows, crowded.shows, SHOW_P99_MS),
        ("echo to its success", alone.echoes, crowded.echoes, ECHO_P99_MS),
    ] {
        for (percent, goal) in [(50, None), (95, None), (99, Some(Goal::AtMost(goal)))] {
            let name = format!("HTTP {what} among {} slow clients, p{percent}", crowd::SIZE);
            let (alone, crowded) = (percentile(&alone, percent), percentile(&crowded, percent));
            all.push(Measurement::new(name, "fsync", Unit::Millis, goal).once(crowded, Some(alone)));
        }
    }
    let grown =
        Measurement::new("memory more with them", "fsync", Unit::Megabytes, Some(Goal::AtMost(CROWD_MB)));
    all.extend([
        Measurement::new("server memory, slow clients just connected", "fsync", Unit::Megabytes, None)
            .once(gathered, Some(before)),
        Measurement::new("server memory, at the end", "fsync", Unit::Megabytes, None)
            .once(after, Some(before)),
        grown.once(after - before, None),
        Measurement::new("server memory, peak", "fsync", Unit::Megabytes, None)
            .once(served.memory_mb("VmHWM"), None),
    ]);
    drop(served);
    Bench::discard(&file);
    Ok(all)
}

/// What callers waited for while the server was kept busy, in milliseconds.
struct Busy {
    /// Each show of a job.
    shows: Vec<f64>,
    /// Each job from its enqueue to the answer that it succeeded.
    echoes: Vec<f64>,
}

async fn busy(served: &Served, ids: &[JobId], time: Duration) -> Result<Busy> {
    let until = Instant::now() + time;
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let mut connection = Connection::open(served.address).await?;
        let draw = || get(&format!("/api/v1/jobs/{}", ids[fastrand::usize(..ids.len())]));
        // Drawn before, so that the client's own work is not in the times.
        let requests: Vec<Vec<u8>> = (0..10_000).map(|_| draw()).collect();
        readers.spawn(async move {
            let mut times = Vec::new();
            for request in requests.iter().cycle() {
                if Instant::now() >= until {
                    break;
                }
                let started = Instant::now();
                connection.call(request).await?;
                times.push(millis(started));
            }
            anyhow::Ok(times)
        });
    }
    let mut connection = Connection::open(served.address).await?;
    let mut echoes = Vec::new();
    while Instant::now() < until {
        let started = Instant::now();
        echo(&mut connection).await?;
        echoes.push(millis(started));
    }
    let mut shows = Vec::new();
    while let Some(ended) = readers.join_next().await {
        shows.extend(ended??);
    }
    Ok(Busy { shows, echoes })
}

/// What is read of an answer about a job.
#[derive(Deserialize)]
struct Told {
    id: JobId,
    state: String,
}

async fn echo(connection: &mut Connection) -> Result<()> {
    let request = post("/api/v1/jobs", r#"{"kind":"echo","payload":{"hello":1}}"#);
    let enqueued: Vec<Told> = serde_json::from_slice(connection.call(&request).await?)?;
    let id = enqueued.first().context("an enqueue without a job")?.id;
    let told = connection.call(&get(&format!("/api/v1/jobs/{id}?wait=30s"))).await?;
    let told: Told = serde_json::from_slice(told)?;
    ensure!(told.state == "succeeded", "job {} is {} after 30 s", told.id, told.state);
    Ok(())
}

async fn pages(bench: &Bench, served: &Served) -> Result<Vec<Measurement>> {
    let mut connection = Connection::open(served.address).await?;
    let jobs = bench.scale.listed_jobs;
    let mut all = Vec::new();
    for (name, query) in PAGES {
        all.extend(page(bench, &mut connection, name, |_| query.to_owned()).await?);
    }
    // Spread over the whole list, so that no page is in memory because of the one before.
    let deep = |number: usize| format!("&cursor=s{:x}", (number * 7_919_000 + 1) % jobs);
    all.extend(page(bench, &mut connection, "everything, deep pages", deep).await?);
    Ok(all)
}

async fn page(
    bench: &Bench,
    connection: &mut Connection,
    name: &str,
    query: impl Fn(usize) -> String,
) -> Result<[Measurement; 2]> {
    let mut times = Vec::with_capacity(bench.scale.pages);
    for number in 0..bench.scale.pages {
        let request = get(&format!("/api/v1/jobs?limit={PAGE}{}", query(number)));
        let started = Instant::now();
        connection.call(&request).await?;
        times.push(millis(started));
    }
    Ok([(50, None), (95, Some(Goal::AtMost(GOAL_MS)))].map(|(percent, goal)| {
        Measurement::new(format!("HTTP page: {name}, p{percent}"), "fsync", Unit::Millis, goal)
            .once(percentile(&times, percent), None)
    }))
}
