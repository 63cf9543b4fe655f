//! What the one who runs a test asks and sets, and what a local engine tells of itself.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::body;
use super::wire::{Wire, json_response, read_json};
use crate::options::{Faults, Limits};
use crate::outage::OutageKind;
use crate::sim_core::{SimCore, bad_request, not_found};
use longhaul_llm::error::Error;

/// So that the answer is out before connections break.
const OUTAGE_DELAY: Duration = Duration::from_millis(50);

pub(super) async fn health() -> Response {
    json_response(StatusCode::OK, &json!({ "status": "ok" }))
}

/// As llama.cpp tells how many calls it runs at once. Other services have no such page.
pub(super) async fn props(State(core): State<Arc<SimCore>>) -> Response {
    match core.options().slots {
        Some(slots) => {
            let model = core.options().models.first();
            json_response(StatusCode::OK, &json!({ "total_slots": slots, "model_path": model }))
        }
        None => Wire::OpenAi.refusal(&core, &not_found("path: /props")),
    }
}

pub(super) async fn stats(State(core): State<Arc<SimCore>>) -> Response {
    json_response(StatusCode::OK, &json!(core.stats()))
}

/// All executed calls if they go to a file, otherwise the last ones.
pub(super) async fn log(State(core): State<Arc<SimCore>>) -> Response {
    let tail = core.log_tail();
    let Some(path) = &core.options().log else {
        return body::lines(tail.into_iter().map(|entry| json!(entry).to_string()));
    };
    match core.ledger.flush().and_then(|()| File::open(path)) {
        Ok(file) => body::lines(BufReader::new(file).lines().map_while(Result::ok)),
        Err(error) => {
            let error = bad_request(format!("the log cannot be read: {error}")).with_status(500);
            Wire::OpenAi.refusal(&core, &error)
        }
    }
}

pub(super) async fn limits(State(core): State<Arc<SimCore>>) -> Response {
    json_response(StatusCode::OK, &json!(core.limits()))
}

/// Sets the limits that are named; `null` lifts one.
pub(super) async fn set_limits(State(core): State<Arc<SimCore>>, body: Bytes) -> Response {
    match changed::<Limits>(&json!(core.limits()), &body) {
        Ok(limits) => {
            core.set_limits(limits);
            json_response(StatusCode::OK, &json!(limits))
        }
        Err(error) => Wire::OpenAi.refusal(&core, &error),
    }
}

pub(super) async fn faults(State(core): State<Arc<SimCore>>) -> Response {
    json_response(StatusCode::OK, &json!(*core.faults()))
}

/// Sets the rates that are named.
pub(super) async fn set_faults(State(core): State<Arc<SimCore>>, body: Bytes) -> Response {
    match changed::<Faults>(&json!(*core.faults()), &body) {
        Ok(faults) => {
            let told = json!(faults);
            core.set_faults(faults);
            json_response(StatusCode::OK, &told)
        }
        Err(error) => Wire::OpenAi.refusal(&core, &error),
    }
}

/// An outage that is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutageIn {
    kind: OutageKind,
    /// How long it lasts, in milliseconds.
    for_ms: u64,
}

pub(super) async fn outage(State(core): State<Arc<SimCore>>) -> Response {
    let told = core.outage().map(|outage| {
        let left = outage.until.saturating_duration_since(Instant::now());
        json!({ "kind": outage.kind, "for_ms": u64::try_from(left.as_millis()).unwrap_or(u64::MAX) })
    });
    json_response(StatusCode::OK, &json!(told))
}

/// Begins an outage, as soon as this is answered. It ends by itself, because no request could end it meanwhile.
pub(super) async fn begin_outage(State(core): State<Arc<SimCore>>, body: Bytes) -> Response {
    let asked = read_json(&body).and_then(|value| {
        serde_json::from_value::<OutageIn>(value).map_err(|error| bad_request(error.to_string()))
    });
    match asked {
        Ok(OutageIn { kind, for_ms }) => {
            let begins = Arc::clone(&core);
            tokio::spawn(async move {
                sleep(OUTAGE_DELAY).await;
                begins.begin_outage(kind, Duration::from_millis(for_ms));
            });
            json_response(StatusCode::OK, &json!({ "kind": kind, "for_ms": for_ms }))
        }
        Err(error) => Wire::OpenAi.refusal(&core, &error),
    }
}

/// Settings with the fields of a body put in.
fn changed<T: serde::de::DeserializeOwned>(now: &Value, body: &Bytes) -> Result<T, Error> {
    let given = read_json(body)?;
    let mut whole = now.as_object().cloned().unwrap_or_default();
    whole.extend(given.as_object().cloned().ok_or_else(|| bad_request("the body must be an object"))?);
    serde_json::from_value(Value::Object(whole)).map_err(|error| bad_request(error.to_string()))
}
