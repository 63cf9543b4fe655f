//! OpenAI's dialect over HTTP: chat completions, embeddings, batches.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::connection::Connection;
use super::results::{self, Page};
use super::wire::{Wire, json_response, read_json};
use super::{body, files, strict};
use crate::batches::{Batch, BatchLines, Door, NewBatch};
use crate::sim_core::{SimCore, Trouble, bad_request};
use longhaul_llm::error::Error;
use longhaul_llm::provider::BatchState;
use longhaul_llm::types::{Answer, ChatRequest, Dialect, Endpoint};
use longhaul_llm::wire::openai::{
    EventOptions, answer_to_events, answer_to_json, batch_to_json, create_from_json, embed_request_from_json,
    embeddings_to_json, input_from_json, request_from_json,
};

const WIRE: Wire = Wire::OpenAi;
/// Most pairs of metadata.
const METADATA_PAIRS_MAX: usize = 16;
/// Longest name of a pair.
const METADATA_KEY_MAX: usize = 64;
/// Longest value of a pair.
const METADATA_VALUE_MAX: usize = 512;

type Core = State<Arc<SimCore>>;

/// `POST /v1/chat/completions`.
pub(super) async fn chat(
    State(core): Core,
    ConnectInfo(connection): ConnectInfo<Connection>,
    body: Bytes,
) -> Response {
    let request = match read_json(&body).and_then(|value| read(&core, value)) {
        Ok(request) => request,
        Err(error) => return WIRE.refusal(&core, &error),
    };
    let created_s = core.clock.0.now_ms() / 1000;
    let whole = |answer: &Answer| answer_to_json(answer, created_s);
    if request.extra.get("stream") != Some(&Value::Bool(true)) {
        return match core.complete(&request).await {
            Ok(run) => WIRE.answer(&core, &run.rate, &whole(&run.answer)),
            Err(trouble) => WIRE.trouble(&core, &connection, trouble, whole),
        };
    }
    let options = request.extra.get("stream_options");
    let include_usage = options.is_some_and(|options| options["include_usage"] == true);
    let (run, cut_off) = match core.begin(&request).await {
        Ok(run) => (run, false),
        Err(Trouble::CutOff(run)) => (*run, true),
        Err(trouble) => return WIRE.trouble(&core, &connection, trouble, whole),
    };
    let events = answer_to_events(&run.answer, EventOptions { created_s, include_usage });
    let rate = run.rate.clone();
    let mut response = body::events(Arc::clone(&core), run, &events, cut_off);
    WIRE.tell_limits(&core, &rate, response.headers_mut());
    response
}

fn read(core: &SimCore, value: Value) -> Result<ChatRequest, Error> {
    strict::check(core, Dialect::OpenAi, &value)?;
    request_from_json(value)
}

/// `POST /v1/embeddings`.
pub(super) async fn embeddings(
    State(core): Core,
    ConnectInfo(connection): ConnectInfo<Connection>,
    body: Bytes,
) -> Response {
    let (request, form) = match read_json(&body).and_then(embed_request_from_json) {
        Ok(read) => read,
        Err(error) => return WIRE.refusal(&core, &error),
    };
    match core.embed(&request).await {
        Ok((embeddings, rate)) => WIRE.answer(&core, &rate, &embeddings_to_json(&embeddings, form)),
        Err(trouble) => WIRE.trouble(&core, &connection, trouble, |_| Value::Null),
    }
}

/// `POST /v1/batches`.
pub(super) async fn create_batch(
    State(core): Core,
    ConnectInfo(connection): ConnectInfo<Connection>,
    body: Bytes,
) -> Response {
    match create(&core, &body) {
        Ok(batch) => json_response(StatusCode::OK, &shown(&core, &batch)),
        Err(trouble) => WIRE.trouble(&core, &connection, trouble, |_| Value::Null),
    }
}

fn create(core: &SimCore, body: &Bytes) -> Result<Arc<Batch>, Trouble> {
    let create = read_json(body).and_then(create_from_json)?;
    check_metadata(&create.metadata)?;
    let file = core.file(&create.input_file).map_err(|_| {
        bad_request(format!(
            "Cannot find file {}, or organization does not have access to it.",
            create.input_file
        ))
    })?;
    // A file that cannot be read makes a batch that fails, as the service does it.
    let (lines, invalid) = match lines_of(core, &file.content) {
        Ok(lines) if lines.items.iter().any(|item| item.request.endpoint().url() != create.endpoint) => {
            let text = format!("a line has another url than the batch's endpoint {}", create.endpoint);
            (BatchLines::default(), Some(("mismatched_endpoint".to_owned(), text)))
        }
        Ok(lines) => (lines, None),
        Err((line, error)) => {
            let text = format!("line {line}: {}", error.message);
            (BatchLines::default(), Some(("invalid_json_line".to_owned(), text)))
        }
    };
    core.create_batch(NewBatch {
        door: Door::OpenAi,
        items: lines.items,
        refused: lines.refused,
        invalid,
        display_name: None,
        metadata: create.metadata,
        input_file: Some(create.input_file),
    })
}

/// The lines of a file. A body that the service would refuse is an error of its own line; any other fault is one of the file.
fn lines_of(core: &SimCore, content: &Bytes) -> Result<BatchLines, (usize, Error)> {
    let lines = content.split(|byte| *byte == b'\n').enumerate();
    let mut found = BatchLines::default();
    for (index, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let wrong = |error| (index + 1, error);
        let value: Value =
            serde_json::from_slice(line).map_err(|error| wrong(bad_request(error.to_string())))?;
        let (url, body) = (value["url"].as_str().unwrap_or_default(), &value["body"]);
        let read = match Endpoint::of_url(url) {
            Some(Endpoint::Chat) => strict::check(core, Dialect::OpenAi, body),
            Some(Endpoint::Embeddings) | None => Ok(()),
        };
        let bare = json!({ "custom_id": value["custom_id"], "method": value["method"], "url": url, "body": bare_of(body) });
        let named = input_from_json(bare).map_err(wrong)?;
        found.push(named, read.and_then(|()| input_from_json(value)));
    }
    Ok(found)
}

/// A body of which a service that refuses it still knows the model.
fn bare_of(body: &Value) -> Value {
    match body {
        Value::Object(_) => json!({ "model": body["model"], "messages": [], "input": "" }),
        _ => Value::Null,
    }
}

fn check_metadata(metadata: &Map<String, Value>) -> Result<(), Error> {
    let fits = |(key, value): (&String, &Value)| {
        key.len() <= METADATA_KEY_MAX && value.as_str().is_some_and(|value| value.len() <= METADATA_VALUE_MAX)
    };
    if metadata.len() > METADATA_PAIRS_MAX || !metadata.iter().all(fits) {
        return Err(bad_request("metadata takes 16 pairs of texts, of 64 and 512 characters"));
    }
    Ok(())
}

/// `GET /v1/batches/{id}`.
pub(super) async fn retrieve_batch(
    State(core): Core,
    ConnectInfo(connection): ConnectInfo<Connection>,
    Path(id): Path<String>,
) -> Response {
    match core.poll_batch(Door::OpenAi, &id) {
        Ok(batch) => json_response(StatusCode::OK, &shown(&core, &batch)),
        Err(trouble) => WIRE.trouble(&core, &connection, trouble, |_| Value::Null),
    }
}

/// `POST /v1/batches/{id}/cancel`.
pub(super) async fn cancel_batch(State(core): Core, Path(id): Path<String>) -> Response {
    match core.batch(Door::OpenAi, &id) {
        Ok(batch) => {
            core.cancel_batch(&batch);
            json_response(StatusCode::OK, &shown(&core, &batch))
        }
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// What a list is asked with.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    pub(super) after: Option<String>,
    pub(super) limit: Option<usize>,
    pub(super) purpose: Option<String>,
    pub(super) order: Option<String>,
}

/// `GET /v1/batches`.
pub(super) async fn list_batches(State(core): Core, Query(query): Query<ListQuery>) -> Response {
    let limit = query.limit.filter(|limit| *limit > 0).unwrap_or(20).min(100);
    let batches = core.list_batches(Door::OpenAi);
    let page = results::page(batches, |batch| &batch.id, query.after.as_deref(), None, limit);
    json_response(StatusCode::OK, &list(&page, |batch| shown(&core, batch)))
}

/// A page in OpenAI's form.
pub(super) fn list<T>(page: &Page<T>, show: impl Fn(&T) -> Value) -> Value {
    let data: Vec<Value> = page.items.iter().map(show).collect();
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
    json!({
        "object": "list",
        "first_id": id(data.first()),
        "last_id": id(data.last()),
        "has_more": page.has_more,
        "data": data,
    })
}

fn shown(core: &SimCore, batch: &Batch) -> Value {
    let mut object = results::object(core, batch);
    if object.state.is_terminal() && object.state != BatchState::Failed {
        let counts = object.counts.unwrap_or_default();
        let unanswered = counts.failed + counts.cancelled + counts.expired;
        object.output_file = (counts.completed > 0).then(|| files::result_name(&batch.id, false));
        object.error_file = (unanswered > 0).then(|| files::result_name(&batch.id, true));
    }
    batch_to_json(&object)
}
