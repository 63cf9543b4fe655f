//! Providers that refuse a share of all calls, however slowly these come: a router before many machines, a shared model.
//! What a run takes is held against the same run without refusals.
//!
//! Tokio's time stands still in these tests: a `sleep` moves it, and nobody waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::provider::RateSignals;
use crate::rate::{Ask, Controller, Engine, RouteLimits, Settled};
use crate::types::Usage;

/// Jobs that run at once.
const SLOTS: usize = 16;
/// How long the queue puts off a job after an error of the provider, at first.
const RETRY_BASE_S: f64 = 1.0;

#[derive(Debug, Clone, Copy)]
struct Case {
    prompts: u32,
    latency: Duration,
    rate_429: f64,
    rate_5xx: f64,
    retry_after: Option<Duration>,
    engine: Engine,
    seed: u64,
}

/// How a run went.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    took_s: f64,
    /// The longest time that one prompt was told to wait, all of its waits together.
    chain_s: f64,
    refused: u32,
}

impl Case {
    /// A prompt that is refused or fails is put off and leaves its slot to others meanwhile, as jobs of the queue do.
    async fn run(self) -> Run {
        let controller =
            Controller::with_seed(RouteLimits { engine: self.engine, ..RouteLimits::default() }, self.seed);
        let (start, slots, mut prompts) = (Instant::now(), Arc::new(Semaphore::new(SLOTS)), JoinSet::new());
        let rng = Arc::new(Mutex::new(fastrand::Rng::with_seed(self.seed)));
        for _ in 0..self.prompts {
            prompts.spawn(self.prompt(controller.clone(), slots.clone(), rng.clone()));
        }
        let mut run = Run::default();
        while let Some(prompt) = prompts.join_next().await {
            let (waited_s, refused) = prompt.unwrap();
            run.chain_s = run.chain_s.max(waited_s);
            run.refused += refused;
        }
        Run { took_s: start.elapsed().as_secs_f64(), ..run }
    }

    async fn prompt(
        self,
        controller: Controller,
        slots: Arc<Semaphore>,
        rng: Arc<Mutex<fastrand::Rng>>,
    ) -> (f64, u32) {
        let (mut ask, mut errors, mut waited_s) = (Ask::new("run", 100), 0, 0.0);
        loop {
            let slot = slots.acquire().await.unwrap();
            let permit = controller.acquire(ask.clone()).await.unwrap();
            let (luck, jitter) = {
                let mut rng = rng.lock().unwrap();
                (rng.f64(), rng.f64())
            };
            let wait_s = if luck < self.rate_429 {
                ask.refusals += 1;
                let settled =
                    Settled::Throttled { retry_after: self.retry_after, rate: RateSignals::default() };
                permit.settle(&settled).as_secs_f64()
            } else if luck < self.rate_429 + self.rate_5xx {
                permit.settle(&Settled::Overloaded);
                errors += 1;
                RETRY_BASE_S * 2_f64.powi(errors - 1) * (1.0 - 0.5 * jitter)
            } else {
                if !self.latency.is_zero() {
                    sleep(self.latency).await;
                }
                let usage = Usage { fresh_in: 100, out: 10, ..Usage::default() };
                let (rate, latency) = (RateSignals::default(), self.latency);
                permit.settle(&Settled::Answered { usage, rate, latency });
                return (waited_s, ask.refusals);
            };
            drop(slot);
            waited_s += wait_s;
            sleep(Duration::from_secs_f64(wait_s)).await;
        }
    }

    /// Holds the run against the same one without refusals.
    async fn check(self, clean: Run) -> bool {
        let run = self.run().await;
        let bound_s = 1.5 * clean.took_s + run.chain_s + 0.1;
        let Self { prompts, latency, rate_429, rate_5xx, retry_after, engine, seed } = self;
        let local = if engine == Engine::Hosted { "profile" } else { "base-url" };
        let told = retry_after.map_or("-".to_owned(), |wait| format!("{wait:?}"));
        println!(
            "| {prompts} | {latency:?} | {:.0} % 429, {:.0} % 5xx | {told} | {local} | {seed} | {:.2} s | {:.2} s | {:.2} s | {} |{}",
            100.0 * rate_429,
            100.0 * rate_5xx,
            clean.took_s,
            run.took_s,
            run.chain_s,
            run.refused,
            if run.took_s > bound_s { " TOO SLOW" } else { "" },
        );
        run.took_s <= bound_s
    }
}

/// Each number of prompts with each latency, share and wait.
async fn check_all(prompts: u32, engine: Engine, seeds: u64) -> u32 {
    println!(
        "| prompts | latency | refused | told to wait | route | seed | clean | took | longest chain of waits | 429s |"
    );
    let second = Some(Duration::from_secs(1));
    let rates = [(0.01, 0.0), (0.02, 0.0), (0.05, 0.0), (0.1, 0.0), (0.0, 0.03), (0.05, 0.02)];
    let mut slow = 0;
    for latency_ms in [0, 100, 300] {
        let latency = Duration::from_millis(latency_ms);
        let clean =
            Case { prompts, latency, rate_429: 0.0, rate_5xx: 0.0, retry_after: None, engine, seed: 1 };
        let clean_run = clean.run().await;
        for (rate_429, rate_5xx) in rates {
            for retry_after in [second, None] {
                for seed in 1..=seeds {
                    let case = Case { rate_429, rate_5xx, retry_after, seed, ..clean };
                    slow += u32::from(!case.check(clean_run).await);
                }
            }
        }
    }
    slow
}

#[tokio::test(start_paused = true)]
async fn a_hundred_prompts_take_hardly_longer_where_calls_are_refused_at_random() {
    let mut slow = 0;
    for engine in [Engine::Hosted, Engine::Local { slots: None }] {
        slow += check_all(100, engine, 5).await;
    }
    assert_eq!(slow, 0, "runs took more than 1.5 times of the clean one and the longest chain of waits");
}

#[tokio::test(start_paused = true)]
async fn four_hundred_prompts_take_hardly_longer_where_calls_are_refused_at_random() {
    let mut slow = 0;
    for engine in [Engine::Hosted, Engine::Local { slots: None }] {
        slow += check_all(400, engine, 5).await;
    }
    assert_eq!(slow, 0, "runs took more than 1.5 times of the clean one and the longest chain of waits");
}

#[tokio::test(start_paused = true)]
async fn two_thousand_prompts_take_hardly_longer_where_calls_are_refused_at_random() {
    let mut slow = 0;
    for engine in [Engine::Hosted, Engine::Local { slots: None }] {
        slow += check_all(2_000, engine, 6).await;
    }
    assert_eq!(slow, 0, "runs took more than 1.5 times of the clean one and the longest chain of waits");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_prompts_take_hardly_longer_where_calls_are_refused_at_random() {
    let mut slow = 0;
    for engine in [Engine::Hosted, Engine::Local { slots: None }] {
        slow += check_all(10_000, engine, 1).await;
    }
    assert_eq!(slow, 0, "runs took more than 1.5 times of the clean one and the longest chain of waits");
}
