//! Who gets how much of a route, and how long a person waits behind a bulk.
//!
//! Tokio's time stands still in these tests: a `sleep` moves it, and nobody waits.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::provider::Provider;
use super::traffic::{Caller, Scenario, Sizes, Tally};
use crate::rate::{Ask, Controller, Urgency};

/// One of the runs that share a route.
struct Run {
    ask: Ask,
    input_median: f64,
    callers: usize,
}

fn run(name: &'static str, callers: usize) -> Run {
    Run { ask: Ask::new(name, 0), input_median: 400.0, callers }
}

struct Bench {
    scenario: Scenario,
    controller: Controller,
    provider: Arc<Provider>,
    tasks: JoinSet<()>,
}

impl Bench {
    fn new(rpm: u64, tpm: u64) -> Self {
        let scenario = Scenario { changes: vec![], ..Scenario::new(rpm, tpm, 0.0) };
        println!("seed {}", scenario.seed);
        let controller = Controller::with_seed(scenario.configured.clone(), scenario.seed);
        Self { provider: scenario.provider(), scenario, controller, tasks: JoinSet::new() }
    }

    /// Sets the callers of a run going.
    fn spawn(&mut self, run: &Run) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        for _ in 0..run.callers {
            let seed = self.scenario.seed + 100 + self.tasks.len() as u64;
            let sizes = Sizes::new(seed, run.input_median);
            let (controller, provider) = (self.controller.clone(), self.provider.clone());
            let (ask, tally) = (run.ask.clone(), tally.clone());
            self.tasks.spawn(Caller { controller, provider, ask, sizes, tally }.backlog());
        }
        tally
    }

    /// Tokens of each run in half an hour.
    async fn tokens(&mut self, runs: &[Run]) -> Vec<f64> {
        let tallies: Vec<Arc<Tally>> = runs.iter().map(|run| self.spawn(run)).collect();
        sleep(Duration::from_secs(1800)).await;
        tallies.iter().map(|tally| tally.tokens.load(Relaxed) as f64).collect()
    }
}

/// 1: all have the same. 1/n: one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}

#[tokio::test(start_paused = true)]
async fn four_equal_runs_get_equal_shares() {
    // One asks for ten times as many calls at a time, one has prompts four times as long.
    let long = Run { input_median: 1600.0, ..run("long", 40) };
    let runs = [run("a", 40), run("b", 40), run("many", 400), long];
    let shares = Bench::new(600, 300_000).tokens(&runs).await;
    println!("| four equal runs | Jain index {:.4} |", jain(&shares));
    assert!(jain(&shares) >= 0.99, "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn weights_are_shares() {
    let weighted = |name, weight| Run { ask: Ask { weight, ..Ask::new(name, 0) }, ..run(name, 60) };
    let runs = [weighted("one", 1), weighted("two", 2), weighted("five", 5)];
    let shares = Bench::new(600, 300_000).tokens(&runs).await;
    let sum: f64 = shares.iter().sum();
    for (share, weight) in shares.iter().zip([1.0, 2.0, 5.0]) {
        let error = share / sum / (weight / 8.0) - 1.0;
        println!("| weight {weight} of 8 | share error {:.2} % |", 100.0 * error);
        assert!(error.abs() <= 0.05, "weight {weight}: {shares:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_alone_has_everything_and_gives_way_at_once() {
    let mut bench = Bench::new(600, 300_000);
    let first = bench.spawn(&run("first", 60));
    sleep(Duration::from_secs(600)).await;
    let alone = first.tokens.swap(0, Relaxed) as f64;
    assert!(alone / (600.0 * 5000.0) > 0.95, "{alone}");
    let second = bench.spawn(&run("second", 60));
    sleep(Duration::from_secs(600)).await;
    let shares = [first.tokens.load(Relaxed) as f64, second.tokens.load(Relaxed) as f64];
    assert!(jain(&shares) >= 0.99, "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn a_person_does_not_wait_behind_a_bulk() {
    for (name, rpm, tpm) in [("300 RPM", 300, 2_000_000), ("300k TPM", 600, 300_000)] {
        let mut bench = Bench::new(rpm, tpm);
        bench.spawn(&run("bulk", 400));
        sleep(Duration::from_secs(60)).await;
        let (controller, provider) = (bench.controller.clone(), bench.provider.clone());
        let ask = Ask { urgency: Urgency::Interactive, ..Ask::new("person", 0) };
        let (sizes, tally) = (Sizes::new(5, 400.0), Arc::<Tally>::default());
        let mut person = Caller { controller, provider, ask, sizes, tally: tally.clone() };
        for _ in 0..100 {
            person.call().await;
            sleep(Duration::from_millis(700)).await;
        }
        let wait_ms = tally.wait_ms_max.load(Relaxed);
        println!("| a person behind a bulk of 400 calls, {name} | longest wait {wait_ms} ms |");
        // The next that the route has room for: a call's worth of the limit, and a refusal's pause at worst.
        assert!(wait_ms <= 2_000, "{name}: {wait_ms} ms");
    }
}
