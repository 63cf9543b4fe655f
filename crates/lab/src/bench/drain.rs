//! Drain: claim, run a no-op, settle with the result stored; in worker processes of their own.

use anyhow::Result;
use longhaul_queue::job::Retention;

use super::child::{Report, Role, Running};
use super::enqueue::in_bulk;
use super::measure::{Goal, Measurement, Unit};
use super::place::{Level, Place};
use super::{Bench, PAYLOAD_BYTES, RATE, payload, per_second};

const LARGE_BYTES: usize = 16_000;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for &level in bench.target.levels() {
        let goal = Some(Goal::Ratio(match level {
            Level::Relaxed => 0.3,
            Level::Redis => 0.35,
            Level::Fsync | Level::Postgres => 0.5,
        }));
        let new = |name, unit, goal| Measurement::new(name, level.name(), unit, goal);
        let mut one = new("drain, 1 process", RATE, goal);
        let mut two = new("drain, 2 processes / 1", Unit::Ratio, Some(Goal::AtLeast(0.9)));
        // As raw does it.
        let mut deleted = new("drain, deleted on success", RATE, goal);
        for _ in 0..bench.scale.repetitions {
            let raw = raw_drain(bench, level, bench.scale.jobs, PAYLOAD_BYTES).await?.1;
            let one_rate = drained(bench, level, None, 1).await?;
            one.add(one_rate, Some(raw));
            two.add(drained(bench, level, None, 2).await? / one_rate, None);
            if level.is_server() {
                let rate = drained(bench, level, Some(Retention::DeleteOnSuccess), 1).await?;
                deleted.add(rate, Some(raw));
            }
        }
        all.extend([one, two]);
        all.extend(level.is_server().then_some(deleted));
    }
    Ok(all)
}

/// Payloads of 16 KB.
pub(super) async fn large(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for &level in bench.target.levels() {
        let jobs = bench.scale.large_jobs;
        let (raw_bulk, raw_drain) = raw_drain(bench, level, jobs, LARGE_BYTES).await?;
        let place = bench.place(level)?;
        let bulk = in_bulk(place.engine().await?.queue(), jobs, &payload(LARGE_BYTES)?, None).await?;
        let report = run_workers(&place, 1).await?;
        bench.discard(place).await?;
        let new = |name, rate, raw| Measurement::new(name, level.name(), RATE, None).once(rate, Some(raw));
        all.push(new("enqueue of 16 KB, 1000 a call", bulk, raw_bulk));
        all.push(new("drain of 16 KB", rate(&report), raw_drain));
    }
    Ok(all)
}

/// Raw bulk insert and drain in a place of their own; jobs per second each.
async fn raw_drain(bench: &Bench<'_>, level: Level, jobs: usize, bytes: usize) -> Result<(f64, f64)> {
    let place = bench.place(level)?;
    let mut raw = place.raw().await?;
    let rates = (raw.bulk(jobs, payload(bytes)?.as_str()).await?, raw.drain(jobs).await?);
    drop(raw);
    bench.discard(place).await?;
    Ok(rates)
}

async fn drained(
    bench: &Bench<'_>,
    level: Level,
    retention: Option<Retention>,
    processes: usize,
) -> Result<f64> {
    let place = bench.place(level)?;
    in_bulk(place.engine().await?.queue(), bench.scale.jobs, &payload(PAYLOAD_BYTES)?, retention).await?;
    place.rest().await?;
    let reports = run_workers(&place, processes).await?;
    bench.discard(place).await?;
    Ok(rate(&reports))
}

async fn run_workers(place: &Place, processes: usize) -> Result<Vec<Report>> {
    let role = Role { place: place.clone(), jobs: None, starts: false };
    tokio::task::spawn_blocking(move || {
        let mut workers = (0..processes).map(|_| Running::start(&role)).collect::<Result<Vec<_>>>()?;
        workers.iter_mut().try_for_each(Running::go)?;
        workers.into_iter().map(Running::report).collect()
    })
    .await?
}

/// Jobs per second from the first start to the last settlement.
pub(super) fn rate(reports: &[Report]) -> f64 {
    let first = reports.iter().map(|report| report.first_us).filter(|first| *first > 0).min().unwrap_or(0);
    let last = reports.iter().map(|report| report.last_us).max().unwrap_or(0);
    let seconds = std::time::Duration::from_micros(last.saturating_sub(first)).as_secs_f64();
    per_second(reports.iter().map(|report| report.done).sum(), seconds)
}
