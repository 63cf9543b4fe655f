//! HTTP: what the server adds to the engine. Enqueues over many connections beside the library's own; then a million jobs
//! behind a server that also runs jobs: its pages, and what a crowd of slow clients does to everybody else and to its memory.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use longhaul_queue::NewJob;
use tokio::task::JoinSet;

use self::client::{Connection, get, post};
use self::served::{Served, Workers};
use super::lists::{GOAL_MS, PAGE, millis, stock};
use super::measure::{Goal, Measurement, Unit, percentile};
use super::place::{Level, Place};
use super::{Bench, PAYLOAD_BYTES, RATE, payload, per_second};

mod client;
mod crowd;
mod crowded;
mod served;

const CALLERS: usize = 64;
/// What of the library's rate the server keeps.
const ENQUEUE_RATIO: f64 = 0.5;

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

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for &level in bench.target.levels() {
        all.extend(enqueues(bench, level).await?);
    }
    all.extend(million(bench).await?);
    Ok(all)
}

/// The library's callers and the server's connections, each on a fresh store. Raw is the library. Beside them what the
/// server, the client and the system between them reach when there is nothing to do.
async fn enqueues(bench: &Bench<'_>, level: Level) -> Result<[Measurement; 2]> {
    let payload = payload(PAYLOAD_BYTES)?;
    let request = post("/api/v1/jobs", &format!(r#"{{"kind":"noop","payload":{}}}"#, payload.as_str()));
    let new = |what, goal| {
        Measurement::new(format!("HTTP {what}, {CALLERS} connections"), level.name(), RATE, goal)
    };
    let mut nothing = new("nothing", None);
    let mut measurement = new("enqueue", Some(Goal::Ratio(ENQUEUE_RATIO)));
    let time = Duration::from_secs(bench.scale.served_seconds) / 2;
    for _ in 0..bench.scale.repetitions {
        let place = bench.place(level)?;
        let library = library_rate(&place, time).await?;
        bench.discard(place).await?;
        let place = bench.place(level)?;
        let served = Served::start(bench, &place, level, Workers::None).await?;
        measurement.add(http_rate(&served, &request, time).await?, Some(library));
        nothing.add(http_rate(&served, &get("/healthz"), time / 2).await?, Some(library));
        drop(served);
        bench.discard(place).await?;
    }
    Ok([measurement, nothing])
}

async fn library_rate(place: &Place, time: Duration) -> Result<f64> {
    let queue = place.engine().await?;
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
async fn million(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let place = bench.first_place()?;
    let ids = stock(&place.engine().await?, bench.scale.listed_jobs).await?;
    let served = Served::start(bench, &place, Level::Fsync, Workers::Some).await?;
    let mut all = pages(bench, &served).await?;
    all.extend(crowded::measure(bench, &served, &ids).await?);
    drop(served);
    bench.discard(place).await?;
    Ok(all)
}

async fn pages(bench: &Bench<'_>, served: &Served) -> Result<Vec<Measurement>> {
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
    bench: &Bench<'_>,
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
