//! `/metrics`, for Prometheus. What the store and the ledger count is read when it is asked for, so that it is true after a restart and
//! over all processes; what only passes by (times of waiting and running, calls of the store) is measured by [`MeteredStore`] in this
//! process and starts at zero with it.
//!
//! Labels are bounded: queues of runs and of sheets, of which there is one each, are one, and beyond a number of names the rest is `other`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use longhaul_pipeline::pipeline::Metric;
use longhaul_pipeline::{OwnNames, webhooks};
use longhaul_prompts::batch;
use longhaul_queue::limits::WORKER_SILENT_AFTER;
use longhaul_queue::store::{Count, Filter, ListRequest};
use longhaul_queue::{State as JobState, Timestamp};

use crate::api::ApiError;
use crate::ctx::Ctx;
use crate::problem::Problem;

mod meters;
mod store;
mod text;

pub use meters::Meters;
pub use store::MeteredStore;
use text::Text;

/// Queues that are told apart.
const QUEUES_MAX: usize = 100;

/// The routes.
pub(crate) fn routes() -> Router<Ctx> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(ctx): State<Ctx>) -> Result<Response, ApiError> {
    let mut text = Text::default();
    text.gauge("build_info", "The version.", [([("version", env!("CARGO_PKG_VERSION"))], 1.0)]);
    jobs(&ctx, &mut text).await?;
    queues(&ctx, &mut text).await?;
    workers(&ctx, &mut text).await?;
    models(&ctx, &mut text).await?;
    pipelines(&ctx, &mut text);
    ctx.meters.write(&mut text);
    text.value("sse_clients", "Open streams of events.", ctx.streams.open() as f64);
    text.value("store_bytes", "Size of the files of the store.", bytes_of(&ctx.measured) as f64);
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, text.finish()).into_response())
}

fn bytes_of(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|metadata| metadata.len()).sum()
}

/// Sums by labels, with a bound on how many there are.
struct Sums<'a, K: Ord> {
    own: &'a OwnNames,
    by: BTreeMap<(String, K), f64>,
    names: BTreeSet<String>,
}

impl<'a, K: Ord> Sums<'a, K> {
    fn new(own: &'a OwnNames) -> Self {
        Self { own, by: BTreeMap::new(), names: BTreeSet::new() }
    }

    fn add(&mut self, queue: &str, key: K, value: f64) {
        // Queues of runs come and go: all of a pipeline's are one.
        let mut name = self.own.pipeline_of(queue).map_or(queue, |about| about.name);
        if !self.names.contains(name) {
            if self.names.len() >= QUEUES_MAX {
                name = "other";
            }
            self.names.insert(name.to_owned());
        }
        *self.by.entry((name.to_owned(), key)).or_default() += value;
    }
}

async fn jobs(ctx: &Ctx, text: &mut Text) -> Result<(), Problem> {
    let counts = ctx.queue().store().counts().await?;
    let mut sums = Sums::new(&ctx.names);
    let (mut batches, mut deliveries) = (BTreeMap::new(), BTreeMap::new());
    let mut runs = BTreeMap::<_, f64>::new();
    for Count { queue, kind, state, jobs } in &counts {
        sums.add(queue, state.as_str(), *jobs as f64);
        let mut pipelines = ctx.runs.pipelines().iter().map(|pipeline| pipeline.about());
        if let Some(about) = pipelines.find(|about| about.manifest == kind) {
            let state = if state.is_terminal() { state.as_str() } else { "open" };
            *runs.entry((about.name, state)).or_default() += *jobs as f64;
        }
        if kind == batch::KIND {
            *batches.entry(state.as_str()).or_default() += *jobs as f64;
        }
        if kind == webhooks::KIND && state.is_terminal() {
            *deliveries.entry(state.as_str()).or_default() += *jobs as f64;
        }
    }
    let rows =
        sums.by.iter().map(|((queue, state), jobs)| ([("queue", queue.as_str()), ("state", *state)], *jobs));
    text.gauge("jobs", "Jobs by queue and state.", rows);
    let rows =
        runs.iter().map(|((pipeline, state), runs)| ([("pipeline", *pipeline), ("state", *state)], *runs));
    text.gauge("runs", "Runs by pipeline: open, or how they ended.", rows);
    let by_state =
        |sums: BTreeMap<&'static str, f64>| sums.into_iter().map(|(state, jobs)| ([("state", state)], jobs));
    text.gauge(
        "provider_batches",
        "Provider batches under way, by the state of their job.",
        by_state(batches),
    );
    text.gauge("webhook_deliveries", "Deliveries in the log, by how they ended.", by_state(deliveries));
    let mut ended = Sums::new(&ctx.names);
    for row in ctx.engine().store().ledger().await? {
        ended.add(&row.queue, row.state.as_str(), row.jobs as f64);
    }
    let rows = ended
        .by
        .iter()
        .map(|((queue, state), jobs)| ([("queue", queue.as_str()), ("outcome", *state)], *jobs));
    text.counter("jobs_finished_total", "Jobs that ended, by queue and how.", rows);
    Ok(())
}

async fn queues(ctx: &Ctx, text: &mut Text) -> Result<(), Problem> {
    let now = ctx.queue().clock().now();
    let (mut paused, mut oldest) = (BTreeMap::<String, f64>::new(), BTreeMap::<String, f64>::new());
    for queue in ctx.queue().store().queues().await?.iter().take(QUEUES_MAX) {
        let name =
            ctx.names.pipeline_of(&queue.name).map_or(queue.name.as_str(), |about| about.name).to_owned();
        *paused.entry(name.clone()).or_default() += f64::from(u8::from(queue.settings.paused));
        if queue.counts[JobState::Ready as usize] > 0 {
            let age = oldest_ready(ctx, &queue.name, now).await?;
            let known = oldest.entry(name).or_default();
            *known = known.max(age);
        }
    }
    let rows = |sums: &BTreeMap<String, f64>| -> Vec<_> {
        sums.iter().map(|(queue, value)| ([("queue", queue.clone())], *value)).collect()
    };
    text.gauge("queue_paused", "Queues that are paused.", rows(&paused));
    text.gauge("queue_oldest_ready_seconds", "How long the first job in line has waited.", rows(&oldest));
    Ok(())
}

async fn oldest_ready(ctx: &Ctx, queue: &str, now: Timestamp) -> Result<f64, Problem> {
    let filter = Filter { states: vec![JobState::Ready], queue: Some(queue.to_owned()), ..Filter::default() };
    let page = ctx.queue().list(ListRequest { filter, newest_first: false, cursor: None, limit: 1 }).await?;
    Ok(page.items.first().map_or(0.0, |job| now.since(job.run_at).as_secs_f64()))
}

async fn workers(ctx: &Ctx, text: &mut Text) -> Result<(), Problem> {
    let now = ctx.queue().clock().now();
    let (mut live, mut silent, mut used, mut slots) = (0.0, 0.0, 0.0, 0.0);
    for worker in ctx.queue().store().workers(now).await? {
        if now.since(worker.seen_at) > WORKER_SILENT_AFTER {
            silent += 1.0;
            continue;
        }
        live += 1.0;
        used += f64::from(worker.running);
        slots += f64::from(worker.concurrency);
    }
    text.gauge("workers", "Workers.", [([("state", "live")], live), ([("state", "silent")], silent)]);
    let rows = [([("state", "used")], used), ([("state", "free")], slots - used)];
    text.gauge("worker_slots", "Jobs that live workers run at once.", rows);
    Ok(())
}

async fn models(ctx: &Ctx, text: &mut Text) -> Result<(), Problem> {
    let spent = ctx.llm().ledger().spend("1970-01-01", "9999-12-31").await.map_err(Problem::unavailable)?;
    let (mut tokens, mut cost) = (BTreeMap::<(String, &str), f64>::new(), BTreeMap::<String, f64>::new());
    for row in &spent {
        let usage = &row.usage;
        let classes = [
            ("fresh_in", usage.fresh_in),
            ("cache_write", usage.cache_write),
            ("cache_read", usage.cache_read),
            ("out", usage.out),
            ("reasoning", usage.reasoning),
        ];
        for (class, count) in classes {
            *tokens.entry((row.model.clone(), class)).or_default() += count as f64;
        }
        *cost.entry(row.model.clone()).or_default() += row.cost.as_dollars();
    }
    let rows =
        tokens.iter().map(|((model, class), count)| ([("model", model.as_str()), ("class", *class)], *count));
    text.counter("llm_tokens_total", "Tokens by model and class; classes do not overlap.", rows);
    let rows = cost.iter().map(|(model, cost)| ([("model", model.as_str())], *cost));
    text.counter("llm_cost_usd_total", "Dollars spent, of what has a price.", rows);
    let all = ctx.llm().ledger().totals(&longhaul_llm::Scope::all()).await.map_err(Problem::unavailable)?;
    let cache = [([("result", "hit")], all.cached as f64), ([("result", "miss")], all.calls as f64)];
    text.counter("cache_requests_total", "Requests answered from the response cache, and not.", cache);
    let counts = ctx.llm().cache_counts();
    text.count(
        "cache_written_total",
        "Answers that this process wrote to the response cache.",
        counts.written,
    );
    let help = "Answers in the response cache that were too old when this process asked for them.";
    text.count("cache_expired_total", help, counts.expired);
    text.count("llm_throttled_total", "Times that a provider said 429.", all.throttled);
    let help = "Calls whose end was never seen; they may have been billed.";
    text.count("llm_unknown_calls_total", help, all.unknown_calls);
    routes_of_models(ctx, text);
    Ok(())
}

/// What each route does since this process began.
fn routes_of_models(ctx: &Ctx, text: &mut Text) {
    let (mut requests, mut limits, mut flights) = (Vec::new(), Vec::new(), Vec::new());
    for route in ctx.llm().routes().into_iter().take(QUEUES_MAX) {
        let stats = route.controller().stats();
        let (profile, model) = (route.profile().to_owned(), route.model().to_owned());
        let totals = stats.totals;
        let outcomes = [
            ("answered", totals.answered),
            ("throttled", totals.throttled),
            ("overloaded", totals.overloaded),
        ];
        for (outcome, count) in outcomes {
            let labels =
                [("provider", profile.clone()), ("model", model.clone()), ("outcome", outcome.to_owned())];
            requests.push((labels, count as f64));
        }
        let labels = [("provider", profile), ("model", model)];
        limits.push((labels.clone(), stats.concurrency_limit as f64));
        flights.push((labels, stats.in_flight as f64));
    }
    text.counter("llm_requests_total", "Calls of this process by how they ended.", requests);
    text.gauge("llm_concurrency_limit", "Most calls under way, at present.", limits);
    text.gauge("llm_in_flight", "Calls under way.", flights);
}

/// What pipelines do in this process.
fn pipelines(ctx: &Ctx, text: &mut Text) {
    for pipeline in ctx.runs.pipelines() {
        let metrics = pipeline.metrics();
        for figures in metrics.chunk_by(|one, next| one.name == next.name) {
            let Some(Metric { name, help, counts, .. }) = figures.first() else { continue };
            let rows =
                figures.iter().map(|figure| (figure.label.into_iter().collect::<Vec<_>>(), figure.value));
            match counts {
                true => text.counter(name, help, rows),
                false => text.gauge(name, help, rows),
            }
        }
    }
}
