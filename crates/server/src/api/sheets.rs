//! Sheets: a table of texts goes in, every cell gets its score. How they are scored is the slice's
//! ([`longhaul_sheets`]); here they are handed in, looked at and steered.
//!
//! A client never names a path of this machine, and is told none: it uploads its table, or names a Google sheet, and downloads what came
//! of it. Rows, chunks and columns of a layout count from 1, as spreadsheet programs count them.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_llm::{NanoUsd, Scope};
use longhaul_queue::Timestamp;
use longhaul_sheets::settings::{SheetSettings, Target};
use longhaul_sheets::sheet::SHEET_PREFIX;
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{ChunkScheduler, Scoring, SheetId, Status, estimate};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::ApiResult;
use super::extract::{ApiJson, ApiQuery};
use super::idempotency::Keyed;
use super::jobs::WaitQuery;
use super::page::{Listed, PageQuery, cursor_of, limit, seq_of};
use super::runs::input::amount;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::sheets::scoring;
use crate::wait::{Wait, duration};

mod input;
#[expect(unused_qualifications, reason = "written by the macro that describes parameters")]
pub(super) mod output;
mod problems;
#[expect(unused_qualifications, reason = "written by the macro that describes parameters")]
pub(super) mod tables;
pub(super) mod verbs;

use input::{SheetIn, Wanted};

/// Sheets on one page: each is read with its counts and money.
const SHEETS_MAX: usize = 100;

/// A sheet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sheet)]
pub(super) struct SheetOut {
    /// Its name: of its process and of its queue too.
    id: String,
    /// Source, layout, mode, categories, model, and how the work is cut.
    #[schema(value_type = Object)]
    settings: Value,
    /// The columns that are filled.
    columns: Vec<String>,
    /// `state` (`reading`, `running`, `held`, `completed`, `partly_failed`, `failed` or `cancelled`), why, chunks and units by what became of them, and what
    /// was spent.
    #[schema(value_type = Object)]
    status: Status,
    /// What the whole of it will cost if it goes on as so far, in dollars.
    #[schema(value_type = Option<f64>)]
    projected_usd: Option<NanoUsd>,
    /// When it was handed in.
    #[schema(value_type = i64)]
    created_at: Timestamp,
}

impl SheetOut {
    fn new(sheet: &StoredSheet, mut status: Status) -> Result<Self, Problem> {
        // Its end writes no file, so there is nothing to tell of one.
        if sheet.settings.target == Target::Kept {
            status.exported = None;
        }
        Ok(Self {
            id: sheet.id.clone(),
            settings: shown(&sheet.settings)?,
            columns: sheet.plan.targets.iter().map(|target| target.name.clone()).collect(),
            projected_usd: status.projected(),
            status,
            created_at: sheet.made_at,
        })
    }
}

/// Settings without the places of this machine: of a file, only its name is told.
fn shown(settings: &SheetSettings) -> Result<Value, Problem> {
    let mut value = serde_json::to_value(settings).map_err(Problem::internal)?;
    for place in ["/source/file", "/target/file"] {
        let Some(file) = value.pointer_mut(place).and_then(Value::as_object_mut) else { continue };
        let path = file.shift_remove("path");
        let name = path.as_ref().and_then(Value::as_str).and_then(|path| path.rsplit(['/', '\\']).next());
        file.insert("name".to_owned(), name.into());
    }
    Ok(value)
}

/// The sheet of this name, with or without `sheet-`.
async fn find(scoring: &Scoring, name: &str) -> Result<StoredSheet, Problem> {
    let name = if name.starts_with(SHEET_PREFIX) { name.to_owned() } else { format!("{SHEET_PREFIX}{name}") };
    Ok(scoring.tables().get(&name).await?)
}

/// Lists sheets, newest first.
#[utoipa::path(get, path = "/api/v1/sheets", tag = "sheets", params(PageQuery), responses((status = 200, body = Listed<SheetOut>)))]
pub(super) async fn list_sheets(
    Shared(ctx): Shared<Ctx>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Answer<Listed<SheetOut>>> {
    let scoring = scoring(&ctx)?;
    let limit = limit(query.limit)?.min(SHEETS_MAX);
    let before = seq_of(query.cursor.as_deref())?.unwrap_or(i64::MAX);
    let sheets = scoring.tables().list_before(before, limit).await?;
    let next = sheets.last().filter(|_| sheets.len() == limit).map(|last| cursor_of(last.seq));
    let mut items = Vec::with_capacity(sheets.len());
    for sheet in &sheets {
        items.push(SheetOut::new(sheet, Status::of(scoring, sheet).await?)?);
    }
    Ok(Answer(Listed { items, next, partial: false }))
}

/// Shows a sheet with its settings, progress and money; with `wait`, once nothing more happens by itself.
#[utoipa::path(get, path = "/api/v1/sheets/{id}", tag = "sheets", params(("id" = String, Path), WaitQuery), responses((status = 200, body = SheetOut)))]
pub(super) async fn show_sheet(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<WaitQuery>,
) -> ApiResult<Answer<SheetOut>> {
    let scoring = scoring(&ctx)?;
    let mut wait = Wait::new(&ctx, duration("wait", query.wait.as_deref())?);
    loop {
        let sheet = find(scoring, &id).await?;
        let status = Status::of(scoring, &sheet).await?;
        if status.is_over() || !wait.again().await {
            return Ok(Answer(SheetOut::new(&sheet, status)?));
        }
    }
}

/// A sheet that was handed in.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SubmittedSheet)]
pub(super) struct SubmittedOut {
    /// Its name.
    id: String,
    /// It was there before: the same table with the same settings is the same sheet.
    resumed: bool,
    /// Rows with a text.
    rows: u64,
    /// Requests that they take.
    units: u64,
    /// Chunks of the work.
    chunks: u64,
    /// The columns that are filled.
    columns: Vec<String>,
    /// What it is expected to cost, in dollars; absent without a price.
    #[schema(value_type = Option<f64>)]
    estimate_usd: Option<NanoUsd>,
}

/// Hands in a table to be scored. The same call again is the same sheet: nothing is sent or paid for twice, and a call that was cut off goes
/// on. So no `Idempotency-Key` is needed; one may be sent.
#[utoipa::path(post, path = "/api/v1/sheets", tag = "sheets", request_body = SheetIn, responses((status = 201, body = SubmittedOut), (status = 200, description = "It was there before", body = SubmittedOut)))]
pub(super) async fn score_sheet(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    _: Keyed,
    ApiJson(asked): ApiJson<SheetIn>,
) -> ApiResult<(StatusCode, Answer<SubmittedOut>)> {
    let scoring = scoring(&ctx)?;
    let max_cost = asked.max_cost_usd.map(|dollars| amount("max_cost_usd", dollars)).transpose()?;
    let _turn = ctx.tables.acquire().await.map_err(Problem::unavailable)?;
    let mut wanted = Wanted::new(&ctx, &caller, asked).await?;
    let id = wanted.id()?;
    let known = scoring.tables().find(id.as_str()).await?;
    if known.as_ref().is_none_or(|sheet| !sheet.read_whole) {
        let estimate = estimate::estimate(scoring, &wanted.settings).await;
        let estimate = estimate.map_err(|error| wanted.problem(error))?;
        wanted.settings.estimate_usd = estimate.cost_usd;
        wanted.settings.estimate_max_usd = estimate.cost_max_usd;
        wanted.settings.raw_estimate_usd = estimate.raw_cost_usd;
    }
    if max_cost.is_some() {
        let set = ctx.llm().ledger().set_cap(&Scope::run(id.as_str()), max_cost).await;
        set.map_err(longhaul_llm::Error::from)?;
    }
    make(&ctx, scoring, &wanted, known.as_ref()).await?;
    let sheet = scoring.tables().get(id.as_str()).await?;
    let totals = scoring.tables().totals(sheet.seq).await?;
    let status = if known.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let submitted = SubmittedOut {
        id: sheet.id,
        resumed: known.is_some(),
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
    scoring: &Scoring,
    wanted: &Wanted,
    known: Option<&StoredSheet>,
) -> Result<(), Problem> {
    let id = wanted.id()?;
    let settings = wanted.kept(ctx, known).await?;
    let made = ChunkScheduler::make(scoring, settings).await;
    if made.is_err() && scoring.tables().find(id.as_str()).await?.is_none() {
        ctx.shelf.remove_table(id.as_str()).await.map_err(Problem::unavailable)?;
        let forgotten = ctx.llm().ledger().forget(&Scope::run(id.as_str())).await;
        forgotten.map_err(longhaul_llm::Error::from)?;
    }
    made.map_err(|error| wanted.problem(error))?;
    // Whoever sweeps tables without a sheet may have met this one before its sheet was there.
    wanted.kept(ctx, known).await.map(drop)
}

/// What a sheet would cost.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SheetEstimate)]
pub(super) struct EstimateOut {
    /// The name that the sheet would have.
    id: String,
    /// The model.
    model: String,
    /// Rows with a text.
    rows: u64,
    /// Requests.
    units: u64,
    /// Cells that get a value.
    cells: u64,
    /// Requests that had all their cells already, and are not paid for.
    filled: u64,
    /// Input tokens, estimated from the bytes.
    input_tokens: u64,
    /// Output tokens, at least.
    output_tokens: u64,
    /// Output tokens, at most as expected.
    output_tokens_max: u64,
    /// What the estimate is based on: `schema`, or `sample` after an earlier sheet that was asked the same.
    #[schema(value_type = String)]
    basis: estimate::Basis,
    /// Calls of an earlier sheet that was asked the same, whose cost makes it one amount; 0 for none.
    measured_calls: u64,
    /// Expected, in dollars: the lower end; absent without a price.
    #[schema(value_type = Option<f64>)]
    cost_usd: Option<NanoUsd>,
    /// The upper end.
    #[schema(value_type = Option<f64>)]
    cost_max_usd: Option<NanoUsd>,
    /// Day of the price.
    price_as_of: Option<String>,
    /// It is self-hosted and costs nothing.
    free: bool,
    /// The price is that of a simulator.
    simulated: bool,
}

/// Says what scoring a table would cost; sends and stores nothing.
#[utoipa::path(post, path = "/api/v1/sheets/estimate", tag = "sheets", request_body = SheetIn, responses((status = 200, body = EstimateOut)))]
pub(super) async fn estimate_sheet(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<SheetIn>,
) -> ApiResult<Answer<EstimateOut>> {
    let scoring = scoring(&ctx)?;
    let _turn = ctx.tables.acquire().await.map_err(Problem::unavailable)?;
    let wanted = Wanted::new(&ctx, &caller, asked).await?;
    let estimate = estimate::estimate(scoring, &wanted.settings).await;
    let estimate = estimate.map_err(|error| wanted.problem(error))?;
    Ok(Answer(EstimateOut {
        id: wanted.id()?.as_str().to_owned(),
        model: estimate.model,
        rows: estimate.rows,
        units: estimate.units,
        cells: estimate.cells,
        filled: estimate.filled,
        input_tokens: estimate.input_tokens,
        output_tokens: estimate.output_tokens,
        output_tokens_max: estimate.output_tokens_max,
        basis: estimate.basis,
        measured_calls: estimate.measured_calls,
        cost_usd: estimate.cost_usd,
        cost_max_usd: estimate.cost_max_usd,
        price_as_of: estimate.price_as_of,
        free: estimate.free,
        simulated: estimate.simulated,
    }))
}

/// The name of a stored sheet.
fn id_of(sheet: &StoredSheet) -> SheetId {
    SheetId::named(&sheet.id)
}
