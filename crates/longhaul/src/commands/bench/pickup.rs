//! Pickup: from just before the enqueue call to the start of the handler, on an idle queue.

use std::time::Duration;

use anyhow::Result;
use longhaul_queue::{Json, NewJob, Queue};
use longhaul_stores::sqlite::Durability;

use super::child::{Report, Role, Running, micros, work};
use super::enqueue::open;
use super::measure::{Goal, Measurement, Unit, percentile};
use super::{Bench, LEVELS};

/// Between two jobs: long enough that the queue is idle again.
const GAP: Duration = Duration::from_millis(20);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for (durability, level) in LEVELS {
        let goals = (durability == Durability::Relaxed).then_some(());
        let goal = |millis| goals.map(|()| Goal::AtMost(millis));
        let inside = in_process(bench, durability).await?;
        let across = across_processes(bench, durability).await?;
        for (name, waits, goals) in
            [("pickup in process", inside, (1.0, 5.0)), ("pickup across processes", across, (2.0, 10.0))]
        {
            let result = |percent, millis| {
                Measurement::new(format!("{name}, p{percent}"), level, Unit::Millis, goal(millis))
                    .once(percentile(&waits, percent), None)
            };
            all.extend([result(50, goals.0), result(99, goals.1)]);
        }
    }
    Ok(all)
}

async fn in_process(bench: &Bench, durability: Durability) -> Result<Vec<f64>> {
    let file = bench.file()?;
    let queue = open(&file, durability)?;
    let role = role(bench, &file, durability);
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { work(&queue, &role).await }
    });
    let stamps = enqueue_slowly(&queue, bench.scale.pickups).await?;
    let report = worker.await??;
    Bench::discard(&file);
    Ok(waits(&stamps, &report))
}

async fn across_processes(bench: &Bench, durability: Durability) -> Result<Vec<f64>> {
    let file = bench.file()?;
    let queue = open(&file, durability)?;
    let mut worker = Running::start(&role(bench, &file, durability))?;
    worker.go()?;
    let stamps = enqueue_slowly(&queue, bench.scale.pickups).await?;
    let report = tokio::task::spawn_blocking(|| worker.report()).await??;
    Bench::discard(&file);
    Ok(waits(&stamps, &report))
}

fn role(bench: &Bench, file: &std::path::Path, durability: Durability) -> Role {
    Role {
        file: file.to_owned(),
        fsync: durability == Durability::Fsync,
        jobs: Some(bench.scale.pickups),
        starts: true,
    }
}

/// One job at a time; the time just before each enqueue.
async fn enqueue_slowly(queue: &Queue, jobs: usize) -> Result<Vec<u64>> {
    let mut stamps = Vec::with_capacity(jobs);
    for number in 0..jobs {
        tokio::time::sleep(GAP).await;
        let payload = Json::of(&number)?;
        stamps.push(micros());
        queue.enqueue(NewJob::new("noop", payload)).await?;
    }
    Ok(stamps)
}

fn waits(stamps: &[u64], report: &Report) -> Vec<f64> {
    let wait = |(number, started): &(u64, u64)| {
        let stamp = usize::try_from(*number).ok().and_then(|number| stamps.get(number))?;
        Some(Duration::from_micros(started.saturating_sub(*stamp)).as_secs_f64() * 1000.0)
    };
    report.starts.iter().filter_map(wait).collect()
}
