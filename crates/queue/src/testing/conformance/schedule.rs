//! Schedules: kept by name, fired once however many leaders try.

use crate::job::Unique;
use crate::store::{Firing, Missed, Schedule};
use crate::testing::Bench;
use crate::testing::bench::{id, job, secs};

fn hourly(bench: &Bench, name: &str) -> Schedule {
    Schedule {
        name: name.to_owned(),
        cron: "0 * * * *".to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        job: job(100),
        missed: Missed::Once,
        next_at: bench.now(),
        last_at: None,
    }
}

async fn put(bench: &Bench, schedule: Schedule) {
    bench.store.put_schedule(schedule).await.expect("put_schedule answers");
}

fn firing(bench: &Bench, number: u64) -> Firing {
    let jobs = vec![job(number).unique(Unique::key(format!("hourly {number}")))];
    Firing { name: "a".to_owned(), expected_at: bench.now(), next_at: bench.now() + secs(3_600), jobs }
}

pub(super) async fn schedules_are_kept_by_name(bench: &Bench) {
    let changed = Schedule { missed: Missed::All, ..hourly(bench, "b") };
    for schedule in [hourly(bench, "b"), hourly(bench, "a"), changed.clone()] {
        put(bench, schedule).await;
    }
    let all = bench.store.schedules().await.expect("schedules answers");
    assert_eq!(all, [hourly(bench, "a"), changed]);
    assert_eq!(bench.store.delete_schedule("a".to_owned()).await, Ok(true));
    assert_eq!(bench.store.delete_schedule("a".to_owned()).await, Ok(false));
    assert_eq!(bench.store.schedules().await.expect("schedules answers").len(), 1);
}

pub(super) async fn a_firing_enqueues_and_moves_the_next_time(bench: &Bench) {
    put(bench, hourly(bench, "a")).await;
    assert_eq!(bench.store.fire(firing(bench, 1), bench.now()).await, Ok(true));
    bench.start(1).await;
    let schedule = bench.store.schedules().await.expect("schedules answers").remove(0);
    assert_eq!((schedule.next_at, schedule.last_at), (bench.now() + secs(3_600), Some(bench.now())));
}

pub(super) async fn two_leaders_fire_once(bench: &Bench) {
    put(bench, hourly(bench, "a")).await;
    assert_eq!(bench.store.fire(firing(bench, 1), bench.now()).await, Ok(true));
    let before = bench.snapshot().await;
    assert_eq!(bench.store.fire(firing(bench, 2), bench.now()).await, Ok(false));
    assert_eq!(bench.snapshot().await, before);
}

pub(super) async fn a_schedule_that_is_gone_does_not_fire(bench: &Bench) {
    assert_eq!(bench.store.fire(firing(bench, 1), bench.now()).await, Ok(false));
    assert!(bench.find(1).await.is_none());
}

pub(super) async fn a_firing_with_an_invalid_job_leaves_the_schedule_alone(bench: &Bench) {
    put(bench, hourly(bench, "a")).await;
    let before = bench.snapshot().await;
    let bad = Firing { jobs: vec![job(1), job(2).after(id(99))], ..firing(bench, 1) };
    assert!(bench.store.fire(bad, bench.now()).await.is_err());
    assert_eq!(bench.snapshot().await, before);
}
