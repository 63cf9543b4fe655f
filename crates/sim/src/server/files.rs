//! OpenAI's files: what was uploaded, and the results of batches, which are made when they are read.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Multipart, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::openai::{ListQuery, list as list_json};
use super::results;
use super::wire::{Wire, json_response};
use crate::batches::{Batch, Door, OPENAI_BYTES_MAX};
use crate::files::StoredFile;
use crate::sim_core::{SimCore, bad_request};
use longhaul_llm::error::{Class, Error};
use longhaul_llm::provider::BatchLine;
use longhaul_llm::wire::batch::LineContext;
use longhaul_llm::wire::openai::{batch_written_to_errors, line_to_json};

const WIRE: Wire = Wire::OpenAi;
/// Most files on a page.
const LIST_MAX: usize = 10_000;

type Core = State<Arc<SimCore>>;

/// The name of the file with a batch's answers or errors.
pub(super) fn result_name(batch: &str, errors: bool) -> String {
    format!("file-{}-{batch}", if errors { "err" } else { "out" })
}

/// `POST /v1/files`.
pub(super) async fn upload(State(core): Core, parts: Multipart) -> Response {
    match keep(&core, parts).await {
        Ok(file) => json_response(StatusCode::OK, &shown(&file)),
        Err(error) => WIRE.refusal(&core, &error),
    }
}

async fn keep(core: &SimCore, mut parts: Multipart) -> Result<StoredFile, Error> {
    let broken = |error: axum::extract::multipart::MultipartError| bad_request(error.body_text());
    let (mut purpose, mut file) = (None, None);
    // Clients send the parts in any order, and some that are not known here.
    while let Some(part) = parts.next_field().await.map_err(broken)? {
        match part.name() {
            Some("purpose") => purpose = Some(part.text().await.map_err(broken)?),
            Some("file") => {
                let name = part.file_name().unwrap_or("upload").to_owned();
                file = Some((name, part.bytes().await.map_err(broken)?));
            }
            _ => {}
        }
    }
    let purpose = purpose.ok_or_else(|| bad_request("purpose is missing"))?;
    let (name, content) = file.ok_or_else(|| bad_request("file is missing"))?;
    if content.len() > OPENAI_BYTES_MAX {
        let message = format!("a batch file may have {OPENAI_BYTES_MAX} bytes, this has {}", content.len());
        return Err(Error::new(Class::BadRequest, message).with_status(413));
    }
    core.add_file("file-", &name, &purpose, content)
}

/// `GET /v1/files`.
pub(super) async fn list(State(core): Core, Query(query): Query<ListQuery>) -> Response {
    let mut files = core.list_files();
    files.retain(|file| query.purpose.as_deref().is_none_or(|purpose| file.purpose == purpose));
    files.retain(|file| file.id.starts_with("file-"));
    if query.order.as_deref() == Some("asc") {
        files.reverse();
    }
    let limit = query.limit.filter(|limit| *limit > 0).unwrap_or(LIST_MAX).min(LIST_MAX);
    let page = results::page(files, |file| &file.id, query.after.as_deref(), None, limit);
    json_response(StatusCode::OK, &list_json(&page, shown))
}

/// `GET /v1/files/{id}`.
pub(super) async fn retrieve(State(core): Core, Path(id): Path<String>) -> Response {
    let file = match result_of(&core, &id) {
        Some((batch, errors)) => result_file(&core, &id, &batch, errors),
        None => core.file(&id),
    };
    match file {
        Ok(file) => json_response(StatusCode::OK, &shown(&file)),
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// `GET /v1/files/{id}/content`.
pub(super) async fn content(State(core): Core, Path(id): Path<String>) -> Response {
    let response = match result_of(&core, &id) {
        Some((batch, errors)) => results::respond(&core, &batch, writer(errors)),
        None => core
            .file(&id)
            .map(|file| ([(header::CONTENT_TYPE, "application/octet-stream")], file.content).into_response()),
    };
    response.unwrap_or_else(|error| WIRE.refusal(&core, &error))
}

/// `DELETE /v1/files/{id}`.
pub(super) async fn delete(State(core): Core, Path(id): Path<String>) -> Response {
    // Results are not stored, so there is nothing to free.
    let deleted = if result_of(&core, &id).is_some() { Ok(()) } else { core.delete_file(&id) };
    match deleted {
        Ok(()) => json_response(StatusCode::OK, &json!({ "id": id, "object": "file", "deleted": true })),
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// The batch whose answers or errors a name stands for.
fn result_of(core: &SimCore, id: &str) -> Option<(Arc<Batch>, bool)> {
    let rest = id.strip_prefix("file-")?;
    let (errors, batch) = match rest.strip_prefix("err-") {
        Some(batch) => (true, batch),
        None => (false, rest.strip_prefix("out-")?),
    };
    core.batch(Door::OpenAi, batch).ok().map(|batch| (batch, errors))
}

fn writer(errors: bool) -> impl Fn(&BatchLine, &LineContext<'_>) -> Option<Value> + Send + 'static {
    move |line, context| (batch_written_to_errors(line) == errors).then(|| line_to_json(line, context))
}

fn result_file(core: &Arc<SimCore>, id: &str, batch: &Arc<Batch>, errors: bool) -> Result<StoredFile, Error> {
    let mut content = Vec::new();
    for line in results::texts(core, batch, writer(errors))? {
        content.extend_from_slice(line.as_bytes());
        content.push(b'\n');
    }
    Ok(StoredFile {
        id: id.to_owned(),
        filename: format!("{}_{}.jsonl", batch.id, if errors { "error" } else { "output" }),
        purpose: "batch_output".to_owned(),
        created_ms: batch.created_ms,
        content: Bytes::from(content),
    })
}

fn shown(file: &StoredFile) -> Value {
    json!({
        "id": file.id,
        "object": "file",
        "bytes": file.content.len(),
        "created_at": file.created_ms / 1000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    })
}
