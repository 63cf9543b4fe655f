//! `bench`: how fast the engine is on this machine and store, beside the raw limit of the same disk and the same SQLite, or of the
//! same server, measured in the same run. Read the ratios: the machine's own speed changes from minute to minute.

use std::sync::Mutex;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::app::App;
use crate::args::{BENCHMARKS, BenchArgs};
use crate::commands::interrupts::Interrupts;
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table};
use crate::own_server::{Purpose, Server};
use crate::store;

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

use measure::{Measurement, Unit};
use place::{Place, Target};

/// Those of a server, unless others are asked for.
const SERVER_NAMES: [&str; 4] = ["enqueue", "drain", "pickup", "depth"];
const PAYLOAD_BYTES: usize = 200;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
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

/// What every benchmark gets.
struct Bench {
    scale: Scale,
    target: Target,
    /// On the disk of the working directory: a temporary folder in memory would flatter.
    folder: TempDir,
    /// Those in use.
    places: Mutex<Vec<Place>>,
}

/// Runs the command.
pub(crate) async fn run(app: &App, args: &BenchArgs) -> Result<Code> {
    if args.child {
        return child::run().await;
    }
    if cfg!(debug_assertions) {
        app.out.warn("this is a debug build; measure with: cargo run --release -- bench");
    }
    let folder = tempfile::Builder::new()
        .prefix(".longhaul-bench-")
        .tempdir_in(".")
        .context("making a folder in the working directory")?;
    let own = match args.own {
        Some(kind) => Some(Server::start(kind, Purpose::Speed).await?),
        None => None,
    };
    let target = match &own {
        Some(server) => Target::of(&server.url())?,
        None => named_target(app)?,
    };
    let scale = if args.quick { QUICK } else { FULL };
    let bench = Bench { scale, target, folder, places: Mutex::default() };
    let mut interrupts = Interrupts::new()?;
    let measured = tokio::select! {
        measured = measure_all(app, args, &bench) => measured,
        () = interrupts.next() => Err(Failure::new(Code::Interrupted, "interrupted").into()),
    };
    bench.discard_all().await;
    report(app, &measured?, args.raw)?;
    Ok(Code::Ok)
}

/// A server is put under load only when it is named for that: the one of the settings may be at work.
fn named_target(app: &App) -> Result<Target> {
    store::location(&app.settings)?;
    match app.settings.flag("store.url")? {
        Some(url) => Target::of(url),
        None => Ok(Target::Files),
    }
}

async fn measure_all(app: &App, args: &BenchArgs, bench: &Bench) -> Result<Vec<Measurement>> {
    let names = match (&args.only, &bench.target) {
        (Some(only), _) => vec![only.as_str()],
        (None, Target::Files) => BENCHMARKS.to_vec(),
        (None, Target::Redis(_) | Target::Postgres(_)) => SERVER_NAMES.to_vec(),
    };
    let mut measurements = Vec::new();
    for name in names {
        app.out.note(format_args!("measuring {name} …"));
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

fn report(app: &App, measurements: &[Measurement], singles: bool) -> Result<()> {
    app.out.list(measurements, None, || {
        let mut table = Table::new(&["MEASURE", "LEVEL", "OURS", "SPREAD", "RAW", "RATIO", "GOAL", ""]);
        for measurement in measurements {
            table.row(row(measurement));
            if singles {
                for single in &measurement.singles {
                    let number = |value: Option<f64>| {
                        Cell::quantity(value.map_or_else(String::new, |v| measurement.unit.text(v)))
                    };
                    table.row(vec![
                        Cell::new("  single"),
                        Cell::new(""),
                        number(Some(single.ours)),
                        Cell::new(""),
                        number(single.raw),
                    ]);
                }
            }
        }
        table
    })
}

fn row(measurement: &Measurement) -> Vec<Cell> {
    let unit = measurement.unit;
    let ratio = measurement.ratio();
    let (goal, verdict) = match measurement.goal {
        None => (String::new(), ""),
        Some(goal) => (goal.text(unit), if goal.is_met(measurement) { "met" } else { "short" }),
    };
    vec![
        Cell::new(&measurement.name),
        Cell::new(measurement.level),
        Cell::quantity(unit.text(measurement.ours())),
        Cell::quantity(measurement.spread()),
        Cell::quantity(measurement.raw().map_or_else(String::new, |raw| unit.text(raw))),
        Cell::quantity(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))),
        Cell::quantity(goal),
        Cell::new(verdict),
    ]
}

/// A payload of so many bytes.
fn payload(bytes: usize) -> Result<longhaul_queue::Json> {
    Ok(longhaul_queue::Json::of(&"x".repeat(bytes.saturating_sub(2)))?)
}

/// What a number of jobs in so many seconds is.
fn per_second(count: usize, seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let count = count as f64;
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

const RATE: Unit = Unit::PerSecond;
