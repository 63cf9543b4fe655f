//! Enqueue: a thousand a call, one by one, and one by one from many callers at once.

use std::time::Instant;

use anyhow::Result;
use longhaul_queue::job::Retention;
use longhaul_queue::{Json, NewJob, Queue};
use tokio::task::JoinSet;

use super::measure::{Goal, Measurement};
use super::place::Level;
use super::raw::fdatasync;
use super::{Bench, PAYLOAD_BYTES, RATE, payload, per_second};

const CALLERS: usize = 64;
/// Below this rate the disk, not the engine, decides, and group commit must show.
const SLOW_DISK_SYNCS: f64 = 1_000.0;
const GROUP_COMMIT_GAIN: f64 = 20.0;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for &level in bench.target.levels() {
        let bulk_goal = if level == Level::Postgres { 0.5 } else { 0.4 };
        let one_goal = (level == Level::Relaxed).then_some(Goal::Ratio(0.6));
        let new = |name: &str, goal| Measurement::new(name, level.name(), RATE, goal);
        let mut bulk = new("enqueue, 1000 a call", Some(Goal::Ratio(bulk_goal)));
        let mut one = new("enqueue, 1 caller", one_goal);
        let mut many = new(&format!("enqueue, {CALLERS} callers"), one_goal);
        if level == Level::Fsync {
            let syncs = fdatasync(bench)?.ours();
            many.goal = (syncs < SLOW_DISK_SYNCS).then_some(Goal::AtLeast(syncs * GROUP_COMMIT_GAIN));
        }
        let singles = bench.scale.jobs / if level == Level::Relaxed { 10 } else { 50 };
        let of_many = singles.max(CALLERS * 20);
        let text = payload(PAYLOAD_BYTES)?;
        for _ in 0..bench.scale.repetitions {
            let place = bench.place(level)?;
            let mut raw = place.raw().await?;
            let raw_bulk = raw.bulk(bench.scale.jobs, text.as_str()).await?;
            let raw_one = raw.singles(1, singles, text.as_str()).await?;
            // A file has one writer, however many want to.
            let raw_many = match level.is_server() {
                true => raw.singles(CALLERS, of_many, text.as_str()).await?,
                false => raw_one,
            };
            drop(raw);
            bench.discard(place).await?;
            let place = bench.place(level)?;
            let queue = place.engine().await?;
            bulk.add(in_bulk(&queue, bench.scale.jobs, &text, None).await?, Some(raw_bulk));
            one.add(one_by_one(&queue, singles, &text).await?, Some(raw_one));
            many.add(by_many(&queue, of_many, &text).await?, Some(raw_many));
            drop(queue);
            bench.discard(place).await?;
        }
        all.extend([bulk, one, many]);
    }
    Ok(all)
}

/// A thousand a call; jobs per second.
pub(super) async fn in_bulk(
    queue: &Queue,
    jobs: usize,
    payload: &Json,
    retention: Option<Retention>,
) -> Result<f64> {
    let job = || {
        let job = NewJob::new("noop", payload.clone());
        match retention {
            None => job,
            Some(retention) => job.retention(retention),
        }
    };
    let started = Instant::now();
    for first in (0..jobs).step_by(1000) {
        let count = jobs.min(first + 1000) - first;
        queue.enqueue_many((0..count).map(|_| job()).collect()).await?;
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
