//! Enqueue: a thousand a call, one by one, and one by one from many callers at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use longhaul_queue::{Json, NewJob, Queue};
use longhaul_stores::sqlite::{Durability, SqliteOptions, SqliteStore};
use tokio::task::JoinSet;

use super::measure::{Goal, Measurement};
use super::raw::{Raw, fdatasync};
use super::{Bench, LEVELS, RATE, payload, per_second};

const CALLERS: usize = 64;
const PAYLOAD_BYTES: usize = 200;
/// Below this rate the disk, not the engine, decides, and group commit must show.
const SLOW_DISK_SYNCS: f64 = 1_000.0;
const GROUP_COMMIT_GAIN: f64 = 20.0;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for (durability, level) in LEVELS {
        let one_goal = (durability == Durability::Relaxed).then_some(Goal::Ratio(0.6));
        let mut bulk = Measurement::new("enqueue, 1000 a call", level, RATE, Some(Goal::Ratio(0.4)));
        let mut one = Measurement::new("enqueue, 1 caller", level, RATE, one_goal);
        let mut many = Measurement::new(format!("enqueue, {CALLERS} callers"), level, RATE, one_goal);
        let syncs = fdatasync(bench)?.ours();
        if durability == Durability::Fsync && syncs < SLOW_DISK_SYNCS {
            many.goal = Some(Goal::AtLeast(syncs * GROUP_COMMIT_GAIN));
        }
        let singles = bench.scale.jobs / if durability == Durability::Fsync { 50 } else { 10 };
        let text = payload(PAYLOAD_BYTES)?;
        for _ in 0..bench.scale.repetitions {
            let file = bench.file()?;
            let raw = Raw::open(&file, durability)?;
            let (raw_bulk, raw_one) =
                (raw.bulk(bench.scale.jobs, text.as_str())?, raw.one_by_one(singles, text.as_str())?);
            Bench::discard(&file);
            let file = bench.file()?;
            let queue = open(&file, durability)?;
            bulk.add(in_bulk(&queue, bench.scale.jobs, &text).await?, Some(raw_bulk));
            one.add(one_by_one(&queue, singles, &text).await?, Some(raw_one));
            many.add(by_many(&queue, singles.max(CALLERS * 20), &text).await?, Some(raw_one));
            Bench::discard(&file);
        }
        all.extend([bulk, one, many]);
    }
    Ok(all)
}

/// A queue in a new file.
pub(super) fn open(file: &Path, durability: Durability) -> Result<Queue> {
    let options = SqliteOptions { durability, ..SqliteOptions::default() };
    Ok(Queue::new(Arc::new(SqliteStore::open(file, options)?)))
}

/// A thousand a call; jobs per second.
pub(super) async fn in_bulk(queue: &Queue, jobs: usize, payload: &Json) -> Result<f64> {
    let started = Instant::now();
    for first in (0..jobs).step_by(1000) {
        let count = jobs.min(first + 1000) - first;
        queue.enqueue_many((0..count).map(|_| NewJob::new("noop", payload.clone())).collect()).await?;
    }
    Ok(per_second(jobs, started.elapsed().as_secs_f64()))
}

async fn one_by_one(queue: &Queue, jobs: usize, payload: &Json) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..jobs {
        queue.enqueue(NewJob::new("noop", payload.clone()).queue("single")).await?;
    }
    Ok(per_second(jobs, started.elapsed().as_secs_f64()))
}

async fn by_many(queue: &Queue, jobs: usize, payload: &Json) -> Result<f64> {
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (queue, payload) = (queue.clone(), payload.clone());
        callers.spawn(async move { one_by_one(&queue, jobs / CALLERS, &payload).await });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(per_second(jobs / CALLERS * CALLERS, started.elapsed().as_secs_f64()))
}
