//! How queues stand, and what was spent.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_llm::ledger::day_of;
use longhaul_llm::{CostRange, Scope, Totals};
use longhaul_queue::State;
use longhaul_queue::limits::WORKER_SILENT_AFTER;
use longhaul_queue::store::{QueueInfo, WorkerInfo};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::schemas::{DAYS_DEFAULT, DAYS_MAX};
use super::show;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use longhaul_api::costs::{CostLine, Costs};

/// Queues, workers, and lines of a report that are shown. Every run has a queue of its own, so there may be many.
const QUEUES_MAX: usize = 50;
const WORKERS_MAX: usize = 20;
const LINES_MAX: usize = 100;
const KINDS_MAX: usize = 100;
/// Queues named of one kind: each run has one of its own.
const KIND_QUEUES_MAX: usize = 10;

const DAY_MS: i64 = 24 * 3600 * 1000;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueArguments {
    /// Only this queue.
    queue: Option<String>,
}

/// `queue_stats`.
pub(super) async fn queues(ctx: &Ctx, asked: QueueArguments) -> Result<Value, Problem> {
    let mut queues = ctx.queue().store().queues().await?;
    let mut totals = [0; 8];
    for queue in &queues {
        totals.iter_mut().zip(queue.counts).for_each(|(total, count)| *total += count);
    }
    if let Some(name) = &asked.queue {
        queues.retain(|queue| queue.name == *name);
        if queues.is_empty() {
            let text = format!("there is no queue {name:?}: nothing was ever put into it");
            return Err(Problem::not_found(text).at("queue"));
        }
    }
    // Those with something to do come first: of many, they are what one asks for.
    queues.sort_by_cached_key(|queue| (std::cmp::Reverse(unfinished(queue)), queue.name.clone()));
    let all = queues.len();
    queues.truncate(QUEUES_MAX);
    let shown: Vec<Value> = queues
        .iter()
        .map(|queue| {
            json!({
                "queue": queue.name,
                "paused": queue.settings.paused,
                "max_running": queue.settings.max_running,
                "max_running_per_key": queue.settings.max_running_per_key,
                "ageing_ms": queue.settings.ageing.map(|ageing| ageing.as_millis() as u64),
                "states": show::states(&queue.counts),
            })
        })
        .collect();
    let mut answer = json!({ "queues": shown, "workers": workers(ctx).await? });
    if asked.queue.is_none() {
        answer["all_queues"] = show::states(&totals);
    }
    if all > QUEUES_MAX {
        answer["cut"] =
            format!("{QUEUES_MAX} of {all} queues are shown, the busiest first; name one with queue").into();
    }
    Ok(answer)
}

fn unfinished(queue: &QueueInfo) -> u64 {
    State::ALL.iter().filter(|state| !state.is_terminal()).map(|state| queue.counts[*state as usize]).sum()
}

/// Workers that are alive.
pub(super) async fn living(ctx: &Ctx) -> Result<Vec<WorkerInfo>, Problem> {
    let now = ctx.queue().clock().now();
    let mut workers = ctx.queue().store().workers(now).await?;
    workers.retain(|worker| !worker.gone && now.since(worker.seen_at) < WORKER_SILENT_AFTER);
    Ok(workers)
}

async fn workers(ctx: &Ctx) -> Result<Value, Problem> {
    let workers = living(ctx).await?;
    let (running, slots): (u32, u32) = workers
        .iter()
        .fold((0, 0), |(running, slots), worker| (running + worker.running, slots + worker.concurrency));
    let one = |worker: &WorkerInfo| {
        json!({
            "worker": worker.id,
            "host": worker.host,
            "running": worker.running,
            "slots": worker.concurrency,
            "started_at": worker.started_at,
        })
    };
    let shown: Vec<Value> = workers.iter().take(WORKERS_MAX).map(one).collect();
    Ok(json!({ "alive": workers.len(), "running": running, "slots": slots, "some": shown }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KindArguments {}

/// A kind of job.
#[derive(Default)]
struct Kind {
    queues: BTreeSet<String>,
    counts: [u64; 8],
    workers: u64,
}

/// `list_job_kinds`.
pub(super) async fn kinds(ctx: &Ctx, _: KindArguments) -> Result<Value, Problem> {
    let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
    for count in ctx.queue().store().counts().await?.into_iter().filter(|count| count.jobs > 0) {
        let kind = kinds.entry(count.kind).or_default();
        kind.counts[count.state as usize] += count.jobs;
        if kind.queues.len() < KIND_QUEUES_MAX {
            kind.queues.insert(count.queue);
        }
    }
    let workers = living(ctx).await?;
    for name in workers.iter().flat_map(|worker| worker.kinds.iter().flatten()) {
        kinds.entry(name.clone()).or_default().workers += 1;
    }
    let all = kinds.len();
    let shown = kinds.into_iter().take(KINDS_MAX).map(|(name, Kind { queues, counts, workers })| {
        json!({ "kind": name, "queues": queues, "states": show::states(&counts), "workers": workers })
    });
    let mut answer = json!({
        "kinds": shown.collect::<Vec<_>>(),
        // These run whatever they find.
        "workers_of_any_kind": workers.iter().filter(|worker| worker.kinds.is_none()).count(),
    });
    if all > KINDS_MAX {
        answer["cut"] = format!("{KINDS_MAX} of {all} kinds are shown, by name").into();
    }
    Ok(answer)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CostArguments {
    /// How many days back; default 31.
    days: Option<i64>,
    /// The sums of this run instead.
    run: Option<String>,
    /// The sums of this tag instead.
    tag: Option<String>,
}

/// `cost_report`.
pub(super) async fn costs(ctx: &Ctx, caller: &Caller, asked: CostArguments) -> Result<Value, Problem> {
    if let Some(run) = &asked.run
        && !access::may_see_process(ctx, caller, run).await?
    {
        return Err(Problem::not_found(format!("there is no run {run:?}")).at("run"));
    }
    match (asked.run, asked.tag, asked.days) {
        (Some(run), None, None) => sums(ctx, &Scope::run(&run), json!({ "run": run })).await,
        (None, Some(tag), None) => sums(ctx, &Scope::tag(&tag), json!({ "tag": tag })).await,
        (None, None, days) => by_day(ctx, days.unwrap_or(DAYS_DEFAULT).clamp(1, DAYS_MAX)).await,
        _ => Err(Problem::invalid("run, tag and days exclude each other: give one of them").at("run")),
    }
}

async fn sums(ctx: &Ctx, scope: &Scope, mut shown: Value) -> Result<Value, Problem> {
    let found = ctx.llm().ledger().scope(scope).await.map_err(longhaul_llm::Error::from)?;
    let (totals, cap) = found.map_or((Totals::default(), None), |found| (found.totals, found.cap));
    shown["totals"] = json!(totals);
    shown["cost"] = totals.spent().into();
    shown["cap"] = json!(cap.map(|cap| cap.to_string()));
    Ok(shown)
}

async fn by_day(ctx: &Ctx, days: i64) -> Result<Value, Problem> {
    let now = ctx.queue().clock().now().as_millis();
    let mut rows = Costs::of(ctx.llm(), days, now).await?.items;
    rows.sort_by(|one, other| other.day.cmp(&one.day).then_with(|| other.cost_usd.cmp(&one.cost_usd)));
    let real = || rows.iter().filter(|row| !row.simulated);
    let total = CostRange {
        low: real().filter_map(|row| row.cost_usd).sum(),
        high: real().filter_map(|row| row.cost_max_usd).sum(),
    };
    let all = rows.len();
    let lines = rows.iter().take(LINES_MAX).map(line).collect::<Result<Vec<Value>, Problem>>()?;
    let mut answer = json!({
        "from": day_of(now - (days - 1) * DAY_MS),
        "to": day_of(now),
        "lines": lines,
        "cost_usd": total.low,
        "cost_max_usd": total.high,
        "cost": total.to_string(),
        "note": "days are UTC; simulated calls are listed, and not in the sum",
    });
    if !total.is_exact() {
        answer["unknown"] =
            "some calls never came to an end that we saw and may have been billed; a person can \
                             decide with longhaul costs resolve"
                .into();
    }
    if all > LINES_MAX {
        answer["cut"] =
            format!("{LINES_MAX} of {all} lines are shown, the newest; ask for fewer days").into();
    }
    Ok(answer)
}

fn line(row: &CostLine) -> Result<Value, Problem> {
    let mut shown = serde_json::to_value(row).map_err(Problem::internal)?;
    shown["cost"] = row.cost().into();
    Ok(shown)
}
