//! `/v1/files`: uploads, which stream to disk, and what batches answered, which is read from their results and never written.

use axum::extract::multipart::{Field, Multipart, MultipartRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use longhaul_pipeline::job_name::{id_of, name_of};
use longhaul_pipeline::uploads::{FILE_PREFIX, FileRecord, NewFile, Upload};
use longhaul_prompts::sdk_batches::output::Which;
use longhaul_prompts::sdk_batches::{Batch, Form, Newer};
use longhaul_queue::{JobId, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::io::ReaderStream;

use super::reading::{list_page, page_size, text_stream};
use super::{OpenAiError, test_objects};
use crate::batches;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// Ends of the names of what a batch answered.
const ANSWERS: &str = "-out";
const ERRORS: &str = "-err";
/// Purpose of what a batch answered.
const OUTPUT_PURPOSE: &str = "batch_output";
/// Largest text field of a form.
const FIELD_BYTES_MAX: usize = 10_000;
/// What a form may have beside its file.
pub(super) const FORM_BYTES_MAX: u64 = 1_000_000;
/// Shortest and longest life of a file that is to expire, in seconds.
const EXPIRES_AFTER: std::ops::RangeInclusive<u64> = 3_600..=2_592_000;

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new()
        .route("/v1/files", get(list).post(upload))
        .route("/v1/files/{id}", get(retrieve).delete(delete))
        .route("/v1/files/{id}/content", get(content))
        .layer(DefaultBodyLimit::disable())
}

/// The file with a batch's answers.
pub(super) fn answers_name(id: JobId) -> String {
    name_of(id, FILE_PREFIX) + ANSWERS
}

/// The file with a batch's errors.
pub(super) fn errors_name(id: JobId) -> String {
    name_of(id, FILE_PREFIX) + ERRORS
}

async fn upload(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, OpenAiError> {
    let mut form = form.map_err(|error| Problem::invalid(format!("a multipart form is needed: {error}")))?;
    let now = ctx.queue().clock().now();
    let mut new = NewFile { owner: caller.name, ..NewFile::default() };
    let mut received: Option<Upload> = None;
    let mut expires_after: Option<u64> = None;
    while let Some(field) = form.next_field().await.map_err(broken)? {
        match field.name().unwrap_or_default() {
            "file" => {
                new.filename = field.file_name().unwrap_or("upload.jsonl").to_owned();
                received = Some(ctx.uploads.receive(ctx.options.upload_bytes_max, now, field).await?);
            }
            "purpose" => new.purpose = text(field, "purpose").await?,
            "expires_after[seconds]" => expires_after = Some(seconds(&text(field, "expires_after").await?)?),
            _ => {
                text(field, "form").await?;
            }
        }
    }
    let upload = received.ok_or_else(|| Problem::invalid("file is missing from the form").at("file"))?;
    if new.purpose.is_empty() {
        return Err(Problem::invalid("purpose is missing from the form: batch for the input of a batch")
            .at("purpose")
            .into());
    }
    new.expires_at = expires_after.map(|seconds| now + std::time::Duration::from_secs(seconds));
    Ok(Json(file_json(&ctx.uploads.keep(upload, new).await?)))
}

async fn text(mut field: Field<'_>, name: &str) -> Result<String, Problem> {
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > FIELD_BYTES_MAX {
            return Err(Problem::invalid(format!("{name} is longer than {FIELD_BYTES_MAX} bytes")).at(name));
        }
    }
    String::from_utf8(bytes).map_err(|_| Problem::invalid(format!("{name} is no text")).at(name))
}

fn seconds(text: &str) -> Result<u64, Problem> {
    let wrong = || {
        let (least, most) = (EXPIRES_AFTER.start(), EXPIRES_AFTER.end());
        Problem::invalid(format!("expires_after.seconds is {text:?}: {least} to {most} are possible"))
            .at("expires_after")
    };
    text.parse().ok().filter(|seconds| EXPIRES_AFTER.contains(seconds)).ok_or_else(wrong)
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands it over")]
fn broken(error: axum::extract::multipart::MultipartError) -> Problem {
    // Axum takes a body that breaks off for a fault of the server. It is none, and sending it again may help.
    let status = error.status();
    let status = if status.is_server_error() { StatusCode::REQUEST_TIMEOUT } else { status };
    Problem { status, ..Problem::invalid(format!("the form cannot be read: {}", error.body_text())) }
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    after: Option<String>,
    limit: Option<i64>,
    order: Option<String>,
    purpose: Option<String>,
}

/// Uploads, or with `purpose=batch_output` what batches answered.
async fn list(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, OpenAiError> {
    let limit = page_size(query.limit, 10_000, 10_000);
    if query.purpose.as_deref() == Some(OUTPUT_PURPOSE) {
        return Ok(Json(list_outputs(&ctx, &caller, query.after.as_deref(), limit).await?));
    }
    let mut files = ctx.uploads.list(ctx.queue().clock().now());
    if query.order.as_deref() != Some("asc") {
        files.reverse();
    }
    let mut files = files
        .into_iter()
        .filter(|file| caller.owns(file.owner.as_deref()))
        .filter(|file| query.purpose.as_deref().is_none_or(|purpose| file.purpose == purpose));
    if let Some(after) = &query.after {
        files.by_ref().find(|file| file.id == *after);
    }
    let page: Vec<Value> = files.by_ref().take(limit).map(|file| file_json(&file)).collect();
    Ok(Json(list_page(&page, files.next().is_some())))
}

async fn list_outputs(
    ctx: &Ctx,
    caller: &Caller,
    after: Option<&str>,
    limit: usize,
) -> Result<Value, Problem> {
    let after = after.and_then(output_of).map(|(id, _)| id);
    let page = batches::list(ctx, caller, Form::OpenAi, Newer::Older(after), limit).await?;
    let outputs = page.items.iter().filter(|batch| batch.state.is_terminal());
    let outputs = outputs.flat_map(|batch| [Which::Answers, Which::Errors].map(|which| (batch, which)));
    let outputs = outputs.filter(|(batch, which)| bytes_of(batch, *which) > 0);
    let outputs: Vec<Value> = outputs.map(|(batch, which)| output_json(batch, which)).collect();
    Ok(list_page(&outputs, page.next.is_some()))
}

async fn retrieve(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    Ok(Json(match find(&ctx, &caller, &id).await? {
        Found::Upload(file) => file_json(&file),
        Found::Output(batch, which) => output_json(&batch, which),
    }))
}

async fn content(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, OpenAiError> {
    match find(&ctx, &caller, &id).await? {
        Found::Upload(file) => {
            let opened = tokio::fs::File::open(ctx.uploads.content(&file)).await;
            // Deleted by somebody since it was found.
            let opened = opened.map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => missing(&file.id),
                _ => Problem::unavailable(error),
            })?;
            let body = axum::body::Body::from_stream(ReaderStream::new(opened));
            let headers = [
                ("content-type", "application/octet-stream".to_owned()),
                ("content-length", file.bytes.to_string()),
            ];
            Ok((headers, body).into_response())
        }
        Found::Output(batch, which) => Ok(text_stream("application/jsonl", ctx.batches.lines(*batch, which))),
    }
}

async fn delete(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let deleted = Json(json!({"id": id, "object": "file", "deleted": true}));
    if test_objects::is_one(&ctx, &id) {
        return Ok(deleted);
    }
    match find(&ctx, &caller, &id).await? {
        Found::Upload(file) => drop(ctx.uploads.delete(&file.id).await.map_err(Problem::unavailable)?),
        Found::Output(batch, _) => ctx.batches.delete_results(&batch).await?,
    }
    Ok(deleted)
}

enum Found {
    Upload(FileRecord),
    Output(Box<Batch>, Which),
}

/// Only the caller's own: the names of other files are not revealed.
async fn find(ctx: &Ctx, caller: &Caller, name: &str) -> Result<Found, Problem> {
    let name = test_objects::real_name(ctx, name);
    if let Some((id, which)) = output_of(&name) {
        let batch = batches::get(ctx, caller, id, Form::OpenAi).await.map_err(|_| missing(&name))?;
        if !ctx.batches.has_results(&batch).await? {
            return Err(missing(&name));
        }
        return Ok(Found::Output(Box::new(batch), which));
    }
    let file = ctx.uploads.get(&name, ctx.queue().clock().now());
    let file = file.filter(|file| caller.owns(file.owner.as_deref()));
    file.map(Found::Upload).ok_or_else(|| missing(&name))
}

fn missing(name: &str) -> Problem {
    Problem::not_found(format!("No such File object: {name}")).at("id")
}

/// The batch whose answers or errors a name means.
fn output_of(name: &str) -> Option<(JobId, Which)> {
    let (name, which) = match (name.strip_suffix(ANSWERS), name.strip_suffix(ERRORS)) {
        (Some(name), _) => (name, Which::Answers),
        (None, Some(name)) => (name, Which::Errors),
        (None, None) => return None,
    };
    Some((id_of(name, FILE_PREFIX)?, which))
}

fn bytes_of(batch: &Batch, which: Which) -> u64 {
    match which {
        Which::Answers => batch.bytes.0,
        Which::Errors => batch.bytes.1,
        Which::All => batch.bytes.0 + batch.bytes.1,
    }
}

fn output_json(batch: &Batch, which: Which) -> Value {
    let (id, filename) = match which {
        Which::Errors => (errors_name(batch.id), "errors.jsonl"),
        Which::Answers | Which::All => (answers_name(batch.id), "output.jsonl"),
    };
    let about = FileRecord {
        id,
        bytes: bytes_of(batch, which),
        created_at: batch.ended_at.unwrap_or(batch.created_at),
        filename: format!("{}_{filename}", name_of(batch.id, Form::OpenAi.prefix())),
        purpose: OUTPUT_PURPOSE.to_owned(),
        expires_at: None,
        owner: batch.payload.owner.clone(),
    };
    file_json(&about)
}

fn file_json(file: &FileRecord) -> Value {
    let seconds = |at: Timestamp| at.as_millis() / 1_000;
    json!({
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": seconds(file.created_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "expires_at": file.expires_at.map(seconds),
        "status_details": null,
    })
}
