//! Events, the ledger and the notice to watchers.

use crate::job::Progress;
use crate::limits::EVENT_CHANGES_MAX;
use crate::state::State;
use crate::store::Save;
use crate::testing::Bench;
use crate::testing::bench::{days, done, give_up, id, job, park, secs};

async fn newest(bench: &Bench) -> crate::events::Event {
    bench.store.events(None, 1).await.expect("events answers").events.pop().expect("something has happened")
}

pub(super) async fn a_call_makes_one_event_with_all_its_changes(bench: &Bench) {
    bench.add([job(1).process("p"), job(2).after(id(1)), job(3)]).await;
    let event = newest(bench).await;
    assert_eq!((event.changes.len(), event.more, event.at), (3, 0, bench.now()));
    let first = &event.changes[0];
    assert_eq!(
        (first.job_id, first.state, first.process_id.clone()),
        (id(1), State::Ready, Some("p".into()))
    );
    assert_eq!((first.queue.as_str(), first.kind.as_str()), ("default", "work"));
    bench.run(1, done("1")).await;
    let mut states: Vec<_> =
        newest(bench).await.changes.iter().map(|change| (change.job_id, change.state)).collect();
    states.sort_unstable();
    assert_eq!(states, [(id(1), State::Succeeded), (id(2), State::Ready)]);
}

pub(super) async fn an_event_names_the_first_changes_and_counts_the_rest(bench: &Bench) {
    bench.add((1..=40).map(job)).await;
    let event = newest(bench).await;
    assert_eq!((event.changes.len(), event.more), (EVENT_CHANGES_MAX, 40 - EVENT_CHANGES_MAX as u64));
}

pub(super) async fn events_are_read_after_a_cursor(bench: &Bench) {
    for number in 1..=5 {
        bench.add([job(number)]).await;
    }
    let ids = async |after, limit| {
        let page = bench.store.events(after, limit).await.expect("events answers");
        assert!(!page.resync);
        page.events.iter().map(|event| event.id).collect::<Vec<_>>()
    };
    let all = ids(None, 100).await;
    assert_eq!(all.len(), 5);
    assert!(all.is_sorted());
    assert_eq!(ids(None, 2).await, all[3..]);
    assert_eq!(ids(Some(0), 2).await, all[..2]);
    assert_eq!(ids(Some(all[1]), 100).await, all[2..]);
    assert_eq!(ids(Some(all[4]), 100).await, [] as [u64; 0]);
}

pub(super) async fn progress_is_news(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    let progress = Progress { done: 3, total: Some(9), message: Some("page 3".to_owned()), at: bench.now() };
    let save = Save { progress: Some(progress.clone()), ..Save::default() };
    bench.store.save(claimed.lease, save, bench.now()).await.expect("the lease holds");
    let change = newest(bench).await.changes.remove(0);
    assert_eq!((change.state, change.progress), (State::Running, Some(progress)));
}

pub(super) async fn what_changes_nothing_is_no_event(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    let before = newest(bench).await.id;
    bench.claim(1).await;
    bench.promote().await;
    bench.rescue().await;
    bench.prune().await;
    bench.add([job(1)]).await;
    assert_eq!(newest(bench).await.id, before);
}

pub(super) async fn an_event_goes_once_every_job_that_it_names_is_gone(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    bench.run(1, done("1")).await;
    bench.run(2, done("2")).await;
    let named = async || {
        let page = bench.store.events(None, 100).await.expect("events answers");
        let mut ids: Vec<_> =
            page.events.iter().flat_map(|event| &event.changes).map(|change| change.job_id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let before = newest(bench).await.id;
    bench.delete(&[1]).await;
    assert_eq!(named().await, [id(1), id(2)], "they were enqueued together");
    bench.delete(&[2]).await;
    assert_eq!(named().await, []);
    // A reader who has seen all of them misses nothing, and numbers go on.
    let page = bench.store.events(Some(before), 100).await.expect("events answers");
    assert_eq!((page.events.len(), page.resync), (0, false));
    bench.add([job(3)]).await;
    let page = bench.store.events(Some(before), 100).await.expect("events answers");
    assert_eq!((page.events.len(), page.resync), (1, false));
    assert!(page.events[0].id > before);
    assert!(bench.store.events(Some(1), 100).await.expect("events answers").resync, "others look afresh");
}

pub(super) async fn a_claim_that_finds_nothing_wakes_nobody(bench: &Bench) {
    let mut watch = bench.store.watch();
    watch.mark_unchanged();
    bench.claim(9).await;
    assert!(!watch.has_changed().expect("the store lives"));
}

pub(super) async fn a_change_wakes_whoever_watches(bench: &Bench) {
    let mut watch = bench.store.watch();
    watch.mark_unchanged();
    bench.add([job(1)]).await;
    watch.changed().await.expect("the store lives");
    watch.mark_unchanged();
    bench.start(1).await;
    bench.cancel(1).await;
    watch.changed().await.expect("the store lives");
}

pub(super) async fn the_ledger_counts_every_end_by_day(bench: &Bench) {
    bench.add((1..=4).map(job)).await;
    bench.run(1, done("1")).await;
    bench.run(2, give_up()).await;
    bench.pass(days(1));
    bench.run(3, done("3")).await;
    bench.cancel(4).await;
    bench.retry(2).await.expect("a failed job can be retried");
    bench.pass(secs(1));
    bench.run(2, done("2")).await;
    bench.delete(&[1, 2, 3, 4]).await;
    let ledger = bench.store.ledger().await.expect("ledger answers");
    let rows: Vec<_> = ledger.iter().map(|row| (row.day, row.state, row.jobs)).collect();
    let day = bench.now().as_millis() / 86_400_000;
    let expected = [
        (day - 1, State::Succeeded, 1),
        (day - 1, State::Failed, 1),
        (day, State::Succeeded, 2),
        (day, State::Cancelled, 1),
    ];
    assert_eq!(rows, expected);
    assert_eq!((ledger[0].queue.as_str(), ledger[0].kind.as_str()), ("default", "work"));
}
