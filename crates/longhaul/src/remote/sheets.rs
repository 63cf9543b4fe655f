//! Sheets behind a server: their tables are downloaded.

use std::path::Path;

use anyhow::{Context as _, Result};
use longhaul_pipeline::{FollowedRun as _, RunId};
use longhaul_sheets::settings::Format;
use serde_json::json;

use super::{Api, RemoteRun};
use crate::answers::Sink;
use crate::app::App;
use crate::commands::score;
use crate::exit::{Code, Failure};
use crate::outputs;
use crate::pipelines::Place;

/// `runs results` of a sheet.
pub(crate) async fn write_results(app: &App, run: &RemoteRun, place: &Place<'_>) -> Result<Code> {
    let id = run.id();
    if place.errors.is_some() {
        return Err(score::export::no_errors(id.as_str()));
    }
    let Some(out) = place.out else {
        return Err(Failure::new(Code::Usage, "--out is required for a sheet")
            .hint("name a file: longhaul runs results ID --out FILE")
            .into());
    };
    if !place.force {
        outputs::refuse_foreign(None, id.as_str(), &[("--out", Some(out))]).await?;
    }
    write_table(run.api(), id, out).await?;
    let told = json!({ "id": id.as_str(), "file": out });
    app.out.one(&told, || format!("the table is in {}", out.display()))?;
    Ok(Code::Ok)
}

/// Downloads the table of a sheet with its scores, in the form that the file's name says.
pub(crate) async fn write_table(api: &Api, sheet: &RunId, out: &Path) -> Result<()> {
    let format = serde_json::to_value(Format::of_path(out)?)?;
    let query = [("format", format.as_str().unwrap_or_default().to_owned())];
    let mut table = api.download(&["sheets", sheet.as_str(), "output"], &query).await?;
    let mut sink = Sink::open(out)?;
    while let Some(piece) = table.chunk().await.context("reading the table")? {
        sink.bytes().write_all(&piece).with_context(|| format!("writing {}", out.display()))?;
    }
    sink.finish()
}
