//! One delivery, from its claim to what the other side said.

use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::pinned_client;
use longhaul_queue::{Clock, Failure, JobContext, Json, KindOptions, Outcome, Timestamp, Worker};
use serde_json::{Value, json};

use super::{Delivery, Endpoint, Endpoints, KIND, job_ended};
use crate::addresses;

/// Time for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Most of an answer's text that is kept in the log.
const ANSWER_BYTES_MAX: usize = 500;

/// Registers what delivers.
pub fn register(endpoints: &Arc<Endpoints>, clock: &Arc<dyn Clock>, worker: &mut Worker) {
    let (endpoints, clock) = (Arc::clone(endpoints), Arc::clone(clock));
    worker.handle_with(KIND, KindOptions::default(), move |context: JobContext, delivery: Delivery| {
        let (endpoints, clock) = (Arc::clone(&endpoints), Arc::clone(&clock));
        async move { deliver(endpoints, &context, delivery, clock.now()).await }
    });
}

async fn deliver(
    endpoints: Arc<Endpoints>,
    context: &JobContext,
    delivery: Delivery,
    now: Timestamp,
) -> Result<Outcome, Failure> {
    let Some(endpoint) = endpoints.get(&delivery.endpoint) else {
        return done(&json!({"skipped": "the webhook was removed"}));
    };
    if let Some(reason) = &endpoint.disabled {
        return done(&json!({"skipped": format!("the webhook is disabled: {reason}")}));
    }
    let (kind, data) = content(context, &delivery);
    if delivery.at.is_none() && !endpoint.wants(&kind) {
        return done(&json!({"skipped": format!("nobody wants to know of {kind}")}));
    }
    let at = delivery.at.unwrap_or(now);
    let body = body(&delivery.message, &kind, at, &data).to_string();
    let answer = send(&endpoint, &delivery.message, now.as_millis() / 1_000, body).await?;
    match answer.status {
        200..=299 => done(&json!({"status": answer.status})),
        410 => {
            let name = endpoint.name;
            // Off the runtime: another process may be changing them, and is waited for.
            let disabled =
                tokio::task::spawn_blocking(move || endpoints.disable(&name, "it answered 410 Gone"));
            disabled.await.map_err(Failure::retry)??;
            done(&json!({"status": 410, "disabled": true}))
        }
        429 | 503 if answer.retry_after.is_some() => {
            Err(Failure::throttle(format!("it answered {}", answer.status), answer.retry_after))
        }
        status => Err(Failure::retry(format!("it answered {status}: {}", answer.text))),
    }
}

/// The message: as Standard Webhooks has it, and with the fields by which OpenAI's SDKs know an event of theirs.
fn body(message: &str, kind: &str, at: Timestamp, data: &Value) -> Value {
    json!({
        "object": "event",
        "id": message,
        "type": kind,
        "created_at": at.as_millis() / 1_000,
        "timestamp": at,
        "data": data,
    })
}

fn done(value: &Value) -> Result<Outcome, Failure> {
    Ok(Outcome::Done(Json::of(value)?))
}

/// What is told: as it was written down, or how the job ended that was waited for.
fn content(context: &JobContext, delivery: &Delivery) -> (String, Value) {
    match context.parents().first() {
        Some(parent) => job_ended(parent.job_id, parent.state),
        None => (delivery.kind.clone(), delivery.data.clone()),
    }
}

/// What the other side said.
struct Answer {
    status: u16,
    retry_after: Option<Duration>,
    text: String,
}

async fn send(endpoint: &Endpoint, message: &str, seconds: i64, body: String) -> Result<Answer, Failure> {
    let address = reqwest::Url::parse(&endpoint.url)
        .map_err(|error| Failure::fatal(format!("the address of {}: {error}", endpoint.name)))?;
    let host = address.host_str().unwrap_or_default().to_owned();
    let port = address.port_or_known_default().unwrap_or(443);
    let found = match endpoint.allow_private {
        true => addresses::all_addresses(&host, port).await,
        false => addresses::public_addresses(&host, port).await,
    };
    let found = found.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Failure::fatal(format!("{error}; allow_private would allow it"))
        }
        _ => Failure::retry(format!("{host}: {error}")),
    })?;
    // Connects to what was looked at: a name may lead elsewhere the next moment.
    let client = pinned_client(&host, &found, ANSWER_WAIT).map_err(|error| Failure::fatal(&error))?;
    let request = client
        .post(address)
        .header("content-type", "application/json")
        .header("webhook-id", message)
        .header("webhook-timestamp", seconds.to_string())
        .header("webhook-signature", endpoint.signature(message, seconds, &body));
    let response = request.body(body).send().await.map_err(reqwest::Error::without_url)?;
    let status = response.status().as_u16();
    let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let mut text = Vec::new();
    let mut response = response;
    while let Ok(Some(piece)) = response.chunk().await {
        text.extend_from_slice(&piece);
        if text.len() >= ANSWER_BYTES_MAX {
            break;
        }
    }
    text.truncate(ANSWER_BYTES_MAX);
    Ok(Answer {
        status,
        retry_after: wait.map(Duration::from_secs),
        text: String::from_utf8_lossy(&text).into_owned(),
    })
}
