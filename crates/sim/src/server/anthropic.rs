//! Anthropic's dialect over HTTP: messages and message batches.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::connection::Connection;
use super::results;
use super::wire::{Wire, json_response, read_json};
use super::{body, strict};
use crate::batches::{ANTHROPIC_BYTES_MAX, Batch, BatchLines, Door, NewBatch};
use crate::content::Content;
use crate::sim_core::{SimCore, Trouble};
use longhaul_llm::error::{Class, Error};
use longhaul_llm::types::{ChatRequest, Dialect};
use longhaul_llm::wire::anthropic::{
    answer_to_events, answer_to_json, batch_to_json, create_from_json, item_from_json, line_to_json,
    request_from_json,
};

const WIRE: Wire = Wire::Anthropic;

type Core = State<Arc<SimCore>>;

/// `POST /v1/messages`.
pub(super) async fn messages(
    State(core): Core,
    ConnectInfo(connection): ConnectInfo<Connection>,
    body: Bytes,
) -> Response {
    let request = match read_json(&body).and_then(|value| read(&core, value)) {
        Ok(request) => request,
        Err(error) => return WIRE.refusal(&core, &error),
    };
    if request.extra.get("stream") != Some(&Value::Bool(true)) {
        return match core.complete(&request).await {
            Ok(run) => WIRE.answer(&core, &run.rate, &answer_to_json(&run.answer)),
            Err(trouble) => WIRE.trouble(&core, &connection, trouble, answer_to_json),
        };
    }
    let (run, cut_off) = match core.begin(&request).await {
        Ok(run) => (run, false),
        Err(Trouble::CutOff(run)) => (*run, true),
        Err(trouble) => return WIRE.trouble(&core, &connection, trouble, answer_to_json),
    };
    let (events, rate) = (answer_to_events(&run.answer), run.rate.clone());
    let mut response = body::events(Arc::clone(&core), run, &events, cut_off);
    WIRE.tell_limits(&core, &rate, response.headers_mut());
    response
}

fn read(core: &SimCore, value: Value) -> Result<ChatRequest, Error> {
    strict::check(core, Dialect::Anthropic, &value)?;
    request_from_json(value)
}

/// `POST /v1/messages/count_tokens`.
pub(super) async fn count_tokens(State(core): Core, body: Bytes) -> Response {
    let request = read_json(&body).and_then(|mut value| {
        // This call alone has no limit of output, and the codec insists on one.
        if let Some(fields) = value.as_object_mut() {
            fields.entry("max_tokens").or_insert(json!(1));
        }
        request_from_json(value)
    });
    match request {
        Ok(request) => {
            json_response(StatusCode::OK, &json!({ "input_tokens": Content::of(&request).input_tokens }))
        }
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// `POST /v1/messages/batches`.
pub(super) async fn create_batch(
    State(core): Core,
    ConnectInfo(connection): ConnectInfo<Connection>,
    body: Bytes,
) -> Response {
    match create(&core, &body) {
        Ok(batch) => json_response(StatusCode::OK, &shown(&core, &batch)),
        Err(trouble) => WIRE.trouble(&core, &connection, trouble, answer_to_json),
    }
}

fn create(core: &SimCore, body: &Bytes) -> Result<Arc<Batch>, Trouble> {
    if body.len() > ANTHROPIC_BYTES_MAX {
        let message = format!("a batch may have {ANTHROPIC_BYTES_MAX} bytes, this has {}", body.len());
        return Err(Error::new(Class::BadRequest, message).with_status(413).into());
    }
    let mut lines = BatchLines::default();
    for value in read_json(body).and_then(create_from_json)? {
        let bare = json!({ "custom_id": value["custom_id"], "params": bare_of(&value["params"]) });
        let checked = strict::check(core, Dialect::Anthropic, &value["params"]);
        lines.push(item_from_json(bare)?, checked.and_then(|()| item_from_json(value)));
    }
    core.create_batch(NewBatch {
        door: Door::Anthropic,
        items: lines.items,
        refused: lines.refused,
        invalid: None,
        display_name: None,
        metadata: Map::new(),
        input_file: None,
    })
}

/// Parameters of which a service that refuses them still knows the model.
fn bare_of(params: &Value) -> Value {
    match params {
        Value::Object(_) => json!({ "model": params["model"], "max_tokens": 1, "messages": [] }),
        _ => Value::Null,
    }
}

/// `GET /v1/messages/batches/{id}`.
pub(super) async fn retrieve_batch(
    State(core): Core,
    ConnectInfo(connection): ConnectInfo<Connection>,
    Path(id): Path<String>,
) -> Response {
    match core.poll_batch(Door::Anthropic, &id) {
        Ok(batch) => json_response(StatusCode::OK, &shown(&core, &batch)),
        Err(trouble) => WIRE.trouble(&core, &connection, trouble, answer_to_json),
    }
}

/// `POST /v1/messages/batches/{id}/cancel`.
pub(super) async fn cancel_batch(State(core): Core, Path(id): Path<String>) -> Response {
    match core.batch(Door::Anthropic, &id) {
        Ok(batch) => {
            core.cancel_batch(&batch);
            json_response(StatusCode::OK, &shown(&core, &batch))
        }
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// `DELETE /v1/messages/batches/{id}`.
pub(super) async fn delete_batch(State(core): Core, Path(id): Path<String>) -> Response {
    match core.delete_batch(Door::Anthropic, &id) {
        Ok(()) => json_response(StatusCode::OK, &json!({ "id": id, "type": "message_batch_deleted" })),
        Err(error) => WIRE.refusal(&core, &error),
    }
}

/// `GET /v1/messages/batches/{id}/results`.
pub(super) async fn results(State(core): Core, Path(id): Path<String>) -> Response {
    let response = core
        .batch(Door::Anthropic, &id)
        .and_then(|batch| results::respond(&core, &batch, |line, context| Some(line_to_json(line, context))));
    response.unwrap_or_else(|error| WIRE.refusal(&core, &error))
}

/// What a list is asked with.
#[derive(Debug, Deserialize)]
pub(super) struct ListQuery {
    after_id: Option<String>,
    before_id: Option<String>,
    limit: Option<usize>,
}

/// `GET /v1/messages/batches`.
pub(super) async fn list_batches(State(core): Core, Query(query): Query<ListQuery>) -> Response {
    let limit = query.limit.filter(|limit| *limit > 0).unwrap_or(20).min(1000);
    let batches = core.list_batches(Door::Anthropic);
    let (after, before) = (query.after_id.as_deref(), query.before_id.as_deref());
    let page = results::page(batches, |batch| &batch.id, after, before, limit);
    let body = json!({
        "data": page.items.iter().map(|batch| shown(&core, batch)).collect::<Vec<_>>(),
        "has_more": page.has_more,
        "first_id": page.items.first().map(|batch| &batch.id),
        "last_id": page.items.last().map(|batch| &batch.id),
    });
    json_response(StatusCode::OK, &body)
}

fn shown(core: &SimCore, batch: &Batch) -> Value {
    batch_to_json(&results::object(core, batch))
}
