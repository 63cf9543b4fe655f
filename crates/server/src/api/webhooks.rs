//! Who is told of what, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_api::page::{Listed, PageQuery, cursor_of};
use longhaul_api::webhooks::{DeliveryOut, NewSecret, Sent, WebhookDeleted, WebhookIn, WebhookOut};
use longhaul_pipeline::addresses;
use longhaul_pipeline::webhooks::{
    self, Delivery, Endpoint, Endpoints, KIND, NAME_BYTES_MAX, Wish, message_id, new_job, tag_of,
};
use longhaul_queue::limits::check_name;
use longhaul_queue::redact::{self, REDACTED};
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{JobDetail, State};
use serde_json::json;

use super::ApiResult;
use super::extract::{ApiJson, ApiQuery, job_id};
use super::page::{limit, seq_of};
use crate::ctx::Ctx;
use crate::problem::Problem;

/// For a name to be looked up when a webhook is kept.
const LOOKUP_WAIT: Duration = Duration::from_secs(5);

/// A webhook without its secret.
fn shown(endpoint: Endpoint) -> WebhookOut {
    WebhookOut {
        name: endpoint.name,
        url: shown_url(&endpoint.url),
        events: endpoint.events,
        allow_private: endpoint.allow_private,
        disabled: endpoint.disabled,
        created_at: endpoint.created_at,
        secret: None,
    }
}

/// An address without a name and a password, and without the values of secrets in its query.
fn shown_url(url: &str) -> String {
    let Ok(mut parsed) = reqwest::Url::parse(url) else { return REDACTED.to_owned() };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        // Only an address without a host refuses it, and such a one is not kept.
        let _ = parsed.set_username("").and_then(|()| parsed.set_password(None));
    }
    redact::text(parsed.as_str()).into_owned()
}

/// Lists webhooks.
#[utoipa::path(get, path = "/api/v1/webhooks", tag = "webhooks", responses((status = 200, body = Listed<WebhookOut>)))]
pub(super) async fn list_webhooks(Shared(ctx): Shared<Ctx>) -> Answer<Listed<WebhookOut>> {
    Answer(Listed::whole(ctx.endpoints.list().into_iter().map(shown).collect()))
}

/// Shows a webhook, without its secret.
#[utoipa::path(get, path = "/api/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path)), responses((status = 200, body = WebhookOut)))]
pub(super) async fn show_webhook(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<WebhookOut>> {
    Ok(Answer(shown(find(&ctx, &name)?)))
}

/// Adds or changes a webhook; the secret of a new one is shown once.
#[utoipa::path(put, path = "/api/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path)), request_body = WebhookIn, responses((status = 200, body = WebhookOut)))]
pub(super) async fn put_webhook(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
    ApiJson(wanted): ApiJson<WebhookIn>,
) -> ApiResult<Answer<WebhookOut>> {
    let WebhookIn { url, events, allow_private } = wanted;
    check_name("name", &name).map_err(Problem::unfit)?;
    if name.len() > NAME_BYTES_MAX {
        let text = format!("name has {} bytes, at most {NAME_BYTES_MAX} are possible", name.len());
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at("name").into());
    }
    let parsed = reqwest::Url::parse(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let Some(parsed) = parsed else {
        let text = format!("url is {:?}: expected an address that begins with https://", shown_url(&url));
        return Err(Problem::invalid(text).at("url").into());
    };
    if !allow_private {
        refuse_private(&parsed).await?;
    }
    let wish = Wish { name: name.clone(), url, events, allow_private };
    let now = ctx.queue().clock().now();
    let secret = change(&ctx, move |endpoints| endpoints.put(wish, now)).await?;
    Ok(Answer(WebhookOut { secret, ..shown(find(&ctx, &name)?) }))
}

/// Refuses an address that no delivery would go to. A name that leads nowhere now may do so later, and each delivery asks again.
async fn refuse_private(url: &reqwest::Url) -> Result<(), Problem> {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(443));
    let looked_up = tokio::time::timeout(LOOKUP_WAIT, addresses::public_addresses(host, port)).await;
    match looked_up {
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let text = format!("{error}: send \"allow_private\": true if this is intended");
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "private_address", text).at("url"))
        }
        _ => Ok(()),
    }
}

/// Draws a new secret.
#[utoipa::path(post, path = "/api/v1/webhooks/{name}/rotate", tag = "webhooks", params(("name" = String, Path)), responses((status = 200, body = NewSecret)))]
pub(super) async fn rotate_webhook(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<NewSecret>> {
    let rotated = name.clone();
    let secret = change(&ctx, move |endpoints| endpoints.rotate(&rotated)).await?;
    let secret = secret.ok_or_else(|| missing(&name))?;
    Ok(Answer(NewSecret { name, secret }))
}

/// Removes a webhook, and drops its pending deliveries.
#[utoipa::path(delete, path = "/api/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path)), responses((status = 200, body = WebhookDeleted)))]
pub(super) async fn delete_webhook(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<WebhookDeleted>> {
    let removed = name.clone();
    match change(&ctx, move |endpoints| endpoints.remove(&removed)).await? {
        true => Ok(Answer(WebhookDeleted { name, deleted: true })),
        false => Err(missing(&name).into()),
    }
}

/// Sends a message of type `webhook.test`.
#[utoipa::path(post, path = "/api/v1/webhooks/{name}/test", tag = "webhooks", params(("name" = String, Path)), responses((status = 200, body = Sent)))]
pub(super) async fn test_webhook(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<Sent>> {
    find(&ctx, &name)?;
    let now = ctx.queue().clock().now();
    let (message, kind) = (message_id(now), "webhook.test".to_owned());
    send(&ctx, &Delivery { endpoint: name, message, kind, at: Some(now), data: json!({}) }).await
}

fn delivery(detail: JobDetail) -> Result<DeliveryOut, Problem> {
    let delivery = told(&detail)?;
    let job = detail.job;
    Ok(DeliveryOut {
        delivery: job.id,
        message: delivery.message,
        r#type: delivery.kind,
        state: job.state,
        next_try_at: (job.state == State::Scheduled).then_some(job.run_at),
        answer: detail.result,
        error: job.error,
        tries: detail.runs,
    })
}

/// What a delivery tells: as it was written down or, of a job that was waited for, how that ended.
fn told(detail: &JobDetail) -> Result<Delivery, Problem> {
    let delivery: Delivery = detail.payload.to()?;
    let ended = detail.depends_on.first().and_then(|parent| Some((parent.job_id, parent.ended?)));
    Ok(match ended {
        Some((job, state)) if delivery.at.is_none() => {
            let (kind, data) = webhooks::job_ended(job, state);
            Delivery { kind, data, ..delivery }
        }
        _ => delivery,
    })
}

/// Lists what was sent to a webhook and what became of it, newest first.
#[utoipa::path(get, path = "/api/v1/webhooks/{name}/deliveries", tag = "webhooks", params(("name" = String, Path), PageQuery), responses((status = 200, body = Listed<DeliveryOut>)))]
pub(super) async fn list_deliveries(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> ApiResult<Answer<Listed<DeliveryOut>>> {
    find(&ctx, &name)?;
    let filter = Filter { tag: Some(tag_of(&name)), ..Filter::default() };
    let (cursor, limit) = (seq_of(page.cursor.as_deref())?, limit(page.limit)?);
    let page = ctx.queue().store().list(ListRequest { filter, newest_first: true, cursor, limit }).await?;
    let details = ctx.queue().store().get(page.items.iter().map(|job| job.id).collect()).await?;
    let items = details.into_iter().map(delivery).collect::<Result<_, Problem>>()?;
    Ok(Answer(Listed { items, next: page.next.map(cursor_of), partial: page.partial }))
}

/// Tells it again, under the same name of the message.
#[utoipa::path(post, path = "/api/v1/webhooks/{name}/deliveries/{id}/resend", tag = "webhooks", params(("name" = String, Path), ("id" = String, Path)), responses((status = 200, body = Sent)))]
pub(super) async fn resend_delivery(
    Shared(ctx): Shared<Ctx>,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Answer<Sent>> {
    let id = job_id(&id)?;
    let detail = ctx.queue().get(id).await?;
    let delivery = match detail.job.kind.as_str() {
        KIND => Some(told(&detail)?),
        _ => None,
    };
    let Some(delivery) = delivery.filter(|delivery| delivery.endpoint == name) else {
        return Err(Problem::not_found(format!("webhook {name} has no delivery {id}")).into());
    };
    if matches!(detail.job.state, State::Failed | State::Cancelled) {
        ctx.queue().retry(id, false).await?;
        return Ok(Answer(Sent { delivery: id }));
    }
    let at = delivery.at.or(detail.job.started_at);
    send(&ctx, &Delivery { at, ..delivery }).await
}

async fn send(ctx: &Ctx, delivery: &Delivery) -> ApiResult<Answer<Sent>> {
    let job = new_job(delivery).ok_or_else(|| Problem::invalid("the message cannot be written"))?;
    let enqueued = ctx.queue().enqueue(job).await?;
    Ok(Answer(Sent { delivery: enqueued.id }))
}

/// Changes webhooks off the runtime: another process may be at it, and is waited for.
async fn change<T: Send + 'static>(
    ctx: &Ctx,
    change: impl FnOnce(&Endpoints) -> std::io::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    let endpoints = Arc::clone(&ctx.endpoints);
    let changed = tokio::task::spawn_blocking(move || change(&endpoints)).await;
    changed.map_err(Problem::internal)?.map_err(Problem::unavailable)
}

fn find(ctx: &Ctx, name: &str) -> Result<Endpoint, Problem> {
    ctx.endpoints.get(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Problem {
    Problem::not_found(format!("there is no webhook {name}"))
}
