//! Providers that do not tell their limits: only a 429 with a time to wait, which may name the limit that was met.

use std::sync::Arc;

use super::provider::{Limits, Provider};
use super::traffic::{Report, Scenario};
use crate::rate::{Controller, Learnt, Meter, RouteLimits};

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

/// One refusal is what it takes to try a limit, and here it takes long to pay for one: a raised limit is found late.
#[tokio::test(start_paused = true)]
async fn a_low_limit_that_nobody_tells_is_seldom_tried() {
    let report = run("60 RPM", silent(60, 2_000_000, 2400.0)).await;
    assert!(report.utilisation >= 0.97 && report.throttled <= 0.02, "{report:?}");
    assert!(report.recovery_s[1] <= 120.0, "{report:?}");
    let report = run("20 RPM", silent(20, 2_000_000, 4800.0)).await;
    assert!(report.utilisation >= 0.93 && report.throttled <= 0.025, "{report:?}");
    assert!(report.recovery_s[1] <= 300.0, "{report:?}");
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
