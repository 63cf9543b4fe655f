//! What people do with sheets: try again, let go on, cancel, delete.

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_llm::Scope;
use longhaul_sheets::status::SheetState;
use longhaul_sheets::{Status, manage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::ApiResult;
use super::super::extract::ApiJson;
use super::super::processes::Number;
use super::super::runs::input::amount;
use super::{find, id_of};
use crate::ctx::Ctx;
use crate::problem::Problem;
use crate::sheets::{self, scoring as slice};

/// What is tried again; nothing said means all that failed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = RetrySheetIn)]
pub(in crate::api) struct RetryIn {
    /// Exactly the units that failed, and the chunks that did.
    failed: Option<bool>,
    /// What failed in one chunk, counted from 1, and nothing of the others.
    chunk: Option<u64>,
}

impl RetryIn {
    fn again(&self) -> Result<manage::Again, Problem> {
        match (self.failed, self.chunk) {
            (None | Some(false), Some(0)) => {
                Err(unfit("invalid", "chunks count from 1, as in /chunks").at("chunk"))
            }
            (None | Some(false), Some(number)) => Ok(manage::Again::Chunk(number - 1)),
            (None | Some(true), None) => Ok(manage::Again::Failed),
            (Some(true), Some(_)) => {
                Err(unfit("invalid", "a retry is of what failed or of one chunk").at("chunk"))
            }
            (Some(false), None) => {
                Err(unfit("invalid", "failed is false, and no chunk is named: nothing is to be tried again")
                    .at("failed"))
            }
        }
    }
}

/// What is on its way again.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RetriedSheet)]
pub(in crate::api) struct RetriedOut {
    /// Units that had failed.
    units: u64,
    /// Chunks that had failed or were cancelled.
    chunks: u64,
}

/// Tries again what failed, and nothing else. Refused while the sheet is at work: what fails meanwhile is tried again at its end anyway.
#[utoipa::path(post, path = "/api/v1/sheets/{id}/retry", tag = "sheets", params(("id" = String, Path)), request_body = Option<RetryIn>, responses((status = 200, body = RetriedOut)))]
pub(in crate::api) async fn retry_sheet(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(what): ApiJson<Option<RetryIn>>,
) -> ApiResult<Answer<RetriedOut>> {
    let scoring = slice(&ctx)?;
    let again = what.unwrap_or_default().again()?;
    let sheet = find(scoring, &id).await?;
    let state = Status::of(scoring, &sheet).await?.state;
    if matches!(state, SheetState::Reading | SheetState::Running) {
        let text = format!("{} is still at work: wait for its end, or cancel it", sheet.id);
        return Err(unfit("wrong_state", text).into());
    }
    let retried = manage::retry(scoring, &id_of(&sheet), again).await.map_err(|error| match error {
        // Only a chunk can be the wrong one.
        longhaul_sheets::Error::Invalid(text) => unfit("wrong_state", text).at("chunk"),
        error => error.into(),
    })?;
    Ok(Answer(RetriedOut { units: retried.units, chunks: retried.chunks }))
}

/// How a sheet goes on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = ResumeSheetIn)]
pub(in crate::api) struct ResumeIn {
    /// A new limit of its cost.
    max_cost_usd: Option<f64>,
}

/// Lets a held sheet go on, and says how many of its jobs were held.
#[utoipa::path(post, path = "/api/v1/sheets/{id}/resume", tag = "sheets", params(("id" = String, Path)), request_body = Option<ResumeIn>, responses((status = 200, body = Number)))]
pub(in crate::api) async fn resume_sheet(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(how): ApiJson<Option<ResumeIn>>,
) -> ApiResult<Answer<Number>> {
    let scoring = slice(&ctx)?;
    let sheet = find(scoring, &id).await?;
    if let Some(dollars) = how.unwrap_or_default().max_cost_usd {
        let cap = Some(amount("max_cost_usd", dollars)?);
        let set = ctx.llm().ledger().set_cap(&Scope::run(&sheet.id), cap).await;
        set.map_err(longhaul_llm::Error::from)?;
    }
    Ok(Answer(Number { changed: manage::resume(scoring, &id_of(&sheet)).await? }))
}

/// Ends a sheet early. What was scored is kept and can be downloaded.
#[utoipa::path(post, path = "/api/v1/sheets/{id}/cancel", tag = "sheets", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(in crate::api) async fn cancel_sheet(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    let sheet = find(slice(&ctx)?, &id).await?;
    Ok(Answer(Number { changed: sheets::cancel(&ctx, &sheet).await? }))
}

/// Deletes a sheet for good, with its texts, scores and table; the upload stays. Refused while chunks are unfinished.
#[utoipa::path(delete, path = "/api/v1/sheets/{id}", tag = "sheets", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(in crate::api) async fn delete_sheet(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    let sheet = find(slice(&ctx)?, &id).await?;
    Ok(Answer(Number { changed: sheets::remove(&ctx, &sheet).await? }))
}

fn unfit(code: &'static str, text: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, text)
}
