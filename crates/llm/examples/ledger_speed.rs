//! How much of a core the ledger takes: callers that reserve, wait as a call would, and settle, at a given rate.
//! `cargo run --release -p longhaul-llm --example ledger_speed -- [CALLS_PER_SECOND] [CALLERS] [SECONDS]`

use std::time::{Duration, Instant};

use longhaul_llm::clock::{SystemWallClock, WallClock};
use longhaul_llm::ledger::{Reservation, Spent};
use longhaul_llm::{Ledger, LlmFile, MicroUsd, Scope, Usage};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let rate = numbers.next().transpose()?.unwrap_or(3_000);
    let callers = numbers.next().transpose()?.unwrap_or(256);
    let seconds = numbers.next().transpose()?.unwrap_or(10);
    let folder = std::env::temp_dir().join(format!("longhaul-ledger-speed-{}", std::process::id()));
    let ledger = Ledger::new(LlmFile::open(&folder.join("llm.db"))?);
    ledger.set_cap(&Scope::run("1"), Some(MicroUsd::dollars(1_000_000))).await?;

    // What the callers cost by themselves is measured first, and taken off.
    let idle = measure(None, (rate, callers, seconds)).await?;
    let busy = measure(Some(&ledger), (rate, callers, seconds)).await?;
    let totals = ledger.totals(&Scope::run("1")).await?;
    println!(
        "{callers} callers: {:.0} calls/s, each reserved and settled; {} booked",
        busy.rate, totals.calls
    );
    println!(
        "ledger: {:.1} % of a core ({:.1} % with the callers' own {:.1} %)",
        100.0 * (busy.cores - idle.cores),
        100.0 * busy.cores,
        100.0 * idle.cores
    );
    println!("reserve: median {:?}, 99 % within {:?}", busy.median, busy.high);
    drop(ledger);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

struct Measured {
    rate: f64,
    cores: f64,
    median: Duration,
    high: Duration,
}

async fn measure(
    ledger: Option<&Ledger>,
    (rate, callers, seconds): (u64, u64, u64),
) -> Result<Measured, Failure> {
    let (started_at, cpu_before) = (Instant::now(), cpu_seconds()?);
    let end = started_at + Duration::from_secs(seconds);
    let pause = Duration::from_secs_f64(callers as f64 / rate as f64);
    let tasks: Vec<_> =
        (0..callers).map(|caller| tokio::spawn(make_calls(ledger.cloned(), caller, pause, end))).collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await??);
    }
    let elapsed = started_at.elapsed().as_secs_f64();
    waits.sort();
    let at = |share: usize| waits.get(waits.len() * share / 100).copied().unwrap_or_default();
    Ok(Measured {
        rate: waits.len() as f64 / elapsed,
        cores: (cpu_seconds()? - cpu_before) / elapsed,
        median: at(50),
        high: at(99),
    })
}

async fn make_calls(
    ledger: Option<Ledger>,
    caller: u64,
    pause: Duration,
    end: Instant,
) -> Result<Vec<Duration>, Failure> {
    let mut waits = Vec::new();
    let mut next = Instant::now() + pause.mul_f64(fastrand::f64());
    while next < end {
        tokio::time::sleep_until(next.into()).await;
        let begun = Instant::now();
        let name = format!("0192f3a1-7c44-7bd2-9d1e-{caller:012}-1-{}", waits.len());
        if let Some(ledger) = &ledger {
            ledger.reserve(reservation(&name), SystemWallClock.now_ms()).await?;
        }
        waits.push(begun.elapsed());
        tokio::time::sleep_until((next + pause.mul_f64(0.5)).into()).await;
        if let Some(ledger) = &ledger {
            let usage = Usage { fresh_in: 800, out: 200, ..Usage::default() };
            ledger.settle(&name, Spent { usage, cost: Some(MicroUsd(320)), answers: 1 }).await?;
        }
        next += pause;
    }
    Ok(waits)
}

fn reservation(name: &str) -> Reservation {
    let now_ms = SystemWallClock.now_ms();
    Reservation {
        call: name.to_owned(),
        job: name.get(..36).unwrap_or(name).to_owned(),
        fence: Some(1),
        scopes: vec![Scope::run("1"), Scope::day(now_ms), Scope::tag("nightly"), Scope::all()],
        ceiling: Some(MicroUsd(1_500)),
        requests: 1,
        profile: "openai".to_owned(),
        model: "gpt-5-mini".to_owned(),
        allow_unpriced: false,
    }
}

/// Seconds of processor time that this process has used, as Linux tells.
fn cpu_seconds() -> Result<f64, Failure> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').map_or(stat.as_str(), |(_, rest)| rest);
    let ticks: f64 = after_name.split_whitespace().skip(11).take(2).flat_map(str::parse::<f64>).sum();
    Ok(ticks / TICKS_PER_SECOND)
}
