//! An endless backlog of many callers, and what comes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::provider::{Limits, Log, Provider, Request};
use crate::rate::{Ask, Controller, OutputCharge, RouteLimits, Settled};

/// The start is looked at on its own.
const WARM_UP_S: f64 = 30.0;
/// The rate after a change is taken over windows of this length.
const WINDOW_S: f64 = 10.0;

/// The median latency; the mean is 6 s.
const LATENCY: Duration = Duration::from_millis(5_300);

/// One simulation.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub limits: Limits,
    pub headers: bool,
    pub output_charge: OutputCharge,
    /// What the controller is told by its configuration.
    pub configured: RouteLimits,
    pub callers: usize,
    pub span_s: f64,
    /// At these seconds the limits become this share of what they were.
    pub changes: Vec<(f64, f64)>,
    /// Median of the log-normal input.
    pub input_median: f64,
    pub seed: u64,
}

impl Scenario {
    pub(super) fn new(rpm: u64, tpm: u64, span_s: f64) -> Self {
        let limits = Limits { requests: Some(rpm), tokens: Some(tpm), ..Limits::default() };
        Self {
            limits,
            headers: true,
            output_charge: OutputCharge::MaxTokens,
            configured: RouteLimits::default(),
            callers: (rpm as usize / 4).max(40),
            span_s,
            changes: vec![(span_s / 3.0, 0.5), (span_s * 2.0 / 3.0, 1.0)],
            input_median: 400.0,
            seed: 7,
        }
    }

    pub(super) fn provider(&self) -> Arc<Provider> {
        Arc::new(Provider::new(self.limits, self.headers, self.output_charge, self.seed))
    }

    /// Runs it with a fresh controller.
    pub(super) async fn run(&self) -> Report {
        println!("seed {}: {self:?}", self.seed);
        let controller = Controller::with_seed(self.configured.clone(), self.seed);
        self.run_with(&controller, &self.provider()).await
    }

    pub(super) async fn run_with(&self, controller: &Controller, provider: &Arc<Provider>) -> Report {
        let start = Instant::now();
        let until = start + Duration::from_secs_f64(self.span_s);
        let mut tasks = JoinSet::new();
        for caller in 0..self.callers {
            let sizes = Sizes::new(self.seed + 1000 + caller as u64, self.input_median);
            let (controller, provider) = (controller.clone(), provider.clone());
            let caller =
                Caller { controller, provider, ask: Ask::new("run", 0), sizes, tally: Arc::default() };
            tasks.spawn(caller.backlog());
        }
        for (at_s, share) in self.changes.clone() {
            let provider = provider.clone();
            tasks.spawn(async move {
                sleep_until(start + Duration::from_secs_f64(at_s)).await;
                provider.set_share(share);
            });
        }
        sleep_until(until).await;
        drop(tasks);
        Report::new(self, &provider.log())
    }
}

/// One of many who call.
pub(super) struct Caller {
    pub controller: Controller,
    pub provider: Arc<Provider>,
    pub ask: Ask,
    pub sizes: Sizes,
    pub tally: Arc<Tally>,
}

/// What came of the calls of one or more callers.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub answers: AtomicU64,
    /// Charged: input and `max_tokens`.
    pub tokens: AtomicU64,
    /// Longest wait for admission, in milliseconds.
    pub wait_ms_max: AtomicU64,
}

impl Caller {
    /// Calls without end.
    pub(super) async fn backlog(mut self) {
        loop {
            self.call().await;
        }
    }

    /// One call, repeated until it is not refused.
    pub(super) async fn call(&mut self) {
        let (request, estimate) = self.sizes.next();
        let max_tokens = Some(request.max_tokens as u32);
        let mut ask = Ask { input_tokens: estimate, max_tokens, ..self.ask.clone() };
        loop {
            let asked = Instant::now();
            let permit = self.controller.acquire(ask.clone()).await.unwrap();
            self.tally.wait_ms_max.fetch_max(asked.elapsed().as_millis() as u64, Relaxed);
            let sent = Instant::now();
            match self.provider.call(request).await {
                Ok(reply) => {
                    let (usage, rate, latency) = (reply.usage, reply.rate, sent.elapsed());
                    permit.settle(&Settled::Answered { usage, rate, latency });
                    self.tally.answers.fetch_add(1, Relaxed);
                    self.tally.tokens.fetch_add(request.input + request.max_tokens, Relaxed);
                    return;
                }
                Err(refusal) => {
                    let (retry_after, rate) = (Some(refusal.retry_after), refusal.rate);
                    // As told, while tokio's time stands still: nobody waits.
                    sleep(permit.settle(&Settled::Throttled { retry_after, rate })).await;
                    ask.refusals += 1;
                }
            }
        }
    }
}

/// Log-normal prompts and latencies, and answers of some part of `max_tokens`.
pub(super) struct Sizes {
    rng: fastrand::Rng,
    input_median: f64,
    /// Median.
    latency: Duration,
}

impl Sizes {
    pub(super) fn new(seed: u64, input_median: f64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), input_median, latency: LATENCY }
    }

    /// The same with another median of the latency.
    pub(super) fn with_latency(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    /// A call, and what the caller takes its input for: a quarter too little, give or take.
    pub(super) fn next(&mut self) -> (Request, u64) {
        let input = (self.input_median * (0.8 * self.normal()).exp()).clamp(10.0, 20_000.0);
        let estimate = input * 0.8 * (0.85 + 0.3 * self.rng.f64());
        let max_tokens = [128, 256, 512][self.rng.usize(..3)];
        let output = (max_tokens as f64 * (0.2 + 0.8 * self.rng.f64())) as u64;
        let latency = self.latency.mul_f64((0.5 * self.normal()).exp());
        (Request { input: input as u64, max_tokens, output, latency }, estimate as u64)
    }

    /// Box and Muller.
    pub(super) fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.rng.f64(), self.rng.f64());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Report {
    /// Charged of what was allowed, after the warm-up, by the meter that was nearest to its limit.
    pub utilisation: f64,
    /// Refused of all sent.
    pub throttled: f64,
    /// Seconds until 90 % of the new limit were used, for each change.
    pub recovery_s: Vec<f64>,
    /// Sent in the first second, refused or not.
    pub first_second: usize,
}

impl Report {
    fn new(scenario: &Scenario, log: &Log) -> Self {
        let sent = (log.admitted.len() + log.refused.len()) as f64;
        let recovery = scenario.changes.iter().map(|(at_s, share)| recovery_s(scenario, log, *at_s, *share));
        Self {
            utilisation: used(scenario, log, WARM_UP_S, scenario.span_s),
            throttled: log.refused.len() as f64 / sent,
            recovery_s: recovery.collect(),
            first_second: first_second(log),
        }
    }

    /// A row of the table in the documents.
    pub(super) fn print(&self, name: &str) {
        let recovery: Vec<String> = self.recovery_s.iter().map(|seconds| format!("{seconds:.0} s")).collect();
        let (utilisation, throttled) = (100.0 * self.utilisation, 100.0 * self.throttled);
        println!("| {name} | {utilisation:.1} % | {throttled:.2} % | {} |", recovery.join(", "));
    }
}

/// Calls sent in the first second, admitted or not.
pub(super) fn first_second(log: &Log) -> usize {
    let times = log.admitted.iter().map(|(at, _)| at).chain(&log.refused);
    times.filter(|at| **at <= 1.0).count()
}

/// Charged of what was allowed between two moments: of the four meters, the highest.
fn used(scenario: &Scenario, log: &Log, from_s: f64, to_s: f64) -> f64 {
    let Limits { requests, tokens, input, output, burst_s: _ } = scenario.limits;
    let mut highest = 0.0_f64;
    for (meter, limit) in [requests, tokens, input, output].into_iter().enumerate() {
        let Some(limit) = limit else { continue };
        let charges = log.admitted.iter().filter(|(at, _)| (from_s..to_s).contains(at));
        let charged: f64 = charges.map(|(_, charge)| charge[meter]).sum();
        highest = highest.max(charged / (limit as f64 / 60.0 * allowed_s(scenario, from_s, to_s)));
    }
    highest
}

/// Seconds between two moments, each by the share of the limit that held then.
fn allowed_s(scenario: &Scenario, from_s: f64, to_s: f64) -> f64 {
    let mut marks = vec![(0.0, 1.0)];
    marks.extend(&scenario.changes);
    let ends = marks.iter().skip(1).map(|(at, _)| *at).chain([f64::INFINITY]);
    let parts = marks.iter().zip(ends);
    parts.map(|((from, share), to)| share * (to.min(to_s) - from.max(from_s)).max(0.0)).sum()
}

fn recovery_s(scenario: &Scenario, log: &Log, change_s: f64, share: f64) -> f64 {
    let recovered = |after: &f64| {
        let end = change_s + after;
        let at_share = Scenario { changes: vec![(0.0, share)], ..scenario.clone() };
        used(&at_share, log, end - WINDOW_S, end) >= 0.9
    };
    let mut after =
        (0..).map(|step| WINDOW_S + f64::from(step)).take_while(|after| change_s + after < scenario.span_s);
    after.find(recovered).unwrap_or(f64::INFINITY)
}
