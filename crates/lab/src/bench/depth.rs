//! Depth: what a backlog costs. The first jobs of a long queue are drained; memory and size are read on the way.

use anyhow::Result;

use super::child::{Role, Running};
use super::drain::rate;
use super::enqueue::in_bulk;
use super::measure::{Goal, Measurement, Unit};
use super::place::Level;
use super::{Bench, PAYLOAD_BYTES, RATE, payload};

/// Jobs that are drained at each depth.
const DRAINED_MAX: usize = 20_000;
/// The depth that the goals speak of.
const GOAL_DEPTH: usize = 1_000_000;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let level = bench.target.first_level();
    let mut all = Vec::new();
    let mut shallow: Option<(f64, f64)> = None;
    for &depth in if level.is_server() { bench.scale.server_depths } else { bench.scale.depths } {
        let jobs = depth.min(DRAINED_MAX);
        let raw = raw_at(bench, level, depth, jobs).await?;
        let place = bench.place(level)?;
        // A server holds more than this.
        let before = if level == Level::Redis { place.bytes().await? } else { 0.0 };
        in_bulk(place.engine().await?.queue(), depth, &payload(PAYLOAD_BYTES)?, None).await?;
        let bytes = place.bytes().await? - before;
        place.rest().await?;
        let role = Role { place: place.clone(), jobs: Some(jobs), starts: false };
        let report = tokio::task::spawn_blocking(move || {
            let mut worker = Running::start(&role)?;
            worker.go()?;
            worker.report()
        });
        let report = report.await??;
        bench.discard(place).await?;
        let ours = rate(std::slice::from_ref(&report));
        let new = |what: &str, unit, goal| {
            Measurement::new(format!("{what} at {depth} queued"), level.name(), unit, goal)
        };
        all.push(new("drain", RATE, None).once(ours, Some(raw)));
        // Raw is not flat itself: what counts is ours against raw, here as against the shortest queue.
        match shallow {
            None => shallow = Some((ours, raw)),
            Some((ours_shallow, raw_shallow)) => {
                let goal = (depth == GOAL_DEPTH).then_some(Goal::Ratio(0.8));
                let flatness = new("drain against the shortest", Unit::Ratio, goal);
                all.push(flatness.once(ours / ours_shallow, Some(raw / raw_shallow)));
            }
        }
        if depth >= 100_000 {
            let goal = match level {
                Level::Relaxed | Level::Fsync => Some(Goal::AtMost(500.0)),
                Level::Redis => Some(Goal::AtMost(600.0)),
                Level::Postgres => None,
            };
            #[expect(clippy::cast_precision_loss, reason = "depths are far below 2^52")]
            let per_job = bytes / depth as f64;
            all.push(new("size per job", Unit::Bytes, goal).once(per_job, None));
            let goal = (depth == GOAL_DEPTH).then_some(Goal::AtMost(40.0));
            all.push(new("worker memory", Unit::Megabytes, goal).once(report.rss_mb, None));
        }
    }
    Ok(all)
}

async fn raw_at(bench: &Bench<'_>, level: Level, depth: usize, jobs: usize) -> Result<f64> {
    let place = bench.place(level)?;
    let mut raw = place.raw().await?;
    raw.bulk(depth, payload(PAYLOAD_BYTES)?.as_str()).await?;
    let rate = raw.drain(jobs).await?;
    drop(raw);
    bench.discard(place).await?;
    Ok(rate)
}
