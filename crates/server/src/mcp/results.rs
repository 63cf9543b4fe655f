//! `get_results`: a job's result or payload piece by piece, or what a run or process answered, page by page.

use std::collections::HashMap;

use longhaul_llm::Stop;
use longhaul_prompts::request::{self, RequestPayload, RequestResult};
use longhaul_queue::job::JobResult;
use longhaul_queue::limits::shorten;
use longhaul_queue::{JobDetail, JobId, Json, ProcessId, State};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::schemas::{PAGE_DEFAULT, PAGE_MAX};
use super::show::{self, Clipped};
use super::target::Target;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::redact;

/// Bytes of a value's JSON text in one answer.
const PIECE_BYTES_MAX: usize = 30_000;
/// Bytes of one of many results, and of all of a page.
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
    /// Of a single job: its result (default) or its payload.
    #[serde(default)]
    part: Part,
    /// Of a single job: the byte of the value's JSON text to go on from.
    #[serde(default)]
    offset: usize,
    /// How many results of a run or process; default 20.
    limit: Option<usize>,
    /// Of a run or process: next_after of the page before.
    #[serde(default)]
    after: i64,
    /// Of a run or process: only what has no result.
    #[serde(default)]
    failed_only: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Part {
    #[default]
    Result,
    Payload,
}

/// Runs the tool.
pub(super) async fn get(ctx: &Ctx, caller: &Caller, asked: Arguments) -> Result<Value, Problem> {
    match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => of_job(&redact::detail(*detail), &asked),
        Target::Run(run) => of_many(ctx, &run.run.id.process(), &asked).await,
        Target::Process(process) => of_many(ctx, &process, &asked).await,
    }
}

fn of_job(detail: &JobDetail, asked: &Arguments) -> Result<Value, Problem> {
    let job = &detail.job;
    let value = match asked.part {
        Part::Payload => Some(detail.payload.clone()),
        Part::Result => detail.result.clone(),
    };
    let mut shown = json!({ "id": job.id, "state": job.state, "ended": job.state.is_terminal() });
    let Some(value) = value else {
        if let Some(error) = &job.error {
            shown["error"] = shorten(&error.to_string(), ERROR_BYTES_MAX).into();
        }
        shown["note"] = match job.state.is_terminal() {
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

async fn of_many(ctx: &Ctx, process: &ProcessId, asked: &Arguments) -> Result<Value, Problem> {
    let info = ctx.queue().process(process).await?;
    let page = Page::read(ctx, process, asked).await?;
    let names = names(ctx, &page.items).await?;
    let (mut shown, mut bytes, mut after) = (Vec::new(), 0, asked.after);
    let mut full = false;
    for item in &page.items {
        let line = item_json(&redact::result(item.clone()), names.get(&item.id))?;
        bytes += line.to_string().len();
        // One is always shown, so that the reader gets on.
        full = bytes > PAGE_BYTES_MAX && !shown.is_empty();
        if full {
            break;
        }
        shown.push(line);
        after = item.seq;
    }
    let next = if full { Some(after) } else { page.next };
    let mut answer = json!({
        "process": process,
        "results": shown,
        "next_after": next,
        "unfinished": info.unfinished(),
        "states": show::states(&info.counts),
    });
    if let Some(next) = next {
        answer["more"] = format!("there are more: the same call with after {next}").into();
    } else if info.unfinished() > 0 {
        answer["more"] = "the rest has not ended: wait_job waits for it".into();
    }
    Ok(answer)
}

/// Results in submission order.
struct Page {
    items: Vec<JobResult>,
    next: Option<i64>,
}

impl Page {
    async fn read(ctx: &Ctx, process: &ProcessId, asked: &Arguments) -> Result<Self, Problem> {
        let limit = asked.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        if !asked.failed_only {
            let page = ctx.queue().results(process, asked.after, limit).await?;
            return Ok(Self { items: page.items, next: page.next });
        }
        let (mut items, mut after) = (Vec::new(), asked.after);
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

/// The callers' names of requests without an answer; those with one tell it themselves.
async fn names(ctx: &Ctx, items: &[JobResult]) -> Result<HashMap<JobId, String>, Problem> {
    let nameless = |item: &&JobResult| item.kind == request::KIND && item.result.is_none();
    let ids: Vec<JobId> = items.iter().filter(nameless).map(|item| item.id).collect();
    let mut names = HashMap::with_capacity(ids.len());
    for detail in ctx.queue().store().get(ids).await? {
        if let Some(name) = detail.payload.to::<RequestPayload>()?.custom_id {
            names.insert(detail.job.id, name);
        }
    }
    Ok(names)
}

fn item_json(item: &JobResult, name: Option<&String>) -> Result<Value, Problem> {
    let mut shown = json!({ "id": item.id, "state": item.state });
    if let Some(name) = name {
        shown["custom_id"] = name.as_str().into();
    }
    if let Some(error) = &item.error
        && item.state != State::Succeeded
    {
        shown["error"] = shorten(&error.to_string(), ERROR_BYTES_MAX).into();
    }
    let Some(result) = &item.result else { return Ok(shown) };
    let value = match item.kind.as_str() {
        request::KIND => answer(&mut shown, result)?,
        _ => result.clone(),
    };
    let clipped = Clipped::of(&value, ITEM_BYTES_MAX);
    if clipped.is_cut() {
        let call = json!({ "id": item.id });
        shown["cut"] =
            format!("{ITEM_BYTES_MAX} of {} bytes; all of it: get_results {call}", value.len()).into();
    }
    shown["value"] = clipped.shown;
    Ok(shown)
}

/// What a model said, without what only programs need.
fn answer(shown: &mut Value, result: &Json) -> Result<Json, Problem> {
    let result: RequestResult = result.to()?;
    if let Some(name) = result.custom_id {
        shown["custom_id"] = name.into();
    }
    if result.answer.stop != Stop::End {
        shown["stop"] = json!(result.answer.stop);
    }
    if let Some(cost) = result.cost_usd {
        shown["cost_usd"] = json!(cost);
    }
    if result.cached {
        shown["cached"] = true.into();
    }
    Ok(match result.json {
        Some(value) => Json::of(&value)?,
        None if !result.answer.tool_calls.is_empty() => {
            Json::of(&json!({ "text": result.answer.text, "tool_calls": result.answer.tool_calls }))?
        }
        None if !result.answer.vectors.is_empty() => {
            let (count, length) = (result.answer.vectors.len(), result.answer.vectors[0].len());
            Json::of(&format!(
                "{count} vectors of {length} numbers; get_results with the id of this job has them"
            ))?
        }
        None => Json::of(&result.answer.text)?,
    })
}
