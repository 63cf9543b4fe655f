//! A crowd of slow clients, for minutes: how long everybody else waits meanwhile, and how the server's memory goes on.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use longhaul_queue::JobId;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::client::{Connection, get, post};
use super::crowd::{self, Crowd};
use super::served::Served;
use crate::bench::Bench;
use crate::bench::lists::millis;
use crate::bench::measure::{Goal, Measurement, Unit, percentile};

/// Connections that ask for jobs.
const READERS: usize = 8;
const SHOW_P99_MS: f64 = 50.0;
/// From the enqueue of a job to the answer that it has succeeded: far below a second, or somebody starves.
const ECHO_P99_MS: f64 = 250.0;
/// What a thousand connections may add to the server's memory: 64 KB each.
const CROWD_MB: f64 = 64.0;
/// What the server's memory may still grow by in the last quarter, if it has come to rest.
const LAST_QUARTER_MB: f64 = 4.0;
/// How often the memory is read while the crowd is there.
const QUARTERS: u32 = 4;

pub(super) async fn measure(bench: &Bench<'_>, served: &Served, ids: &[JobId]) -> Result<Vec<Measurement>> {
    let alone = busy(served, ids, Duration::from_secs(bench.scale.served_seconds)).await?;
    let before = served.memory_mb("VmRSS");
    let crowd = Crowd::gather(served.address).await?;
    let mut memory = vec![("before the slow clients".to_owned(), before)];
    memory.push(("they have just connected".to_owned(), served.memory_mb("VmRSS")));
    let time = Duration::from_secs(bench.scale.crowd_seconds) / QUARTERS;
    let mut crowded = Busy::default();
    for quarter in 1..=QUARTERS {
        crowded.add(busy(served, ids, time).await?);
        let seconds = (time * quarter).as_secs();
        memory.push((format!("after {seconds} s with them"), served.memory_mb("VmRSS")));
    }
    let held = crowd.held();
    ensure!(held >= crowd::SIZE * 9 / 10, "only {held} of {} slow clients are connected", crowd::SIZE);
    drop(crowd);
    let mut all = waits(&alone, &crowded);
    all.extend(memories(&memory));
    all.push(megabytes("peak", served.memory_mb("VmHWM"), None));
    Ok(all)
}

fn waits(alone: &Busy, crowded: &Busy) -> Vec<Measurement> {
    let mut all = Vec::new();
    for (what, alone, crowded, goal) in [
        ("show of a job", &alone.shows, &crowded.shows, SHOW_P99_MS),
        ("echo to its success", &alone.echoes, &crowded.echoes, ECHO_P99_MS),
    ] {
        for (percent, goal) in [(50, None), (95, None), (99, Some(Goal::AtMost(goal)))] {
            let name = format!("HTTP {what} among {} slow clients, p{percent}", crowd::SIZE);
            let (alone, crowded) = (percentile(alone, percent), percentile(crowded, percent));
            all.push(Measurement::new(name, "fsync", Unit::Millis, goal).once(crowded, Some(alone)));
        }
    }
    all
}

/// Each reading, and what they say together: how much the crowd takes, and whether that has come to rest.
fn memories(readings: &[(String, f64)]) -> Vec<Measurement> {
    let mut all: Vec<Measurement> =
        readings.iter().map(|(when, reading)| megabytes(when, *reading, None)).collect();
    if let ([(_, before), ..], [.., (_, third), (_, last)]) = (readings, readings) {
        let rest = Some(Goal::AtMost(LAST_QUARTER_MB));
        all.push(megabytes("more with them", last - before, Some(Goal::AtMost(CROWD_MB))));
        all.push(megabytes("more in the last quarter", last - third, rest));
    }
    all
}

fn megabytes(what: &str, reading: f64, goal: Option<Goal>) -> Measurement {
    Measurement::new(format!("server memory, {what}"), "fsync", Unit::Megabytes, goal).once(reading, None)
}

/// What callers waited for while the server was kept busy, in milliseconds.
#[derive(Default)]
struct Busy {
    /// Each show of a job.
    shows: Vec<f64>,
    /// Each job from its enqueue to the answer that it succeeded.
    echoes: Vec<f64>,
}

impl Busy {
    fn add(&mut self, more: Self) {
        self.shows.extend(more.shows);
        self.echoes.extend(more.echoes);
    }
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
