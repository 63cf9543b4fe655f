//! What is in a sheet, page by page: its chunks, its rows with their scores, its blanks with their reasons.

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use longhaul_queue::{State, Timestamp};
use longhaul_sheets::manage;
use longhaul_sheets::status::{self, ChunkStatus};
use longhaul_sheets::tables::{OpenUnit, StoredSheet, UnitState};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::super::ApiResult;
use super::super::extract::ApiQuery;
use super::super::page::{Listed, PageQuery, cursor_of, limit, seq_of};
use super::find;
use crate::ctx::Ctx;
use crate::problem::Problem;
use crate::sheets::scoring;

/// A chunk and what became of its units.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SheetChunk)]
pub(in crate::api) struct ChunkOut {
    /// Its number, from 1.
    chunk: u64,
    /// `chunk-0001`.
    name: String,
    /// The state of its job; `succeeded` too where its units were answered after it failed.
    #[schema(value_type = String)]
    state: State,
    /// First and last row, from 1.
    first_row: u64,
    last_row: u64,
    /// Rows with a text.
    rows: u64,
    /// Rows all of whose units have an answer or are left blank.
    processed_rows: u64,
    /// Requests that they take.
    units: u64,
    /// Answered and not written yet.
    scored: u64,
    /// Written.
    written: u64,
    /// Left blank, with a reason.
    failed: u64,
    /// Left alone, because the row was edited.
    edited: u64,
    /// Answered from the cache.
    cached: u64,
    /// Calls that brought an answer, usable or not.
    asked: u64,
    /// Answered by the fallback.
    by_fallback: u64,
    /// How often it was run again.
    retries: u32,
    /// Why it failed last.
    last_error: Option<String>,
    /// What its stages are doing, while it runs.
    stages: Option<String>,
    /// When something became of a unit last.
    #[schema(value_type = i64)]
    updated_at: Timestamp,
}

impl From<ChunkStatus> for ChunkOut {
    fn from(status: ChunkStatus) -> Self {
        let ChunkStatus { name, chunk, state, retries, last_error, stages } = status;
        Self {
            chunk: chunk.chunk + 1,
            name,
            state,
            first_row: chunk.first_row + 1,
            last_row: chunk.last_row + 1,
            rows: chunk.rows,
            processed_rows: chunk.processed_rows,
            units: chunk.units,
            scored: chunk.scored,
            written: chunk.written,
            failed: chunk.failed,
            edited: chunk.edited,
            cached: chunk.cached,
            asked: chunk.asked,
            by_fallback: chunk.by_fallback,
            retries,
            last_error,
            stages,
            updated_at: chunk.updated_at,
        }
    }
}

/// Lists the chunks of a sheet in their order.
#[utoipa::path(get, path = "/api/v1/sheets/{id}/chunks", tag = "sheets", params(("id" = String, Path), PageQuery), responses((status = 200, body = Listed<ChunkOut>)))]
pub(in crate::api) async fn sheet_chunks(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Answer<Listed<ChunkOut>>> {
    let scoring = scoring(&ctx)?;
    let limit = limit(query.limit)?;
    let first = u64::try_from(seq_of(query.cursor.as_deref())?.unwrap_or(0))
        .map_err(|_| Problem::invalid("no chunk has such a number").at("cursor"))?;
    let sheet = find(scoring, &id).await?;
    let chunks = status::chunks(scoring, &sheet, first, limit).await?;
    let items: Vec<ChunkOut> = chunks.into_iter().map(Into::into).collect();
    // Counted from 1, the last of a page is the first of the next.
    let next = items.last().filter(|_| items.len() == limit).map(|last| cursor_of(last.chunk.cast_signed()));
    Ok(Answer(Listed { items, next, partial: false }))
}

/// Which rows.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct RowsQuery {
    /// Rows after this one; `next` of the page before.
    after: Option<u64>,
    /// At most this many rows, 1 to 1000; default 100.
    limit: Option<usize>,
}

/// Rows of a sheet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SheetRows)]
pub(in crate::api) struct RowsOut {
    /// These, in the table's order. Rows without a text are left out.
    items: Vec<RowOut>,
    /// Send it as `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// A row with its scores.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SheetRow)]
struct RowOut {
    /// Its number in the table, from 1, heads counted. The first line of JSONL is row 2.
    row: u64,
    /// The text that was scored.
    text: String,
    /// Values by column; null where there is none yet, where it stays blank, or where the table had one that was kept.
    #[schema(value_type = Object)]
    cells: Map<String, Value>,
    /// The models that gave them, as `PROFILE/MODEL`, each once.
    answered_by: Vec<String>,
}

/// Reads the rows of a sheet with their scores, also while it goes on.
#[utoipa::path(get, path = "/api/v1/sheets/{id}/rows", tag = "sheets", params(("id" = String, Path), RowsQuery), responses((status = 200, body = RowsOut)))]
pub(in crate::api) async fn sheet_rows(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<RowsQuery>,
) -> ApiResult<Answer<RowsOut>> {
    let scoring = scoring(&ctx)?;
    let limit = limit(query.limit)?;
    // Counted from 0, the row after this one has its number.
    let first = query.after.unwrap_or(0);
    if i64::try_from(first).is_err() {
        return Err(Problem::invalid(format!("after is {first}: no table has so many rows"))
            .at("after")
            .into());
    }
    let sheet = find(scoring, &id).await?;
    let rows = manage::rows(scoring, &sheet, first, limit as u64).await?;
    let names = || sheet.plan.targets.iter().map(|target| target.name.clone());
    let items = rows.into_iter().map(|(number, row)| RowOut {
        row: number + 1,
        text: row.text,
        answered_by: row.answered_by,
        cells: names().zip(row.cells.into_iter().map(Option::unwrap_or_default)).collect(),
    });
    let items: Vec<RowOut> = items.collect();
    let next = items.last().filter(|_| items.len() == limit).map(|last| last.row);
    Ok(Answer(RowsOut { items, next }))
}

/// Cells that stay blank.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SheetBlank)]
pub(in crate::api) struct BlankOut {
    /// The row, from 1, heads counted.
    row: u64,
    /// The columns.
    columns: Vec<String>,
    /// Why.
    reason: Option<String>,
}

impl BlankOut {
    fn new(sheet: &StoredSheet, unit: OpenUnit) -> Self {
        let targets = sheet.plan.targets.get(sheet.targets(unit.block)).unwrap_or_default();
        Self {
            row: unit.row + 1,
            columns: targets.iter().map(|target| target.name.clone()).collect(),
            reason: unit.reason,
        }
    }
}

/// Lists what failed, with its reasons, in the order of the rows.
#[utoipa::path(get, path = "/api/v1/sheets/{id}/blanks", tag = "sheets", params(("id" = String, Path), PageQuery), responses((status = 200, body = Listed<BlankOut>)))]
pub(in crate::api) async fn sheet_blanks(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Answer<Listed<BlankOut>>> {
    let scoring = scoring(&ctx)?;
    let limit = limit(query.limit)?;
    let after = query.cursor.as_deref().map(unit_of).transpose()?;
    let sheet = find(scoring, &id).await?;
    let all = (0, i64::MAX.unsigned_abs());
    let units = scoring.tables().open_units(sheet.seq, UnitState::Failed, all, after, limit).await?;
    let next =
        units.last().filter(|_| units.len() == limit).map(|last| format!("u{:x}-{:x}", last.row, last.block));
    let items = units.into_iter().map(|unit| BlankOut::new(&sheet, unit)).collect();
    Ok(Answer(Listed { items, next, partial: false }))
}

/// The unit that a cursor means.
fn unit_of(cursor: &str) -> Result<(u64, u32), Problem> {
    let unit = cursor.strip_prefix('u').and_then(|rest| rest.split_once('-')).and_then(|(row, block)| {
        let row = i64::from_str_radix(row, 16).ok().filter(|row| *row >= 0)?;
        Some((row.unsigned_abs(), u32::from_str_radix(block, 16).ok()?))
    });
    unit.ok_or_else(|| {
        Problem::invalid(format!("{cursor:?} is no cursor: send what a page gave as next")).at("cursor")
    })
}
