//! `sheet export`: the file of a sheet, now, with what is known so far.

use std::path::Path;

use anyhow::Result;
use longhaul_pipelines::scoring::settings::{Format, Source, Target};
use longhaul_pipelines::scoring::tables::StoredSheet;
use longhaul_pipelines::scoring::{Scoring, manage};

use crate::answers;
use crate::app::App;
use crate::exit::{Code, Failure};
use crate::output::counted;
use crate::outputs::{self, Input};

pub(super) async fn run(
    app: &App,
    scoring: &Scoring,
    mut sheet: StoredSheet,
    (out, force): (Option<&Path>, bool),
) -> Result<Code> {
    let places = [("--out", out)];
    if let Some(out) = out {
        let target = Target::File { path: std::path::absolute(out)?, format: Format::of_path(out)? };
        if let Source::File { path, .. } = &sheet.settings.source {
            let inputs: Vec<Input> = Input::of(path).into_iter().collect();
            outputs::refuse_inputs(&places, &inputs, "name another file")?;
        }
        if !force && sheet.settings.target != target {
            outputs::refuse_foreign(scoring.engine(), &sheet.id, &places).await?;
        }
        answers::check_places(&places)?;
        sheet.settings.target = target;
    }
    let Target::File { path, .. } = &sheet.settings.target else {
        return Err(Failure::new(Code::Usage, format!("{} has no file of its own", sheet.id))
            .hint("name one: longhaul sheet export ID --out FILE")
            .into());
    };
    let path = path.clone();
    let exported = manage::export(scoring, &sheet).await?;
    outputs::remember(scoring.engine(), &sheet.id, &places).await;
    app.out.one(&exported, || {
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
