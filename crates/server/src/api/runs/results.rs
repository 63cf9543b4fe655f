//! The answers of a run, in the order of its requests.

use axum::Extension;
use axum::Json as Answer;
use axum::body::Body as Streamed;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use longhaul_llm::types::vector_from_base64;
use longhaul_prompts::RunId;
use longhaul_prompts::request::RequestPayload;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::JobError;
use longhaul_queue::{JobId, Json, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::ApiResult;
use crate::api::extract::ApiQuery;
use crate::api::page::{Listed, PageQuery, cursor_of, limit, seq_of};
use crate::api::processes::{JSONL, wants_lines};
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RunResult)]
pub(in crate::api) struct RunResultOut {
    /// Which request, counted from 0.
    index: u64,
    /// The caller's name for it.
    custom_id: Option<String>,
    /// The job that asked.
    #[schema(value_type = String, format = "uuid")]
    job_id: JobId,
    /// `succeeded`, `failed` or `cancelled`.
    #[schema(value_type = String)]
    state: State,
    /// What the model said, with usage and cost; `vectors` where texts were embedded.
    #[schema(value_type = Option<Object>)]
    result: Option<Json>,
    /// `reason` and `text`: why there is no answer.
    #[schema(value_type = Option<Object>)]
    error: Option<JobError>,
}

/// Reads answers in the order of the requests: a page, or with `Accept: application/jsonl` all of them, a line each.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/results", tag = "runs", params(("id" = String, Path), PageQuery),
    responses((status = 200, content((Listed<RunResultOut> = "application/json"), (String = "application/jsonl"))))
)]
pub(in crate::api) async fn run_results(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Response> {
    let run = super::find_seen(&ctx, &caller, &id).await?.id;
    let after = seq_of(query.cursor.as_deref())?.unwrap_or(0);
    if wants_lines(&headers) {
        return Ok(lines(ctx, run, after));
    }
    let (items, next) = page(&ctx, &run, after, limit(query.limit)?).await?;
    Ok(Answer(Listed { items, next: next.map(cursor_of), partial: false }).into_response())
}

fn lines(ctx: Ctx, run: RunId, after: i64) -> Response {
    let pages = stream::try_unfold(Some(after), move |after| {
        let (ctx, run) = (ctx.clone(), run.clone());
        async move {
            let Some(after) = after else { return Ok(None) };
            let (items, next) = page(&ctx, &run, after, PAGE_MAX).await.map_err(std::io::Error::other)?;
            let mut text = String::new();
            for item in items {
                text += &serde_json::to_string(&item)?;
                text.push('\n');
            }
            Ok::<_, std::io::Error>(Some((text, next)))
        }
    });
    ([(header::CONTENT_TYPE, JSONL)], Streamed::from_stream(pages)).into_response()
}

/// The name of a request stands in its answer; only one without must be read for it.
#[derive(Debug, Default, Deserialize)]
struct Named {
    custom_id: Option<String>,
}

/// An answer with its vectors as numbers, which are stored in their compact form, unless the request asked for that one.
fn with_vectors(result: Json) -> Result<Json, Problem> {
    if !result.as_str().contains("\"vectors\"") {
        return Ok(result);
    }
    let mut value: Value = result.to()?;
    if value["encoding_format"] == "base64" {
        return Ok(result);
    }
    for vector in value["vectors"].as_array_mut().into_iter().flatten() {
        if let Some(numbers) = vector.as_str().and_then(vector_from_base64) {
            *vector = json!(numbers);
        }
    }
    Ok(Json::of(&value)?)
}

async fn page(
    ctx: &Ctx,
    run: &RunId,
    after: i64,
    limit: usize,
) -> Result<(Vec<RunResultOut>, Option<i64>), Problem> {
    let page = ctx.queue().results(&run.process(), after, limit).await?;
    let nameless = page.items.iter().filter(|item| item.result.is_none()).map(|item| item.id).collect();
    let details = ctx.queue().store().get(nameless).await?;
    let mut details = details.into_iter().peekable();
    let mut items = Vec::with_capacity(page.items.len());
    for item in page.items {
        let custom_id = match &item.result {
            Some(result) => result.to::<Named>().unwrap_or_default().custom_id,
            None => {
                let detail = details.next_if(|detail| detail.job.id == item.id);
                let payload = detail.map(|detail| detail.payload.to::<RequestPayload>()).transpose()?;
                payload.and_then(|payload| payload.custom_id)
            }
        };
        items.push(RunResultOut {
            index: RunId::index_of(item.id),
            custom_id,
            job_id: item.id,
            state: item.state,
            result: item.result.map(with_vectors).transpose()?,
            error: item.error,
        });
    }
    Ok((items, page.next))
}
