//! A sheet is a run: its name, and the job that holds and ends it.

use longhaul_pipeline::run::{self, RunId};
use longhaul_queue::{Json, NewJob};

use super::finish;
use super::settings::{Existing, SheetSettings, Source, Target};
use super::{ABOUT, Error, Result};

/// Jobs of sheets ask others and wait: whatever kills their worker is not them.
pub(super) const CRASHES_MAX: u32 = 200;

impl SheetSettings {
    /// The run that scores this table with these settings. How the work is cut, what it may cost and where it is written does
    /// not make another: the same work is not to be paid for twice.
    pub fn run_id(&self) -> Result<RunId> {
        let Self { source, layout, mode, categories, instructions, range, model, fallback, .. } = self;
        let source = match source {
            Source::File { sha256, sheet, .. } => serde_json::json!([sha256, sheet]),
            // What was only looked at is not written there.
            Source::Google(google) => serde_json::json!([google, self.target == Target::Kept]),
        };
        let block = self.work.block_categories;
        let again = self.existing == Existing::Overwrite;
        let shape = serde_json::to_string(&(
            (source, layout, mode, categories),
            (instructions, range, model, fallback),
            (self.limit, block, again),
        ));
        let shape = shape.map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(RunId::derived(&ABOUT, &shape))
    }

    /// What the table is called.
    fn title(&self) -> String {
        match &self.source {
            Source::File { path, .. } => {
                path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
            }
            Source::Google(google) => google.sheet.clone(),
        }
    }
}

/// The job that holds a sheet and ends it.
pub(super) fn manifest(id: &RunId, settings: &SheetSettings) -> Result<NewJob> {
    let payload = Json::of(&finish::FinishPayload { sheet: id.as_str().to_owned() })?;
    let mut job = run::manifest(&ABOUT, id, payload, settings.title()).max_crashes(CRASHES_MAX);
    job.options.tags.extend(settings.tags.iter().cloned());
    Ok(job)
}
