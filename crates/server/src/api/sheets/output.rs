//! The table of a sheet with its scores, as a file to keep. It is made anew for each download, beside the uploads, and gone with it.

use axum::body::Body;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use longhaul_api::sheets::FormatIn;
use longhaul_pipeline::uploads::{Upload, safe_name};
use longhaul_sheets::settings::{Format, Source, Target};
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{Sheets, manage};
use serde::Deserialize;
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

use super::super::ApiResult;
use super::super::extract::ApiQuery;
use super::{find, problems};
use crate::ctx::Ctx;
use crate::problem::Problem;
use crate::sheets::sheets as slice;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// How a table is written.
pub(super) fn format_of(format: FormatIn) -> Format {
    match format {
        FormatIn::Csv => Format::Csv,
        FormatIn::Tsv => Format::Tsv,
        FormatIn::Jsonl => Format::Jsonl,
        FormatIn::Xlsx => Format::Xlsx,
    }
}

/// How the output is written.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct OutputQuery {
    /// `csv`, `tsv`, `jsonl` or `xlsx`; as the table itself by default.
    format: Option<FormatIn>,
}

/// Downloads the table with what is scored so far: its own columns and the scores. What was not scored stays as it was.
#[utoipa::path(
    get, path = "/api/v1/sheets/{id}/output", tag = "sheets", params(("id" = String, Path), OutputQuery),
    responses((status = 200, description = "The table", content((String = "text/csv"), (String = "text/tab-separated-values"),
        (String = "application/jsonl"), (Vec<u8> = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"))))
)]
pub(in crate::api) async fn sheet_output(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<OutputQuery>,
) -> ApiResult<Response> {
    let sheets = slice(&ctx)?;
    let sheet = find(sheets, &id).await?;
    let Source::File { path, format, .. } = &sheet.settings.source else {
        let text = format!(
            "the scores of {} are in the Google sheet itself; read them here with /api/v1/runs/{}/results",
            sheet.id, sheet.id
        );
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "no_output", text).into());
    };
    let format = query.format.map_or(*format, format_of);
    let stem = path.file_stem().map_or_else(|| sheet.id.clone(), |stem| stem.to_string_lossy().into_owned());
    let (kind, end) = kind_of(format);
    let name = safe_name(&format!("{stem}-scored.{end}"));
    let made = make(&ctx, sheets, sheet.clone(), format).await?;
    let file = tokio::fs::File::open(&made.path).await.map_err(Problem::unavailable)?;
    let bytes = file.metadata().await.map_err(Problem::unavailable)?.len();
    let headers: [(HeaderName, String); 5] = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_LENGTH, bytes.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
        // What a model wrote is never a page of ours.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    let pieces = ReaderStream::with_capacity(file, PIECE_BYTES);
    // The file goes when the last piece was taken, or the client has gone.
    let pieces = pieces.map(move |piece| {
        let _ = &made;
        piece
    });
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Writes the output to a file that goes when it is dropped.
async fn make(ctx: &Ctx, sheets: &Sheets, mut sheet: StoredSheet, format: Format) -> Result<Upload, Problem> {
    let _turn = ctx.tables.acquire().await.map_err(Problem::unavailable)?;
    let place = ctx.uploads.new_upload(ctx.queue().clock().now());
    sheet.settings.target = Target::File { path: place.path.clone(), format };
    manage::export(sheets, &sheet).await.map_err(|error| refused(error, &sheet, &place))?;
    Ok(place)
}

fn refused(error: longhaul_sheets::Error, sheet: &StoredSheet, place: &Upload) -> Problem {
    let longhaul_sheets::Error::Table(text) = error else { return error.into() };
    let source = match &sheet.settings.source {
        Source::File { path, .. } => Some(path.as_path()),
        Source::Google(_) => None,
    };
    let name = source.and_then(|path| path.file_name()).map_or("table".into(), |name| name.to_string_lossy());
    let written = text.contains(&place.path.display().to_string());
    let text = problems::without_path(&text, source, &name);
    let text = problems::without_path(&text, Some(&place.path), "the output");
    match written {
        // The disk is full, or not there.
        true => Problem::unavailable(text),
        false => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unusable_table", text),
    }
}

/// The media type and the end of a name.
fn kind_of(format: Format) -> (&'static str, &'static str) {
    match format {
        Format::Csv => ("text/csv; charset=utf-8", "csv"),
        Format::Tsv => ("text/tab-separated-values; charset=utf-8", "tsv"),
        Format::Jsonl => ("application/jsonl", "jsonl"),
        Format::Xlsx => ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xlsx"),
    }
}
