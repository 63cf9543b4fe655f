//! Providers that tell their limits.
//!
//! Tokio's time stands still in these tests: a `sleep` moves it, and nobody waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::provider::{Limits, Provider};
use super::traffic::{Scenario, first_second};
use crate::rate::{Controller, Demand, Learnt, Meter, OutputCharge, RouteLimits};

async fn check(name: &str, scenario: Scenario) {
    let report = scenario.run().await;
    report.print(name);
    assert!(report.utilisation >= 0.97, "{name}: {report:?}");
    assert!(report.throttled <= 0.02, "{name}: {report:?}");
    assert!(report.recovery_s.iter().all(|seconds| *seconds <= 30.0), "{name}: {report:?}");
    // Nothing was known: no more than a few calls until the first answer.
    assert!(report.first_second <= 4, "{name}: {report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_300_requests_is_used_up_and_kept() {
    check("300 RPM, 2M TPM", Scenario::new(300, 2_000_000, 1200.0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_600_requests_is_used_up_and_kept() {
    check("600 RPM, 2M TPM", Scenario::new(600, 2_000_000, 900.0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_tokens_is_used_up_and_kept() {
    check("600 RPM, 300k TPM", Scenario::new(600, 300_000, 1200.0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_6000_requests_is_used_up_and_kept() {
    check("6,000 RPM, 6M TPM", Scenario::new(6_000, 6_000_000, 240.0)).await;
}

#[tokio::test(start_paused = true)]
async fn requests_and_tokens_that_bind_in_turn_are_both_kept() {
    // Calls of 852 tokens on average: both limits are near.
    check("600 RPM, 511k TPM", Scenario::new(600, 511_200, 900.0)).await;
}

#[tokio::test(start_paused = true)]
async fn limits_that_double_are_used_soon() {
    let changes = vec![(300.0, 2.0), (600.0, 1.0)];
    check("600 RPM, doubled, restored", Scenario { changes, ..Scenario::new(600, 4_000_000, 900.0) }).await;
}

#[tokio::test(start_paused = true)]
async fn buckets_of_two_seconds_are_used_up_too() {
    let scenario = Scenario::new(600, 2_000_000, 900.0);
    let limits = Limits { burst_s: 2.0, ..scenario.limits };
    check("600 RPM, burst of 2 s", Scenario { limits, ..scenario }).await;
}

#[tokio::test(start_paused = true)]
async fn input_and_output_that_are_counted_apart_are_both_kept() {
    // Anthropic: output is charged with `max_tokens` and given back at the end.
    let (requests, input, output) = (Some(1000), Some(300_000), Some(100_000));
    let limits = Limits { requests, input, output, ..Limits::default() };
    let output_charge = OutputCharge::Refunded;
    let configured = RouteLimits { output_charge, ..RouteLimits::default() };
    let scenario = Scenario { limits, output_charge, configured, ..Scenario::new(1000, 1, 900.0) };
    let controller = Controller::with_seed(scenario.configured.clone(), scenario.seed);
    let report = scenario.run_with(&controller, &scenario.provider()).await;
    report.print("300k input TPM, 100k output TPM, refunded");
    assert!(report.utilisation >= 0.97, "{report:?}");
    assert!(report.throttled <= 0.02, "{report:?}");
    assert!(report.recovery_s.iter().all(|seconds| *seconds <= 30.0), "{report:?}");
    let meters: Vec<Meter> = controller.stats().limits.into_iter().map(|(meter, _)| meter).collect();
    assert_eq!(meters, [Meter::Requests, Meter::InputTokens, Meter::OutputTokens]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_without_a_stampede() {
    for (rpm, tpm) in [(300, 2_000_000), (600, 300_000), (6_000, 6_000_000)] {
        let scenario = Scenario { changes: vec![], ..Scenario::new(rpm, tpm, 60.0) };
        let before = Controller::with_seed(scenario.configured.clone(), scenario.seed);
        scenario.run_with(&before, &scenario.provider()).await;
        let stored = serde_json::to_string(&before.learnt(0)).unwrap();
        let learnt: Learnt = serde_json::from_str(&stored).unwrap();
        assert_eq!((learnt.requests, learnt.tokens), (Some(rpm), Some(tpm)));

        // Whatever had been saved up at the provider is there to be drained.
        let after = Controller::resume(scenario.configured.clone(), &learnt, 0);
        let provider = scenario.provider();
        let report = scenario.run_with(&after, &provider).await;
        let burst = rpm as f64 / 60.0 * scenario.limits.burst_s;
        println!("restart at {rpm} RPM: {} calls in the first second, burst {burst}", report.first_second);
        // One call, and what a second brings, not what a burst allows.
        assert!(report.first_second as f64 <= 1.0 + rpm as f64 / 60.0, "{report:?}");
        assert!(first_second(&provider.log()) as f64 <= burst);
        assert_eq!(report.throttled, 0.0, "{report:?}");
        // It does go on: nothing has to be found out again.
        assert!(report.utilisation >= 0.97, "{report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_outlives_a_restart() {
    let before = Controller::with_seed(RouteLimits::default(), 1);
    before.pause_for(Duration::from_secs(40));
    sleep(Duration::from_secs(10)).await;
    let learnt = before.learnt(1_000_000);
    assert_eq!(learnt.paused_until_ms, Some(1_030_000));
    let left = |now_ms| Controller::resume(RouteLimits::default(), &learnt, now_ms).stats().paused_for;
    assert_eq!(left(1_005_000), Some(Duration::from_secs(25)));
    assert_eq!(left(1_030_000), None);
    // A clock that was set back does not stop the route for years.
    assert_eq!(left(i64::MIN), Some(Duration::from_secs(3600)));
}

#[tokio::test(start_paused = true)]
async fn a_configured_ceiling_holds_below_the_limit_told() {
    let configured = RouteLimits { rpm: Some(120), ..RouteLimits::default() };
    let scenario = Scenario { configured, changes: vec![], ..Scenario::new(600, 2_000_000, 600.0) };
    let provider = scenario.provider();
    let controller = Controller::with_seed(scenario.configured.clone(), scenario.seed);
    let report = scenario.run_with(&controller, &provider).await;
    // 120 of 600.
    assert!((0.19..=0.2).contains(&report.utilisation), "{report:?}");
    assert_eq!(report.throttled, 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_others_use_too_is_shared_without_a_storm() {
    // Neither knows of the other, and each takes all of the refill for its own until the next answer tells: that costs
    // more refusals than within one process. Ceilings of half each would spare them.
    let scenario = Scenario { changes: vec![], ..Scenario::new(600, 2_000_000, 600.0) };
    let provider = scenario.provider();
    let other = Scenario { seed: 8, ..scenario.clone() };
    let ours = Controller::with_seed(scenario.configured.clone(), 1);
    let theirs = Controller::with_seed(scenario.configured.clone(), 2);
    let (report, _) = tokio::join!(scenario.run_with(&ours, &provider), other.run_with(&theirs, &provider));
    report.print("600 RPM, two processes on one key");
    assert!(report.utilisation >= 0.97, "{report:?}");
    assert!(report.throttled <= 0.1, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn processes_that_share_a_key_by_shares_are_hardly_refused() {
    let scenario = Scenario { changes: vec![], ..Scenario::new(600, 2_000_000, 600.0) };
    let provider = scenario.provider();
    let other = Scenario { seed: 8, ..scenario.clone() };
    let ours = Controller::with_seed(scenario.configured.clone(), 1);
    let theirs = Controller::with_seed(scenario.configured.clone(), 2);
    ours.set_share(0.5);
    theirs.set_share(0.5);
    let (report, _) = tokio::join!(scenario.run_with(&ours, &provider), other.run_with(&theirs, &provider));
    report.print("600 RPM, two processes on one key, half each");
    assert_eq!((ours.demand(), ours.stats().share), (Some(Demand::All), 0.5));
    assert!(report.utilisation >= 0.97, "{report:?}");
    assert!(report.throttled <= 0.005, "{report:?}");
}

/// Limits fall to a tenth: until the new ones are known, every call is refused.
#[tokio::test(start_paused = true)]
async fn a_storm_of_refusals_ends_with_one_pause() {
    let scenario = Scenario { changes: vec![(60.0, 0.1)], ..Scenario::new(6_000, 6_000_000, 120.0) };
    let provider = scenario.provider();
    let controller = Controller::with_seed(scenario.configured.clone(), scenario.seed);
    let report = scenario.run_with(&controller, &provider).await;
    let refused = provider.log().refused;
    println!("limits to a tenth: {} refused, recovered in {:?} s", refused.len(), report.recovery_s);
    // What was under way in the 120 ms until the first refusal was back, at 100 calls a second.
    assert!(refused.len() <= 24, "{} refused", refused.len());
    assert!(report.recovery_s[0] <= 30.0, "{report:?}");
}

/// The provider refuses a burst that its headers allow.
#[tokio::test(start_paused = true)]
async fn a_limit_that_headers_hide_is_found_by_refusals() {
    // Tokens bind, but only requests are told.
    let scenario = Scenario { changes: vec![], ..Scenario::new(600, 300_000, 900.0) };
    let provider = Arc::new(Provider::hiding_tokens(scenario.limits, scenario.seed));
    let controller = Controller::with_seed(scenario.configured.clone(), scenario.seed);
    let report = scenario.run_with(&controller, &provider).await;
    report.print("600 RPM told, 300k TPM hidden");
    assert!(report.utilisation >= 0.95, "{report:?}");
    assert!(report.throttled <= 0.02, "{report:?}");
}
