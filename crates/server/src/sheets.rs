//! Sheets behind this server: whether there can be any, how they go, and what of theirs is on the shelf. How they are scored is the
//! slice's ([`longhaul_sheets`]).

use std::time::Duration;

use axum::http::StatusCode;
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{Scoring, SheetId, manage};
use tracing::{debug, warn};

use crate::ctx::Ctx;
use crate::problem::Problem;

/// How often tables are looked for whose sheet is gone.
const SWEPT_EVERY: Duration = Duration::from_secs(3_600);

/// The slice; a problem with the way out where there is none.
pub(crate) fn scoring(ctx: &Ctx) -> Result<&Scoring, Problem> {
    ctx.scoring.as_ref().ok_or_else(|| {
        let text = "this server keeps its jobs in memory, and sheets need a store in a file: start it with --store sqlite://PATH";
        Problem::new(StatusCode::NOT_IMPLEMENTED, "no_data_store", text)
    })
}

/// Cancels what is left of a sheet, and says how many jobs that were.
pub(crate) async fn cancel(ctx: &Ctx, sheet: &StoredSheet) -> Result<u64, Problem> {
    Ok(manage::cancel(scoring(ctx)?, &SheetId::named(&sheet.id)).await?)
}

/// Deletes a sheet with its table, and says how many chunks it had. Refused while one is unfinished.
pub(crate) async fn remove(ctx: &Ctx, sheet: &StoredSheet) -> Result<u64, Problem> {
    let scoring = scoring(ctx)?;
    let chunks = scoring.tables().totals(sheet.seq).await?.chunk;
    manage::remove(scoring, &SheetId::named(&sheet.id)).await.map_err(|error| match error {
        longhaul_sheets::Error::Invalid(text)
        | longhaul_sheets::Error::Queue(longhaul_queue::Error::Invalid(text)) => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_state", text)
        }
        error => error.into(),
    })?;
    // What cannot be removed now is swept later.
    if let Err(error) = ctx.shelf.remove_table(&sheet.id).await {
        warn!(sheet = sheet.id, %error, "the table of a deleted sheet cannot be removed now");
    }
    Ok(chunks)
}

/// Removes tables whose sheets are gone, such as by the command line, until it is dropped.
pub(crate) async fn keep_swept(ctx: &Ctx) {
    let Some(scoring) = &ctx.scoring else { return };
    let clock = ctx.queue().clock();
    loop {
        match sweep(ctx, scoring).await {
            Ok(0) => {}
            Ok(tables) => debug!(tables, "tables of deleted sheets were removed"),
            Err(error) => warn!(%error, "tables of deleted sheets cannot be removed now"),
        }
        clock.sleep_until(clock.now() + SWEPT_EVERY).await;
    }
}

async fn sweep(ctx: &Ctx, scoring: &Scoring) -> Result<u64, Problem> {
    let mut removed = 0;
    for sheet in ctx.shelf.sheets_with_tables().await.map_err(Problem::unavailable)? {
        if scoring.tables().find(&sheet).await?.is_none() {
            ctx.shelf.remove_table(&sheet).await.map_err(Problem::unavailable)?;
            removed += 1;
        }
    }
    Ok(removed)
}
