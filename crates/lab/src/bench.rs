//! How fast the engine is on this machine and store, beside the raw limit of the same disk and the same SQLite, or of the
//! same server, measured in the same run. Read the ratios: the machine's own speed changes from minute to minute.

use std::sync::Mutex;

use anyhow::{Context as _, Result};
use longhaul_stores::temporary::{Kind, Server};
use tempfile::TempDir;

use crate::Host;
use crate::servers::{self, Purpose};

mod child;
mod depth;
mod drain;
mod enqueue;
mod http;
mod lists;
mod measure;
mod pickup;
mod place;
mod raw;

pub use child::run as child;
pub use measure::{Goal, Measurement, Single, Unit};
use place::{Place, Target};

/// The benchmarks, in the order in which they run.
pub const NAMES: [&str; 8] = ["disk", "enqueue", "drain", "pickup", "depth", "large", "lists", "http"];

/// Those of a server, unless others are asked for.
const SERVER_NAMES: [&str; 4] = ["enqueue", "drain", "pickup", "depth"];
const PAYLOAD_BYTES: usize = 200;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Jobs for throughput.
    jobs: usize,
    /// Repetitions; the median counts.
    repetitions: usize,
    /// Jobs for pickup latency.
    pickups: usize,
    /// Queued jobs at which the drain is measured.
    depths: &'static [usize],
    /// The same of a server, where the first thousand are over before the worker has begun.
    server_depths: &'static [usize],
    /// Jobs with a payload of 16 KB.
    large_jobs: usize,
    /// Jobs in the store whose lists are measured.
    listed_jobs: usize,
    /// Pages of each list.
    pages: usize,
    /// How long a server is kept busy for one figure.
    served_seconds: u64,
    /// How long slow clients stay: memory comes to rest after some ten times that they were thrown out and came back.
    crowd_seconds: u64,
}

const FULL: Scale = Scale {
    jobs: 100_000,
    repetitions: 3,
    pickups: 300,
    depths: &[1_000, 100_000, 1_000_000, 10_000_000],
    server_depths: &[20_000, 1_000_000],
    large_jobs: 100_000,
    listed_jobs: 1_000_000,
    pages: 40,
    served_seconds: 10,
    crowd_seconds: 240,
};
const QUICK: Scale = Scale {
    jobs: 20_000,
    repetitions: 1,
    pickups: 60,
    depths: &[1_000, 100_000],
    server_depths: &[20_000, 100_000],
    large_jobs: 2_000,
    listed_jobs: 20_000,
    pages: 20,
    served_seconds: 2,
    crowd_seconds: 8,
};

/// What to measure.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Fewer jobs, for a first impression.
    pub quick: bool,
    /// One of [`NAMES`] only.
    pub only: Option<String>,
    /// On a temporary server.
    pub own: Option<Kind>,
}

/// What every benchmark gets.
struct Bench<'a> {
    host: &'a Host,
    scale: Scale,
    target: Target,
    /// On the disk of the working directory: a temporary folder in memory would flatter.
    folder: TempDir,
    /// Those in use.
    places: Mutex<Vec<Place>>,
}

/// Measures. Answers nothing if it was interrupted; what it used is freed in any case.
pub async fn run(
    host: &Host,
    request: &Request,
    interrupted: impl Future<Output = ()>,
) -> Result<Option<Vec<Measurement>>> {
    let folder = tempfile::Builder::new()
        .prefix(".longhaul-bench-")
        .tempdir_in(".")
        .context("making a folder in the working directory")?;
    let own = servers::start(request.own, Purpose::Speed).await?;
    // A server is put under load only when it is named for that: the one of the settings may be at work.
    let target = match own.as_ref().map(Server::url).or_else(|| host.store.clone()) {
        Some(url) => Target::of(&url)?,
        None => Target::Files,
    };
    let scale = if request.quick { QUICK } else { FULL };
    let bench = Bench { host, scale, target, folder, places: Mutex::default() };
    let measured = tokio::select! {
        measured = measure_all(request, &bench) => Some(measured),
        () = interrupted => None,
    };
    bench.discard_all().await;
    measured.transpose()
}

async fn measure_all(request: &Request, bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let names = match (&request.only, &bench.target) {
        (Some(only), _) => vec![only.as_str()],
        (None, Target::Files) => NAMES.to_vec(),
        (None, Target::Redis(_) | Target::Postgres(_)) => SERVER_NAMES.to_vec(),
    };
    let mut measurements = Vec::new();
    for name in names {
        bench.host.note(format_args!("measuring {name} …"));
        measurements.extend(match name {
            "disk" => vec![raw::fdatasync(bench)?],
            "enqueue" => enqueue::measure(bench).await?,
            "drain" => drain::measure(bench).await?,
            "pickup" => pickup::measure(bench).await?,
            "depth" => depth::measure(bench).await?,
            "large" => drain::large(bench).await?,
            "lists" => lists::measure(bench).await?,
            _ => http::measure(bench).await?,
        });
    }
    Ok(measurements)
}

/// A payload of the given number of bytes.
fn payload(bytes: usize) -> Result<longhaul_queue::Json> {
    Ok(longhaul_queue::Json::of(&"x".repeat(bytes.saturating_sub(2)))?)
}

/// Jobs a second.
fn per_second(count: usize, seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let count = count as f64;
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

const RATE: Unit = Unit::PerSecond;
