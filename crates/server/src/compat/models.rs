//! `GET /v1/models`: what can be asked here. Each usable profile tells its models as `PROFILE/MODEL`; those of the default profile
//! go by their plain names too. Both APIs have this route: the headers say whose form is wanted.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::join_all;
use longhaul_llm::catalog::CatalogProfile;
use longhaul_llm::provider::ModelInfo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::Dialect;
use crate::ctx::Ctx;
use crate::problem::Problem;

/// How long a provider may take to tell its models; one that takes longer is left out.
const TELL_WAIT: Duration = Duration::from_secs(2);
/// How long what was told is good.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// Rows of a page in Anthropic's form.
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 1_000;

/// The routes. Names of models may have slashes in them.
pub(super) fn routes() -> Router<Ctx> {
    Router::new()
        .route("/v1/models", get(list))
        .route("/v1/models/{*id}", get(retrieve).delete(super::stored::delete_model))
}

/// The models as they were told last.
#[derive(Debug, Default)]
pub(crate) struct Listed(Mutex<Option<(Instant, Vec<ModelInfo>)>>);

impl Listed {
    async fn get(&self, ctx: &Ctx) -> Vec<ModelInfo> {
        // Held while providers are asked: a second caller waits for the same answers.
        let mut known = self.0.lock().await;
        if let Some((at, models)) = &*known
            && at.elapsed() < GOOD_FOR
        {
            return models.clone();
        }
        let models = ask_all(ctx).await;
        *known = Some((Instant::now(), models.clone()));
        models
    }
}

async fn ask_all(ctx: &Ctx) -> Vec<ModelInfo> {
    let usable: Vec<&CatalogProfile> = ctx.catalog.profiles.iter().filter(|profile| profile.usable).collect();
    let told = join_all(usable.iter().map(|profile| ask_one(ctx, profile))).await;
    let mut plain = Vec::new();
    let mut named = Vec::new();
    for (profile, models) in usable.iter().zip(told) {
        if ctx.catalog.default_profile.as_deref() == Some(&profile.name) {
            plain.extend(models.iter().cloned());
        }
        let id = |model: &ModelInfo| format!("{}/{}", profile.name, model.id);
        named.extend(models.iter().map(|model| ModelInfo { id: id(model), owner: model.owner.clone() }));
    }
    plain.into_iter().chain(named).collect()
}

/// The models of a profile, its own first. A provider that does not answer has at least that one.
async fn ask_one(ctx: &Ctx, profile: &CatalogProfile) -> Vec<ModelInfo> {
    let told = match tokio::time::timeout(TELL_WAIT, ctx.llm().models(&profile.name)).await {
        Ok(Ok(models)) => models,
        Ok(Err(error)) => {
            debug!(profile = profile.name, %error, "a provider does not tell its models");
            Vec::new()
        }
        Err(_) => {
            debug!(profile = profile.name, "a provider takes too long to tell its models");
            Vec::new()
        }
    };
    let own = profile.model.iter().filter(|own| told.iter().all(|model| model.id != **own));
    let own: Vec<ModelInfo> = own.map(|id| ModelInfo { id: id.clone(), owner: None }).collect();
    own.into_iter().chain(told).collect()
}

/// What a page is asked with, in Anthropic's form. OpenAI's clients ask for all.
#[derive(Debug, Default, Deserialize)]
struct PageQuery {
    after_id: Option<String>,
    before_id: Option<String>,
    /// Odd figures are bent rather than refused.
    limit: Option<String>,
}

async fn list(State(ctx): State<Ctx>, headers: HeaderMap, Query(query): Query<PageQuery>) -> Response {
    let models = ctx.models.get(&ctx).await;
    let body = match dialect(&headers) {
        Dialect::OpenAi => {
            json!({ "object": "list", "data": models.iter().map(openai_form).collect::<Vec<_>>() })
        }
        Dialect::Anthropic => page(&models, &query),
    };
    Json(body).into_response()
}

fn page(models: &[ModelInfo], query: &PageQuery) -> Value {
    let place =
        |id: &Option<String>| id.as_ref().and_then(|id| models.iter().position(|model| model.id == *id));
    let limit =
        query.limit.as_ref().and_then(|limit| limit.parse().ok()).unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let (start, end) = match (place(&query.after_id), place(&query.before_id)) {
        (Some(after), _) => (after + 1, (after + 1 + limit).min(models.len())),
        (None, Some(before)) => (before.saturating_sub(limit), before),
        (None, None) => (0, limit.min(models.len())),
    };
    let shown = models.get(start..end).unwrap_or_default();
    let backwards = query.after_id.is_none() && query.before_id.is_some();
    json!({
        "data": shown.iter().map(anthropic_form).collect::<Vec<_>>(),
        "has_more": if backwards { start > 0 } else { end < models.len() },
        "first_id": shown.first().map(|model| &model.id),
        "last_id": shown.last().map(|model| &model.id),
    })
}

async fn retrieve(State(ctx): State<Ctx>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    let dialect = dialect(&headers);
    let models = ctx.models.get(&ctx).await;
    let known = models.into_iter().find(|model| model.id == id);
    // Suites ask for a model of a fixed name.
    let known = known.or_else(|| ctx.options.test_objects.then(|| ModelInfo { id: id.clone(), owner: None }));
    let Some(model) = known else {
        let text = format!("there is no model {id:?} here; GET /v1/models lists them");
        return dialect.refusal(&Problem::new(StatusCode::NOT_FOUND, "model_not_found", text).at("model"));
    };
    let body = match dialect {
        Dialect::OpenAi => openai_form(&model),
        Dialect::Anthropic => anthropic_form(&model),
    };
    Json(body).into_response()
}

fn dialect(headers: &HeaderMap) -> Dialect {
    Dialect::of("/v1/models", headers).unwrap_or(Dialect::OpenAi)
}

fn openai_form(model: &ModelInfo) -> Value {
    let owner = model.owner.as_deref().unwrap_or("longhaul");
    json!({ "id": model.id, "object": "model", "created": 0, "owned_by": owner })
}

/// When a model was made is not known here: the epoch says so.
fn anthropic_form(model: &ModelInfo) -> Value {
    json!({
        "id": model.id,
        "type": "model",
        "display_name": model.id,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    })
}
