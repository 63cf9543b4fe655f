//! Pickup: from just before the enqueue call to the start of the handler, on an idle queue.

use std::time::Duration;

use anyhow::Result;
use longhaul_queue::{Json, NewJob, Queue};

use super::Bench;
use super::child::{Report, Role, Running, micros, work};
use super::measure::{Goal, Measurement, Unit, percentile};
use super::place::Level;

/// Between two jobs: long enough that the queue is idle again.
pub(super) const GAP: Duration = Duration::from_millis(20);

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for &level in bench.target.levels() {
        let raw = raw(bench, level).await?;
        let same_way = raw.first().map(|(_, waits)| waits.as_slice());
        let inside = in_process(bench, level).await?;
        let across = across_processes(bench, level).await?;
        for (name, waits, limits) in
            [("pickup in process", inside, (1.0, 5.0)), ("pickup across processes", across, (2.0, 10.0))]
        {
            let [half, most] = goals(level, limits);
            for (percent, goal) in [(50, half), (99, most)] {
                let raw = same_way.map(|waits| percentile(waits, percent));
                let name = format!("{name}, p{percent}");
                let measurement = Measurement::new(name, level.name(), Unit::Millis, goal);
                all.push(measurement.once(percentile(&waits, percent), raw));
            }
        }
        for (name, waits) in raw.iter().skip(1) {
            let name = format!("raw {name}, p50");
            let measurement = Measurement::new(name, level.name(), Unit::Millis, None);
            all.push(measurement.once(percentile(waits, 50), None));
        }
    }
    Ok(all)
}

/// What half of all and nearly all must reach. At level `fsync` the disk decides.
fn goals(level: Level, (half, most): (f64, f64)) -> [Option<Goal>; 2] {
    match level {
        Level::Relaxed => [Some(Goal::AtMost(half)), Some(Goal::AtMost(most))],
        Level::Fsync => [None, None],
        Level::Redis | Level::Postgres => [Some(Goal::RatioAtMost(2.0)), Some(Goal::AtMost(10.0))],
    }
}

async fn raw(bench: &Bench<'_>, level: Level) -> Result<Vec<(&'static str, Vec<f64>)>> {
    let place = bench.place(level)?;
    let waits = place.raw().await?.pickups(bench.scale.pickups).await?;
    bench.discard(place).await?;
    Ok(waits)
}

async fn in_process(bench: &Bench<'_>, level: Level) -> Result<Vec<f64>> {
    let place = bench.place(level)?;
    let queue = place.engine().await?;
    let role = Role { place: place.clone(), jobs: Some(bench.scale.pickups), starts: true };
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { work(&queue, &role).await }
    });
    let stamps = enqueue_slowly(&queue, bench.scale.pickups).await?;
    let report = worker.await??;
    bench.discard(place).await?;
    Ok(waits(&stamps, &report))
}

async fn across_processes(bench: &Bench<'_>, level: Level) -> Result<Vec<f64>> {
    let place = bench.place(level)?;
    let queue = place.engine().await?;
    let role = Role { place: place.clone(), jobs: Some(bench.scale.pickups), starts: true };
    let mut worker = tokio::task::spawn_blocking(move || Running::start(&role)).await??;
    worker.go()?;
    let stamps = enqueue_slowly(&queue, bench.scale.pickups).await?;
    let report = tokio::task::spawn_blocking(|| worker.report()).await??;
    bench.discard(place).await?;
    Ok(waits(&stamps, &report))
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
