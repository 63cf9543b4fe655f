//! A checker that cannot fail proves nothing: each test tampers with sound evidence and expects to be found out.

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{Json, Queue};

use super::*;

/// Two jobs, the second a child of the first, as they are after a calm run.
async fn sound() -> (Plan, Vec<JobDetail>, Vec<Line>) {
    let plan = Plan::draw(20, 3);
    let child = plan.jobs.iter().position(|planned| !planned.parents.is_empty()).expect("a child");
    let queue = Queue::new(std::sync::Arc::new(MemoryStore::new()));
    queue.enqueue_many(plan.new_jobs("journal".as_ref()).expect("jobs")).await.expect("enqueued");
    let mut details = Vec::new();
    let mut lines = Vec::new();
    for (number, planned) in plan.jobs.iter().enumerate().take(child + 1) {
        let mut detail = queue.get(planned.id).await.expect("a job");
        let attempt = u32::from(planned.way == Way::Retry);
        let continues = if planned.way == Way::Continue { Way::CONTINUES } else { 0 };
        let fence = 1 + u64::from(attempt) + continues;
        detail.job.state = State::Succeeded;
        detail.job.fence = fence;
        detail.job.spent.attempt = attempt;
        detail.job.spent.continues = u32::try_from(continues).expect("a few");
        detail.result = Some(Json::of(&Answer { value: planned.value, fence }).expect("JSON"));
        detail.runs = (1..=fence).map(|run| a_run(run, run == fence)).collect();
        for fence in 1..=fence {
            lines.push(Line { job: number, fence, pid: 1, what: What::Start, value: 0 });
        }
        lines.push(Line { job: number, fence, pid: 1, what: What::End, value: planned.value });
        details.push(detail);
    }
    (Plan { jobs: plan.jobs[..=child].to_vec() }, details, lines)
}

fn a_run(fence: u64, last: bool) -> longhaul_queue::job::Run {
    let at = longhaul_queue::Timestamp::from_millis(0);
    longhaul_queue::job::Run {
        fence,
        worker: "w".into(),
        started_at: at,
        ended_at: at,
        outcome: if last { RunOutcome::Done } else { RunOutcome::Continue },
        error: None,
        usage: None,
    }
}

/// The names of the checks that fail after `tamper`.
async fn found(tamper: impl FnOnce(&mut Vec<JobDetail>, &mut Vec<Line>)) -> Vec<&'static str> {
    let (plan, mut details, mut lines) = sound().await;
    tamper(&mut details, &mut lines);
    let details = details.into_iter().map(|detail| (detail.job.id, detail)).collect();
    let evidence = Evidence::of(details, &plan, &lines);
    let failed = |(name, violations): (&'static str, Vec<String>)| (!violations.is_empty()).then_some(name);
    violations(&evidence).into_iter().filter_map(failed).collect()
}

fn last(lines: &[Line]) -> Line {
    *lines.last().expect("a line")
}

#[tokio::test]
async fn sound_evidence_is_accepted() {
    assert_eq!(found(|_, _| {}).await, Vec::<&str>::new());
}

#[tokio::test]
async fn a_lost_or_unfinished_job_is_found() {
    assert!(found(|details, _| drop(details.remove(0))).await.contains(&"every job succeeded"));
    let failed = found(|details, _| details[0].job.state = State::Running).await;
    assert_eq!(failed, ["every job succeeded"]);
}

#[tokio::test]
async fn a_stale_result_is_found() {
    let failed = found(|details, _| details[0].job.fence += 1).await;
    assert!(failed.contains(&"every result is that of the job's last run"), "{failed:?}");
}

#[tokio::test]
async fn a_second_acceptance_is_found() {
    let failed = found(|details, _| {
        let run = a_run(9, true);
        details[0].runs.push(run);
    });
    assert!(failed.await.contains(&"every result was accepted once"));
}

#[tokio::test]
async fn a_wrong_sum_is_found() {
    let failed = found(|details, _| {
        let fence = details[0].job.fence;
        details[0].result = Json::of(&Answer { value: 1, fence }).ok();
    });
    assert_eq!(failed.await, ["every result and sum is right"]);
}

#[tokio::test]
async fn a_run_handed_out_twice_is_found() {
    let failed = found(|_, lines| lines.push(Line { what: What::Start, ..last(lines) }));
    assert_eq!(failed.await, ["no run was handed out twice"]);
}

#[tokio::test]
async fn a_child_that_began_too_early_is_found() {
    let failed = found(|_, lines| {
        let early = Line { what: What::Start, fence: 99, ..last(lines) };
        lines.insert(0, early);
    });
    assert_eq!(failed.await, ["no child started before its parents ended"]);
}

#[tokio::test]
async fn a_lost_checkpoint_is_found() {
    let failed = found(|_, lines| {
        lines.push(Line { what: What::Saved, value: 3, ..last(lines) });
        let later = Line { what: What::Start, value: 2, fence: last(lines).fence + 1, ..last(lines) };
        lines.push(later);
    });
    assert_eq!(failed.await, ["no acknowledged checkpoint was lost"]);
}

#[tokio::test]
async fn a_spent_attempt_and_a_missing_run_are_found() {
    assert_eq!(found(|details, _| details[0].job.spent.attempt += 1).await, ["kills cost no attempt"]);
    let failed = found(|details, _| {
        let run = a_run(9, false);
        details[0].runs.push(run);
    });
    assert_eq!(failed.await, ["every claim is in the history"]);
}
