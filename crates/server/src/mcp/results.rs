//! `get_results`: a job's result, payload or checkpoint piece by piece, or the results of a run or process, page by page.

use longhaul_api::processes::ResultOut;
use longhaul_pipeline::pipeline::Results;
use longhaul_pipeline::{Found, RunId};
use longhaul_queue::job::JobResult;
use longhaul_queue::limits::shorten;
use longhaul_queue::redact::{json as without_secrets, text as without_secret_text};
use longhaul_queue::{JobDetail, Json, ProcessId, State};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::show::{self, Clipped};
use super::target::Target;
use super::{page, runs};
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::redact;

/// Bytes of a value's JSON text in one answer.
const PIECE_BYTES_MAX: usize = 30_000;
/// Bytes of a value in one of many results, and of all of a page.
const ITEM_BYTES_MAX: usize = 4_000;
const PAGE_BYTES_MAX: usize = 40_000;
/// Bytes of an error's text.
const ERROR_BYTES_MAX: usize = 1_000;
/// Results that are looked at for those that failed, in one call.
const LOOKED_AT_MAX: usize = 10_000;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// A job's id (a UUID), or the name of a run (run-…) or of a process.
    id: String,
    /// Of a single job: its result (default), its payload, or data, which is its checkpoint.
    #[serde(default)]
    part: Part,
    /// Of a single job: the byte of the value's JSON text to go on from.
    #[serde(default)]
    offset: usize,
    /// How many results of a run or process; default 20.
    limit: Option<usize>,
    /// Of a run or process: next_cursor of the page before.
    cursor: Option<String>,
    /// Only what failed: of a process its jobs, of a run the first units with their reasons, without a next page.
    #[serde(default)]
    failed_only: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Part {
    #[default]
    Result,
    Payload,
    Data,
}

/// Runs the tool.
pub(super) async fn get(ctx: &Ctx, caller: &Caller, asked: Arguments) -> Result<Value, Problem> {
    match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => of_job(&redact::detail(*detail), &asked),
        Target::Run(run) if asked.failed_only => failures(&run, &asked).await,
        Target::Run(run) => of_run(&run, &asked).await,
        Target::Process(process) => of_process(ctx, &process, &asked).await,
    }
}

fn of_job(detail: &JobDetail, asked: &Arguments) -> Result<Value, Problem> {
    let job = &detail.job;
    let value = match asked.part {
        Part::Payload => Some(detail.payload.clone()),
        Part::Data => detail.data.clone(),
        Part::Result => detail.result.clone(),
    };
    let mut shown = json!({ "id": job.id, "state": job.state, "ended": job.state.is_terminal() });
    let Some(value) = value else {
        if let Some(error) = &job.error {
            shown["error"] = shorten(&error.to_string(), ERROR_BYTES_MAX).into();
        }
        shown["note"] = match job.state.is_terminal() {
            _ if asked.part == Part::Data => "it has no checkpoint",
            true => "it has no result",
            false => "it has no result yet: wait_job waits for it",
        }
        .into();
        return Ok(shown);
    };
    if asked.offset == 0 && value.len() <= PIECE_BYTES_MAX {
        shown["value"] = value.to()?;
        return Ok(shown);
    }
    piece(&mut shown, &value, asked.offset)?;
    Ok(shown)
}

/// A piece of a value's text, cut between characters.
fn piece(shown: &mut Value, value: &Json, offset: usize) -> Result<(), Problem> {
    let text = value.as_str();
    if offset > text.len() || !text.is_char_boundary(offset) {
        let problem = format!("offset {offset} is no place in a text of {} bytes to go on from", text.len());
        return Err(Problem::invalid(problem).at("offset"));
    }
    let end = text.floor_char_boundary(offset + PIECE_BYTES_MAX);
    shown["json_text"] = text[offset..end].into();
    shown["bytes"] = json!({ "from": offset, "to": end, "all": text.len() });
    if end < text.len() {
        shown["next_offset"] = end.into();
        shown["more"] = format!("the rest: the same call with offset {end}").into();
    }
    Ok(())
}

/// What a run has for its units, in their order.
async fn of_run(found: &Found, asked: &Arguments) -> Result<Value, Problem> {
    let after = page::seq_of(asked.cursor.as_deref())?.unwrap_or(0);
    let read = async |limit| found.pipeline.results(&found.run, after, limit).await;
    let show = |page: &Results| -> Result<Vec<Value>, Problem> {
        page.items
            .iter()
            .map(|item| run_item(found.pipeline.results_are_answers(), &found.run.id, item))
            .collect()
    };
    let mut page = read(page::limit(asked.limit)).await?;
    let mut items = show(&page)?;
    let fitting = fitting(&items);
    if fitting < items.len() {
        // Only the pipeline knows which place the last of these has, so it is asked for exactly these.
        page = read(fitting).await?;
        items = show(&page)?;
    }
    let mut shown = page::listed("results", &items, page.next);
    let status = found.status().await?;
    shown["state"] = json!(status.standing.state);
    shown["units"] = json!(status.standing.units);
    if page.next.is_none() && !status.is_over() {
        shown["more"] = "the rest has not ended: get_run with wait_s waits for it".into();
    }
    Ok(shown)
}

/// One result of a run. Handlers may hand back what they were given, secrets included; what a model answered is shown as it is.
pub(super) fn run_item(is_answer: bool, run: &RunId, item: &Json) -> Result<Value, Problem> {
    let mut shown: Value = if is_answer { item.to()? } else { without_secrets(item).to()? };
    if let Some(text) = shown["error"]["text"].as_str() {
        shown["error"]["text"] = shorten(&without_secret_text(text), ERROR_BYTES_MAX).into();
    }
    let whole = match shown["job_id"].as_str() {
        Some(job) => format!("get_results {}", json!({ "id": job })),
        None => format!("longhaul runs results {run}"),
    };
    clip_fields(&mut shown, &whole)?;
    Ok(shown)
}

/// Cuts the long fields of a result, and says where all of it is.
fn clip_fields(shown: &mut Value, whole: &str) -> Result<(), Problem> {
    let mut cut = Vec::new();
    for (name, value) in shown.as_object_mut().into_iter().flatten() {
        let clipped = Clipped::of(&Json::of(value)?, ITEM_BYTES_MAX);
        if let Some(measure) = clipped.measure(name) {
            cut.push(format!("{measure}; all of it: {whole}"));
            *value = clipped.shown;
        }
    }
    if !cut.is_empty() {
        shown["cut"] = json!(cut);
    }
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(())
}

/// How many of these a page has room for. One is always shown, so that the reader gets on.
fn fitting(items: &[Value]) -> usize {
    let mut bytes = 0;
    let fits = |item: &&Value| {
        bytes += item.to_string().len();
        bytes <= PAGE_BYTES_MAX
    };
    items.iter().take_while(fits).count().max(1).min(items.len())
}

/// The first units of a run that failed.
async fn failures(found: &Found, asked: &Arguments) -> Result<Value, Problem> {
    let mut items = found.pipeline.failures(&found.run, page::limit(asked.limit)).await?;
    for unit in &mut items {
        unit.reason = unit.reason.as_deref().map(runs::reason);
    }
    let failed = found.status().await?.standing.units.failed;
    let mut shown = json!({ "results": items, "failed": failed });
    if failed > items.len() as u64 {
        shown["cut"] = format!("{} of {failed} are shown", items.len()).into();
    }
    Ok(shown)
}

/// The results of a process in submission order.
async fn of_process(ctx: &Ctx, process: &ProcessId, asked: &Arguments) -> Result<Value, Problem> {
    let unfinished = ctx.queue().process(process).await?.unfinished();
    let page = Page::read(ctx, process, asked).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for item in &page.items {
        let mut shown = show::value(&ResultOut::from(redact::result(item.clone())))?;
        if let Some(text) = shown["error"]["text"].as_str() {
            shown["error"]["text"] = shorten(text, ERROR_BYTES_MAX).into();
        }
        clip_fields(&mut shown, &format!("get_results {}", json!({ "id": item.id })))?;
        items.push(shown);
    }
    let fitting = fitting(&items);
    let next = match fitting < items.len() {
        true => page.items[..fitting].last().map(|last| last.seq),
        false => page.next,
    };
    items.truncate(fitting);
    let mut shown = page::listed("results", &items, next);
    shown["unfinished"] = unfinished.into();
    if next.is_none() && unfinished > 0 {
        shown["more"] = "the rest has not ended: wait_job waits for it".into();
    }
    Ok(shown)
}

/// Results in submission order.
struct Page {
    items: Vec<JobResult>,
    next: Option<i64>,
}

impl Page {
    async fn read(ctx: &Ctx, process: &ProcessId, asked: &Arguments) -> Result<Self, Problem> {
        let limit = page::limit(asked.limit);
        let mut after = page::seq_of(asked.cursor.as_deref())?.unwrap_or(0);
        if !asked.failed_only {
            let page = ctx.queue().results(process, after, limit).await?;
            return Ok(Self { items: page.items, next: page.next });
        }
        let mut items = Vec::new();
        for _ in 0..LOOKED_AT_MAX / longhaul_queue::limits::PAGE_MAX {
            let page = ctx.queue().results(process, after, longhaul_queue::limits::PAGE_MAX).await?;
            for item in page.items.into_iter().filter(|item| item.state != State::Succeeded) {
                if items.len() == limit {
                    return Ok(Self { next: items.last().map(|item: &JobResult| item.seq), items });
                }
                items.push(item);
            }
            match page.next {
                Some(next) => after = next,
                None => return Ok(Self { items, next: None }),
            }
        }
        Ok(Self { items, next: Some(after) })
    }
}
