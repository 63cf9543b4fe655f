use std::time::Duration;

use super::RetryPolicy;

const HOUR_MS: u64 = 3_600_000;

/// The delays in ms after 0, 1, 2, … failures, without jitter.
fn check(policy: &RetryPolicy, expected_ms: &[u64]) {
    let policy = policy.clone().without_jitter();
    let delays: Vec<u64> =
        (0..).zip(expected_ms).map(|(failures, _)| millis(policy.delay(failures, 0.5))).collect();
    assert_eq!(delays, expected_ms, "{policy:?}");
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap()
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn each_formula_gives_its_delays() {
    check(&RetryPolicy::default(), &[1_000, 2_000, 4_000, 8_000, 16_000]);
    check(&RetryPolicy::exponential(ms(250)), &[250, 500, 1_000, 2_000]);
    check(&RetryPolicy::quadratic(ms(1_000)), &[1_000, 4_000, 9_000, 16_000]);
    check(&RetryPolicy::fixed(ms(700)), &[700, 700, 700]);
    check(&RetryPolicy::list([ms(10), ms(200), ms(30)]), &[10, 200, 30, 30, 30]);
    check(&RetryPolicy::list([]), &[0, 0]);
}

#[test]
fn no_delay_passes_the_cap() {
    check(&RetryPolicy::exponential(ms(1_000)).cap(ms(3_000)), &[1_000, 2_000, 3_000, 3_000]);
    check(&RetryPolicy::quadratic(ms(1_000)).cap(ms(5_000)), &[1_000, 4_000, 5_000]);
    check(&RetryPolicy::fixed(ms(9_000)).cap(ms(5_000)), &[5_000]);
    check(&RetryPolicy::list([ms(1), ms(9_000)]).cap(ms(5_000)), &[1, 5_000, 5_000]);
}

#[test]
fn a_thousand_failures_overflow_nothing() {
    for failures in [31, 32, 63, 64, 1_000, u32::MAX] {
        for policy in [RetryPolicy::exponential(ms(1_000)), RetryPolicy::quadratic(ms(HOUR_MS))] {
            assert_eq!(
                millis(policy.clone().without_jitter().delay(failures, 0.0)),
                HOUR_MS,
                "{failures} {policy:?}"
            );
            let uncapped = policy.cap(Duration::MAX).without_jitter();
            assert!(uncapped.delay(failures, 0.0) > ms(HOUR_MS), "{failures} {uncapped:?}");
        }
    }
}

#[test]
fn jitter_shortens_a_delay_by_up_to_a_half() {
    let policy = RetryPolicy::fixed(ms(1_000));
    for (jitter, expected_ms) in [(0.0, 1_000), (0.5, 750), (1.0, 500), (-3.0, 1_000), (7.0, 500)] {
        assert_eq!(millis(policy.delay(0, jitter)), expected_ms, "jitter {jitter}");
    }
    assert_eq!(
        millis(RetryPolicy::exponential(ms(1_000)).cap(ms(1_500)).delay(9, 1.0)),
        750,
        "the cap comes first"
    );
}

#[test]
fn a_policy_reads_back_what_it_wrote() {
    for policy in [
        RetryPolicy::exponential(ms(5)).cap(ms(50)),
        RetryPolicy::quadratic(ms(5)),
        RetryPolicy::fixed(ms(5)).without_jitter(),
        RetryPolicy::list([ms(1), ms(2)]),
    ] {
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<RetryPolicy>(&text).unwrap(), policy, "{text}");
    }
    let short: RetryPolicy = serde_json::from_str(r#"{"backoff":"fixed","delay_ms":5}"#).unwrap();
    assert_eq!(short, RetryPolicy::fixed(ms(5)));
}
