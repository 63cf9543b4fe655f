//! Processes: progress, sealing, and jobs that wait for one.

use crate::job::{NewJob, Retention};
use crate::state::State;
use crate::store::{ProcessInfo, Settled};
use crate::testing::Bench;
use crate::testing::bench::{done, give_up, id, job, secs};

fn helper(number: u64) -> NewJob {
    NewJob { helper: true, ..job(number).process("p") }
}

async fn process(bench: &Bench) -> Option<ProcessInfo> {
    bench.store.process("p".into()).await.expect("process answers")
}

async fn seal(bench: &Bench, sealed: bool) {
    bench.store.seal("p".into(), sealed, bench.now()).await.expect("seal answers");
}

pub(super) async fn a_process_counts_its_jobs_by_state(bench: &Bench) {
    bench.add([job(1).process("p"), job(2).process("p"), job(3).process("p"), helper(4), job(5)]).await;
    bench.run(1, done("1")).await;
    bench.start(2).await;
    let info = process(bench).await.expect("it has jobs");
    let count = |state: State| info.counts[state as usize];
    assert_eq!((count(State::Succeeded), count(State::Running), count(State::Ready)), (1, 1, 1));
    assert_eq!((info.total(), info.unfinished(), info.helpers[State::Ready as usize]), (3, 2, 1));
    assert!(info.sealed);
}

pub(super) async fn a_process_exists_while_it_has_jobs_or_is_open(bench: &Bench) {
    assert_eq!(process(bench).await, None);
    bench.add([job(1).process("p")]).await;
    bench.run(1, done("1")).await;
    bench.delete(&[1]).await;
    assert_eq!(process(bench).await, None);
    seal(bench, false).await;
    assert_eq!(process(bench).await.map(|info| (info.sealed, info.total())), Some((false, 0)));
    seal(bench, true).await;
    assert_eq!(process(bench).await, None);
    seal(bench, true).await;
    assert_eq!(process(bench).await, None);
}

pub(super) async fn processes_are_listed_page_by_page(bench: &Bench) {
    bench.add([job(1).process("b"), job(2).process("a"), job(3).process("c")]).await;
    let ids = |page: Vec<ProcessInfo>| page.into_iter().map(|info| info.id.to_string()).collect::<Vec<_>>();
    let first = bench.store.processes(None, 2).await.expect("processes answers");
    assert_eq!(ids(first), ["a", "b"]);
    let second = bench.store.processes(Some("b".into()), 2).await.expect("processes answers");
    assert_eq!(ids(second), ["c"]);
}

pub(super) async fn a_continuation_runs_after_the_last_job(bench: &Bench) {
    let last = NewJob { helper: true, ..job(3).process("p") }.after_process("p");
    bench.add([last, job(1).process("p"), job(2).process("p"), job(4).queue("q").after_process("p")]).await;
    assert_eq!(bench.detail(3).await.job.waits_for, 1);
    bench.run(1, done("1")).await;
    bench.expect(&[(3, State::Blocked), (4, State::Blocked)]).await;
    bench.run(2, give_up()).await;
    bench.expect(&[(3, State::Ready), (4, State::Ready)]).await;
}

pub(super) async fn an_open_process_keeps_its_continuation_waiting(bench: &Bench) {
    seal(bench, false).await;
    bench.add([job(1).process("p"), job(2).after_process("p")]).await;
    bench.run(1, done("1")).await;
    bench.expect(&[(2, State::Blocked)]).await;
    bench.add([job(3).process("p")]).await;
    seal(bench, true).await;
    bench.expect(&[(2, State::Blocked)]).await;
    bench.run(3, done("1")).await;
    bench.expect(&[(2, State::Ready)]).await;
}

pub(super) async fn sealing_an_idle_process_releases_its_continuation(bench: &Bench) {
    seal(bench, false).await;
    bench.add([job(1).after_process("p").run_at(bench.now() + secs(5))]).await;
    seal(bench, true).await;
    bench.expect(&[(1, State::Scheduled)]).await;
    assert_eq!(process(bench).await, None);
}

pub(super) async fn helpers_hold_nobody_up(bench: &Bench) {
    bench.add([helper(1), job(2).process("p"), job(3).after_process("p")]).await;
    bench.start(1).await;
    bench.run(2, done("2")).await;
    bench.expect(&[(1, State::Running), (3, State::Ready)]).await;
}

pub(super) async fn a_finished_process_is_no_wait(bench: &Bench) {
    bench.add([job(1).process("p")]).await;
    bench.run(1, done("1")).await;
    assert_eq!(bench.add_one(job(2).after_process("p")).await.state, State::Ready);
}

pub(super) async fn an_unknown_process_is_refused(bench: &Bench) {
    let text = bench.refuses([job(1).after_process("nobody")]).await;
    assert!(text.contains("nobody"), "{text}");
}

pub(super) async fn a_job_may_not_wait_for_its_own_process(bench: &Bench) {
    let text = bench.refuses([job(1).process("p"), job(2).process("p").after_process("p")]).await;
    assert!(text.contains("own process"), "{text}");
}

pub(super) async fn follow_ups_join_before_the_process_can_end(bench: &Bench) {
    bench.add([job(1).process("p"), job(2).after_process("p")]).await;
    let claimed = bench.start(1).await;
    let settled = bench.settle_with(&claimed, done("1"), vec![job(3).process("p")]).await;
    assert_eq!(settled, Settled::Applied(State::Succeeded));
    bench.expect(&[(2, State::Blocked), (3, State::Ready)]).await;
    bench.run(3, done("3")).await;
    bench.expect(&[(2, State::Ready)]).await;
}

pub(super) async fn a_continuation_waits_for_its_parents_too(bench: &Bench) {
    bench.add([job(1).process("p"), job(2), job(3).after_process("p").after(id(2))]).await;
    assert_eq!(bench.detail(3).await.job.waits_for, 2);
    bench.run(1, done("1")).await;
    bench.expect(&[(3, State::Blocked)]).await;
    bench.run(2, done("2")).await;
    bench.expect(&[(3, State::Ready)]).await;
}

pub(super) async fn a_cascade_that_ends_the_process_releases_its_continuation(bench: &Bench) {
    bench.add([job(1).process("p"), job(2).process("p").after(id(1)), job(3).after_process("p")]).await;
    bench.cancel(1).await;
    bench.expect(&[(2, State::Cancelled), (3, State::Ready)]).await;
}

pub(super) async fn the_end_that_finishes_a_process_releases_its_continuation(bench: &Bench) {
    bench.add([job(1).process("p"), job(2), job(3).queue("q").after_process("p")]).await;
    let claimed = bench.claim(2).await;
    let items = vec![
        bench.item(&claimed[0], done("1"), Vec::new()),
        bench.item(&claimed[1], done("2"), vec![job(4).process("p")]),
    ];
    bench.store.settle(items, bench.now()).await.expect("settle answers");
    // The process went on after it was done, and the continuation had started by then.
    bench.expect(&[(3, State::Ready), (4, State::Ready)]).await;
}

pub(super) async fn a_process_that_has_just_gone_is_unknown(bench: &Bench) {
    let fleeting = job(1).process("p").retention(Retention::DeleteOnSuccess);
    bench.add([fleeting, job(2)]).await;
    let claimed = bench.claim(2).await;
    let items = vec![
        bench.item(&claimed[0], done("1"), Vec::new()),
        bench.item(&claimed[1], done("2"), vec![job(4).after_process("p")]),
    ];
    let settled = bench.store.settle(items, bench.now()).await.expect("settle answers");
    assert!(matches!(settled[1], Settled::Refused(_)), "{settled:?}");
}
