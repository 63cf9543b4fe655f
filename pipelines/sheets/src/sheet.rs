//! A sheet: its name, its names in the queue, and the job that holds and ends it.

use std::fmt;

use longhaul_queue::{JobId, Json, NewJob, ProcessId};
use sha2::{Digest, Sha256};

use super::finish;
use super::settings::{Existing, SheetSettings, Source, Target};
use super::{Error, Result};
use longhaul_pipeline::numbered;

/// Names of sheets begin so.
pub const SHEET_PREFIX: &str = "sheet-";
/// Tag of the jobs that hold sheets, by which they are listed.
pub const TAG: &str = "score.sheet";

/// Jobs of sheets ask others and wait: whatever kills their worker is not them.
pub(super) const CRASHES_MAX: u32 = 200;

/// What may hold a sheet.
pub const HOLDS: [&str; 5] = ["budget", "auth", "quota", OUTAGE, "sink"];
/// The one that ends by itself: the provider does not answer.
pub const OUTAGE: &str = "outage";

/// Number of the job that holds the settings; chunks are counted from 0.
const MANIFEST: u64 = (1 << 48) - 1;

/// Name of a sheet: of its process and of its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SheetId(String);

impl SheetId {
    /// The sheet of this table with these settings. How the work is cut, what it may cost and where it is written does not
    /// make another: the same work is not to be paid for twice.
    pub fn of(settings: &SheetSettings) -> Result<Self> {
        let SheetSettings { source, layout, mode, categories, instructions, range, model, fallback, .. } =
            settings;
        let source = match source {
            Source::File { sha256, sheet, .. } => serde_json::json!([sha256, sheet]),
            // What was only looked at is not written there.
            Source::Google(google) => serde_json::json!([google, settings.target == Target::Kept]),
        };
        let block = settings.work.block_categories;
        let again = settings.existing == Existing::Overwrite;
        let shape = serde_json::to_string(&(
            (source, layout, mode, categories),
            (instructions, range, model, fallback),
            (settings.limit, block, again),
        ));
        let shape = shape.map_err(|error| Error::Invalid(error.to_string()))?;
        let digest = Sha256::digest(shape);
        let name: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(format!("{SHEET_PREFIX}{name}")))
    }

    /// From its name.
    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its process.
    pub fn process(&self) -> ProcessId {
        ProcessId::new(self.0.clone())
    }

    /// The job of a chunk. Jobs that are enqueued again after a crash have the same ids, and so are stored once.
    pub fn chunk(&self, number: u64) -> JobId {
        self.job(number)
    }

    /// The job that holds its settings and ends it.
    pub fn manifest(&self) -> JobId {
        self.job(MANIFEST)
    }

    /// What jobs wait for when they are held for a reason.
    pub(super) fn hold_key(&self, reason: &str) -> String {
        format!("{}/{reason}", self.0)
    }

    fn job(&self, number: u64) -> JobId {
        numbered::job(&self.0, number)
    }
}

impl fmt::Display for SheetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The job that holds a sheet and ends it.
pub(super) fn manifest(id: &SheetId, settings: &SheetSettings) -> Result<NewJob> {
    let payload = finish::FinishPayload { sheet: id.as_str().to_owned() };
    let mut job = NewJob::new(finish::KIND, Json::of(&payload)?)
        .id(id.manifest())
        .queue(id.as_str())
        .process(id.process())
        .after_process(id.process())
        .max_crashes(CRASHES_MAX)
        .tag(TAG);
    job.helper = true;
    job.options.tags.extend(settings.tags.iter().cloned());
    job.options.title = Some(match &settings.source {
        Source::File { path, .. } => {
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        }
        Source::Google(google) => google.sheet.clone(),
    });
    Ok(job)
}
