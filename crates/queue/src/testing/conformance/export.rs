//! Export and import: a store's contents go to another and live on there.

use std::sync::Arc;

use crate::job::{NewJob, OnFailure, Retention, Unique, Window};
use crate::memory::MemoryStore;
use crate::state::{OnTimeout, State};
use crate::store::{ClaimRequest, ExportRecord, InsertOutcome, Missed, QueueChange, Save, Schedule, Signal};
use crate::testing::Bench;
use crate::testing::bench::{again, days, done, give_up, id, invalid, job, json, park, park_until, secs};
use crate::testing::export::{as_lines, export_all, export_by, import_all};

/// Something of everything that a store can hold, and nothing that runs.
async fn furnish(bench: &Bench) {
    let store = &bench.store;
    let unique = |key: &str, length| Unique {
        window: Some(Window::Success { length: secs(length) }),
        ..Unique::key(key)
    };
    bench
        .add([
            job(1).process("p").tag("red"),
            job(2).process("p").after(id(1)),
            job(3).after_with(id(2), OnFailure::Hold),
            job(4).unique(unique("u", 600)),
            job(5).unique(Unique::key("v")).run_at(bench.now() + secs(90)),
            job(6).retention(Retention::UntilConsumed { ttl: Some(days(2)) }),
            job(7).fair_key("t1"),
            job(8).fair_key("t2").priority(-1),
            NewJob { helper: true, ..job(9).process("p").after_process("p") },
            NewJob { expires_at: Some(bench.now() + days(1)), payload: json(&long_text()), ..job(10) },
            job(11),
            job(12).after(id(11)),
        ])
        .await;
    store.seal("open".into(), false, bench.now()).await.expect("seal answers");
    let first = bench.claim_with(ClaimRequest { limit: 9, ..bench.request() }).await;
    let of = |number: u64| first.iter().find(|claimed| claimed.job.id == id(number)).expect("it was claimed");
    bench.pass(secs(1));
    let progress =
        crate::job::Progress { done: 1, total: Some(3), message: Some("one".to_owned()), at: bench.now() };
    let line = crate::job::LogLine { at: bench.now(), text: "a line".to_owned() };
    let save = Save { data: Some(json(r#"{"step":1}"#)), progress: Some(progress), log: vec![line] };
    store.save(of(6).lease.clone(), save, bench.now()).await.expect("save answers");
    bench.settle(of(1), done(r#"{"answer":1}"#)).await;
    bench.run(2, give_up()).await;
    bench.settle(of(4), done("4")).await;
    bench.settle(of(6), park_until("later", Some(bench.now() + days(1)), OnTimeout::Fail)).await;
    bench.settle(of(7), park("woken")).await;
    bench.signal("woken", Signal::Resume(json("7"))).await;
    bench.signal("early", Signal::Done(json(r#""early""#))).await;
    bench.settle(of(8), again(secs(30), r#""again""#)).await;
    bench.settle(of(10), crate::testing::bench::retry_later(crate::state::Reason::Throttle)).await;
    bench.settle(of(11), done("11")).await;
    bench.delete(&[11]).await;
    let change = QueueChange {
        name: "default".to_owned(),
        max_running: Some(Some(50)),
        max_running_per_key: Some(Some(4)),
        ageing: Some(Some(secs(60))),
        retention: Some(Some(Retention::Keep { succeeded: days(3), failed: days(9) })),
        paused: None,
    };
    store.set_queue(change).await.expect("set_queue answers");
    let paused = QueueChange { name: "idle".to_owned(), paused: Some(true), ..QueueChange::default() };
    store.set_queue(paused).await.expect("set_queue answers");
    let schedule = Schedule {
        name: "nightly".to_owned(),
        cron: "0 3 * * *".to_owned(),
        timezone: "Asia/Tokyo".to_owned(),
        job: job(99),
        missed: Missed::All,
        next_at: bench.now() + days(1),
        last_at: Some(bench.now()),
    };
    store.put_schedule(schedule).await.expect("put_schedule answers");
    for (expected, value) in [(0, "1"), (1, r#"{"leader":"w1"}"#)] {
        store.put_record("leader".to_owned(), expected, json(value)).await.expect("put_record answers");
    }
}

fn long_text() -> String {
    format!("{:?}", "long ".repeat(2_000))
}

/// A furnished store of another make.
async fn original(bench: &Bench) -> Bench {
    let original = Bench::new(Arc::new(MemoryStore::new())).timed_by(Arc::clone(&bench.clock));
    furnish(&original).await;
    original
}

pub(super) async fn everything_that_lasts_is_exported_once_in_pages_of_any_size(bench: &Bench) {
    furnish(bench).await;
    let all = export_all(bench.store.as_ref()).await;
    for limit in [1, 2, 7] {
        assert_eq!(
            as_lines(&export_by(bench.store.as_ref(), limit).await),
            as_lines(&all),
            "pages of {limit}"
        );
    }
    let kind = |piece: &ExportRecord| match piece {
        ExportRecord::LastSeq(_) => 0,
        ExportRecord::Queue(_) => 1,
        ExportRecord::OpenProcess(_) => 2,
        ExportRecord::Job(_) => 3,
        ExportRecord::Unique(_) => 4,
        ExportRecord::Signal { .. } => 5,
        ExportRecord::Schedule(_) => 6,
        ExportRecord::Ledger(_) => 7,
        ExportRecord::Record { .. } => 8,
    };
    let kinds: Vec<i32> = all.iter().map(kind).collect();
    assert!(kinds.is_sorted(), "{kinds:?}");
    let counts: Vec<usize> =
        (0..9).map(|wanted| kinds.iter().filter(|kind| **kind == wanted).count()).collect();
    assert_eq!(counts, [1, 2, 1, 11, 2, 2, 1, 2, 1]);
    // The memory store is the specification here too.
    let original = original_at_start(bench).await;
    assert_eq!(as_lines(&all), as_lines(&export_all(original.store.as_ref()).await));
}

/// The same history as the bench's, told to the memory store at the same times.
async fn original_at_start(bench: &Bench) -> Bench {
    let now = bench.now();
    bench.clock.set(now - secs(1));
    let original = original(bench).await;
    assert_eq!(bench.now(), now);
    original
}

pub(super) async fn an_import_gives_back_what_was_exported(bench: &Bench) {
    let original = original(bench).await;
    import_all(bench.store.as_ref(), export_all(original.store.as_ref()).await).await;
    let pieces =
        [&original, bench].map(async |bench: &Bench| as_lines(&export_all(bench.store.as_ref()).await));
    let [expected, found] = pieces;
    assert_eq!(found.await, expected.await);
    assert_eq!(bench.snapshot().await, original.snapshot().await);
}

pub(super) async fn an_import_is_no_event(bench: &Bench) {
    let original = original(bench).await;
    let mut changes = bench.store.watch();
    changes.mark_unchanged();
    import_all(bench.store.as_ref(), export_all(original.store.as_ref()).await).await;
    assert_eq!(bench.store.events(None, 100).await.expect("events answers").events, []);
    assert!(changes.has_changed().expect("the store lives"), "but there is something to claim");
}

pub(super) async fn a_repeated_import_changes_nothing(bench: &Bench) {
    let original = original(bench).await;
    let pieces = export_all(original.store.as_ref()).await;
    for _ in 0..2 {
        import_all(bench.store.as_ref(), pieces.clone()).await;
    }
    assert_eq!(as_lines(&export_all(bench.store.as_ref()).await), as_lines(&pieces));
    assert_eq!(bench.snapshot().await, original.snapshot().await);
}

pub(super) async fn a_job_that_comes_twice_in_one_import_is_stored_once(bench: &Bench) {
    let original = Bench::new(Arc::new(MemoryStore::new())).timed_by(Arc::clone(&bench.clock));
    original.add([job(1).process("p"), job(2)]).await;
    let mut jobs = export_all(original.store.as_ref()).await;
    jobs.retain(|piece| matches!(piece, ExportRecord::Job(_)));
    let twice: Vec<ExportRecord> = jobs.iter().chain(&jobs).cloned().collect();
    bench.store.import(twice).await.expect("import answers");
    assert_eq!(bench.snapshot().await, original.snapshot().await);
    assert_eq!(bench.add_one(job(3)).await.seq, 3, "no place is given twice, told or not");
    let Some(ExportRecord::Job(first)) = jobs.first().cloned() else { panic!("a job comes first") };
    let mut other = *first;
    (other.job.id, other.job.seq) = (id(9), 7);
    let same_place = |number: u64| {
        let mut piece = other.clone();
        piece.job.id = id(number);
        ExportRecord::Job(Box::new(piece))
    };
    invalid(bench.store.import(vec![same_place(8), same_place(9)]).await);
}

pub(super) async fn a_running_job_is_not_imported(bench: &Bench) {
    let original = Bench::new(Arc::new(MemoryStore::new())).timed_by(Arc::clone(&bench.clock));
    original.add([job(1), job(2)]).await;
    original.start(1).await;
    let pieces = export_all(original.store.as_ref()).await;
    let before = bench.snapshot().await;
    let text = invalid(bench.store.import(pieces).await);
    assert!(text.contains("running"), "{text}");
    assert_eq!(bench.snapshot().await, before, "all or none");
}

pub(super) async fn an_imported_store_lives_on_like_its_original(bench: &Bench) {
    let original = original(bench).await;
    import_all(bench.store.as_ref(), export_all(original.store.as_ref()).await).await;
    let start = bench.now();
    for bench in [&original, bench] {
        bench.clock.set(start);
        live_on(bench).await;
    }
    assert_eq!(bench.snapshot().await, original.snapshot().await);
    let lines = as_lines(&export_all(original.store.as_ref()).await);
    assert_eq!(as_lines(&export_all(bench.store.as_ref()).await), lines);
}

/// Touches all that [`furnish`] left: children, keys, parks, signals, times.
async fn live_on(bench: &Bench) {
    assert_eq!(
        bench.add_one(job(20).unique(Unique::key("u"))).await.how,
        InsertOutcome::Skipped,
        "its window holds"
    );
    assert_eq!(bench.add_one(job(21).unique(Unique::key("v"))).await.id, id(5));
    assert_eq!(bench.retry(2).await, Ok(State::Ready));
    bench.pass(secs(120));
    bench.promote().await;
    for _ in 0..12 {
        let Some(claimed) = bench.claim(1).await.pop() else { break };
        let event = if claimed.job.id == id(12) { park("early") } else { done("true") };
        bench.settle(&claimed, event).await;
        bench.pass(secs(1));
    }
    bench.expect(&[(3, State::Succeeded), (9, State::Succeeded), (12, State::Succeeded)]).await;
    let added = bench.add_one(job(22)).await;
    assert!(added.seq > 12, "a place is never given twice");
    bench.pass(days(1));
    bench.promote().await;
    assert_eq!(bench.state(6).await, State::Failed, "its park timed out");
    bench.pass(days(2));
    bench.prune().await;
    assert!(bench.find(4).await.is_none(), "its queue keeps it for three days");
}

pub(super) async fn an_imported_job_is_recognised_when_it_is_enqueued_again(bench: &Bench) {
    let original = original(bench).await;
    import_all(bench.store.as_ref(), export_all(original.store.as_ref()).await).await;
    let again = bench.add_one(job(2).process("p").after(id(1))).await;
    assert_eq!((again.how, again.seq), (InsertOutcome::Duplicate, 2));
    assert_eq!(bench.add_one(job(7).fair_key("t1")).await.how, InsertOutcome::Duplicate);
    let text = bench.refuses([job(7).fair_key("t2")]).await;
    assert!(text.contains("other content"), "{text}");
}
