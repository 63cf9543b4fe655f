//! Runs of every pipeline: listed, looked at and steered, with the API's forms. How one is started is in the file of its tool.

use std::time::Duration;

use longhaul_api::processes::Number;
use longhaul_api::runs::{Run, RunDetail};
use longhaul_llm::NanoUsd;
use longhaul_pipeline::{Error, Found, Retry, Status, serve};
use longhaul_queue::limits::shorten;
use longhaul_queue::{Json, redact};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::page;
use super::schemas::WAIT_MAX_S;
use super::show::{self, Clipped, VALUE_BYTES_MAX};
use super::target::Target;
use crate::api;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::wait::Wait;

/// Parts that are shown with a run.
const PARTS_MAX: usize = 20;
/// Bytes of the reason why a unit failed.
const REASON_BYTES_MAX: usize = 400;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    /// Only runs of the pipeline of this name.
    pipeline: Option<String>,
    /// How many runs; default 20.
    limit: Option<usize>,
    /// next_cursor of the page before.
    cursor: Option<String>,
}

/// `list_runs`.
pub(super) async fn list(ctx: &Ctx, caller: &Caller, asked: ListArguments) -> Result<Value, Problem> {
    let (place, limit) = (page::seq_of(asked.cursor.as_deref())?, page::limit(asked.limit));
    let page = ctx.runs.list(asked.pipeline.as_deref(), place, limit).await.map_err(|error| match error {
        error @ Error::Invalid(_) => Problem::from(error).at("pipeline"),
        error => error.into(),
    })?;
    let served = serve::served(ctx.queue()).await?;
    let mut runs = Vec::with_capacity(page.items.len());
    for job in &page.items {
        if job.process_id.as_ref().is_some_and(|process| access::is_unlisted(caller, process.as_str())) {
            continue;
        }
        // One that was removed between two reads is not there any more.
        if let Some(found) = ctx.runs.of_manifest(job).await? {
            let status = found.status().await?;
            let served = served.contains(&status.id);
            runs.push(show::value(&Run::new(status, served))?);
        }
    }
    Ok(page::listed("runs", &runs, page.next))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetArguments {
    /// The name of a run.
    id: String,
    /// Wait this many seconds for nothing more to happen by itself; default 0.
    #[serde(default)]
    wait_s: u64,
}

/// `get_run`.
pub(super) async fn get(ctx: &Ctx, caller: &Caller, asked: GetArguments) -> Result<Value, Problem> {
    // Before the first look, so that no change falls in between.
    let mut wait = Wait::new(ctx, Some(Duration::from_secs(asked.wait_s.min(WAIT_MAX_S))));
    let found = find(ctx, caller, &asked.id).await?;
    ctx.runs.book_abandoned().await?;
    loop {
        let status = found.status().await?;
        if status.is_over() || !wait.again().await {
            return detail(ctx, &found, status).await;
        }
    }
}

/// A run with its settings, first parts and first failures.
pub(super) async fn detail(ctx: &Ctx, found: &Found, status: Status) -> Result<Value, Problem> {
    let run = run(ctx, found, status).await?;
    let mut detail = RunDetail::of(found, run, PARTS_MAX).await?;
    for unit in &mut detail.failures {
        unit.reason = unit.reason.as_deref().map(reason);
    }
    let settings = Clipped::of(&redact::json(&Json::of(&detail.settings)?), VALUE_BYTES_MAX);
    let cut = settings.measure("settings");
    detail.settings = settings.shown;
    let mut shown = show::value(&detail)?;
    if let Some(word) = cut {
        shown["cut"] = json!([word]);
    }
    Ok(shown)
}

/// Where a run stands, and whether a living worker serves it.
pub(super) async fn run(ctx: &Ctx, found: &Found, status: Status) -> Result<Run, Problem> {
    let served = serve::served(ctx.queue()).await?.contains(found.run.id.as_str());
    Ok(Run::new(status, served))
}

/// Why a unit failed, short and without secrets.
pub(super) fn reason(text: &str) -> String {
    shorten(&redact::text(text), REASON_BYTES_MAX)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunArguments {
    /// The name of a run.
    id: String,
}

/// `pause_run`.
pub(super) async fn pause(ctx: &Ctx, caller: &Caller, asked: RunArguments) -> Result<Value, Problem> {
    let found = find(ctx, caller, &asked.id).await?;
    found.pause().await?;
    let status = found.status().await?;
    show::value(&run(ctx, &found, status).await?)
}

/// `cancel_run`.
pub(super) async fn cancel(ctx: &Ctx, caller: &Caller, asked: RunArguments) -> Result<Value, Problem> {
    show::value(&Number { changed: find(ctx, caller, &asked.id).await?.cancel().await? })
}

/// `remove_run`.
pub(super) async fn remove(ctx: &Ctx, caller: &Caller, asked: RunArguments) -> Result<Value, Problem> {
    let found = find(ctx, caller, &asked.id).await?;
    show::value(&Number { changed: api::remove_run(ctx, &found).await? })
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResumeArguments {
    /// The name of a run.
    id: String,
    /// A new limit of its cost in US dollars; without one, the limit that it has stays.
    max_cost_usd: Option<f64>,
}

/// `resume_run`.
pub(super) async fn resume(ctx: &Ctx, caller: &Caller, asked: ResumeArguments) -> Result<Value, Problem> {
    let found = find(ctx, caller, &asked.id).await?;
    let cap = asked.max_cost_usd.map(|dollars| {
        let text = format!("max_cost_usd is {dollars}: expected an amount in dollars, such as 2.5");
        NanoUsd::from_dollars(dollars).ok_or_else(|| Problem::invalid(text).at("max_cost_usd"))
    });
    ctx.runs.set_limits(&found.run.id, cap.transpose()?, false).await?;
    show::value(&Number { changed: found.resume().await? })
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryArguments {
    /// The name of a run.
    id: String,
    /// Only what failed in this part, counted from 1 as in parts of get_run; default everything that failed.
    part: Option<u64>,
}

/// `retry_run`.
pub(super) async fn retry(ctx: &Ctx, caller: &Caller, asked: RetryArguments) -> Result<Value, Problem> {
    let which = match asked.part {
        None => Retry::Failed,
        Some(number) => {
            let part = number.checked_sub(1).ok_or_else(|| Problem::invalid("parts count from 1").at("part"));
            Retry::Part(part?)
        }
    };
    show::value(&Number { changed: find(ctx, caller, &asked.id).await?.retry(which).await? })
}

/// The run of this name, if the caller may see it.
async fn find(ctx: &Ctx, caller: &Caller, name: &str) -> Result<Found, Problem> {
    match Target::find(ctx, caller, name).await? {
        Target::Run(found) => Ok(*found),
        Target::Job(_) | Target::Process(_) => {
            Err(Problem::not_found(format!("{name:?} is not a run: list_runs shows what there is")).at("id"))
        }
    }
}
