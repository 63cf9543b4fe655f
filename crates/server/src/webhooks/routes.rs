//! `/api/v1/webhooks`.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use longhaul_queue::limits::check_name;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{JobDetail, JobId, State as JobState};
use serde::Deserialize;
use serde_json::{Value, json};

use super::endpoints::Wish;
use super::{Delivery, Endpoint, KIND, message_id, new_job, tag_of};
use crate::api::ApiError;
use crate::ctx::Ctx;
use crate::problem::Problem;

/// Deliveries on a page.
const PAGE: usize = 50;

/// The routes.
pub(crate) fn routes() -> Router<Ctx> {
    Router::new()
        .route("/api/v1/webhooks", get(list))
        .route("/api/v1/webhooks/{name}", put(set).get(show).delete(remove))
        .route("/api/v1/webhooks/{name}/rotate", post(rotate))
        .route("/api/v1/webhooks/{name}/test", post(test))
        .route("/api/v1/webhooks/{name}/deliveries", get(deliveries))
        .route("/api/v1/webhooks/{name}/deliveries/{id}/resend", post(resend))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    url: String,
    #[serde(default = "everything")]
    events: Vec<String>,
    #[serde(default)]
    allow_private: bool,
}

fn everything() -> Vec<String> {
    vec!["*".to_owned()]
}

async fn list(State(ctx): State<Ctx>) -> Json<Value> {
    let items: Vec<Value> = ctx.endpoints.list().iter().map(endpoint_json).collect();
    Json(json!({"items": items}))
}

async fn show(State(ctx): State<Ctx>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    Ok(Json(endpoint_json(&find(&ctx, &name)?)))
}

/// Adds or changes one; the secret of a new one is answered, once.
async fn set(
    State(ctx): State<Ctx>,
    Path(name): Path<String>,
    body: Result<Json<Set>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let Json(set) =
        body.map_err(|error| Problem { status: error.status(), ..Problem::invalid(error.body_text()) })?;
    check_name("name", &name)?;
    let is_http = reqwest::Url::parse(&set.url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    if !is_http {
        return Err(Problem::invalid(format!("url is {:?}: an address that begins with https://", set.url))
            .at("url")
            .into());
    }
    let Set { url, events, allow_private } = set;
    let wish = Wish { name: name.clone(), url, events, allow_private };
    let secret = ctx.endpoints.put(wish, ctx.queue().clock().now()).map_err(Problem::unavailable)?;
    let mut answer = endpoint_json(&find(&ctx, &name)?);
    if let Some(secret) = secret {
        answer["secret"] = json!(secret);
    }
    Ok(Json(answer))
}

async fn rotate(State(ctx): State<Ctx>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    find(&ctx, &name)?;
    let secret = ctx.endpoints.rotate(&name).map_err(Problem::unavailable)?;
    Ok(Json(json!({"name": name, "secret": secret})))
}

async fn remove(State(ctx): State<Ctx>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    match ctx.endpoints.remove(&name).map_err(Problem::unavailable)? {
        true => Ok(Json(json!({"name": name, "deleted": true}))),
        false => Err(missing(&name).into()),
    }
}

async fn test(State(ctx): State<Ctx>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    find(&ctx, &name)?;
    let now = ctx.queue().clock().now();
    let (message, kind) = (message_id(now), "webhook.test".to_owned());
    enqueue(&ctx, Delivery { endpoint: name, message, kind, at: Some(now), data: json!({}) }).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    cursor: Option<i64>,
}

/// What was sent and what became of it, newest first.
async fn deliveries(
    State(ctx): State<Ctx>,
    Path(name): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, ApiError> {
    find(&ctx, &name)?;
    let filter = Filter { tag: Some(tag_of(&name)), ..Filter::default() };
    let request = ListRequest { filter, newest_first: true, cursor: page.cursor, limit: PAGE };
    let page = ctx.queue().list(request).await?;
    let details = ctx.queue().store().get(page.items.iter().map(|job| job.id).collect()).await?;
    let items = details.iter().map(delivery_json).collect::<Result<Vec<_>, Problem>>()?;
    Ok(Json(json!({"items": items, "next": page.next})))
}

/// Tells it again, under the same name of the message.
async fn resend(
    State(ctx): State<Ctx>,
    Path((name, id)): Path<(String, JobId)>,
) -> Result<Json<Value>, ApiError> {
    let detail = ctx.queue().get(id).await?;
    let delivery: Delivery = detail.payload.to()?;
    if detail.job.kind != KIND || delivery.endpoint != name {
        return Err(Problem::not_found(format!("webhook {name} has no delivery {id}")).into());
    }
    if matches!(detail.job.state, JobState::Failed | JobState::Cancelled) {
        ctx.queue().retry(id, false).await?;
        return Ok(Json(json!({"delivery": id})));
    }
    enqueue(&ctx, delivery).await
}

async fn enqueue(ctx: &Ctx, delivery: Delivery) -> Result<Json<Value>, ApiError> {
    let job = new_job(&delivery).ok_or_else(|| Problem::invalid("the message cannot be written"))?;
    let enqueued = ctx.queue().enqueue(job).await?;
    Ok(Json(json!({"delivery": enqueued.id})))
}

fn find(ctx: &Ctx, name: &str) -> Result<Endpoint, Problem> {
    ctx.endpoints.get(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Problem {
    Problem::not_found(format!("there is no webhook {name}"))
}

/// Without its secrets.
fn endpoint_json(endpoint: &Endpoint) -> Value {
    json!({
        "name": endpoint.name,
        "url": endpoint.url,
        "events": endpoint.events,
        "allow_private": endpoint.allow_private,
        "disabled": endpoint.disabled,
        "created_at": endpoint.created_at,
    })
}

fn delivery_json(detail: &JobDetail) -> Result<Value, Problem> {
    let delivery: Delivery = detail.payload.to()?;
    Ok(json!({
        "delivery": detail.job.id,
        "message": delivery.message,
        "type": delivery.kind,
        "state": detail.job.state,
        "next_try_at": (detail.job.state == JobState::Scheduled).then_some(detail.job.run_at),
        "answer": detail.result,
        "error": detail.job.error,
        "tries": detail.runs,
    }))
}
