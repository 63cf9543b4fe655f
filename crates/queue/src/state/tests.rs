//! The transition table, one row a line: what was spent, what happened, what follows.

use std::time::Duration;

use super::{
    Event, JobError, OnTimeout, Outcome, Park, Policy, Reason, RunOutcome, Settlement, Spent, State,
    crash_delay, settle,
};
use crate::clock::Timestamp;
use crate::job::JobOptions;
use crate::json::Json;
use crate::retry::RetryPolicy;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

/// What a row of the table expects; everything not named must be as before the event.
#[derive(Debug, PartialEq)]
struct Expected {
    state: State,
    /// Wait from now in ms.
    after_ms: Option<i64>,
    spent: Spent,
    reason: Option<Reason>,
    outcome: RunOutcome,
}

fn check(spent: Spent, event: Event, expected: &Expected) -> Settlement {
    check_with(&policy(), spent, event, expected)
}

fn check_with(policy: &Policy, spent: Spent, event: Event, expected: &Expected) -> Settlement {
    let what = format!("after {event:?} with {spent:?}");
    let settlement = settle(event, spent, policy, NOW, 0.0);
    let found = Expected {
        state: settlement.state,
        after_ms: settlement.run_at.map(|at| at.as_millis() - NOW.as_millis()),
        spent: settlement.spent,
        reason: settlement.error.as_ref().map(|error| error.reason),
        outcome: settlement.outcome,
    };
    assert_eq!(&found, expected, "{what}");
    assert_eq!(settlement.park.is_some(), settlement.state == State::Parked);
    assert_eq!(settlement.result.is_some(), settlement.state == State::Succeeded);
    settlement
}

/// 1 s doubling, 3 attempts, 3 crashes, 5 throttles.
fn policy() -> Policy {
    Policy { max_throttles: 5, retry: RetryPolicy::default().without_jitter(), ..Policy::default() }
}

/// Spent so far, as (attempt, crashes, throttles, continues, parks).
const fn spent(attempt: u32, crashes: u32, throttles: u32, continues: u32, parks: u32) -> Spent {
    Spent { attempt, crashes, throttles, continues, parks }
}

fn error(reason: Reason) -> JobError {
    JobError::new(reason, "it went wrong")
}

fn done() -> Event {
    Event::Outcome(Outcome::Done(Json::trusted("1")))
}

fn again(after: Option<Duration>) -> Event {
    Event::Outcome(Outcome::Continue { after, data: Some(Json::trusted("2")) })
}

fn retry(reason: Reason, after: Option<Duration>) -> Event {
    Event::Outcome(Outcome::Retry { error: error(reason), after, data: Some(Json::trusted("3")) })
}

fn park(until: Option<Timestamp>) -> Event {
    let park = Park { key: "k".to_owned(), until, on_timeout: OnTimeout::Resume };
    Event::Outcome(Outcome::Park { park, data: Some(Json::trusted("4")) })
}

fn ends(state: State, spent: Spent, reason: Option<Reason>, outcome: RunOutcome) -> Expected {
    Expected { state, after_ms: None, spent, reason, outcome }
}

fn waits(after_ms: i64, spent: Spent, reason: Option<Reason>, outcome: RunOutcome) -> Expected {
    let state = if after_ms == 0 { State::Ready } else { State::Scheduled };
    Expected { state, after_ms: Some(after_ms), spent, reason, outcome }
}

const SECOND: Option<Duration> = Some(Duration::from_secs(1));
const FULL: Spent = spent(2, 2, 5, 9, 9);

#[test]
fn done_succeeds_whatever_was_spent() {
    for before in [spent(0, 0, 0, 0, 0), FULL] {
        let settlement = check(before, done(), &ends(State::Succeeded, before, None, RunOutcome::Done));
        assert_eq!(settlement.result, Some(Json::trusted("1")));
    }
}

#[test]
fn continue_costs_no_attempt_and_proves_progress() {
    let go_on = |after_ms, spent| waits(after_ms, spent, None, RunOutcome::Continue);
    check(spent(0, 0, 0, 0, 0), again(None), &go_on(0, spent(0, 0, 0, 1, 0)));
    check(FULL, again(None), &go_on(0, spent(2, 0, 0, 10, 9)));
    check(FULL, again(SECOND), &go_on(1_000, spent(2, 0, 0, 10, 9)));
    let settlement = check(FULL, again(Some(Duration::ZERO)), &go_on(0, spent(2, 0, 0, 10, 9)));
    assert_eq!(settlement.data, Some(Json::trusted("2")));
    let delayed = Policy { delay: Duration::from_secs(7), ..policy() };
    check_with(&delayed, spent(0, 0, 0, 0, 0), again(None), &go_on(7_000, spent(0, 0, 0, 1, 0)));
    check_with(&delayed, spent(0, 0, 0, 0, 0), again(SECOND), &go_on(1_000, spent(0, 0, 0, 1, 0)));
}

#[test]
fn continues_and_parks_may_be_limited() {
    let limited = Policy { max_continues: Some(2), max_parks: Some(2), ..policy() };
    let at = |continues, parks| spent(0, 0, 0, continues, parks);
    check_with(&limited, at(1, 0), again(None), &waits(0, at(2, 0), None, RunOutcome::Continue));
    let failed = |spent| ends(State::Failed, spent, Some(Reason::Failure), RunOutcome::Fail);
    check_with(&limited, at(2, 0), again(None), &failed(at(3, 0)));
    check_with(&limited, at(0, 1), park(None), &ends(State::Parked, at(0, 2), None, RunOutcome::Park));
    check_with(&limited, at(0, 2), park(None), &failed(at(0, 3)));
}

#[test]
fn park_costs_no_attempt_and_proves_progress() {
    let parked = |after_ms| Expected {
        after_ms,
        ..ends(State::Parked, spent(2, 0, 0, 9, 10), None, RunOutcome::Park)
    };
    let settlement = check(FULL, park(None), &parked(None));
    assert_eq!(settlement.data, Some(Json::trusted("4")));
    check(FULL, park(Some(NOW + Duration::from_secs(5))), &parked(Some(5_000)));
}

#[test]
fn a_failure_costs_an_attempt_until_none_is_left() {
    let reasons = [
        Reason::Failure,
        Reason::Panic,
        Reason::RunLimit,
        Reason::IdleLimit,
        Reason::Crash,
        Reason::Poison,
        Reason::ParkTimeout,
        Reason::Cancelled,
        Reason::Expired,
        Reason::Dependency,
    ];
    for reason in reasons {
        let scheduled = |after_ms, spent| waits(after_ms, spent, Some(reason), RunOutcome::Retry);
        check(spent(0, 2, 4, 9, 9), retry(reason, None), &scheduled(1_000, spent(1, 2, 0, 9, 9)));
        check(spent(1, 2, 4, 9, 9), retry(reason, None), &scheduled(2_000, spent(2, 2, 0, 9, 9)));
        check(spent(1, 0, 0, 0, 0), retry(reason, SECOND), &scheduled(1_000, spent(2, 0, 0, 0, 0)));
        check(spent(1, 0, 0, 0, 0), retry(reason, Some(Duration::ZERO)), &scheduled(0, spent(2, 0, 0, 0, 0)));
        let last = ends(State::Failed, spent(3, 2, 0, 9, 9), Some(reason), RunOutcome::Retry);
        check(spent(2, 2, 4, 9, 9), retry(reason, None), &last);
        let settlement = check(spent(2, 2, 4, 9, 9), retry(reason, SECOND), &last);
        assert_eq!(settlement.data, Some(Json::trusted("3")));
    }
}

#[test]
fn a_single_attempt_fails_at_once_and_none_never_underflows() {
    for max_attempts in [0, 1] {
        let strict = Policy { max_attempts, ..policy() };
        let failed = ends(State::Failed, spent(1, 0, 0, 0, 0), Some(Reason::Failure), RunOutcome::Retry);
        check_with(&strict, spent(0, 0, 0, 0, 0), retry(Reason::Failure, None), &failed);
    }
}

#[test]
fn a_throttle_costs_no_attempt_and_waits_as_told() {
    let scheduled = |after_ms, spent| waits(after_ms, spent, Some(Reason::Throttle), RunOutcome::Throttle);
    let throttle = |after| retry(Reason::Throttle, after);
    check(spent(2, 2, 0, 9, 9), throttle(None), &scheduled(1_000, spent(2, 2, 1, 9, 9)));
    check(spent(2, 2, 3, 9, 9), throttle(None), &scheduled(8_000, spent(2, 2, 4, 9, 9)));
    check(spent(2, 2, 3, 9, 9), throttle(SECOND), &scheduled(1_000, spent(2, 2, 4, 9, 9)));
    check(spent(0, 0, 4, 0, 0), throttle(SECOND), &scheduled(1_000, spent(0, 0, 5, 0, 0)));
    let failed = ends(State::Failed, spent(0, 0, 6, 0, 0), Some(Reason::Throttle), RunOutcome::Throttle);
    check(spent(0, 0, 5, 0, 0), throttle(SECOND), &failed);
}

#[test]
fn fail_ends_it_whatever_is_left() {
    let fail = Event::Outcome(Outcome::Fail(error(Reason::Failure)));
    let failed = |spent| ends(State::Failed, spent, Some(Reason::Failure), RunOutcome::Fail);
    check(spent(0, 0, 0, 0, 0), fail.clone(), &failed(spent(1, 0, 0, 0, 0)));
    check(FULL, fail, &failed(spent(3, 2, 5, 9, 9)));
}

#[test]
fn a_crash_costs_no_attempt_and_the_third_in_a_row_is_poison() {
    let scheduled = |after_ms, spent| waits(after_ms, spent, Some(Reason::Crash), RunOutcome::Crash);
    check(spent(2, 0, 5, 9, 9), Event::Crash, &scheduled(1_000, spent(2, 1, 5, 9, 9)));
    check(spent(2, 1, 5, 9, 9), Event::Crash, &scheduled(2_000, spent(2, 2, 5, 9, 9)));
    let poison = ends(State::Failed, spent(2, 3, 5, 9, 9), Some(Reason::Poison), RunOutcome::Crash);
    check(spent(2, 2, 5, 9, 9), Event::Crash, &poison);
}

#[test]
fn a_release_costs_nothing() {
    for before in [spent(0, 0, 0, 0, 0), FULL] {
        check(before, Event::Release, &ends(State::Ready, before, None, RunOutcome::Release));
    }
}

#[test]
fn a_cancel_ends_it() {
    for before in [spent(0, 0, 0, 0, 0), FULL] {
        let cancelled = ends(State::Cancelled, before, Some(Reason::Cancelled), RunOutcome::Cancel);
        check(before, Event::Cancel, &cancelled);
    }
}

#[test]
fn under_cancel_an_end_stands_and_everything_else_is_cancelled() {
    let fail = Event::Outcome(Outcome::Fail(error(Reason::Failure)));
    for event in [done(), fail, Event::Cancel] {
        let settlement = settle(event, FULL, &policy(), NOW, 0.0);
        assert_eq!(settlement.clone().under_cancel(), settlement);
    }
    let others =
        [again(None), again(SECOND), park(Some(NOW)), retry(Reason::Throttle, SECOND), Event::Release];
    for event in others {
        let settlement = settle(event.clone(), Spent::default(), &policy(), NOW, 0.0);
        let (data, spent) = (settlement.data.clone(), settlement.spent);
        let cancelled = settlement.under_cancel();
        assert_eq!((cancelled.state, cancelled.outcome), (State::Cancelled, RunOutcome::Cancel), "{event:?}");
        assert_eq!((cancelled.run_at, cancelled.park), (None, None), "{event:?}");
        assert_eq!((cancelled.data, cancelled.spent), (data, spent), "{event:?}");
    }
}

#[test]
fn budgets_never_overflow() {
    let most = spent(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX);
    let events = [
        again(None),
        park(None),
        retry(Reason::Failure, None),
        retry(Reason::Throttle, None),
        Event::Crash,
        done(),
    ];
    for event in events {
        settle(event, most, &policy(), NOW, 1.0);
    }
}

#[test]
fn a_suspect_waits_longer_each_time_up_to_a_minute() {
    let seconds: Vec<u64> =
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 1_000].map(|crashes| crash_delay(crashes).as_secs()).to_vec();
    assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn a_jobs_own_settings_win_over_the_kinds() {
    let own = JobOptions {
        max_attempts: Some(7),
        max_crashes: Some(8),
        max_throttles: Some(9),
        max_continues: Some(10),
        retry: Some(RetryPolicy::fixed(Duration::from_secs(1))),
        run_limit: Some(Duration::from_secs(2)),
        idle_limit: Some(Duration::from_secs(3)),
        delay: Some(Duration::from_secs(4)),
        ..JobOptions::default()
    };
    let kind = Policy { max_continues: Some(5), max_parks: Some(6), ..policy() };
    let expected = Policy {
        max_attempts: 7,
        max_crashes: 8,
        max_throttles: 9,
        max_continues: Some(10),
        max_parks: Some(6),
        retry: RetryPolicy::fixed(Duration::from_secs(1)),
        run_limit: Duration::from_secs(2),
        idle_limit: Some(Duration::from_secs(3)),
        delay: Duration::from_secs(4),
    };
    assert_eq!(kind.with(&own), expected);
    assert_eq!(kind.with(&JobOptions::default()), kind);
}

#[test]
fn a_state_is_read_by_its_name() {
    for (number, state) in State::ALL.into_iter().enumerate() {
        assert_eq!(state as usize, number);
        assert_eq!(state.as_str().parse::<State>(), Ok(state));
    }
    assert!("done".parse::<State>().unwrap_err().to_string().contains("succeeded"));
}
