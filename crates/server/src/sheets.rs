//! Sheets behind this server: whether there can be any, how they go, and what of theirs is among the uploads. How they are scored is the
//! pipeline's ([`longhaul_sheets`]).

use std::time::Duration;

use axum::http::StatusCode;
use longhaul_sheets::Sheets;
use tracing::{debug, warn};

use crate::ctx::Ctx;
use crate::problem::Problem;

/// How often tables are looked for whose sheet is gone.
const SWEPT_EVERY: Duration = Duration::from_secs(3_600);

/// The pipeline; a problem that says what to do where there is none.
pub(crate) fn sheets(ctx: &Ctx) -> Result<&Sheets, Problem> {
    ctx.sheets.as_ref().ok_or_else(|| {
        let text = "this server keeps its jobs in memory, and sheets need a store in a file: start it with --store sqlite://PATH";
        Problem::new(StatusCode::NOT_IMPLEMENTED, "no_data_store", text)
    })
}

/// Removes tables whose sheets are gone, such as by the command line, until it is dropped.
pub(crate) async fn keep_swept(ctx: &Ctx) {
    let Some(sheets) = &ctx.sheets else { return };
    let clock = ctx.queue().clock();
    loop {
        match sweep(ctx, sheets).await {
            Ok(0) => {}
            Ok(tables) => debug!(tables, "tables of deleted sheets were removed"),
            Err(error) => warn!(%error, "tables of deleted sheets cannot be removed now"),
        }
        clock.sleep_until(clock.now() + SWEPT_EVERY).await;
    }
}

async fn sweep(ctx: &Ctx, sheets: &Sheets) -> Result<u64, Problem> {
    let mut removed = 0;
    for sheet in ctx.uploads.runs_with_tables().await.map_err(Problem::unavailable)? {
        if sheets.tables().find(&sheet).await?.is_none() {
            ctx.uploads.remove_table(&sheet).await.map_err(Problem::unavailable)?;
            removed += 1;
        }
    }
    Ok(removed)
}
