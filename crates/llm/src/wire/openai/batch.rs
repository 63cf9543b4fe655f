//! Files of requests and of results, and the batch object.

use reqwest::header::HeaderMap;
use serde_json::{Map, Value, json};

use crate::error::{Class, Error, Result};
use crate::provider::{BatchItem, BatchLine, BatchState, LineOutcome};
use crate::types::{Answer, Endpoint, Request};
use crate::wire::batch::{BatchCounts, BatchObject, LineContext};
use crate::wire::fields::{Fields, unknown};
use crate::wire::shapes::{count, no_answer, text};

use super::answer::{answer_from_json, answer_to_json};
use super::embed::{
    VectorForm, embed_request_from_json, embed_request_to_json, embeddings_from_json, vectors_to_json,
};
use super::error::{error_from, error_to_json};
use super::request::{LimitName, request_from_json, request_to_json};

/// Writes a line of a batch's input.
pub fn input_to_json(item: &BatchItem, limit: LimitName) -> Result<Value> {
    let body = match &item.request {
        Request::Chat(request) => request_to_json(request, limit)?,
        Request::Embed(request) => embed_request_to_json(request),
    };
    let url = item.request.endpoint().url();
    Ok(json!({ "custom_id": item.custom_id, "method": "POST", "url": url, "body": body }))
}

/// Reads a line of a batch's input.
pub fn input_from_json(value: Value) -> Result<BatchItem> {
    let mut fields = Fields::new(value, "")?;
    let custom_id = fields.needed_text("custom_id")?;
    let method = fields.needed_text("method")?;
    if method != "POST" {
        return Err(unknown("method", "\"POST\"", &method));
    }
    let url = fields.needed_text("url")?;
    let Some(endpoint) = Endpoint::of_url(&url) else {
        let expected = Endpoint::ALL.map(|endpoint| format!("{:?}", endpoint.url())).join(" or ");
        return Err(unknown("url", &expected, &url));
    };
    let body = fields.take("body");
    let body = fields.need("body", "an object", body)?;
    let request = match endpoint {
        Endpoint::Chat => Request::Chat(request_from_json(body)?),
        Endpoint::Embeddings => Request::Embed(embed_request_from_json(body)?.0),
    };
    Ok(BatchItem { custom_id, request })
}

/// What a batch is created from.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchCreate {
    /// The uploaded input.
    pub input_file: String,
    /// What its lines ask for.
    pub endpoint: String,
    /// Within what time: `24h`.
    pub window: String,
    /// Pairs of the creator's own.
    pub metadata: Map<String, Value>,
}

/// Writes the body that creates a batch.
pub fn create_to_json(create: &BatchCreate) -> Value {
    json!({
        "input_file_id": create.input_file,
        "endpoint": create.endpoint,
        "completion_window": create.window,
        "metadata": create.metadata,
    })
}

/// Reads the body that creates a batch.
pub fn create_from_json(value: Value) -> Result<BatchCreate> {
    let mut fields = Fields::new(value, "")?;
    Ok(BatchCreate {
        input_file: fields.needed_text("input_file_id")?,
        endpoint: fields.needed_text("endpoint")?,
        window: fields.needed_text("completion_window")?,
        metadata: fields.object("metadata")?.map(Fields::rest).unwrap_or_default(),
    })
}

/// Whether a result belongs into the file of errors.
pub fn batch_written_to_errors(line: &BatchLine) -> bool {
    !matches!(line.outcome, LineOutcome::Answered(_))
}

/// Writes a result.
pub fn line_to_json(line: &BatchLine, context: &LineContext<'_>) -> Value {
    let LineContext { request_id, created_s, .. } = *context;
    let response =
        |status: u16, body: Value| json!({ "status_code": status, "request_id": request_id, "body": body });
    let (response, error) = match &line.outcome {
        LineOutcome::Answered(answer) if answer.vectors.is_empty() => {
            (response(200, answer_to_json(answer, created_s)), Value::Null)
        }
        LineOutcome::Answered(answer) => {
            let Answer { model, vectors, usage, .. } = &**answer;
            (response(200, vectors_to_json(model, vectors, usage, VectorForm::Float)), Value::Null)
        }
        LineOutcome::Failed(error) => {
            let (status, body) = error_to_json(error);
            (response(status, body), Value::Null)
        }
        LineOutcome::NotRun if context.cancelled => {
            let message = "This request was not executed before the batch was cancelled.";
            (Value::Null, json!({ "code": "batch_cancelled", "message": message }))
        }
        LineOutcome::NotRun => {
            let message = "This request could not be executed before the completion window expired.";
            (Value::Null, json!({ "code": "batch_expired", "message": message }))
        }
    };
    let id = format!("batch_{request_id}");
    json!({ "id": id, "custom_id": line.custom_id, "response": response, "error": error })
}

/// Reads a result from either file.
pub fn line_from_json(value: &Value) -> Result<BatchLine> {
    if !value.is_object() {
        return Err(no_answer("a line of the results is no object"));
    }
    let custom_id = text(&value["custom_id"]);
    let response = &value["response"];
    let outcome = match value["error"]["code"].as_str() {
        Some("batch_expired" | "batch_cancelled") => LineOutcome::NotRun,
        Some(code) if response["body"].is_null() => {
            let class = if code == "request_timeout" { Class::Overloaded } else { Class::BadRequest };
            let mut error = Error::new(class, text(&value["error"]["message"]).unwrap_or_default());
            error.code = Some(code.to_owned());
            LineOutcome::Failed(Box::new(error))
        }
        _ => response_outcome(response)?,
    };
    Ok(BatchLine { custom_id, outcome })
}

fn response_outcome(response: &Value) -> Result<LineOutcome> {
    let status = response["status_code"].as_u64().and_then(|status| u16::try_from(status).ok());
    let body = &response["body"];
    let status =
        status.ok_or_else(|| no_answer("a line of the results has neither an answer nor an error"))?;
    if !(200..300).contains(&status) {
        let error = error_from(status, &HeaderMap::new(), &body.to_string(), 0);
        return Ok(LineOutcome::Failed(Box::new(error)));
    }
    // A list is what embeddings are answered with; nothing else of a batch is one.
    let answer = match body["data"].is_array() {
        true => embeddings_from_json(body).map(Answer::from),
        false => answer_from_json(body),
    };
    Ok(match answer {
        Ok(answer) => LineOutcome::Answered(Box::new(answer)),
        Err(error) => LineOutcome::Failed(Box::new(error)),
    })
}

/// Writes a batch.
pub fn batch_to_json(batch: &BatchObject) -> Value {
    let at = |state: BatchState, time: Option<i64>| if batch.state == state { time } else { None };
    let ended = batch.ended_at_s;
    let errors = batch.error.as_ref().map(|error| {
        let (code, message) = error.split_once(": ").unwrap_or(("invalid_request", error));
        json!({ "object": "list", "data": [{ "code": code, "line": null, "message": message, "param": null }] })
    });
    let counts = batch.counts.unwrap_or_default();
    json!({
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": errors,
        "input_file_id": batch.input_file.as_deref().unwrap_or_default(),
        "completion_window": "24h",
        "status": state_to_text(batch.state),
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": batch.created_at_s,
        "in_progress_at": (batch.state != BatchState::Queued && batch.state != BatchState::Failed).then_some(batch.created_at_s),
        "expires_at": batch.expires_at_s,
        "finalizing_at": at(BatchState::Completed, ended),
        "completed_at": at(BatchState::Completed, ended),
        "failed_at": at(BatchState::Failed, ended),
        "expired_at": at(BatchState::Expired, ended),
        "cancelling_at": batch.cancel_at_s,
        "cancelled_at": at(BatchState::Cancelled, ended),
        "request_counts": { "total": batch.requests.unwrap_or_default(), "completed": counts.completed, "failed": counts.failed },
        "metadata": batch.metadata,
    })
}

/// Reads a batch.
pub fn batch_from_json(value: &Value) -> Result<BatchObject> {
    let id = text(&value["id"]).ok_or_else(|| no_answer("the batch has no id"))?;
    let created_at_s = value["created_at"].as_i64().unwrap_or_default();
    let ended = ["completed_at", "failed_at", "expired_at", "cancelled_at"];
    let counts = &value["request_counts"];
    Ok(BatchObject {
        state: state_from_text(value["status"].as_str().unwrap_or_default())?,
        endpoint: text(&value["endpoint"]).unwrap_or_default(),
        model: text(&value["model"]),
        expires_at_s: value["expires_at"].as_i64(),
        cancel_at_s: value["cancelling_at"].as_i64(),
        ended_at_s: ended.into_iter().find_map(|key| value[key].as_i64()),
        requests: counts["total"].as_u64(),
        counts: counts.is_object().then(|| BatchCounts {
            completed: count(&counts["completed"]),
            failed: count(&counts["failed"]),
            ..BatchCounts::default()
        }),
        input_file: text(&value["input_file_id"]),
        // An empty name means that there is no file.
        output_file: text(&value["output_file_id"]),
        error_file: text(&value["error_file_id"]),
        error: errors_text(&value["errors"]["data"]),
        metadata: value["metadata"].as_object().cloned().unwrap_or_default(),
        ..BatchObject::new(id, created_at_s)
    })
}

fn errors_text(errors: &Value) -> Option<String> {
    let first = errors.as_array()?.first()?;
    let code = text(&first["code"]).unwrap_or_else(|| "error".to_owned());
    let line = first["line"].as_u64().map(|line| format!(" (line {line})")).unwrap_or_default();
    Some(format!("{code}: {}{line}", text(&first["message"]).unwrap_or_default()))
}

fn state_to_text(state: BatchState) -> &'static str {
    match state {
        BatchState::Queued => "validating",
        BatchState::Running => "in_progress",
        BatchState::Finalizing => "finalizing",
        BatchState::Completed => "completed",
        BatchState::Failed => "failed",
        BatchState::Expired => "expired",
        BatchState::Cancelling => "cancelling",
        BatchState::Cancelled => "cancelled",
    }
}

/// Together writes the same words in capitals.
fn state_from_text(state: &str) -> Result<BatchState> {
    Ok(match state.to_ascii_lowercase().as_str() {
        "validating" => BatchState::Queued,
        "in_progress" => BatchState::Running,
        "finalizing" => BatchState::Finalizing,
        "completed" => BatchState::Completed,
        "failed" => BatchState::Failed,
        "expired" => BatchState::Expired,
        "cancelling" => BatchState::Cancelling,
        "cancelled" => BatchState::Cancelled,
        other => return Err(no_answer(format!("the batch is in a state that is not known: {other:?}"))),
    })
}
