//! Lists: what a page of a long list costs, by each kind of filter. One page is one call of the store, which may answer
//! less than a page when its walk reaches its bound; how long a whole search takes is measured beside it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use longhaul_queue::state::{Event, JobError, OnTimeout, Outcome, Park, Policy, Reason, settle};
use longhaul_queue::store::{ClaimRequest, Filter, ListRequest, SettleItem};
use longhaul_queue::{Claimed, Clock as _, Engine, JobId, Json, NewJob, Queue, SystemClock};
use serde::Deserialize;

use super::Bench;
use super::measure::{Goal, Measurement, Unit, percentile};

/// Jobs on a page, as a person sees them.
pub(super) const PAGE: usize = 50;
/// What a page may take, 95 times of 100.
pub(super) const GOAL_MS: f64 = 100.0;
const BULK: usize = 1_000;
const A_DAY: Duration = Duration::from_secs(24 * 3600);
/// What the few jobs that are looked for have in common.
const NEEDLE: &str = "needle-in-the-middle";

/// Searches as people type them, by what is special about them.
const SEARCHES: [(&str, &str); 21] = [
    ("everything", ""),
    ("state blocked", "state:blocked"),
    ("state scheduled", "state:scheduled"),
    ("state ready", "state:ready"),
    ("state running", "state:running"),
    ("state parked", "state:parked"),
    ("state succeeded", "state:succeeded"),
    ("state failed", "state:failed"),
    ("state cancelled", "state:cancelled"),
    ("queue and two states", "queue:main state:failed,cancelled"),
    ("kind, a third of all", "kind:score"),
    ("kind, one in 100,000", "kind:rare"),
    ("queue that does not exist", "queue:nobody"),
    ("tag, one in 10,000", "tag:red"),
    ("process, a fifth of all", "process:nightly"),
    ("process and state", "process:nightly state:running"),
    ("text in every tenth", "\"a word in ten\""),
    ("text in one", NEEDLE),
    ("text in none", "nowhere-to-be-found"),
    ("field in 20", "user.id:4711"),
    ("field and state", "user.id:4711 state:failed"),
];

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Measurement>> {
    let place = bench.first_place()?;
    let queue = place.engine().await?;
    let jobs = bench.scale.listed_jobs;
    let ids = stock(&queue, jobs).await?;
    let middle = ids.get(jobs / 2).context("a store without jobs")?;
    let mut all = Vec::new();
    for (name, search) in SEARCHES {
        let filter = Filter::parse(search)?;
        all.extend(pages(bench, &queue, name, |_| request(filter.clone(), None)).await?);
    }
    let prefixes = [("id, whole", 36), ("id, 12 digits of 32", 13), ("id, 4 digits", 4)];
    for (name, digits) in prefixes {
        let prefix = middle.to_string().chars().take(digits).collect();
        let filter = Filter { id_prefix: Some(prefix), ..Filter::default() };
        all.extend(pages(bench, &queue, name, |_| request(filter.clone(), None)).await?);
    }
    let deep = |number: usize| {
        // Spread over the whole list, so that no page is in memory because of the one before.
        let cursor = (number * 7_919 * BULK + 1) % jobs;
        request(Filter::default(), i64::try_from(cursor).ok())
    };
    all.extend(pages(bench, &queue, "everything, deep pages", deep).await?);
    let oldest = |_| ListRequest { newest_first: false, ..request(Filter::default(), None) };
    all.extend(pages(bench, &queue, "everything, oldest first", oldest).await?);
    for (name, search) in [("kind, one in 100,000", "kind:rare"), ("text in none", "nowhere-to-be-found")] {
        let started = Instant::now();
        queue.list(request(Filter::parse(search)?, None)).await?;
        let name = format!("{name}, to the end of {jobs}");
        all.push(Measurement::new(name, "", Unit::Millis, None).once(millis(started), None));
    }
    drop(queue);
    bench.discard(place).await?;
    Ok(all)
}

fn request(filter: Filter, cursor: Option<i64>) -> ListRequest {
    ListRequest { filter, newest_first: true, cursor, limit: PAGE }
}

pub(super) fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

async fn pages(
    bench: &Bench<'_>,
    queue: &Queue,
    name: &str,
    request: impl Fn(usize) -> ListRequest,
) -> Result<[Measurement; 2]> {
    let mut times = Vec::with_capacity(bench.scale.pages);
    for number in 0..bench.scale.pages {
        let started = Instant::now();
        queue.store().list(request(number)).await?;
        times.push(millis(started));
    }
    Ok([(50, None), (95, Some(Goal::AtMost(GOAL_MS)))].map(|(percent, goal)| {
        Measurement::new(format!("page: {name}, p{percent}"), "", Unit::Millis, goal)
            .once(percentile(&times, percent), None)
    }))
}

/// Fills the store: mostly succeeded jobs, a backlog, and some of everything else. Returns the ids, oldest first.
pub(super) async fn stock(engine: &Engine, jobs: usize) -> Result<Vec<JobId>> {
    let gate = engine.enqueue(NewJob::new("gate", Json::null()).queue("gate")).await?.id;
    let mut ids = Vec::with_capacity(jobs);
    for first in (0..jobs).step_by(BULK) {
        let batch = (first..jobs.min(first + BULK)).map(|number| new_job(number, jobs, gate));
        let enqueued = engine.enqueue_many(batch.collect::<Result<_>>()?).await?;
        let cancelled = enqueued.iter().enumerate().filter(|(index, _)| index % 1_000 == 29);
        engine.store().cancel(cancelled.map(|(_, job)| job.id).collect(), SystemClock.now()).await?;
        ids.extend(enqueued.iter().map(|job| job.id));
    }
    loop {
        let claim = ClaimRequest {
            queues: vec!["main".to_owned()],
            kinds: None,
            worker: "bench".into(),
            limit: BULK,
            suspects_max: 0,
            lease_for: A_DAY,
            now: SystemClock.now(),
        };
        let claimed = engine.store().claim(claim).await?;
        if claimed.is_empty() {
            return Ok(ids);
        }
        let items = claimed.into_iter().filter_map(|claimed| settled(claimed).transpose());
        engine.store().settle(items.collect::<Result<_>>()?, SystemClock.now()).await?;
    }
}

/// What the payload of a job tells of it.
#[derive(Deserialize)]
struct Listed {
    n: usize,
}

fn new_job(number: usize, jobs: usize, gate: JobId) -> Result<NewJob> {
    let text = if number % 10 == 7 { "a word in ten" } else { "some words more" };
    let needle = if number == jobs / 2 { NEEDLE } else { "" };
    let payload = serde_json::json!({
        "n": number,
        "user": {"id": number % 50_000, "name": format!("user number {}", number % 50_000)},
        "text": format!("{text} {needle}"),
        "more": "the rest of a payload of two hundred bytes, as prompts and rows are",
    });
    let kind = match number % 100_000 {
        31 => "rare",
        _ => ["score", "embed", "mail"][number % 3],
    };
    let backlog = number >= jobs - jobs / 20;
    let mut job = NewJob::new(kind, Json::of(&payload)?).queue(if backlog { "backlog" } else { "main" });
    if number % 10_000 == 3 {
        job = job.tag("red");
    }
    if (jobs / 5..jobs / 5 * 2).contains(&number) {
        job = job.process("nightly");
    }
    Ok(match number % 1_000 {
        11 => job.run_at(SystemClock.now() + A_DAY),
        13 => job.after(gate),
        _ => job,
    })
}

/// A park that only a signal ends.
fn waiting(number: usize) -> Park {
    Park { key: format!("approval-{number}"), until: None, on_timeout: OnTimeout::default() }
}

/// How a job ends; `None` leaves it running.
fn settled(claimed: Claimed) -> Result<Option<SettleItem>> {
    let number = claimed.payload.to::<Listed>()?.n;
    let outcome = match (number % 100, number % 1_000) {
        (17, _) => Outcome::Fail(JobError::new(Reason::Failure, "the model does not answer")),
        (_, 19) => Outcome::Park { park: waiting(number), data: None },
        (_, 23) if number % 2_000 == 23 => return Ok(None),
        _ => Outcome::Done(Json::of(&true)?),
    };
    let (spent, now) = (claimed.job.spent, SystemClock.now());
    let settlement = settle(Event::Outcome(outcome), spent, &Policy::default(), now, 0.5);
    Ok(Some(SettleItem { lease: claimed.lease, settlement, follow_ups: Vec::new() }))
}
