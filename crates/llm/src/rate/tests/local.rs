//! Engines on a machine of ours: nobody is refused, more calls than the knee only wait longer, and far more make the
//! engine thrash.
//!
//! Tokio's time stands still in these tests: a `sleep` moves it, and nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::traffic::Sizes;
use crate::provider::RateSignals;
use crate::rate::{Ask, Controller, Engine, RouteLimits, Settled};
use crate::types::Usage;

const SEED: u64 = 11;
const THRASHES_ABOVE: usize = 96;
/// A token without load.
const TOKEN_S: f64 = 0.03;
/// Mean of the noise in what a token takes.
const NOISE_MEAN: f64 = 1.02;
const SPAN_S: f64 = 1800.0;
const WARM_UP_S: f64 = 120.0;

struct LocalEngine {
    /// How many calls it works on without slowing down.
    knee: AtomicUsize,
    /// How much longer a token takes than `TOKEN_S`, at any load.
    model: f64,
    /// Where the slowdown is gradual instead: the number of calls at which a token takes twice as long.
    soft: Option<f64>,
    in_flight: AtomicUsize,
    tokens: AtomicU64,
    calls: AtomicU64,
    slowdowns_milli: AtomicU64,
}

impl LocalEngine {
    fn new(knee: usize) -> Self {
        let zero = AtomicU64::default;
        let (knee, in_flight) = (knee.into(), AtomicUsize::default());
        Self {
            knee,
            model: 1.0,
            soft: None,
            in_flight,
            tokens: zero(),
            calls: zero(),
            slowdowns_milli: zero(),
        }
    }

    /// How much longer a token takes than without load.
    fn slowdown(&self, in_flight: f64) -> f64 {
        let waiting = match self.soft {
            Some(half) => 1.0 + in_flight / half,
            None => (in_flight / self.knee.load(Relaxed) as f64).max(1.0),
        };
        waiting * (in_flight / THRASHES_ABOVE as f64).max(1.0)
    }

    /// Most tokens a second, at any number of calls.
    fn best(&self) -> f64 {
        let speeds = (1..=256).map(|calls| f64::from(calls) / self.slowdown(f64::from(calls)));
        speeds.fold(0.0, f64::max) / (TOKEN_S * self.model * NOISE_MEAN)
    }

    async fn call(&self, output: u64, noise: f64) {
        let in_flight = self.in_flight.fetch_add(1, Relaxed) + 1;
        let unloaded = output as f64 * TOKEN_S * self.model;
        let latency = Duration::from_secs_f64(unloaded * self.slowdown(in_flight as f64) * noise);
        sleep(latency).await;
        self.in_flight.fetch_sub(1, Relaxed);
        self.tokens.fetch_add(output, Relaxed);
        self.calls.fetch_add(1, Relaxed);
        self.slowdowns_milli.fetch_add((1000.0 * latency.as_secs_f64() / unloaded) as u64, Relaxed);
    }
}

/// Throughput as a share of the knee's, and how much longer a call takes than without load.
struct Found {
    throughput: f64,
    slowdown: f64,
}

async fn run(controller: &Controller, engine: &Arc<LocalEngine>, span_s: f64) -> Found {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..256 {
        let (controller, engine) = (controller.clone(), engine.clone());
        let mut sizes = Sizes::new(SEED + caller, 400.0);
        tasks.spawn(async move {
            loop {
                let (request, estimate) = sizes.next();
                let noise = (0.2 * sizes.normal()).exp();
                let permit = controller.acquire(Ask::new("run", estimate)).await.unwrap();
                let sent = Instant::now();
                engine.call(request.output, noise).await;
                let usage = Usage { fresh_in: request.input, out: request.output, ..Usage::default() };
                let (rate, latency) = (RateSignals::default(), sent.elapsed());
                permit.settle(&Settled::Answered { usage, rate, latency });
            }
        });
    }
    sleep_until(start + Duration::from_secs_f64(WARM_UP_S)).await;
    let counters = [&engine.tokens, &engine.calls, &engine.slowdowns_milli];
    let before = counters.map(|counter| counter.load(Relaxed) as f64);
    sleep_until(start + Duration::from_secs_f64(span_s)).await;
    let after = counters.map(|counter| counter.load(Relaxed) as f64);
    let [tokens, calls, slowdowns_milli] = std::array::from_fn(|index| after[index] - before[index]);
    let best = engine.best() * (span_s - WARM_UP_S);
    engine.in_flight.store(0, Relaxed);
    Found { throughput: tokens / best, slowdown: slowdowns_milli / calls / 1000.0 }
}

fn controller(slots: Option<usize>) -> Controller {
    let limits = RouteLimits { engine: Engine::Local { slots }, ..RouteLimits::default() };
    Controller::with_seed(limits, SEED)
}

fn print(name: &str, found: &Found) {
    println!("| {name} | {:.1} % | {:.2} x |", 100.0 * found.throughput, found.slowdown);
}

#[tokio::test(start_paused = true)]
async fn known_slots_are_all_used_and_no_more() {
    println!("seed {SEED}");
    let (controller, engine) = (controller(Some(32)), Arc::new(LocalEngine::new(32)));
    let found = run(&controller, &engine, 600.0).await;
    print("32 slots, known", &found);
    assert!(found.throughput >= 0.98, "{}", found.throughput);
    assert!(found.slowdown <= 1.05, "{}", found.slowdown);
    assert_eq!(controller.stats().concurrency_limit, 32);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_knee_is_found_by_latency() {
    println!("seed {SEED}");
    for knee in [8, 32, 64] {
        let found = run(&controller(None), &Arc::new(LocalEngine::new(knee)), SPAN_S).await;
        print(&format!("knee at {knee}, unknown"), &found);
        assert!(found.throughput >= 0.95, "knee at {knee}: {}", found.throughput);
        assert!(found.slowdown <= 1.5, "knee at {knee}: {}", found.slowdown);
    }
}

#[tokio::test(start_paused = true)]
async fn a_knee_that_moves_is_followed() {
    println!("seed {SEED}");
    let (controller, engine) = (controller(None), Arc::new(LocalEngine::new(32)));
    run(&controller, &engine, 600.0).await;
    for knee in [12, 48] {
        engine.knee.store(knee, Relaxed);
        let found = run(&controller, &engine, SPAN_S).await;
        print(&format!("knee moved to {knee}"), &found);
        assert!(found.throughput >= 0.95, "knee moved to {knee}: {}", found.throughput);
        assert!(found.slowdown <= 1.5, "knee moved to {knee}: {}", found.slowdown);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slower_model_is_not_taken_for_load() {
    println!("seed {SEED}");
    let controller = controller(None);
    run(&controller, &Arc::new(LocalEngine::new(32)), 600.0).await;
    let slower = LocalEngine { model: 3.0, ..LocalEngine::new(32) };
    let found = run(&controller, &Arc::new(slower), 3600.0).await;
    print("knee at 32, model changed for one of a third of the speed", &found);
    assert!(found.throughput >= 0.9, "{}", found.throughput);
}

/// Without a knee there is nothing for latency to show: every further call slows the others a little. The law holds back
/// where calls take less than twice as long, at about half of the most that the engine could do with 96 of them. Whoever
/// wants throughput at any latency says how many slots there are.
#[tokio::test(start_paused = true)]
async fn without_a_knee_latency_comes_before_throughput() {
    println!("seed {SEED}");
    let engine = LocalEngine { soft: Some(32.0), ..LocalEngine::new(32) };
    let found = run(&controller(None), &Arc::new(engine), SPAN_S).await;
    print("no knee", &found);
    assert!(found.throughput >= 0.4, "{}", found.throughput);
    assert!(found.slowdown <= 2.0, "{}", found.slowdown);
}
