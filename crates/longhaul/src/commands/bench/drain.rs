//! Drain: claim, run a no-op, settle with the result stored; in worker processes of their own.

use std::path::Path;

use anyhow::Result;
use longhaul_stores::sqlite::Durability;

use super::child::{Report, Role, Running};
use super::enqueue::{in_bulk, open};
use super::measure::{Goal, Measurement, Unit};
use super::raw::Raw;
use super::{Bench, LEVELS, RATE, payload, per_second};

const PAYLOAD_BYTES: usize = 200;
const LARGE_BYTES: usize = 16_000;

pub(super) fn measure(bench: &Bench) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for (durability, level) in LEVELS {
        let goal = if durability == Durability::Relaxed { 0.3 } else { 0.5 };
        let mut one = Measurement::new("drain, 1 process", level, RATE, Some(Goal::Ratio(goal)));
        let mut two =
            Measurement::new("drain, 2 processes / 1", level, Unit::Ratio, Some(Goal::AtLeast(0.9)));
        for _ in 0..bench.scale.repetitions {
            let raw = raw_drain(bench, durability, bench.scale.jobs, PAYLOAD_BYTES)?.1;
            let one_rate = rate(&drained(bench, durability, bench.scale.jobs, 1)?);
            let two_rate = rate(&drained(bench, durability, bench.scale.jobs, 2)?);
            one.add(one_rate, Some(raw));
            two.add(two_rate / one_rate, None);
        }
        all.extend([one, two]);
    }
    Ok(all)
}

/// Payloads of 16 KB.
pub(super) async fn large(bench: &Bench) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for (durability, level) in LEVELS {
        let jobs = bench.scale.large_jobs;
        let (raw_bulk, raw_drain) = raw_drain(bench, durability, jobs, LARGE_BYTES)?;
        let file = bench.file()?;
        let queue = open(&file, durability)?;
        let bulk = in_bulk(&queue, jobs, &payload(LARGE_BYTES)?).await?;
        drop(queue);
        let report = run_workers(&file, durability, 1)?;
        Bench::discard(&file);
        all.push(
            Measurement::new("enqueue of 16 KB, 1000 a call", level, RATE, None).once(bulk, Some(raw_bulk)),
        );
        all.push(Measurement::new("drain of 16 KB", level, RATE, None).once(rate(&report), Some(raw_drain)));
    }
    Ok(all)
}

/// Raw bulk insert and drain in a file of their own; jobs per second each.
fn raw_drain(bench: &Bench, durability: Durability, jobs: usize, bytes: usize) -> Result<(f64, f64)> {
    let file = bench.file()?;
    let raw = Raw::open(&file, durability)?;
    let rates = (raw.bulk(jobs, payload(bytes)?.as_str())?, raw.drain(jobs)?);
    Bench::discard(&file);
    Ok(rates)
}

fn drained(bench: &Bench, durability: Durability, jobs: usize, processes: usize) -> Result<Vec<Report>> {
    let file = bench.file()?;
    let payload = payload(PAYLOAD_BYTES)?;
    let filled = tokio::task::block_in_place(|| {
        let queue = open(&file, durability)?;
        tokio::runtime::Handle::current().block_on(in_bulk(&queue, jobs, &payload))
    });
    filled?;
    let reports = run_workers(&file, durability, processes)?;
    Bench::discard(&file);
    Ok(reports)
}

fn run_workers(file: &Path, durability: Durability, processes: usize) -> Result<Vec<Report>> {
    let role =
        Role { file: file.to_owned(), fsync: durability == Durability::Fsync, jobs: None, starts: false };
    let mut workers = (0..processes).map(|_| Running::start(&role)).collect::<Result<Vec<_>>>()?;
    workers.iter_mut().try_for_each(Running::go)?;
    workers.into_iter().map(Running::report).collect()
}

/// Jobs per second from the first start to the last settlement.
pub(super) fn rate(reports: &[Report]) -> f64 {
    let first = reports.iter().map(|report| report.first_us).filter(|first| *first > 0).min().unwrap_or(0);
    let last = reports.iter().map(|report| report.last_us).max().unwrap_or(0);
    let seconds = std::time::Duration::from_micros(last.saturating_sub(first)).as_secs_f64();
    per_second(reports.iter().map(|report| report.done).sum(), seconds)
}
