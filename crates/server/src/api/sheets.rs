//! Sheets: a table of texts goes in, every cell gets its score. How they are scored is the pipeline's
//! ([`longhaul_sheets`]); here they are handed in, and what is theirs alone is read.
//!
//! A client never names a path of this machine, and is told none: it uploads its table, or names a Google sheet, and downloads what came
//! of it. Rows, chunks and columns of a layout count from 1, as spreadsheet programs count them.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use longhaul_api::sheets::{EstimatedSheet, SheetIn, SubmittedSheet};
use longhaul_llm::Scope;
use longhaul_sheets::estimate::{self, Estimate};
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{ChunkScheduler, Sheets};

use super::ApiResult;
use super::extract::ApiJson;
use super::idempotency::Keyed;
use super::prompts::input::amount;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::sheets::sheets;

mod input;
#[expect(unused_qualifications, reason = "written by the macro that describes parameters")]
pub(super) mod output;
mod problems;
pub(super) mod tables;

use input::Wanted;

/// Where one is started.
pub(super) const START: &str = "/api/v1/sheets";

/// The sheet of this name, with or without the prefix.
async fn find(sheets: &Sheets, name: &str) -> Result<StoredSheet, Problem> {
    let prefix = longhaul_sheets::ABOUT.prefix;
    let name = if name.starts_with(prefix) { name.to_owned() } else { format!("{prefix}{name}") };
    Ok(sheets.tables().get(&name).await?)
}

/// Hands in a table to be scored. The same call again is the same sheet: nothing is sent or paid for twice, and a call that was cut off goes
/// on. So no `Idempotency-Key` is needed; one may be sent.
#[utoipa::path(post, path = "/api/v1/sheets", tag = "sheets", request_body = SheetIn, responses((status = 201, body = SubmittedSheet), (status = 200, description = "It was there before", body = SubmittedSheet)))]
pub(super) async fn score_sheet(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    _: Keyed,
    ApiJson(asked): ApiJson<SheetIn>,
) -> ApiResult<(StatusCode, Answer<SubmittedSheet>)> {
    let sheets = sheets(&ctx)?;
    let max_cost = asked.max_cost_usd.map(|dollars| amount("max_cost_usd", dollars)).transpose()?;
    let _turn = ctx.tables.acquire().await.map_err(Problem::unavailable)?;
    let (allow_unpriced, ask_again) = (asked.allow_unpriced, asked.ask_again);
    super::runs::check_unpriced(&caller, allow_unpriced)?;
    let mut wanted = Wanted::new(&ctx, &caller, asked).await?;
    let id = wanted.id()?;
    let known = sheets.tables().find(id.as_str()).await?;
    if known.as_ref().is_none_or(|sheet| !sheet.read_whole) {
        let estimate = estimate::estimate(sheets, &wanted.settings).await;
        let estimate = estimate.map_err(|error| wanted.problem(error))?;
        wanted.settings.estimate_usd = estimate.cost_usd;
        wanted.settings.estimate_max_usd = estimate.cost_max_usd;
        wanted.settings.raw_estimate_usd = estimate.raw_cost_usd;
    }
    let limits = (max_cost, allow_unpriced);
    super::runs::set_limits(&ctx, &caller, (&id, known.is_some()), limits).await?;
    make(&ctx, sheets, &wanted, known.as_ref()).await?;
    let asked_again = match known.is_some() && ask_again {
        true => super::runs::ask_again(&ctx, &caller, &id).await?,
        false => 0,
    };
    let sheet = sheets.tables().get(id.as_str()).await?;
    let totals = sheets.tables().totals(sheet.seq).await?;
    let status = if known.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let submitted = SubmittedSheet {
        id: sheet.id,
        resumed: known.is_some(),
        asked_again,
        rows: totals.rows,
        units: totals.units,
        chunks: totals.chunk,
        columns: sheet.plan.targets.into_iter().map(|target| target.name).collect(),
        estimate_usd: sheet.settings.estimate_usd,
    };
    Ok((status, Answer(submitted)))
}

/// Reads the table into the store. Nothing of a sheet stays that turns out to have no text.
async fn make(
    ctx: &Ctx,
    sheets: &Sheets,
    wanted: &Wanted,
    known: Option<&StoredSheet>,
) -> Result<(), Problem> {
    let id = wanted.id()?;
    let settings = wanted.kept(ctx, known).await?;
    let made = ChunkScheduler::make(sheets, settings).await;
    if made.is_err() && sheets.tables().find(id.as_str()).await?.is_none() {
        ctx.uploads.remove_table(id.as_str()).await.map_err(Problem::unavailable)?;
        let forgotten = ctx.llm().ledger().forget(&Scope::run(id.as_str())).await;
        forgotten.map_err(longhaul_llm::Error::from)?;
    }
    made.map_err(|error| wanted.problem(error))?;
    // Whoever sweeps tables without a sheet may have met this one before its sheet was there.
    wanted.kept(ctx, known).await.map(drop)
}

/// Says what scoring a table would cost; sends and stores nothing.
#[utoipa::path(post, path = "/api/v1/sheets/estimate", tag = "sheets", request_body = SheetIn, responses((status = 200, body = EstimatedSheet<Estimate>)))]
pub(super) async fn estimate_sheet(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<SheetIn>,
) -> ApiResult<Answer<EstimatedSheet<Estimate>>> {
    let sheets = sheets(&ctx)?;
    let _turn = ctx.tables.acquire().await.map_err(Problem::unavailable)?;
    let wanted = Wanted::new(&ctx, &caller, asked).await?;
    let estimate = estimate::estimate(sheets, &wanted.settings).await;
    let estimate = estimate.map_err(|error| wanted.problem(error))?;
    Ok(Answer(EstimatedSheet { id: wanted.id()?.as_str().to_owned(), estimate }))
}
