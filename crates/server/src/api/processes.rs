//! Processes: groups of jobs of one caller. Their results are read in submission order and then deleted for good.

use axum::Extension;
use axum::Json as Answer;
use axum::body::Body as Streamed;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use longhaul_api::jobs::WaitQuery;
use longhaul_api::page::{Listed, PageQuery, cursor_of};
use longhaul_api::processes::{ConsumeIn, Number, ProcessOut, ResultOut, Results, ResultsQuery};
use longhaul_pipeline::Found;
use longhaul_queue::job::JobResult;
use longhaul_queue::limits::{INSERT_MAX, PAGE_MAX};
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{JobId, ProcessId};

use super::ApiResult;
use super::extract::{ApiJson, ApiQuery};
use super::page::{limit, seq_of};
use super::verbs::conflict;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::redact;
use crate::tokens::Scope;
use crate::wait::{Wait, duration};

/// Lines of JSON.
pub(super) const JSONL: &str = "application/jsonl";

fn has_ended(info: &ProcessInfo) -> bool {
    info.sealed && info.unfinished() == 0
}

/// Lists processes by id.
#[utoipa::path(get, path = "/api/v1/processes", tag = "processes", params(PageQuery), responses((status = 200, body = Listed<ProcessOut>)))]
pub(super) async fn list_processes(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Answer<Listed<ProcessOut>>> {
    let limit = limit(query.limit)?;
    let mut list = ctx.queue().store().processes(query.cursor.map(ProcessId::from), limit).await?;
    let next = (list.len() == limit).then(|| list.last().map(|last| last.id.as_str().to_owned())).flatten();
    list.retain(|info| !access::is_unlisted(&caller, info.id.as_str()));
    Ok(Answer(Listed { items: list.into_iter().map(Into::into).collect(), next, partial: false }))
}

/// Shows a process; with `wait`, once all of its jobs have ended.
#[utoipa::path(get, path = "/api/v1/processes/{id}", tag = "processes", params(("id" = String, Path), WaitQuery), responses((status = 200, body = ProcessOut)))]
pub(super) async fn show_process(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<WaitQuery>,
) -> ApiResult<Answer<ProcessOut>> {
    access::check_process(&ctx, &caller, &id).await?;
    Ok(Answer(ended(&ctx, &id.into(), query.wait.as_deref()).await?.into()))
}

/// The process, once it has ended or the time has passed.
async fn ended(ctx: &Ctx, id: &ProcessId, wait: Option<&str>) -> Result<ProcessInfo, Problem> {
    let mut wait = Wait::new(ctx, duration("wait", wait)?);
    loop {
        let info = ctx.queue().process(id).await?;
        if has_ended(&info) || !wait.again().await {
            return Ok(info);
        }
    }
}

/// The run that a process is, if it is one: what it has beside its jobs, at a provider or in tables, only its own verbs know.
async fn run_of(ctx: &Ctx, id: &ProcessId) -> Result<Option<Found>, Problem> {
    match ctx.runs.get(id.as_str()).await {
        Ok(found) if found.run.id.as_str() == id.as_str() => Ok(Some(found)),
        Ok(_) | Err(longhaul_pipeline::Error::NoRun(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Cancels every unfinished job of a process.
#[utoipa::path(post, path = "/api/v1/processes/{id}/cancel", tag = "processes", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(super) async fn cancel_process(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    let id = ProcessId::from(id);
    ctx.queue().process(&id).await?;
    let changed = match run_of(&ctx, &id).await? {
        Some(run) => run.cancel().await?,
        None => ctx.queue().cancel_process(id).await?,
    };
    Ok(Answer(Number { changed }))
}

/// Leaves a process open for more jobs, also before its first: what waits for it waits for its seal too.
#[utoipa::path(post, path = "/api/v1/processes/{id}/open", tag = "processes", params(("id" = String, Path)), responses((status = 200, body = ProcessOut)))]
pub(super) async fn open_process(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<ProcessOut>> {
    let id = ProcessId::from(id);
    ctx.queue().open_process(id.clone()).await.map_err(Problem::unfit)?;
    let info = ctx.queue().store().process(id.clone()).await?;
    Ok(Answer(info.unwrap_or_else(|| ProcessInfo::empty(id)).into()))
}

/// Says that a process gets no more jobs.
#[utoipa::path(post, path = "/api/v1/processes/{id}/seal", tag = "processes", params(("id" = String, Path)), responses((status = 200, body = ProcessOut)))]
pub(super) async fn seal_process(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<ProcessOut>> {
    let id = ProcessId::from(id);
    ctx.queue().process(&id).await?;
    ctx.queue().seal(id.clone()).await?;
    Ok(Answer(ctx.queue().process(&id).await?.into()))
}

/// Reads results in submission order: a page, or with `Accept: application/jsonl` all of them, a line each.
#[utoipa::path(
    get, path = "/api/v1/processes/{id}/results", tag = "processes", params(("id" = String, Path), ResultsQuery),
    responses((status = 200, content((Results = "application/json"), (String = "application/jsonl"))))
)]
pub(super) async fn process_results(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    ApiQuery(query): ApiQuery<ResultsQuery>,
) -> ApiResult<Response> {
    let id = ProcessId::from(id);
    if query.secrets && !caller.may(Scope::Work) {
        let text = "secrets are shown to tokens with the scope work only";
        return Err(Problem::new(StatusCode::FORBIDDEN, "scope_missing", text).at("secrets").into());
    }
    let hide = !query.secrets && redact::hides_from(&caller);
    access::check_process(&ctx, &caller, id.as_str()).await?;
    let info = ended(&ctx, &id, query.wait.as_deref()).await?;
    let after = seq_of(query.cursor.as_deref())?.unwrap_or(0);
    if wants_lines(&headers) {
        return Ok(lines(ctx, id, after, hide));
    }
    let page = ctx.queue().results(&id, after, limit(query.limit)?).await?;
    let items = page.items.into_iter().map(|item| shown(item, hide)).collect();
    let next = page.next.map(cursor_of);
    Ok(Answer(Results { items, next, unfinished: info.unfinished() }).into_response())
}

fn shown(result: JobResult, hide_secrets: bool) -> ResultOut {
    if hide_secrets { redact::result(result) } else { result }.into()
}

/// Whether a client wants all of it as lines.
pub(super) fn wants_lines(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.split(';').next().unwrap_or_default().trim() == JSONL)
}

/// All results, never more than a page of them in memory: the next is read when the client has taken the one before.
fn lines(ctx: Ctx, id: ProcessId, after: i64, hide_secrets: bool) -> Response {
    let pages = stream::try_unfold(Some(after), move |after| {
        let (ctx, id) = (ctx.clone(), id.clone());
        async move {
            let Some(after) = after else { return Ok(None) };
            let page = ctx.queue().results(&id, after, PAGE_MAX).await.map_err(std::io::Error::other)?;
            let mut text = String::new();
            for item in page.items {
                text += &serde_json::to_string(&shown(item, hide_secrets))?;
                text.push('\n');
            }
            Ok::<_, std::io::Error>(Some((text, page.next)))
        }
    });
    ([(header::CONTENT_TYPE, JSONL)], Streamed::from_stream(pages)).into_response()
}

/// Deletes results that were read and stored: all of the process, those up to a place, or those named. Refused while jobs are
/// unfinished, unless each is named.
#[utoipa::path(post, path = "/api/v1/processes/{id}/consume", tag = "processes", params(("id" = String, Path)), request_body = Option<ConsumeIn>, responses((status = 200, body = Number)))]
pub(super) async fn consume_process(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(what): ApiJson<Option<ConsumeIn>>,
) -> ApiResult<Answer<Number>> {
    let id = ProcessId::from(id);
    let info = ctx.queue().process(&id).await?;
    let changed = match what.unwrap_or_default() {
        ConsumeIn { up_to_seq: None, ids: None } => consume_all(&ctx, &id).await?,
        ConsumeIn { up_to_seq: Some(last), ids: None } => {
            if !has_ended(&info) {
                let text = format!(
                    "process {id} has {} unfinished jobs or is open for more: what ends meanwhile would go unread",
                    info.unfinished()
                );
                return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_state", text).into());
            }
            consume_up_to(&ctx, &id, last).await?
        }
        ConsumeIn { up_to_seq: None, ids: Some(ids) } => consume_ids(&ctx, &id, ids).await?,
        ConsumeIn { up_to_seq: Some(_), ids: Some(_) } => {
            let text = "up_to_seq and ids exclude each other";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at("ids").into());
        }
    };
    Ok(Answer(Number { changed }))
}

async fn consume_all(ctx: &Ctx, id: &ProcessId) -> Result<u64, Problem> {
    if let Some(run) = run_of(ctx, id).await? {
        return super::runs::remove(ctx, &run).await;
    }
    ctx.queue().consume_process(id).await.map_err(conflict)
}

async fn consume_up_to(ctx: &Ctx, id: &ProcessId, last: i64) -> Result<u64, Problem> {
    let (mut deleted, mut after) = (0, 0);
    loop {
        let page = ctx.queue().results(id, after, PAGE_MAX).await?;
        let read: Vec<JobId> =
            page.items.iter().take_while(|item| item.seq <= last).map(|item| item.id).collect();
        let whole = read.len() == page.items.len();
        deleted += ctx.queue().consume(read).await?.deleted;
        match page.next {
            Some(next) if whole => after = next,
            _ => return Ok(deleted),
        }
    }
}

async fn consume_ids(ctx: &Ctx, id: &ProcessId, ids: Vec<JobId>) -> Result<u64, Problem> {
    if ids.len() > INSERT_MAX {
        return Err(
            Problem::invalid(format!("{} ids, at most {INSERT_MAX} in one call", ids.len())).at("ids")
        );
    }
    let mut deleted = 0;
    for page in ids.chunks(PAGE_MAX) {
        let known = ctx.queue().store().get(page.to_vec()).await?;
        if let Some(other) = known.iter().find(|detail| detail.job.process_id.as_ref() != Some(id)) {
            let text = format!("job {} is not of process {id}", other.job.id);
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at("ids"));
        }
        let done = ctx.queue().consume(page.to_vec()).await?;
        deleted += done.deleted;
        if let Some((_, error)) = done.refused.into_iter().next() {
            return Err(conflict(error));
        }
    }
    Ok(deleted)
}
