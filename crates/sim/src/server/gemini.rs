//! Gemini's dialect over HTTP: generateContent, embeddings, files, and batch mode.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::connection::Connection;
use super::results;
use super::wire::{Wire, json_response, read_json};
use super::{body, strict};
use crate::batches::{Batch, BatchLines, Door, GEMINI_INLINE_BYTES_MAX, NewBatch};
use crate::sim_core::{SimCore, Trouble, bad_request, not_found};
use longhaul_llm::error::{Class, Error};
use longhaul_llm::provider::BatchState;
use longhaul_llm::types::{ChatRequest, Dialect, Endpoint};
use longhaul_llm::wire::gemini::{
    answer_to_events, answer_to_json, batch_to_json, create_from_json, embed_request_from_json,
    embeddings_to_json, input_from_json, line_to_json, request_from_json,
};

const WIRE: Wire = Wire::Gemini;

type Core = State<Arc<SimCore>>;
type Peer = ConnectInfo<Connection>;

/// `GET /v1beta/models`.
pub(super) async fn models(State(core): Core) -> Response {
    let methods = ["generateContent", "embedContent", "batchGenerateContent", "asyncBatchEmbedContent"];
    let model = |id: &String| json!({ "name": format!("models/{id}"), "displayName": id, "supportedGenerationMethods": methods });
    json_response(
        StatusCode::OK,
        &json!({ "models": core.options().models.iter().map(model).collect::<Vec<_>>() }),
    )
}

/// `POST /v1beta/models/{model}:{verb}`.
pub(super) async fn call(
    State(core): Core,
    ConnectInfo(connection): Peer,
    Path(call): Path<String>,
    body: Bytes,
) -> Response {
    let Some((model, verb)) = call.rsplit_once(':') else {
        return WIRE.refusal(&core, &not_found(&format!("method: {call}")));
    };
    let value = match read_json(&body) {
        Ok(value) => value,
        Err(error) => return WIRE.refusal(&core, &error),
    };
    let response = match verb {
        "generateContent" => generate(&core, model, value).await,
        "streamGenerateContent" => stream(&core, model, value).await,
        "embedContent" => embed(&core, model, json!({ "requests": [value] }), true).await,
        "batchEmbedContents" => embed(&core, model, value, false).await,
        "batchGenerateContent" => create(&core, (Endpoint::Chat, model), value, body.len())
            .map(|batch| json_response(StatusCode::OK, &shown(&core, &batch, true))),
        "asyncBatchEmbedContent" => create(&core, (Endpoint::Embeddings, model), value, body.len())
            .map(|batch| json_response(StatusCode::OK, &shown(&core, &batch, true))),
        _ => Err(not_found(&format!("method: {verb}")).into()),
    };
    response.unwrap_or_else(|trouble| WIRE.trouble(&core, &connection, trouble, answer_to_json))
}

fn read(core: &SimCore, model: &str, value: Value) -> Result<ChatRequest, Error> {
    strict::check(core, Dialect::Gemini, &value)?;
    request_from_json(model, value)
}

async fn generate(core: &SimCore, model: &str, value: Value) -> Result<Response, Trouble> {
    let run = core.complete(&read(core, model, value)?).await?;
    Ok(WIRE.answer(core, &run.rate, &answer_to_json(&run.answer)))
}

async fn stream(core: &Arc<SimCore>, model: &str, value: Value) -> Result<Response, Trouble> {
    let (run, cut_off) = match core.begin(&read(core, model, value)?).await {
        Ok(run) => (run, false),
        Err(Trouble::CutOff(run)) => (*run, true),
        Err(trouble) => return Err(trouble),
    };
    let events = answer_to_events(&run.answer);
    Ok(body::events(Arc::clone(core), run, &events, cut_off))
}

async fn embed(core: &SimCore, model: &str, value: Value, single: bool) -> Result<Response, Trouble> {
    let (embeddings, rate) = core.embed(&embed_request_from_json(model, value)?).await?;
    let mut body = embeddings_to_json(&embeddings);
    if single {
        body = json!({ "embedding": body["embeddings"][0].take() });
    }
    Ok(WIRE.answer(core, &rate, &body))
}

fn create(
    core: &SimCore,
    (endpoint, model): (Endpoint, &str),
    value: Value,
    bytes: usize,
) -> Result<Arc<Batch>, Trouble> {
    // Requests that come inline are part of the call, and a call is refused as a whole; lines of a file are refused one by one.
    let inline = &value["batch"]["inputConfig"]["requests"]["requests"];
    for line in inline.as_array().into_iter().flatten().filter(|_| endpoint == Endpoint::Chat) {
        strict::check(core, Dialect::Gemini, &line["request"])?;
    }
    let create = create_from_json(endpoint, model, value)?;
    let lines = match &create.file {
        Some(file) => lines_of(core, (endpoint, model), &core.file(file)?.content)?,
        None if bytes > GEMINI_INLINE_BYTES_MAX => {
            let message = format!("requests that are sent inline may have {GEMINI_INLINE_BYTES_MAX} bytes");
            return Err(Error::new(Class::BadRequest, message).with_status(400).into());
        }
        None => BatchLines { items: create.items, ..BatchLines::default() },
    };
    core.create_batch(NewBatch {
        door: Door::Gemini,
        items: lines.items,
        refused: lines.refused,
        invalid: None,
        display_name: Some(create.display_name),
        metadata: Map::new(),
        input_file: create.file,
    })
}

fn lines_of(
    core: &SimCore,
    (endpoint, model): (Endpoint, &str),
    content: &Bytes,
) -> Result<BatchLines, Error> {
    let mut found = BatchLines::default();
    for line in content.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        let value: Value = serde_json::from_slice(line).map_err(|error| bad_request(error.to_string()))?;
        let request = match endpoint {
            Endpoint::Chat => json!({ "contents": [] }),
            Endpoint::Embeddings => json!({ "content": { "parts": [] } }),
        };
        let named = input_from_json(endpoint, model, json!({ "key": value["key"], "request": request }))?;
        let checked = match endpoint {
            Endpoint::Chat => strict::check(core, Dialect::Gemini, &value["request"]),
            Endpoint::Embeddings => Ok(()),
        };
        found.push(named, checked.and_then(|()| input_from_json(endpoint, model, value)));
    }
    Ok(found)
}

/// `GET /v1beta/batches/{id}`.
pub(super) async fn retrieve_batch(
    State(core): Core,
    ConnectInfo(connection): Peer,
    Path(id): Path<String>,
) -> Response {
    match core.poll_batch(Door::Gemini, &format!("batches/{id}")) {
        Ok(batch) => json_response(StatusCode::OK, &shown(&core, &batch, true)),
        Err(trouble) => WIRE.trouble(&core, &connection, trouble, answer_to_json),
    }
}

/// `POST /v1beta/batches/{id}:cancel`.
pub(super) async fn cancel_batch(State(core): Core, Path(call): Path<String>) -> Response {
    let Some(id) = call.strip_suffix(":cancel") else {
        return WIRE.refusal(&core, &not_found(&format!("method: {call}")));
    };
    match core.batch(Door::Gemini, &format!("batches/{id}")) {
        Ok(batch) => {
            core.cancel_batch(&batch);
            json_response(StatusCode::OK, &json!({}))
        }
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// `DELETE /v1beta/batches/{id}`.
pub(super) async fn delete_batch(State(core): Core, Path(id): Path<String>) -> Response {
    match core.delete_batch(Door::Gemini, &format!("batches/{id}")) {
        Ok(()) => json_response(StatusCode::OK, &json!({})),
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// What a list is asked with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListQuery {
    page_size: Option<usize>,
    page_token: Option<String>,
}

/// `GET /v1beta/batches`.
pub(super) async fn list_batches(State(core): Core, Query(query): Query<ListQuery>) -> Response {
    let limit = query.page_size.filter(|limit| *limit > 0).unwrap_or(20).min(100);
    let after = query.page_token.filter(|token| !token.is_empty());
    let page =
        results::page(core.list_batches(Door::Gemini), |batch| &batch.id, after.as_deref(), None, limit);
    let operations: Vec<Value> = page.items.iter().map(|batch| shown(&core, batch, false)).collect();
    let mut body = json!({ "operations": operations });
    if page.has_more {
        body["nextPageToken"] = json!(page.items.last().map(|batch| &batch.id));
    }
    json_response(StatusCode::OK, &body)
}

/// A batch. Results come as its requests did: inline, or as a file.
fn shown(core: &Arc<SimCore>, batch: &Arc<Batch>, with_results: bool) -> Value {
    let mut object = results::object(core, batch);
    if with_results && object.state.is_terminal() && object.state != BatchState::Failed {
        match &batch.given.input_file {
            Some(_) => object.output_file = Some(batch.id.replace("batches/", "files/batch-")),
            None => object.inline = core.batch_lines(batch).map(Iterator::collect),
        }
    }
    batch_to_json(&object)
}

/// `POST /upload/v1beta/files`: the resumable protocol in its two steps, or everything at once.
pub(super) async fn upload(State(core): Core, headers: HeaderMap, body: Bytes) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if text("x-goog-upload-command") == "start" {
        let url = format!("http://{}/upload/v1beta/files?upload_id=1", text("host"));
        return ([("x-goog-upload-url", url)], "{}").into_response();
    }
    match core.add_file("files/", "upload", "batch", body) {
        Ok(file) => {
            let mut response =
                json_response(StatusCode::OK, &json!({ "file": file_json(&file.id, file.content.len()) }));
            let headers = response.headers_mut();
            headers.insert("x-goog-upload-status", header::HeaderValue::from_static("final"));
            response
        }
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// `GET /v1beta/files/{id}`, and with `:download` what is in it.
pub(super) async fn file(State(core): Core, Path(call): Path<String>) -> Response {
    let (id, download) = call.strip_suffix(":download").map_or((call.as_str(), false), |id| (id, true));
    let response = match id.strip_prefix("batch-") {
        Some(_) if !download => Ok(json_response(StatusCode::OK, &file_json(&format!("files/{id}"), 0))),
        Some(batch) => core
            .batch(Door::Gemini, &format!("batches/{batch}"))
            .and_then(|batch| results::respond(&core, &batch, |line, _| line_to_json(line))),
        None => core.file(&format!("files/{id}")).map(|file| {
            if download {
                ([(header::CONTENT_TYPE, "application/octet-stream")], file.content).into_response()
            } else {
                json_response(StatusCode::OK, &file_json(&file.id, file.content.len()))
            }
        }),
    };
    response.unwrap_or_else(|error| WIRE.refusal(&core, &error))
}

/// `DELETE /v1beta/files/{id}`.
pub(super) async fn delete_file(State(core): Core, Path(id): Path<String>) -> Response {
    match core.delete_file(&format!("files/{id}")) {
        Ok(()) => json_response(StatusCode::OK, &json!({})),
        Err(error) => WIRE.refusal(&core, &error),
    }
}

fn file_json(name: &str, bytes: usize) -> Value {
    json!({ "name": name, "sizeBytes": bytes.to_string(), "state": "ACTIVE", "mimeType": "application/jsonl" })
}
