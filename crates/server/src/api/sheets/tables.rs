//! What stays blank in a sheet, with its reasons.

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use longhaul_sheets::tables::{OpenUnit, StoredSheet, UnitState};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::ApiResult;
use super::super::extract::ApiQuery;
use super::super::page::{Listed, PageQuery, limit};
use super::find;
use crate::ctx::Ctx;
use crate::problem::Problem;
use crate::sheets::sheets;

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
    let sheets = sheets(&ctx)?;
    let limit = limit(query.limit)?;
    let after = query.cursor.as_deref().map(unit_of).transpose()?;
    let sheet = find(sheets, &id).await?;
    let all = (0, i64::MAX.unsigned_abs());
    let units = sheets.tables().open_units(sheet.seq, UnitState::Failed, all, after, limit).await?;
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
