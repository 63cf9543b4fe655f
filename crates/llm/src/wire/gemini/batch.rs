//! Batch mode: requests inline or in an uploaded file, results likewise. A batch is a long-running operation.

use serde_json::{Value, json};

use crate::error::Result;
use crate::provider::{BatchItem, BatchLine, BatchState, LineOutcome};
use crate::types::{Endpoint, Request};
use crate::wire::batch::{BatchCounts, BatchObject};
use crate::wire::fields::Fields;
use crate::wire::shapes::{count, no_answer, seconds_of, text, time_of};

use super::answer::{answer_from_json, answer_to_json};
use super::embed::{embed_answer_from_json, embed_answer_to_json, embed_line_from_json, embed_line_to_json};
use super::error::{error_of_status, error_to_json};
use super::request::{model_path, request_from_json, request_to_json};

/// Writes a line of an input file.
pub fn input_to_json(item: &BatchItem) -> Result<Value> {
    Ok(json!({ "key": item.custom_id, "request": line_request_to_json(&item.request)? }))
}

fn line_request_to_json(request: &Request) -> Result<Value> {
    match request {
        Request::Chat(request) => request_to_json(request),
        Request::Embed(request) => embed_line_to_json(request),
    }
}

/// The verb of the creation tells what is asked for: the lines themselves do not.
fn line_request_from_json(endpoint: Endpoint, model: &str, value: Value) -> Result<Request> {
    match endpoint {
        Endpoint::Chat => request_from_json(model, value).map(Request::Chat),
        Endpoint::Embeddings => embed_line_from_json(model, value).map(Request::Embed),
    }
}

/// Reads a line of an input file for a model.
pub fn input_from_json(endpoint: Endpoint, model: &str, value: Value) -> Result<BatchItem> {
    let mut fields = Fields::new(value, "")?;
    let custom_id = fields.needed_text("key")?;
    let request = fields.take("request");
    let request = fields.need("request", "an object", request)?;
    Ok(BatchItem { custom_id, request: line_request_from_json(endpoint, model, request)? })
}

/// Writes the body that creates a batch of an uploaded file.
pub fn create_of_file_to_json(tag: &str, file: &str) -> Value {
    json!({ "batch": { "displayName": tag, "inputConfig": { "fileName": file } } })
}

/// Writes the body that creates a batch with its requests in it, one after the other, so that only their text is held.
pub fn create_inline_to_body(tag: &str, items: &[BatchItem]) -> Result<Vec<u8>> {
    let start = format!(
        "{{\"batch\":{{\"displayName\":{},\"inputConfig\":{{\"requests\":{{\"requests\":[",
        json!(tag)
    );
    let mut body = start.into_bytes();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        let request = line_request_to_json(&item.request)?;
        let line = json!({ "request": request, "metadata": { "key": item.custom_id } });
        body.extend_from_slice(line.to_string().as_bytes());
    }
    body.extend_from_slice(b"]}}}}");
    Ok(body)
}

/// What a batch is created from.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchCreate {
    /// The creator's name for it.
    pub display_name: String,
    /// The uploaded input, if it is a file.
    pub file: Option<String>,
    /// The requests, if they are inline.
    pub items: Vec<BatchItem>,
}

/// Reads the body that creates a batch for a model.
pub fn create_from_json(endpoint: Endpoint, model: &str, value: Value) -> Result<BatchCreate> {
    let mut fields = Fields::new(value, "")?;
    let batch = fields.object("batch")?;
    let mut batch = fields.need("batch", "an object", batch)?;
    let display_name = batch.text("displayName")?.unwrap_or_default();
    let input = batch.object("inputConfig")?;
    let mut input = batch.need("inputConfig", "an object", input)?;
    let file = input.text("fileName")?;
    let mut items = Vec::new();
    if file.is_none() {
        let outer = input.object("requests")?;
        let list = input.need("requests", "an object with requests", outer)?.needed_list("requests")?;
        for (index, mut line) in list.into_iter().enumerate() {
            let custom_id = text(&line["metadata"]["key"]).unwrap_or_else(|| index.to_string());
            let request = line_request_from_json(endpoint, model, line["request"].take())?;
            items.push(BatchItem { custom_id, request });
        }
    }
    Ok(BatchCreate { display_name, file, items })
}

/// Writes a result as a line of a file. A request that never ran has no line: `None`.
pub fn line_to_json(line: &BatchLine) -> Option<Value> {
    let mut value = outcome_to_json(&line.outcome)?;
    value["key"] = json!(line.custom_id);
    Some(value)
}

/// Reads a result, from a line of a file or from a list within the batch.
pub fn line_from_json(value: &Value) -> Result<BatchLine> {
    let custom_id = text(&value["key"]).or_else(|| text(&value["metadata"]["key"]));
    let outcome = if value["response"].is_object() {
        let response = &value["response"];
        let answer = match response["embedding"].is_object() {
            true => embed_answer_from_json(response),
            false => answer_from_json(response),
        };
        match answer {
            Ok(answer) => LineOutcome::Answered(Box::new(answer)),
            Err(error) => LineOutcome::Failed(Box::new(error)),
        }
    } else {
        // gRPC's code for a call that was cancelled.
        match [&value["error"], &value["status"]].into_iter().find(|error| error.is_object()) {
            Some(error) if error["code"] == 1 => LineOutcome::NotRun,
            Some(error) => LineOutcome::Failed(Box::new(error_of_status(error))),
            None => return Err(no_answer("a line of the results has neither an answer nor an error")),
        }
    };
    Ok(BatchLine { custom_id, outcome })
}

fn outcome_to_json(outcome: &LineOutcome) -> Option<Value> {
    match outcome {
        LineOutcome::Answered(answer) if answer.vectors.is_empty() => {
            Some(json!({ "response": answer_to_json(answer) }))
        }
        LineOutcome::Answered(answer) => Some(json!({ "response": embed_answer_to_json(answer) })),
        LineOutcome::Failed(error) => Some(error_to_json(error).1),
        LineOutcome::NotRun => None,
    }
}

/// Writes a batch.
pub fn batch_to_json(batch: &BatchObject) -> Value {
    let state = match batch.state {
        BatchState::Queued => "BATCH_STATE_PENDING",
        BatchState::Running | BatchState::Finalizing | BatchState::Cancelling => "BATCH_STATE_RUNNING",
        BatchState::Completed => "BATCH_STATE_SUCCEEDED",
        BatchState::Failed => "BATCH_STATE_FAILED",
        BatchState::Expired => "BATCH_STATE_EXPIRED",
        BatchState::Cancelled => "BATCH_STATE_CANCELLED",
    };
    let mut metadata = json!({
        "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
        "name": batch.id,
        "model": batch.model.as_deref().map(model_path),
        "displayName": batch.display_name,
        "state": state,
        "createTime": time_of(batch.created_at_s),
        "updateTime": time_of(batch.ended_at_s.unwrap_or(batch.created_at_s)),
        "endTime": batch.ended_at_s.map(time_of),
        "batchStats": stats_to_json(batch),
    });
    if let Some(file) = &batch.output_file {
        metadata["output"] = json!({ "responsesFile": file });
    }
    if let Some(lines) = &batch.inline {
        let line = |line: &BatchLine| {
            let mut value = outcome_to_json(&line.outcome)?;
            value["metadata"] = json!({ "key": line.custom_id });
            Some(value)
        };
        let lines: Vec<Value> = lines.iter().filter_map(line).collect();
        metadata["output"] = json!({ "inlinedResponses": { "inlinedResponses": lines } });
    }
    let mut operation = json!({ "name": batch.id, "metadata": metadata });
    if batch.state.is_terminal() {
        operation["done"] = json!(true);
        match &batch.error {
            Some(error) => operation["error"] = json!({ "code": 3, "message": error }),
            None => operation["response"] = operation["metadata"]["output"].clone(),
        }
    }
    operation
}

/// Google writes 64-bit counts as digits.
fn stats_to_json(batch: &BatchObject) -> Value {
    let total = batch.requests.unwrap_or_default();
    let counts = batch.counts.unwrap_or_default();
    let pending = total.saturating_sub(counts.completed + counts.failed);
    json!({
        "requestCount": total.to_string(),
        "successfulRequestCount": counts.completed.to_string(),
        "failedRequestCount": counts.failed.to_string(),
        "pendingRequestCount": pending.to_string(),
    })
}

/// Reads a batch.
pub fn batch_from_json(value: &Value) -> Result<BatchObject> {
    let id = text(&value["name"]).ok_or_else(|| no_answer("the batch has no name"))?;
    let metadata = &value["metadata"];
    let state = state_from_text(metadata["state"].as_str().unwrap_or_default(), value)?;
    let stats = &metadata["batchStats"];
    let output = if metadata["output"].is_object() { &metadata["output"] } else { &value["response"] };
    let lines = output["inlinedResponses"]["inlinedResponses"].as_array();
    let inline =
        lines.map(|lines| lines.iter().map(line_from_json).collect::<Result<Vec<_>>>()).transpose()?;
    let counts = BatchCounts {
        completed: count(&stats["successfulRequestCount"]),
        failed: count(&stats["failedRequestCount"]),
        ..BatchCounts::default()
    };
    let created_at_s = seconds_of(&metadata["createTime"]).unwrap_or_default();
    Ok(BatchObject {
        state,
        model: text(&metadata["model"]).map(|model| model.trim_start_matches("models/").to_owned()),
        ended_at_s: seconds_of(&metadata["endTime"]),
        requests: stats.is_object().then(|| count(&stats["requestCount"])),
        counts: stats.is_object().then_some(counts),
        output_file: text(&output["responsesFile"]),
        inline,
        error: text(&value["error"]["message"]),
        display_name: text(&metadata["displayName"]),
        ..BatchObject::new(id, created_at_s)
    })
}

/// Vertex and the SDK write `JOB_STATE_` before the same words and know some more.
fn state_from_text(state: &str, operation: &Value) -> Result<BatchState> {
    let word = state.trim_start_matches("BATCH_STATE_").trim_start_matches("JOB_STATE_");
    Ok(match word {
        "PENDING" | "QUEUED" | "PAUSED" | "UNSPECIFIED" => BatchState::Queued,
        "RUNNING" | "UPDATING" => BatchState::Running,
        "SUCCEEDED" | "PARTIALLY_SUCCEEDED" => BatchState::Completed,
        "FAILED" => BatchState::Failed,
        "CANCELLING" => BatchState::Cancelling,
        "CANCELLED" => BatchState::Cancelled,
        "EXPIRED" => BatchState::Expired,
        // An operation may tell its end without a state.
        "" if operation["error"].is_object() => BatchState::Failed,
        "" if operation["done"] == true => BatchState::Completed,
        "" => BatchState::Queued,
        other => return Err(no_answer(format!("the batch is in a state that is not known: {other:?}"))),
    })
}
