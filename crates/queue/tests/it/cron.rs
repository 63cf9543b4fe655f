//! Schedules: when they fire, and what becomes of missed times.

use std::time::Duration;

use longhaul_queue::maintenance::{Cron, Duty, MaintenanceOptions, next_after};
use longhaul_queue::store::{Filter, ListRequest, Missed, Schedule};
use longhaul_queue::{Clock, JobId, Json, NewJob, Timestamp};

use crate::stage::Stage;

fn time(text: &str) -> Timestamp {
    Timestamp::from_millis(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

#[track_caller]
fn check_next(cron: &str, timezone: &str, after: &str, expected: &str) {
    assert_eq!(next_after(cron, timezone, time(after)).unwrap(), time(expected), "{cron} in {timezone}");
}

#[test]
fn next_times_follow_the_zone() {
    check_next("0 6 * * *", "UTC", "2026-01-01T05:59:59Z", "2026-01-01T06:00:00Z");
    check_next("0 6 * * *", "UTC", "2026-01-01T06:00:00Z", "2026-01-02T06:00:00Z");
    check_next("0 6 * * *", "Asia/Tokyo", "2026-01-01T00:00:00Z", "2026-01-01T21:00:00Z");
    check_next("0 6 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", "2026-07-01T04:00:00Z");
    check_next("0 6 * * *", "Europe/Berlin", "2026-12-01T00:00:00Z", "2026-12-01T05:00:00Z");
    check_next("*/10 * * * * *", "UTC", "2026-01-01T00:00:01Z", "2026-01-01T00:00:10Z");
    check_next("@daily", "UTC", "2026-01-01T00:00:01Z", "2026-01-02T00:00:00Z");
}

#[test]
fn fixed_time_in_a_gap_fires_once_at_its_end() {
    // Berlin, 29 March 2026: 02:00 becomes 03:00.
    check_next("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z");
    check_next("30 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z");
}

#[test]
fn fixed_time_that_comes_twice_fires_once() {
    // Berlin, 25 October 2026: 03:00 becomes 02:00.
    check_next("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z");
    check_next("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z");
}

#[test]
fn every_half_hour_goes_on_through_a_change_of_clock() {
    check_next("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z");
    check_next("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z");
}

#[test]
fn bad_expressions_and_zones_are_named() {
    let error = next_after("61 * * * *", "UTC", time("2026-01-01T00:00:00Z")).unwrap_err().to_string();
    assert!(error.contains("\"61 * * * *\" is not a cron expression"), "{error}");
    let error = next_after("* * * * *", "Berlin", time("2026-01-01T00:00:00Z")).unwrap_err().to_string();
    assert!(error.contains("\"Berlin\" is not a time zone"), "{error}");
    let error = next_after("0 0 30 2 *", "UTC", time("2026-01-01T00:00:00Z")).unwrap_err().to_string();
    assert!(error.contains("never comes"), "{error}");
}

/// A schedule of every minute that nobody looked at for `away`; how many jobs come of it.
async fn fired_after(away: Duration, missed: Missed) -> (usize, Stage) {
    let stage = Stage::new();
    let schedule = Schedule {
        name: "report".to_owned(),
        cron: "* * * * *".to_owned(),
        timezone: "UTC".to_owned(),
        job: NewJob::new("job", Json::null()),
        missed,
        next_at: next_after("* * * * *", "UTC", stage.clock.now()).unwrap(),
        last_at: None,
    };
    stage.clock.set(schedule.next_at + away);
    stage.store.put_schedule(schedule).await.unwrap();
    let cron = Cron::new(stage.engine.clone(), MaintenanceOptions::default().cron);
    let swept = cron.run_once().await.unwrap();
    assert!(swept.next_at.unwrap() > stage.clock.now());
    assert_eq!(cron.run_once().await.unwrap().changed, 0, "fired once, whoever looks again");
    (jobs(&stage).await, stage)
}

async fn jobs(stage: &Stage) -> usize {
    let request = ListRequest { filter: Filter::default(), limit: 1000, ..ListRequest::default() };
    stage.queue.list(request).await.unwrap().items.len()
}

#[tokio::test]
async fn missed_times_go_by_their_policy() {
    let hour_and_a_bit = Duration::from_secs(3630);
    assert_eq!(fired_after(hour_and_a_bit, Missed::Skip).await.0, 0);
    assert_eq!(fired_after(hour_and_a_bit, Missed::Once).await.0, 1);
    assert_eq!(fired_after(hour_and_a_bit, Missed::All).await.0, 61);
    assert_eq!(fired_after(Duration::from_secs(86_400), Missed::All).await.0, 100, "bounded");
}

#[tokio::test]
async fn time_that_is_noticed_at_once_fires_under_every_policy() {
    for missed in [Missed::Skip, Missed::Once, Missed::All] {
        assert_eq!(fired_after(Duration::from_millis(3), missed).await.0, 1, "{missed:?}");
    }
}

#[tokio::test]
async fn schedule_that_cannot_fire_does_not_keep_others_from_it() {
    let (_, stage) = fired_after(Duration::ZERO, Missed::Once).await;
    let good = stage.store.schedules().await.unwrap().remove(0);
    let bad = Schedule { name: "bad".to_owned(), cron: "nonsense".to_owned(), ..good.clone() };
    stage.store.put_schedule(bad).await.unwrap();
    stage.clock.set(good.next_at);
    let cron = Cron::new(stage.engine.clone(), MaintenanceOptions::default().cron);
    assert_eq!(cron.run_once().await.unwrap().changed, 1);
    assert_eq!(jobs(&stage).await, 2);
}

#[tokio::test]
async fn schedule_whose_job_the_store_refuses_moves_on() {
    let (_, stage) = fired_after(Duration::ZERO, Missed::Once).await;
    let good = stage.store.schedules().await.unwrap().remove(0);
    let gone = JobId::generate(stage.clock.now(), 7);
    let refused = Schedule { job: NewJob::new("job", Json::null()).after(gone), ..good.clone() };
    stage.store.put_schedule(refused).await.unwrap();
    stage.clock.set(good.next_at);
    let cron = Cron::new(stage.engine.clone(), MaintenanceOptions::default().cron);
    let swept = cron.run_once().await.unwrap();
    assert!(swept.next_at.unwrap() > good.next_at, "tried for ever otherwise");
    assert_eq!(stage.store.schedules().await.unwrap()[0].next_at, swept.next_at.unwrap());
    assert_eq!(jobs(&stage).await, 1, "only the one from before");
}
