//! Providers that do not tell their limits: only a 429 with a time to wait, which may name the limit that was met.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::provider::{Limits, Provider};
use super::traffic::{Caller, Report, Scenario, Sizes, Tally};
use crate::rate::{Ask, Controller, Learnt, Meter, RouteLimits};

fn silent(rpm: u64, tpm: u64, span_s: f64) -> Scenario {
    Scenario { headers: false, ..Scenario::new(rpm, tpm, span_s) }
}

async fn run(name: &str, scenario: Scenario) -> Report {
    let report = scenario.run().await;
    report.print(&format!("{name}, no headers"));
    // Half of the limit is felt at once.
    assert!(report.recovery_s[0] <= 30.0, "{name}: {report:?}");
    report
}

/// The same bounds as where headers tell the limits.
async fn check(name: &str, scenario: Scenario) {
    let report = run(name, scenario).await;
    assert!(report.utilisation >= 0.97, "{name}: {report:?}");
    assert!(report.throttled <= 0.02, "{name}: {report:?}");
    assert!(report.recovery_s[1] <= 30.0, "{name}: {report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_300_requests_that_nobody_tells_is_used_up_and_kept() {
    for seed in [7, 8, 9] {
        check("300 RPM", Scenario { seed, ..silent(300, 2_000_000, 1200.0) }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_600_requests_that_nobody_tells_is_used_up_and_kept() {
    check("600 RPM", silent(600, 2_000_000, 1200.0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_6000_requests_that_nobody_tells_is_used_up_and_kept() {
    check("6,000 RPM", silent(6_000, 6_000_000, 600.0)).await;
}

/// That it is one of tokens has to be found out too.
#[tokio::test(start_paused = true)]
async fn a_limit_of_tokens_that_nobody_tells_is_used_up_and_kept() {
    for seed in [7, 8, 9] {
        check("300k TPM", Scenario { seed, ..silent(600, 300_000, 1200.0) }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_of_both_that_nobody_tells_are_kept() {
    check("600 RPM, 511k TPM", silent(600, 511_200, 1200.0)).await;
}

#[tokio::test(start_paused = true)]
async fn buckets_of_two_seconds_that_nobody_tells_of_are_used_up_too() {
    let scenario = silent(600, 2_000_000, 1200.0);
    let limits = Limits { burst_s: 2.0, ..scenario.limits };
    check("600 RPM, burst of 2 s", Scenario { limits, ..scenario }).await;
}

/// The worst of eight runs, each with another seed. The limit is restored now sooner and now later after a try.
async fn worst(rpm: u64, span_s: f64, between_tries_s: f64) -> Report {
    let mut worst = Report { utilisation: 1.0, throttled: 0.0, recovery_s: vec![0.0; 2], first_second: 0 };
    for seed in 7..15 {
        let scenario = Scenario { seed, ..silent(rpm, 2_000_000, span_s) };
        let restored_s = 2.0 / 3.0 * span_s + between_tries_s * (seed - 7) as f64 / 8.0;
        let changes = vec![(span_s / 3.0, 0.5), (restored_s, 1.0)];
        let report = run(&format!("{rpm} RPM"), Scenario { changes, ..scenario }).await;
        worst.utilisation = worst.utilisation.min(report.utilisation);
        worst.throttled = worst.throttled.max(report.throttled);
        worst.recovery_s[1] = worst.recovery_s[1].max(report.recovery_s[1]);
    }
    worst
}

/// One refusal is what it takes to try a limit, and here it takes long to pay for one: a raised limit is found late.
#[tokio::test(start_paused = true)]
async fn a_low_limit_that_nobody_tells_is_seldom_tried() {
    let report = worst(60, 2400.0, 150.0).await;
    assert!(report.utilisation >= 0.96 && report.throttled <= 0.025, "{report:?}");
    assert!(report.recovery_s[1] <= 180.0, "{report:?}");
    let report = worst(20, 4800.0, 240.0).await;
    assert!(report.utilisation >= 0.95 && report.throttled <= 0.032, "{report:?}");
    assert!(report.recovery_s[1] <= 260.0, "{report:?}");
}

/// As Gemini does. It is tried all the same whether the limit still holds: only refusals tell.
#[tokio::test(start_paused = true)]
async fn limits_that_refusals_name_are_used_up_and_kept() {
    let input = Limits { requests: Some(1000), input: Some(300_000), ..Limits::default() };
    let table = [
        ("300 RPM", silent(300, 2_000_000, 1200.0).limits),
        ("600 RPM, 511k TPM", silent(600, 511_200, 1200.0).limits),
        ("300k input TPM", input),
    ];
    for (name, limits) in table {
        let scenario = Scenario { limits, ..silent(600, 1, 1200.0) };
        let provider = Arc::new(Provider::naming(limits, scenario.seed));
        let controller = Controller::with_seed(RouteLimits::default(), scenario.seed);
        let report = scenario.run_with(&controller, &provider).await;
        report.print(&format!("{name}, named by refusals"));
        assert!(report.utilisation >= 0.97, "{name}: {report:?}");
        assert!(report.throttled <= 0.02, "{name}: {report:?}");
        assert!(report.recovery_s.iter().all(|seconds| *seconds <= 30.0), "{name}: {report:?}");
    }
}

/// Seconds that 10,000 answers take somebody with 256 calls at a time.
async fn seconds_for_10_000(provider: Arc<Provider>, latency: Duration) -> f64 {
    let controller = Controller::with_seed(RouteLimits::default(), 7);
    let (start, tally) = (Instant::now(), Arc::<Tally>::default());
    let mut tasks = JoinSet::new();
    for seed in 0..256 {
        let (controller, provider, tally) = (controller.clone(), provider.clone(), tally.clone());
        let sizes = Sizes::new(seed, 400.0).with_latency(latency);
        let mut caller = Caller { controller, provider, ask: Ask::new("run", 0), sizes, tally };
        tasks.spawn(async move {
            while caller.tally.answers.load(Relaxed) < 10_000 {
                caller.call().await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    start.elapsed().as_secs_f64()
}

/// Some refuse a share of all calls, however slowly they come, and ask for a second or more. Going slower each time would
/// end in a crawl.
#[tokio::test(start_paused = true)]
async fn refusals_at_random_are_told_from_a_limit() {
    let table = [
        (0.05, 1, 0, 15.0),
        (0.05, 1, 50, 20.0),
        (0.05, 1, 5_000, 345.0),
        (0.05, 10, 50, 75.0),
        (0.01, 1, 50, 15.0),
        (0.2, 1, 50, 75.0),
    ];
    for seed in 7..12 {
        for (share, wait_s, latency_ms, bound_s) in table {
            let (wait, latency) = (Duration::from_secs(wait_s), Duration::from_millis(latency_ms));
            let provider = Arc::new(Provider::refusing(share, wait, Limits::default(), seed));
            let took_s = seconds_for_10_000(provider, latency).await;
            let name = format!("seed {seed}, {share} refused for {wait:?}, latency {latency:?}");
            println!("{name}: 10,000 in {took_s:.0} s");
            assert!(took_s <= bound_s, "{name}: {took_s} s");
        }
    }
}

/// A limit of 6,000 RPM allows 10,000 answers in 90 s, for the bucket is full at first.
#[tokio::test(start_paused = true)]
async fn refusals_at_random_do_not_hide_a_limit_for_long() {
    for seed in 7..12 {
        let limits = Limits { requests: Some(6_000), ..Limits::default() };
        let provider = Arc::new(Provider::refusing(0.05, Duration::from_secs(1), limits, seed));
        let took_s = seconds_for_10_000(provider.clone(), Duration::from_millis(500)).await;
        let log = provider.log();
        let refused = log.refused.len() as f64 / (log.refused.len() + log.admitted.len()) as f64;
        println!("seed {seed}: 10,000 in {took_s:.0} s, {refused:.2} refused");
        assert!(took_s <= 150.0 && refused <= 0.15, "seed {seed}: {took_s} s, {refused} refused");
    }
}

/// Many providers round up.
#[tokio::test(start_paused = true)]
async fn limits_are_kept_where_the_wait_is_told_in_whole_seconds() {
    for (rpm, span_s) in [(300, 1200.0), (600, 1200.0), (6_000, 600.0)] {
        let scenario = silent(rpm, 6_000_000, span_s);
        let provider = Arc::new(Provider::coarse(scenario.limits, scenario.seed));
        let controller = Controller::with_seed(RouteLimits::default(), scenario.seed);
        let report = scenario.run_with(&controller, &provider).await;
        report.print(&format!("{rpm} RPM, whole seconds"));
        assert!(report.utilisation >= 0.97, "{rpm}: {report:?}");
        assert!(report.throttled <= 0.02, "{rpm}: {report:?}");
        assert!(report.recovery_s.iter().all(|seconds| *seconds <= 30.0), "{rpm}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn configured_limits_are_kept_where_nobody_tells_them() {
    let configured = RouteLimits { rpm: Some(300), tpm: Some(2_000_000), ..RouteLimits::default() };
    let scenario = Scenario { configured, changes: vec![], ..silent(300, 2_000_000, 600.0) };
    let report = scenario.run().await;
    report.print("300 RPM, configured, no headers");
    assert!(report.utilisation >= 0.97, "{report:?}");
    assert!(report.throttled <= 0.005, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_found_limit_outlives_a_restart() {
    let scenario = Scenario { changes: vec![], ..silent(300, 2_000_000, 120.0) };
    let before = Controller::with_seed(scenario.configured.clone(), scenario.seed);
    scenario.run_with(&before, &scenario.provider()).await;
    let stored = serde_json::to_string(&before.learnt(0)).unwrap();
    let learnt: Learnt = serde_json::from_str(&stored).unwrap();
    let [(Meter::Requests, found)] = learnt.found[..] else { panic!("{learnt:?}") };
    assert!((290..=310).contains(&found), "{learnt:?}");

    let after = Controller::resume(scenario.configured.clone(), &learnt, 0);
    let report = scenario.run_with(&after, &scenario.provider()).await;
    // One call, and what a second brings.
    assert!(report.first_second <= 6, "{report:?}");
    assert!(report.utilisation >= 0.97 && report.throttled <= 0.02, "{report:?}");
}
