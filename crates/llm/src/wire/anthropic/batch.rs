//! Message batches: requests inline, results as lines.

use serde_json::{Value, json};

use crate::error::Result;
use crate::provider::{BatchItem, BatchLine, BatchState, LineOutcome, no_embeddings};
use crate::wire::batch::{BatchCounts, BatchObject, LineContext};
use crate::wire::fields::Fields;
use crate::wire::shapes::{count, no_answer, seconds_of, text, time_of};

use super::answer::{answer_from_json, answer_to_json};
use super::error::{error_of_answer, error_to_json};
use super::request::{request_from_json, request_to_json};

/// Writes one request of a batch.
pub fn item_to_json(item: &BatchItem) -> Result<Value> {
    let request = item.request.as_chat().ok_or_else(|| no_embeddings("anthropic"))?;
    Ok(json!({ "custom_id": item.custom_id, "params": request_to_json(request)? }))
}

/// Reads one request of a batch.
pub fn item_from_json(value: Value) -> Result<BatchItem> {
    let mut fields = Fields::new(value, "")?;
    let custom_id = fields.needed_text("custom_id")?;
    let params = fields.take("params");
    let params = fields.need("params", "an object", params)?;
    Ok(BatchItem { custom_id, request: request_from_json(params)?.into() })
}

/// Writes the body that creates a batch. One request after the other, so that only their text is held.
pub fn create_to_body(items: &[BatchItem]) -> Result<Vec<u8>> {
    let mut body = b"{\"requests\":[".to_vec();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(item_to_json(item)?.to_string().as_bytes());
    }
    body.extend_from_slice(b"]}");
    Ok(body)
}

/// Reads the body that creates a batch: its requests, each for [`item_from_json`].
pub fn create_from_json(value: Value) -> Result<Vec<Value>> {
    Fields::new(value, "")?.needed_list("requests")
}

/// Writes a result.
pub fn line_to_json(line: &BatchLine, context: &LineContext<'_>) -> Value {
    let result = match &line.outcome {
        LineOutcome::Answered(answer) => json!({ "type": "succeeded", "message": answer_to_json(answer) }),
        LineOutcome::Failed(error) => {
            let (_, mut body) = error_to_json(error);
            body["request_id"] = json!(context.request_id);
            json!({ "type": "errored", "error": body })
        }
        LineOutcome::NotRun => json!({ "type": if context.cancelled { "canceled" } else { "expired" } }),
    };
    json!({ "custom_id": line.custom_id, "result": result })
}

/// Reads a result.
pub fn line_from_json(value: &Value) -> Result<BatchLine> {
    if !value.is_object() {
        return Err(no_answer("a line of the results is no object"));
    }
    let custom_id = text(&value["custom_id"]);
    let result = &value["result"];
    let outcome = match result["type"].as_str().unwrap_or_default() {
        "succeeded" => match answer_from_json(&result["message"]) {
            Ok(answer) => LineOutcome::Answered(Box::new(answer)),
            Err(error) => LineOutcome::Failed(Box::new(error)),
        },
        "errored" => {
            let error = error_of_answer(&result["error"]);
            LineOutcome::Failed(Box::new(
                error.unwrap_or_else(|| no_answer("the line failed without an error")),
            ))
        }
        "canceled" | "expired" => LineOutcome::NotRun,
        other => {
            return Err(no_answer(format!("a line of the results has a type that is not known: {other:?}")));
        }
    };
    Ok(BatchLine { custom_id, outcome })
}

/// Writes a batch. Counts stay at zero, all in `processing`, until it has ended: so does the service.
pub fn batch_to_json(batch: &BatchObject) -> Value {
    let status = match batch.state {
        BatchState::Queued | BatchState::Running | BatchState::Finalizing => "in_progress",
        BatchState::Cancelling => "canceling",
        BatchState::Completed | BatchState::Failed | BatchState::Expired | BatchState::Cancelled => "ended",
    };
    let ended = batch.state.is_terminal();
    let counts = batch.counts.unwrap_or_default();
    let counts = if ended {
        let BatchCounts { completed, failed, cancelled, expired } = counts;
        json!({ "processing": 0, "succeeded": completed, "errored": failed, "canceled": cancelled, "expired": expired })
    } else {
        json!({ "processing": batch.requests.unwrap_or_default(), "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0 })
    };
    // A relative address works with every SDK and leads through every proxy.
    let results = ended.then(|| format!("/v1/messages/batches/{}/results", batch.id));
    json!({
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts,
        "created_at": time_of(batch.created_at_s),
        "expires_at": batch.expires_at_s.map(time_of),
        "ended_at": batch.ended_at_s.map(time_of),
        "cancel_initiated_at": batch.cancel_at_s.map(time_of),
        "archived_at": null,
        "results_url": results,
    })
}

/// Reads a batch.
pub fn batch_from_json(value: &Value) -> Result<BatchObject> {
    let id = text(&value["id"]).ok_or_else(|| no_answer("the batch has no id"))?;
    let told = &value["request_counts"];
    let of = |key: &str| count(&told[key]);
    let all = ["processing", "succeeded", "errored", "canceled", "expired"];
    let counts = BatchCounts {
        completed: of("succeeded"),
        failed: of("errored"),
        cancelled: of("canceled"),
        expired: of("expired"),
    };
    let cancel_at_s = seconds_of(&value["cancel_initiated_at"]);
    let state = match value["processing_status"].as_str().unwrap_or_default() {
        "in_progress" => BatchState::Running,
        "canceling" => BatchState::Cancelling,
        "ended" if cancel_at_s.is_some() || counts.cancelled > 0 => BatchState::Cancelled,
        "ended" if counts.expired > 0 => BatchState::Expired,
        "ended" => BatchState::Completed,
        other => return Err(no_answer(format!("the batch is in a state that is not known: {other:?}"))),
    };
    let created_at_s = seconds_of(&value["created_at"]).unwrap_or_default();
    Ok(BatchObject {
        state,
        endpoint: "/v1/messages".to_owned(),
        expires_at_s: seconds_of(&value["expires_at"]),
        cancel_at_s,
        ended_at_s: seconds_of(&value["ended_at"]),
        requests: told.is_object().then(|| all.into_iter().map(of).sum()),
        // Until the end the service shows zeros, which are no knowledge.
        counts: (told.is_object() && state.is_terminal()).then_some(counts),
        ..BatchObject::new(id, created_at_s)
    })
}
