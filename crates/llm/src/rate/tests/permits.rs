//! Permits: what is settled, dropped, cancelled or never picked up leaves nothing behind.
//!
//! Tokio's time stands still in these tests: a `sleep` moves it, and nobody waits.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Class, Error};
use crate::provider::{RateSignals, RateWindow};
use crate::rate::{Ask, Controller, Engine, Gate, Meter, Permit, RouteLimits, Settled, Urgency};
use crate::types::{Answer, Stop, Usage};

fn slots(slots: usize) -> Controller {
    let limits = RouteLimits { engine: Engine::Local { slots: Some(slots) }, ..RouteLimits::default() };
    Controller::with_seed(limits, 1)
}

fn answered() -> Settled {
    let usage = Usage { fresh_in: 10, out: 10, ..Usage::default() };
    Settled::Answered { usage, rate: RateSignals::default(), latency: Duration::from_secs(1) }
}

fn throttled(seconds: u64) -> Settled {
    Settled::Throttled { retry_after: Some(Duration::from_secs(seconds)), rate: RateSignals::default() }
}

/// A permit that must be there at once.
async fn at_once(controller: &Controller) -> Permit {
    let acquire = controller.acquire(Ask::new("run", 10));
    timeout(Duration::from_micros(1), acquire).await.expect("no wait").unwrap()
}

/// Whether a call would have to wait.
async fn waits(controller: &Controller) -> bool {
    timeout(Duration::from_micros(1), controller.acquire(Ask::new("run", 10))).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_frees_its_slot() {
    let controller = slots(1);
    let permit = at_once(&controller).await;
    assert!(waits(&controller).await);
    drop(permit);
    at_once(&controller).await.settle(&answered());
    let stats = controller.stats();
    assert_eq!((stats.in_flight, stats.waiting, stats.totals.failed), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_permit_may_be_dropped_outside_of_a_runtime() {
    let controller = slots(1);
    let permit = at_once(&controller).await;
    let waiting = tokio::spawn({
        let controller = controller.clone();
        async move { controller.acquire(Ask::new("run", 10)).await.is_ok() }
    });
    tokio::task::yield_now().await;
    std::thread::spawn(move || drop(permit)).join().unwrap();
    assert!(waiting.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_sent_costs_nothing() {
    let limits = RouteLimits { rpm: Some(60), ..RouteLimits::default() };
    let controller = Controller::with_seed(limits, 1);
    at_once(&controller).await.settle(&Settled::Failed { sent: false });
    // The first call of a bucket goes at once whatever it holds; the second waits for its worth.
    let start = Instant::now();
    controller.acquire(Ask::new("run", 10)).await.unwrap().settle(&Settled::Failed { sent: true });
    let unsent = start.elapsed();
    controller.acquire(Ask::new("run", 10)).await.unwrap().settle(&Settled::Failed { sent: true });
    assert_eq!(unsent.as_millis(), 1021);
    assert_eq!(start.elapsed().as_millis(), 2041);
}

#[tokio::test(start_paused = true)]
async fn refusals_that_nobody_explains_empty_the_buckets_if_they_come_together() {
    for (refused, wait_ms) in [(1, 0), (6, 102)] {
        let controller = Controller::with_seed(RouteLimits { rpm: Some(600), ..RouteLimits::default() }, 1);
        at_once(&controller).await.settle(&answered());
        sleep(Duration::from_secs(10)).await;
        // Twenty had been saved up.
        for _ in 0..refused {
            at_once(&controller).await.settle(&throttled(0));
        }
        controller.unpause();
        let start = Instant::now();
        controller.acquire(Ask::new("run", 10)).await.unwrap().settle(&answered());
        assert_eq!(start.elapsed().as_millis() / 10, wait_ms / 10, "{refused} refused");
    }
}

#[tokio::test(start_paused = true)]
async fn cached_input_costs_nothing_where_it_does_not_count() {
    for (counts_cache_reads, wait_s) in [(true, 10), (false, 1)] {
        let limits = RouteLimits { input_tpm: Some(6000), counts_cache_reads, ..RouteLimits::default() };
        let controller = Controller::with_seed(limits, 1);
        let permit = controller.acquire(Ask::new("run", 1000)).await.unwrap();
        let usage = Usage { fresh_in: 100, cache_read: 900, ..Usage::default() };
        permit.settle(&Settled::Answered { usage, rate: RateSignals::default(), latency: Duration::ZERO });
        let start = Instant::now();
        controller.acquire(Ask::new("run", 1)).await.unwrap().settle(&answered());
        assert_eq!(start.elapsed().as_secs(), wait_s, "cached input counts: {counts_cache_reads}");
    }
}

/// Callers that settle, drop, give up and time out at random, under refusals and overloads at random.
#[tokio::test(start_paused = true)]
async fn whatever_callers_do_nothing_leaks() {
    for seed in 1..=20 {
        println!("seed {seed}");
        let controller = slots(1 + seed as usize % 5);
        let mut tasks = JoinSet::new();
        for caller in 0..30 {
            let (controller, mut rng) = (controller.clone(), fastrand::Rng::with_seed(seed * 1000 + caller));
            tasks.spawn(async move {
                for _ in 0..40 {
                    let urgency = Urgency::ALL[rng.usize(..3)];
                    let refusals = u32::from(rng.u8(..4) == 0);
                    let ask = Ask { urgency, refusals, ..Ask::new(rng.u8(..4).to_string(), rng.u64(..9000)) };
                    let patience = Duration::from_millis(rng.u64(1..3000));
                    let Ok(permit) = timeout(patience, controller.acquire(ask)).await else { continue };
                    sleep(Duration::from_millis(rng.u64(..500))).await;
                    let settled = match rng.u8(..12) {
                        0 => {
                            drop(permit);
                            continue;
                        }
                        1 => throttled(rng.u64(..2)),
                        2 => Settled::Overloaded,
                        3 => Settled::Failed { sent: rng.bool() },
                        _ => answered(),
                    };
                    // As told, while tokio's time stands still: nobody waits.
                    sleep(permit.unwrap().settle(&settled)).await;
                }
            });
        }
        // Some are killed wherever they are.
        sleep(Duration::from_secs(20)).await;
        if seed % 2 == 0 {
            tasks.abort_all();
        }
        while tasks.join_next().await.is_some() {}
        let stats = controller.stats();
        assert_eq!((stats.in_flight, stats.waiting), (0, 0), "{stats:?}");
        let totals = stats.totals;
        assert_eq!(totals.admitted, totals.answered + totals.throttled + totals.overloaded + totals.failed);
        // The route still works: at most the pause and the breaker stand before the next.
        let next = timeout(Duration::from_secs(70), controller.acquire(Ask::new("last", 1)));
        next.await.expect("the route is stuck").unwrap().settle(&answered());
    }
}

#[tokio::test(start_paused = true)]
async fn one_refusal_pauses_everyone_once() {
    let controller = slots(50);
    let mut permits = Vec::new();
    for _ in 0..10 {
        permits.push(at_once(&controller).await);
    }
    for permit in permits {
        permit.settle(&throttled(30));
    }
    let start = Instant::now();
    let paused = controller.stats().paused_for.unwrap();
    assert!((30.0..31.1).contains(&paused.as_secs_f64()), "{paused:?}");
    assert!(waits(&controller).await);
    at_once_after(&controller, start, paused).await;
}

async fn at_once_after(controller: &Controller, start: Instant, wait: Duration) {
    controller.acquire(Ask::new("run", 10)).await.unwrap().settle(&answered());
    let late = start.elapsed().saturating_sub(wait);
    assert!(start.elapsed() >= wait && late <= Duration::from_millis(2), "{late:?} late");
}

#[tokio::test(start_paused = true)]
async fn a_call_refused_without_a_time_waits_twice_as_long_each_time() {
    for (refusals, seconds) in [(0, 0.25), (1, 0.5), (2, 1.0), (8, 60.0), (u32::MAX, 60.0)] {
        let controller = slots(1);
        let ask = Ask { refusals, ..Ask::new("run", 10) };
        let permit = controller.acquire(ask).await.unwrap();
        let untold = Settled::Throttled { retry_after: None, rate: RateSignals::default() };
        let wait = permit.settle(&untold).as_secs_f64();
        assert!((seconds..=1.1 * seconds).contains(&wait), "{wait} instead of {seconds}");
        assert_eq!(controller.stats().paused_for, None, "the others go on");
    }
}

#[tokio::test(start_paused = true)]
async fn where_nobody_is_let_in_the_pause_doubles() {
    let controller = slots(1);
    let mut paused_s = Vec::new();
    for _ in 0..60 {
        let permit = controller.acquire(Ask::new("run", 10)).await.unwrap();
        permit.settle(&Settled::Throttled { retry_after: None, rate: RateSignals::default() });
        paused_s.extend(controller.stats().paused_for.map(|paused| paused.as_secs_f64()));
    }
    for (paused, expected) in
        paused_s.into_iter().zip([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0])
    {
        assert!((expected..=1.1 * expected).contains(&paused), "{paused} instead of {expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_overload_opens_the_breaker_and_leaves_the_limits() {
    let controller = slots(50);
    let mut permits = Vec::new();
    for _ in 0..20 {
        permits.push(at_once(&controller).await);
    }
    for permit in permits {
        permit.settle(&Settled::Overloaded);
    }
    let start = Instant::now();
    assert!(waits(&controller).await);
    let probe = controller.acquire(Ask::new("run", 10)).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 5);
    // One finds out for all.
    assert!(waits(&controller).await);
    probe.settle(&answered());
    at_once(&controller).await.settle(&answered());
    assert_eq!(controller.stats().concurrency_limit, 50);
}

#[tokio::test(start_paused = true)]
async fn a_closed_route_sends_everyone_away() {
    let controller = slots(1);
    let held = at_once(&controller).await;
    let waiting = tokio::spawn({
        let controller = controller.clone();
        async move { controller.acquire(Ask::new("run", 10)).await.unwrap_err().class }
    });
    tokio::task::yield_now().await;
    controller.close(&Error::new(Class::Auth, "the key was refused"));
    assert_eq!(waiting.await.unwrap(), Class::Auth);
    assert_eq!(controller.acquire(Ask::new("run", 10)).await.unwrap_err().class, Class::Auth);
    assert_eq!(controller.stats().closed.as_deref(), Some("auth: the key was refused"));
    held.settle(&answered());
    controller.reopen();
    at_once(&controller).await.settle(&answered());
}

#[tokio::test(start_paused = true)]
async fn stats_tell_what_the_next_call_waits_for() {
    let limits = RouteLimits { rpm: Some(60), concurrency_max: Some(2), ..RouteLimits::default() };
    let controller = Controller::with_seed(limits, 1);
    let gate = || controller.stats().held.map(|held| held.gate);
    let next = || {
        tokio::spawn({
            let controller = controller.clone();
            async move { controller.acquire(Ask::new("run", 10)).await.unwrap() }
        })
    };
    let first = at_once(&controller).await;
    assert_eq!(gate(), None);
    let second = next();
    tokio::task::yield_now().await;
    assert_eq!(gate(), Some(Gate::Quota(Meter::Requests)));
    let second = second.await.unwrap();
    let third = next();
    tokio::task::yield_now().await;
    assert_eq!(gate(), Some(Gate::Concurrency));
    controller.pause_for(Duration::from_secs(5));
    assert_eq!(gate(), Some(Gate::Pause));
    first.settle(&answered());
    third.abort();
    let _ = third.await;
    assert_eq!(gate(), None);
    second.settle(&answered());
}

#[test]
fn every_class_of_error_is_settled_as_what_it_was() {
    let window = RateWindow { limit: Some(1), remaining: None, reset_after: None };
    let rate = RateSignals { requests: Some(window), ..RateSignals::default() };
    let usage = Usage { out: 3, ..Usage::default() };
    let latency = Duration::from_secs(1);
    for class in Class::ALL {
        let mut error = Error::new(class, "");
        (*error.rate, error.retry_after) = (rate.clone(), Some(latency));
        let expected = match class {
            Class::Throttled => Settled::Throttled { retry_after: Some(latency), rate: rate.clone() },
            Class::Overloaded => Settled::Overloaded,
            Class::Unreachable => Settled::Unanswered { sent: false },
            Class::Network => Settled::Unanswered { sent: true },
            Class::Budget | Class::CacheMiss | Class::Stopped => Settled::Failed { sent: false },
            _ => Settled::Refused,
        };
        assert_eq!(Settled::of_error(&error, latency), expected, "{class}");
        let (id, model, text, tool_calls) = Default::default();
        let answer =
            Answer { id, model, text, tool_calls, vectors: Vec::new(), stop: Stop::Length, usage, own: None };
        let paid = Settled::of_error(&error.with_answer(answer), latency);
        assert_eq!(paid, Settled::Answered { usage, rate: rate.clone(), latency }, "{class}");
    }
}
