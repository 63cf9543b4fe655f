//! What is true of every store at every moment, whatever has happened.

use std::collections::BTreeMap;

use crate::job::{JobDetail, JobId};
use crate::limits::PAGE_MAX;
use crate::state::State;
use crate::store::{EngineStore, ListRequest};

/// Reads everything and checks that it fits together; says what does not.
pub async fn check(store: &dyn EngineStore) -> Result<(), String> {
    let jobs = all_details(store).await;
    for detail in &jobs {
        check_job(detail).map_err(|problem| format!("job {}: {problem}: {detail:#?}", detail.job.seq))?;
    }
    check_counts(store, &jobs).await
}

/// Every job, in `seq` order.
pub(super) async fn all_details(store: &dyn EngineStore) -> Vec<JobDetail> {
    let mut details = Vec::new();
    let mut cursor = None;
    loop {
        let request = ListRequest { cursor, limit: PAGE_MAX, ..ListRequest::default() };
        let page = store.list(request).await.expect("list answers");
        let ids: Vec<JobId> = page.items.iter().map(|job| job.id).collect();
        details.extend(store.get(ids).await.expect("get answers"));
        cursor = page.next;
        if cursor.is_none() {
            return details;
        }
    }
}

fn check_job(detail: &JobDetail) -> Result<(), &'static str> {
    let job = &detail.job;
    let state = job.state;
    let open = detail.depends_on.iter().filter(|parent| !parent.satisfied).count();
    let waits_for = job.waits_for as usize;
    let rules = [
        ((state == State::Running) == job.lease_until.is_some(), "a lease and running go together"),
        (state.is_terminal() == job.finished_at.is_some(), "an end has a time"),
        ((state == State::Parked) == job.park.is_some(), "a park and parked go together"),
        ((state == State::Succeeded) == detail.result.is_some(), "a result and success go together"),
        (
            state.is_terminal() || (state == State::Blocked) == (waits_for > 0),
            "blocked means waiting for something",
        ),
        (waits_for >= open, "every open edge is counted"),
        (waits_for <= open + usize::from(detail.after_process.is_some()), "nothing else is counted"),
        (
            detail.depends_on.iter().all(|parent| !parent.satisfied || parent.ended.is_some()),
            "who satisfies has ended",
        ),
        (!job.cancel_requested || state == State::Running, "only a running job is asked to end"),
        (!matches!(state, State::Failed | State::Cancelled) || job.error.is_some(), "a failure has a reason"),
        (state != State::Succeeded || job.error.is_none(), "a success has none"),
        (detail.runs.iter().all(|run| run.fence <= job.fence), "no run is newer than the newest claim"),
        (detail.runs.is_sorted_by(|left, right| left.fence < right.fence), "runs come in order"),
    ];
    rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, rule)| Err(rule))
}

/// Maintained counters must equal what a count would find.
async fn check_counts(store: &dyn EngineStore, jobs: &[JobDetail]) -> Result<(), String> {
    let mut by_kind = BTreeMap::<_, u64>::new();
    let mut by_queue = BTreeMap::<_, [u64; 8]>::new();
    let mut by_process = BTreeMap::<_, [[u64; 8]; 2]>::new();
    for job in jobs.iter().map(|detail| &detail.job) {
        *by_kind.entry((job.queue.clone(), job.kind.clone(), job.state)).or_default() += 1;
        by_queue.entry(job.queue.clone()).or_default()[job.state as usize] += 1;
        if let Some(process_id) = &job.process_id {
            by_process.entry(process_id.clone()).or_default()[usize::from(job.helper)][job.state as usize] +=
                1;
        }
    }
    let counts = store.counts().await.expect("counts answers");
    let counts: BTreeMap<_, _> =
        counts.into_iter().map(|row| ((row.queue, row.kind, row.state), row.jobs)).collect();
    if counts != by_kind {
        return Err(format!("counts are {counts:?}, the jobs say {by_kind:?}"));
    }
    for queue in store.queues().await.expect("queues answers") {
        let found = by_queue.remove(&queue.name).unwrap_or_default();
        if queue.counts != found {
            return Err(format!("queue {} counts {:?}, the jobs say {found:?}", queue.name, queue.counts));
        }
    }
    for process in store.processes(None, PAGE_MAX).await.expect("processes answers") {
        let found = by_process.remove(&process.id).unwrap_or_default();
        if [process.counts, process.helpers] != found || (process.sealed && found == [[0; 8]; 2]) {
            return Err(format!("{process:?}, the jobs say {found:?}"));
        }
    }
    match (by_queue.keys().next(), by_process.keys().next()) {
        (None, None) => Ok(()),
        missing => Err(format!("not listed: queue and process {missing:?}")),
    }
}
