//! One delivery, from its claim to what the other side said.

use std::time::Duration;

use longhaul_llm::pinned_client;
use longhaul_pipelines::addresses;
use longhaul_queue::{Failure, JobContext, Json, KindOptions, Outcome, Worker};
use serde_json::{Value, json};

use super::{Delivery, Endpoint, KIND};
use crate::ctx::Ctx;

/// Time for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Most of an answer's text that is kept in the log.
const ANSWER_BYTES_MAX: usize = 500;

/// Registers what delivers.
pub fn register(ctx: &Ctx, worker: &mut Worker) {
    let this = ctx.clone();
    worker.handle_with(KIND, KindOptions::default(), move |context: JobContext, delivery: Delivery| {
        let ctx = this.clone();
        async move { deliver(&ctx, &context, delivery).await }
    });
}

async fn deliver(ctx: &Ctx, context: &JobContext, delivery: Delivery) -> Result<Outcome, Failure> {
    let Some(endpoint) = ctx.endpoints.get(&delivery.endpoint) else {
        return done(&json!({"skipped": "the webhook was removed"}));
    };
    if let Some(reason) = &endpoint.disabled {
        return done(&json!({"skipped": format!("the webhook is disabled: {reason}")}));
    }
    let (kind, data) = content(context, &delivery);
    if delivery.at.is_none() && !endpoint.wants(&kind) {
        return done(&json!({"skipped": format!("nobody wants to know of {kind}")}));
    }
    let now = ctx.queue().clock().now();
    let at = delivery.at.unwrap_or(now);
    let body = json!({"type": kind, "timestamp": at, "data": data}).to_string();
    let answer = send(&endpoint, &delivery.message, now.as_millis() / 1_000, body).await?;
    match answer.status {
        200..=299 => done(&json!({"status": answer.status})),
        410 => {
            ctx.endpoints.disable(&endpoint.name, "it answered 410 Gone")?;
            done(&json!({"status": 410, "disabled": true}))
        }
        429 | 503 if answer.retry_after.is_some() => {
            Err(Failure::throttle(format!("it answered {}", answer.status), answer.retry_after))
        }
        status => Err(Failure::retry(format!("it answered {status}: {}", answer.text))),
    }
}

fn done(value: &Value) -> Result<Outcome, Failure> {
    Ok(Outcome::Done(Json::of(value)?))
}

/// What is told: as it was written down, or how the job ended that was waited for.
fn content(context: &JobContext, delivery: &Delivery) -> (String, Value) {
    match context.parents().first() {
        Some(parent) => {
            let kind = format!("job.{}", parent.state);
            (kind, json!({"job_id": parent.job_id, "state": parent.state}))
        }
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
        .map_err(|error| Failure::fatal(format!("{}: {error}", endpoint.url)))?;
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
    let response = request.body(body).send().await?;
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
