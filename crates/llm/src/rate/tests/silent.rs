//! Providers that do not tell their limits: only a 429 with a time to wait.

use super::traffic::Scenario;
use crate::rate::RouteLimits;

fn silent(rpm: u64, tpm: u64, span_s: f64) -> Scenario {
    Scenario { headers: false, ..Scenario::new(rpm, tpm, span_s) }
}

async fn check(name: &str, scenario: Scenario, throttled_max: f64) {
    let report = scenario.run().await;
    report.print(&format!("{name}, no headers"));
    assert!(report.utilisation >= 0.95, "{name}: {report:?}");
    assert!(report.throttled <= throttled_max, "{name}: {report:?}");
    // Half of the limit is felt at once. That it is back must be found out in steps of 7 % a round.
    assert!(report.recovery_s[0] <= 30.0, "{name}: {report:?}");
    assert!(report.recovery_s[1] <= 90.0, "{name}: {report:?}");
}

#[tokio::test(start_paused = true)]
async fn limits_that_nobody_tells_are_found_by_few_refusals() {
    check("300 RPM", silent(300, 2_000_000, 1200.0), 0.01).await;
    check("300k TPM", silent(600, 300_000, 1200.0), 0.01).await;
}

#[tokio::test(start_paused = true)]
async fn a_high_limit_that_nobody_tells_is_found_by_few_refusals() {
    check("6,000 RPM", silent(6_000, 6_000_000, 600.0), 0.01).await;
}

/// One refusal is what it takes to find a limit, and here there are few calls to set it against.
#[tokio::test(start_paused = true)]
async fn a_low_limit_that_nobody_tells_costs_more_refusals() {
    check("60 RPM", silent(60, 2_000_000, 2400.0), 0.04).await;
    check("20 RPM", silent(20, 2_000_000, 4800.0), 0.12).await;
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
