//! `/v1/batches`, as OpenAI's clients know it.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use longhaul_llm::wire::{BatchCounts, BatchObject, openai};
use longhaul_pipeline::job_name::{id_of, name_of};
use longhaul_prompts::sdk_batches::{Batch, BatchPayload, Form, Newer};
use longhaul_queue::{JobId, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::files::{answers_name, errors_name};
use super::reading::{list_page, new_batch, page_size, window};
use super::{OpenAiError, test_objects};
use crate::batches;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// What a batch may ask of models.
const ENDPOINTS: [&str; 3] = ["/v1/chat/completions", "/v1/embeddings", "/v1/responses"];
/// Pairs of metadata, and how long each side may be.
const METADATA_MAX: usize = 16;
const METADATA_KEY_MAX: usize = 64;
const METADATA_VALUE_MAX: usize = 512;

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new()
        .route("/v1/batches", get(list).post(create))
        .route("/v1/batches/{id}", get(retrieve))
        .route("/v1/batches/{id}/cancel", post(cancel))
}

#[derive(Debug, Deserialize)]
struct Create {
    input_file_id: String,
    endpoint: String,
    completion_window: String,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
}

async fn create(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Result<Json<Create>, JsonRejection>,
) -> Result<Json<Value>, OpenAiError> {
    let Json(new) =
        body.map_err(|error| Problem { status: error.status(), ..Problem::invalid(error.body_text()) })?;
    if !ENDPOINTS.contains(&new.endpoint.as_str()) {
        let text = format!("endpoint is {:?}: {} are possible", new.endpoint, ENDPOINTS.join(", "));
        return Err(Problem::invalid(text).at("endpoint").into());
    }
    let length = window(&new.completion_window)?;
    check_metadata(new.metadata.as_ref())?;
    let now = ctx.queue().clock().now();
    let input_file = test_objects::real_name(&ctx, &new.input_file_id).into_owned();
    let file = ctx.uploads.get(&input_file, now);
    if !file.is_some_and(|file| caller.owns(file.owner.as_deref())) {
        let text = format!("Cannot find file {}: upload it with purpose batch first", new.input_file_id);
        return Err(Problem::invalid(text).at("input_file_id").into());
    }
    let payload = BatchPayload {
        form: Form::OpenAi,
        endpoint: new.endpoint,
        fingerprint: input_file.clone(),
        input_file,
        window: new.completion_window,
        expires_at: now + length,
        metadata: new.metadata,
        owner: caller.name.clone(),
    };
    let created = batches::create(&ctx, new_batch(payload, &caller, &headers)).await?;
    Ok(Json(batch_json(&ctx, &created).await?))
}

fn check_metadata(metadata: Option<&Map<String, Value>>) -> Result<(), Problem> {
    let Some(metadata) = metadata else { return Ok(()) };
    let fits = |(key, value): (&String, &Value)| {
        key.len() <= METADATA_KEY_MAX && value.as_str().is_some_and(|value| value.len() <= METADATA_VALUE_MAX)
    };
    if metadata.len() <= METADATA_MAX && metadata.iter().all(fits) {
        return Ok(());
    }
    let text = format!(
        "metadata has at most {METADATA_MAX} pairs of texts, keys of {METADATA_KEY_MAX} and values of {METADATA_VALUE_MAX} bytes"
    );
    Err(Problem::invalid(text).at("metadata"))
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    after: Option<String>,
    limit: Option<i64>,
}

async fn list(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, OpenAiError> {
    let after = match &query.after {
        Some(after) => match find(&ctx, after) {
            Ok(id) => Some(id),
            // SDKs go on until a page is empty.
            Err(_) => return Ok(Json(list_page(&[], false))),
        },
        None => None,
    };
    let limit = page_size(query.limit, 20, 100);
    let page = batches::list(&ctx, &caller, Form::OpenAi, Newer::Older(after), limit).await?;
    let mut data = Vec::with_capacity(page.items.len());
    for batch in &page.items {
        data.push(batch_json(&ctx, batch).await?);
    }
    Ok(Json(list_page(&data, page.next.is_some())))
}

async fn retrieve(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let batch = batches::get(&ctx, &caller, find(&ctx, &id)?, Form::OpenAi).await?;
    Ok(Json(batch_json(&ctx, &batch).await?))
}

async fn cancel(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let batch = batches::cancel(&ctx, &caller, find(&ctx, &id)?, Form::OpenAi).await?;
    Ok(Json(batch_json(&ctx, &batch).await?))
}

fn find(ctx: &Ctx, name: &str) -> Result<JobId, Problem> {
    let name = test_objects::real_name(ctx, name);
    id_of(&name, Form::OpenAi.prefix())
        .ok_or_else(|| Problem::not_found(format!("No batch found with id '{name}'.")).at("id"))
}

async fn batch_json(ctx: &Ctx, batch: &Batch) -> Result<Value, Problem> {
    let seconds = |at: Timestamp| at.as_millis() / 1_000;
    let has_results = batch.kept.total.is_some() && ctx.batches.has_results(batch).await?;
    let ended = batch.state.is_terminal() && has_results;
    let Batch { counts, kept, payload, .. } = batch;
    let failed = counts.failed + counts.not_run;
    let mut object = BatchObject::new(name_of(batch.id, Form::OpenAi.prefix()), seconds(batch.created_at));
    object.state = batch.state;
    object.endpoint.clone_from(&payload.endpoint);
    object.model.clone_from(&kept.model);
    object.expires_at_s = Some(seconds(payload.expires_at));
    object.cancel_at_s = kept.cancelling_at.map(seconds);
    object.ended_at_s = batch.ended_at.map(seconds);
    object.requests = Some(counts.total);
    object.counts = Some(BatchCounts { completed: counts.completed, failed, ..BatchCounts::default() });
    object.input_file = Some(payload.input_file.clone());
    object.output_file = (ended && counts.completed > 0).then(|| answers_name(batch.id));
    object.error_file = (ended && failed > 0).then(|| errors_name(batch.id));
    let mut value = openai::batch_to_json(&object);
    value["completion_window"] = json!(payload.window);
    value["metadata"] = json!(payload.metadata);
    value["in_progress_at"] = json!(kept.in_progress_at.map(seconds));
    if !batch.faults.is_empty() {
        value["errors"] = json!({"object": "list", "data": batch.faults});
    }
    if let Some(usage) = &batch.usage {
        value["usage"] = json!({
            "input_tokens": usage.input(),
            "input_tokens_details": {"cached_tokens": usage.cache_read},
            "output_tokens": usage.output(),
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.total(),
        });
    }
    // Beyond the original: what has been answered can be read while the rest goes on.
    if has_results && !ended {
        value["partial_output_file_id"] = json!(answers_name(batch.id));
    }
    Ok(value)
}
