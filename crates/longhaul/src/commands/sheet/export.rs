//! `sheet export`: the file of a sheet, now, with what is known so far.

use std::path::Path;

use anyhow::Result;
use longhaul_pipelines::scoring::settings::{Format, Target};
use longhaul_pipelines::scoring::tables::StoredSheet;
use longhaul_pipelines::scoring::{Scoring, manage};

use crate::app::App;
use crate::exit::{Code, Failure};
use crate::output::counted;

pub(super) async fn run(
    app: &App,
    scoring: &Scoring,
    mut sheet: StoredSheet,
    out: Option<&Path>,
) -> Result<Code> {
    if let Some(out) = out {
        sheet.settings.target =
            Target::File { path: std::path::absolute(out)?, format: Format::of_path(out)? };
    }
    let Target::File { path, .. } = &sheet.settings.target else {
        return Err(Failure::new(Code::Usage, format!("{} has no file of its own", sheet.id))
            .hint("name one: longhaul sheet export ID --out FILE")
            .into());
    };
    let path = path.clone();
    let exported = manage::export(scoring, &sheet).await?;
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
