//! Depth: what a backlog costs. The first jobs of a long queue are drained; memory and file size are read on the way.

use anyhow::Result;
use longhaul_stores::sqlite::Durability;

use super::child::{Role, Running};
use super::drain::rate;
use super::enqueue::{in_bulk, open};
use super::measure::{Goal, Measurement, Unit};
use super::raw::Raw;
use super::{Bench, RATE, payload};

const PAYLOAD_BYTES: usize = 200;
/// Jobs that are drained at each depth.
const DRAINED_MAX: usize = 20_000;
/// The depth that the goals speak of.
const GOAL_DEPTH: usize = 1_000_000;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Measurement>> {
    let level = "relaxed";
    let mut all = Vec::new();
    let mut shallow: Option<(f64, f64)> = None;
    for &depth in bench.scale.depths {
        let jobs = depth.min(DRAINED_MAX);
        let raw = raw_at(bench, depth, jobs)?;
        let file = bench.file()?;
        let queue = open(&file, Durability::Relaxed)?;
        in_bulk(&queue, depth, &payload(PAYLOAD_BYTES)?).await?;
        drop(queue);
        let bytes = std::fs::metadata(&file)?.len();
        let role = Role { file: file.clone(), fsync: false, jobs: Some(jobs), starts: false };
        let mut worker = Running::start(&role)?;
        worker.go()?;
        let report = tokio::task::spawn_blocking(|| worker.report()).await??;
        Bench::discard(&file);
        let ours = rate(std::slice::from_ref(&report));
        let name = |what: &str| format!("{what} at {depth} queued");
        all.push(Measurement::new(name("drain"), level, RATE, None).once(ours, Some(raw)));
        // Raw is not flat itself: what counts is ours against raw, here as against the shortest queue.
        match shallow {
            None => shallow = Some((ours, raw)),
            Some((ours_shallow, raw_shallow)) => {
                let goal = (depth == GOAL_DEPTH).then_some(Goal::Ratio(0.8));
                all.push(
                    Measurement::new(name("drain against the shortest"), level, Unit::Ratio, goal)
                        .once(ours / ours_shallow, Some(raw / raw_shallow)),
                );
            }
        }
        if depth >= 100_000 {
            #[expect(clippy::cast_precision_loss, reason = "file sizes are far below 2^52")]
            let per_job = bytes as f64 / depth as f64;
            all.push(
                Measurement::new(name("file per job"), level, Unit::Bytes, Some(Goal::AtMost(500.0)))
                    .once(per_job, None),
            );
            let goal = (depth == GOAL_DEPTH).then_some(Goal::AtMost(40.0));
            all.push(
                Measurement::new(name("worker memory"), level, Unit::Megabytes, goal)
                    .once(report.rss_mb, None),
            );
        }
    }
    Ok(all)
}

fn raw_at(bench: &Bench, depth: usize, jobs: usize) -> Result<f64> {
    let file = bench.file()?;
    let raw = Raw::open(&file, Durability::Relaxed)?;
    raw.bulk(depth, payload(PAYLOAD_BYTES)?.as_str())?;
    let rate = raw.drain(jobs)?;
    Bench::discard(&file);
    Ok(rate)
}
