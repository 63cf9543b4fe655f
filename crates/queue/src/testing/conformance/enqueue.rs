//! Enqueue: where a new job stands, what is refused, and that a refused submission leaves no trace.

use crate::job::{JobOptions, NewJob};
use crate::state::State;
use crate::store::InsertOutcome;
use crate::testing::Bench;
use crate::testing::bench::{again, done, id, job, json, secs};

pub(super) async fn a_job_that_waits_for_nothing_is_ready(bench: &Bench) {
    let enqueued = bench.add_one(job(1)).await;
    assert_eq!(
        (enqueued.id, enqueued.seq, enqueued.state, enqueued.how),
        (id(1), 1, State::Ready, InsertOutcome::Inserted)
    );
    let detail = bench.detail(1).await;
    assert_eq!((detail.job.run_at, detail.job.created_at), (bench.now(), bench.now()));
    assert_eq!((detail.job.fence, detail.job.worker, detail.job.lease_until), (0, None, None));
    assert_eq!(detail.payload, json(r#"{"n":1}"#));
}

pub(super) async fn a_job_for_later_is_scheduled(bench: &Bench) {
    let at = bench.now() + secs(5);
    assert_eq!(bench.add_one(job(1).run_at(at)).await.state, State::Scheduled);
    assert_eq!(bench.detail(1).await.job.run_at, at);
    assert!(bench.claim(1).await.is_empty());
}

pub(super) async fn a_time_that_has_passed_is_ready_at_once(bench: &Bench) {
    let before = bench.now() - secs(5);
    assert_eq!(bench.add_one(job(1).run_at(before)).await.state, State::Ready);
    assert_eq!(bench.add_one(job(2).run_at(bench.now())).await.state, State::Ready);
    assert_eq!(bench.detail(1).await.job.run_at, before);
}

pub(super) async fn a_job_with_an_unmet_dependency_is_blocked(bench: &Bench) {
    let states: Vec<State> =
        bench.add([job(1), job(2).after(id(1))]).await.iter().map(|job| job.state).collect();
    assert_eq!(states, [State::Ready, State::Blocked]);
    assert_eq!(bench.detail(2).await.job.waits_for, 1);
}

pub(super) async fn everything_given_is_stored(bench: &Bench) {
    let options = JobOptions {
        title: Some("a name".to_owned()),
        owner: Some("ann".to_owned()),
        tags: vec!["red".to_owned(), "blue".to_owned()],
        trace: Some("00-1-2-01".to_owned()),
        parent_id: Some(id(99)),
        max_crashes: Some(9),
        run_limit: Some(secs(7)),
        ..JobOptions::default()
    };
    let expires_at = Some(bench.now() + secs(50));
    let given =
        NewJob { options: options.clone(), expires_at, ..job(1).queue("q").process("p").priority(-3) };
    bench.add([given]).await;
    let found = bench.detail(1).await.job;
    assert_eq!((found.queue.as_str(), found.kind.as_str(), found.priority), ("q", "work", -3));
    assert_eq!((found.process_id, found.helper), (Some("p".into()), false));
    assert_eq!((found.expires_at, found.options), (expires_at, options));
}

pub(super) async fn a_payload_keeps_its_text(bench: &Bench) {
    let text = r#"{"b": 1.0, "a": "ü", "big": 12345678901234567890123}"#;
    bench.add([NewJob { payload: json(text), ..job(1) }]).await;
    assert_eq!(bench.detail(1).await.payload.as_str(), text);
    assert_eq!(bench.start(1).await.payload.as_str(), text);
}

pub(super) async fn seq_counts_up_in_submission_order(bench: &Bench) {
    let first = bench.add([job(3), job(1)]).await;
    let second = bench.add([job(2)]).await;
    assert_eq!([first[0].seq, first[1].seq, second[0].seq], [1, 2, 3]);
}

pub(super) async fn seq_is_not_reused_after_a_deletion(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    bench.cancel(2).await;
    assert_eq!(bench.delete(&[2]).await.deleted, 1);
    assert_eq!(bench.add_one(job(3)).await.seq, 3);
}

pub(super) async fn the_same_id_with_the_same_content_is_a_no_op(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, again(secs(9), "1")).await;
    let before = bench.snapshot().await;
    bench.pass(secs(1));
    let enqueued = bench.add_one(job(1)).await;
    assert_eq!((enqueued.how, enqueued.seq, enqueued.state), (InsertOutcome::Duplicate, 1, State::Scheduled));
    let mut traced = job(1);
    traced.options.trace = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    assert_eq!(
        bench.add_one(traced).await.how,
        InsertOutcome::Duplicate,
        "asked for by somebody else, and the same"
    );
    assert_eq!(bench.snapshot().await, before);
}

pub(super) async fn the_same_id_with_other_content_is_refused(bench: &Bench) {
    bench.add([job(1).process("p"), job(2)]).await;
    for other in [
        NewJob { payload: json("2"), ..job(1).process("p") },
        job(1),
        job(1).process("p").priority(1),
        job(1).process("p").queue("other"),
        job(1).process("p").after(id(2)),
        job(1).process("p").tag("red"),
    ] {
        let text = bench.refuses([job(7), other]).await;
        assert_eq!(text, format!("job {} exists with other content", id(1)));
    }
}

pub(super) async fn a_repeated_submission_with_edges_is_a_no_op(bench: &Bench) {
    let batch = || [job(1), job(2).after(id(1)), job(3).after(id(2))];
    bench.add(batch()).await;
    let hows: Vec<InsertOutcome> = bench.add(batch()).await.iter().map(|job| job.how).collect();
    assert_eq!(hows, [InsertOutcome::Duplicate; 3]);
}

pub(super) async fn a_job_without_id_is_refused(bench: &Bench) {
    bench.refuses([NewJob { id: None, ..job(1) }]).await;
}

pub(super) async fn an_id_given_twice_in_one_submission_is_refused(bench: &Bench) {
    assert!(bench.refuses([job(1), job(2), job(1)]).await.contains("twice"));
    assert!(bench.refuses([job(1), job(2).after(id(1)), job(1)]).await.contains("twice"));
}

pub(super) async fn a_cycle_is_refused(bench: &Bench) {
    assert!(bench.refuses([job(1).after(id(2)), job(2).after(id(1))]).await.contains("cycle"));
    assert!(bench.refuses([job(1).after(id(1))]).await.contains("cycle"));
}

pub(super) async fn an_unknown_parent_is_refused_by_name(bench: &Bench) {
    let text = bench.refuses([job(1), job(2).after(id(1)), job(3).after(id(99))]).await;
    assert!(text.contains(&id(99).to_string()), "{text}");
}

pub(super) async fn a_deleted_parent_is_refused_by_name(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, done("1")).await;
    bench.delete(&[1]).await;
    let text = bench.refuses([job(2).after(id(1))]).await;
    assert!(text.contains(&id(1).to_string()), "{text}");
}

pub(super) async fn nothing_may_be_enqueued(bench: &Bench) {
    assert_eq!(bench.add([]).await, []);
}

pub(super) async fn many_jobs_go_in_at_once(bench: &Bench) {
    let enqueued = bench.add((1..=2_000).map(job)).await;
    assert_eq!((enqueued.len(), enqueued[1_999].seq), (2_000, 2_000));
    assert_eq!(bench.store.counts().await.expect("counts answers")[0].jobs, 2_000);
}
