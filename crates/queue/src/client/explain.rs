//! The exact reason a job waits, and until when.

use serde::Serialize;

use super::Queue;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::graph::{Edge, edge};
use crate::job::{Job, JobDetail};
use crate::limits::{PAGE_MAX, WORKER_SILENT_AFTER};
use crate::state::{Policy, Reason, State};
use crate::store::{Filter, ListRequest, QueueInfo};

/// Why a job stands where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Where it stands.
    pub state: State,
    /// Why, in a sentence.
    pub reason: String,
    /// When that ends by itself, if it does.
    pub until: Option<Timestamp>,
    /// What to do about it.
    pub hint: Option<String>,
}

pub(super) async fn explain(queue: &Queue, detail: &JobDetail) -> Result<Explanation> {
    let job = &detail.job;
    match job.state {
        State::Blocked => blocked(queue, detail).await,
        State::Scheduled => Ok(scheduled(job)),
        State::Ready => ready(queue, job).await,
        State::Running => Ok(running(queue, job)),
        State::Parked => Ok(parked(job)),
        State::Succeeded | State::Failed | State::Cancelled => Ok(ended(job)),
    }
}

fn because(state: State, reason: impl Into<String>) -> Explanation {
    Explanation { state, reason: reason.into(), until: None, hint: None }
}

async fn blocked(queue: &Queue, detail: &JobDetail) -> Result<Explanation> {
    let waiting: Vec<_> = detail.depends_on.iter().filter(|parent| !parent.satisfied).collect();
    for parent in &waiting {
        let held = parent.ended.is_some_and(|ended| edge(ended, parent.on_failure) == Edge::Holds);
        if let (true, Some(ended)) = (held, parent.ended) {
            let mut explanation =
                because(State::Blocked, format!("held: its parent {} {ended}", parent.job_id));
            explanation.hint = Some(format!(
                "retry the parent (longhaul jobs retry {}) or drop the edge (longhaul jobs unhold {})",
                parent.job_id, detail.job.id
            ));
            return Ok(explanation);
        }
    }
    if let Some(first) = waiting.first() {
        let more = if waiting.len() > 1 { format!(" and {} more", waiting.len() - 1) } else { String::new() };
        return Ok(because(State::Blocked, format!("waits for job {}{more}", first.job_id)));
    }
    let Some(process_id) = &detail.after_process else {
        return Ok(because(State::Blocked, "waits for its dependencies"));
    };
    let Some(process) = queue.store().process(process_id.clone()).await? else {
        return Ok(because(State::Blocked, format!("waits for process {process_id}")));
    };
    if process.unfinished() > 0 {
        let reason = format!(
            "waits for process {process_id}: {} of {} jobs unfinished",
            process.unfinished(),
            process.total()
        );
        return Ok(because(State::Blocked, reason));
    }
    let mut explanation = because(State::Blocked, format!("waits for process {process_id} to be sealed"));
    explanation.hint = Some(format!("say that no more jobs will come: longhaul process seal {process_id}"));
    Ok(explanation)
}

fn scheduled(job: &Job) -> Explanation {
    let policy = Policy::default().with(&job.options);
    let reason = match &job.error {
        Some(error) if error.reason == Reason::Throttle => {
            format!("throttled {} in a row, waits to try again", times(job.spent.throttles))
        }
        Some(error) if error.reason == Reason::Crash => {
            format!(
                "its worker died {} of {} times, waits before the next start",
                job.spent.crashes, policy.max_crashes
            )
        }
        // Without a limit of its own the kind's counts, which only its workers know.
        Some(_) if job.spent.attempt > 0 => match job.options.max_attempts {
            Some(max) => format!("failed {} of {max} attempts, waits to try again", job.spent.attempt),
            None => format!("failed {}, waits to try again", times(job.spent.attempt)),
        },
        _ => "waits for its time".to_owned(),
    };
    Explanation { until: Some(job.run_at), ..because(State::Scheduled, reason) }
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

async fn ready(queue: &Queue, job: &Job) -> Result<Explanation> {
    let queues = queue.store().queues().await?;
    let info = queues.iter().find(|info| info.name == job.queue);
    if let Some(explanation) = info.and_then(stopped_by_queue) {
        return Ok(explanation);
    }
    if let Some(limit) = info.and_then(|info| info.settings.max_running_per_key)
        && let Some(explanation) = stopped_by_key(queue, job, limit).await?
    {
        return Ok(explanation);
    }
    let now = queue.clock().now();
    let mut workers = queue.store().workers(now).await?;
    workers.retain(|worker| now.since(worker.seen_at) <= WORKER_SILENT_AFTER);
    let serves_kind =
        |kinds: &Option<Vec<String>>| kinds.as_ref().is_none_or(|kinds| kinds.contains(&job.kind));
    let serving: Vec<_> = workers
        .iter()
        .filter(|worker| worker.queues.contains(&job.queue) && serves_kind(&worker.kinds))
        .collect();
    if serving.is_empty() {
        let mut explanation =
            because(State::Ready, format!("no worker serves queue {} and kind {}", job.queue, job.kind));
        explanation.hint =
            Some(format!("start one: longhaul work --queue {} --kind {} …", job.queue, job.kind));
        return Ok(explanation);
    }
    if job.spent.crashes > 0 {
        let reason =
            format!("its worker died {}; a worker runs one such job at a time", times(job.spent.crashes));
        return Ok(because(State::Ready, reason));
    }
    let slots: u32 = serving.iter().map(|worker| worker.concurrency).sum();
    let count = info.map_or(0, |info| info.counts[State::Ready as usize]);
    Ok(because(
        State::Ready,
        match &job.options.fair_key {
            None => format!("waits for a free slot: {count} jobs ready, {slots} slots serve its kind"),
            Some(key) => format!(
                "waits for its turn among the keys of queue {} (its key: {key:?}): {count} jobs ready, {slots} slots serve its kind",
                job.queue
            ),
        },
    ))
}

fn stopped_by_queue(info: &QueueInfo) -> Option<Explanation> {
    if info.settings.paused {
        let mut explanation = because(State::Ready, format!("queue {} is paused", info.name));
        explanation.hint = Some(format!("longhaul queues resume {}", info.name));
        return Some(explanation);
    }
    let running = info.counts[State::Running as usize];
    let limit = info.settings.max_running.filter(|limit| running >= u64::from(*limit))?;
    Some(because(State::Ready, format!("queue {} runs {running} of at most {limit} jobs", info.name)))
}

/// Whether as many jobs of its fair key run as may.
async fn stopped_by_key(queue: &Queue, job: &Job, limit: u32) -> Result<Option<Explanation>> {
    let Some(key) = &job.options.fair_key else { return Ok(None) };
    let filter = Filter { states: vec![State::Running], queue: Some(job.queue.clone()), ..Filter::default() };
    let (mut of_key, mut cursor) = (0, None);
    loop {
        let request = ListRequest { filter: filter.clone(), cursor, limit: PAGE_MAX, newest_first: false };
        let page = queue.list(request).await?;
        of_key += page.items.iter().filter(|other| other.options.fair_key.as_ref() == Some(key)).count();
        cursor = page.next;
        if cursor.is_none() || of_key >= limit as usize {
            break;
        }
    }
    Ok((of_key >= limit as usize).then(|| {
        because(
            State::Ready,
            format!("queue {} runs {of_key} of at most {limit} jobs of key {key:?}", job.queue),
        )
    }))
}

fn running(queue: &Queue, job: &Job) -> Explanation {
    let worker = job.worker.as_ref().map_or("a worker", |worker| worker.as_str());
    let expired = job.lease_until.is_some_and(|until| until <= queue.clock().now());
    let reason = match (expired, job.cancel_requested) {
        (true, _) => format!("worker {worker} has not renewed its lease; the next sweep takes the job back"),
        (false, true) => format!("worker {worker} was asked to end it"),
        (false, false) => format!("worker {worker} runs it"),
    };
    Explanation { until: job.lease_until, ..because(State::Running, reason) }
}

fn parked(job: &Job) -> Explanation {
    let key = job.park.as_ref().map_or("", |park| park.key.as_str());
    let mut explanation = because(State::Parked, format!("waits for the signal {key:?}"));
    explanation.until = job.park.as_ref().and_then(|park| park.until);
    explanation.hint = Some(format!("longhaul jobs unpark --key '{key}' [JSON]"));
    explanation
}

fn ended(job: &Job) -> Explanation {
    let reason = job.error.as_ref().filter(|_| job.state != State::Succeeded);
    because(job.state, reason.map_or_else(|| format!("it has {}", job.state), ToString::to_string))
}
