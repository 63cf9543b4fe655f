//! `runs results` of a sheet: its file, now, with what is known so far.

use anyhow::Result;
use longhaul_pipeline::Found;
use longhaul_queue::Engine;
use longhaul_sheets::settings::{Format, Source, Target};
use longhaul_sheets::{Sheets, manage};
use serde_json::json;

use crate::answers;
use crate::app::App;
use crate::exit::{Code, Failure};
use crate::output::counted;
use crate::outputs::{self, Input};
use crate::pipelines::Place;

/// That a sheet has no file of errors.
pub(crate) fn no_errors(sheet: &str) -> anyhow::Error {
    Failure::new(Code::Usage, "--errors: a sheet has blanks in its table, and no file of errors")
        .hint(format_args!("see why cells are blank with longhaul runs show {sheet}"))
        .into()
}

/// Writes the file of a sheet.
pub(crate) async fn run(
    app: &App,
    (engine, sheets): (&Engine, &Sheets),
    found: &Found,
    place: &Place<'_>,
) -> Result<Code> {
    let mut sheet = sheets.tables().get(found.run.id.as_str()).await?;
    let Place { out, errors, force } = *place;
    if errors.is_some() {
        return Err(no_errors(&sheet.id));
    }
    let places = [("--out", out)];
    if let Some(out) = out {
        let target = Target::File { path: std::path::absolute(out)?, format: Format::of_path(out)? };
        if let Source::File { path, .. } = &sheet.settings.source {
            let inputs: Vec<Input> = Input::of(path).into_iter().collect();
            outputs::refuse_inputs(&places, &inputs, "name another file")?;
        }
        if !force && sheet.settings.target != target {
            outputs::refuse_foreign(Some(engine), &sheet.id, &places).await?;
        }
        answers::check_places(&places)?;
        sheet.settings.target = target;
    }
    let Target::File { path, .. } = &sheet.settings.target else {
        return Err(Failure::new(Code::Usage, format!("{} has no file of its own", sheet.id))
            .hint("name one: longhaul runs results ID --out FILE")
            .into());
    };
    let path = path.clone();
    let exported = manage::export(sheets, &sheet).await?;
    outputs::remember(Some(engine), &sheet.id, &places).await;
    app.out.one(&json!({ "id": sheet.id, "file": out.unwrap_or(&path) }), || {
        format!(
            "{}: {}, {} filled",
            path.display(),
            counted(exported.rows, "row"),
            counted(exported.cells, "cell")
        )
    })?;
    if exported.changed > 0 {
        app.out.warn(format_args!(
            "rows that changed since the table was read, and are left alone: {}",
            exported.changed
        ));
    }
    Ok(Code::Ok)
}
