//! What a user asks for when a sheet is scored. Written once, with the sheet.

use longhaul_llm::NanoUsd;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use longhaul_llm::cache::CacheMode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::Layout;
use super::{Error, Result};

/// Rows with a text that make a chunk: the default and what may be asked for.
pub const CHUNK_ROWS: u64 = 500;
const CHUNK_ROWS_RANGE: RangeInclusive<u64> = 50..=5_000;
/// Categories that are asked for in one request.
pub const BLOCK_CATEGORIES: usize = 10;
const BLOCK_CATEGORIES_RANGE: RangeInclusive<usize> = 1..=50;
/// Requests of a chunk under way at once.
pub const CONCURRENCY: usize = 50;
const CONCURRENCY_RANGE: RangeInclusive<usize> = 1..=200;
/// Most categories of a sheet.
pub const CATEGORIES_MAX: usize = 200;
/// Chunks that run at once.
const PARALLEL_CHUNKS_RANGE: RangeInclusive<u32> = 1..=32;

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheetSettings {
    /// Where the texts come from.
    pub source: Source,
    /// Where the scores go.
    pub target: Target,
    /// Where in the table what stands.
    pub layout: Layout,
    /// What is asked of each text.
    pub mode: Mode,
    /// What the texts are judged by; the fixed layout has them in the sheet itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<Category>,
    /// Words of the user's own for the model, before ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The lowest and the highest score.
    pub range: (f64, f64),
    /// Most tokens of an answer; the default depends on what is asked for. It bounds what a call can cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// The model.
    pub model: ModelName,
    /// Asked when the first gives no usable answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<ModelName>,
    /// Cells that have a value already.
    pub existing: Existing,
    /// Only this many rows with a text, from the top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// How the work is cut and repeated.
    pub work: Work,
    /// Whether answers are looked up and kept.
    pub cache: CacheMode,
    /// Labels; spending is counted by them too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What it was expected to cost: the lower end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_usd: Option<NanoUsd>,
    /// The upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_max_usd: Option<NanoUsd>,
    /// One amount by the count of tokens alone, without what earlier sheets have cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_estimate_usd: Option<NanoUsd>,
}

/// How the work is cut and repeated. All limits count repetitions: 3 means four runs at most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// Rows with a text in a chunk.
    pub chunk_rows: u64,
    /// Chunks that run at once.
    pub parallel_chunks: u32,
    /// Requests of a chunk under way at once.
    pub concurrency: usize,
    /// Categories in one request.
    pub block_categories: usize,
    /// Repetitions of a unit whose answer cannot be used, for each model.
    pub unit_retries: u32,
    /// Repetitions of a chunk.
    pub chunk_retries: u32,
    /// Passes over cells that are still blank, after all chunks.
    pub fill_rounds: u32,
    /// Part of a chunk's units that may fail before the chunk does.
    pub failed_share_max: f64,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            chunk_rows: CHUNK_ROWS,
            parallel_chunks: 1,
            concurrency: CONCURRENCY,
            block_categories: BLOCK_CATEGORIES,
            unit_retries: 3,
            chunk_retries: 3,
            fill_rounds: 1,
            failed_share_max: 0.2,
        }
    }
}

/// Where the texts come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A file of this machine.
    File {
        /// Where it is; absolute.
        path: PathBuf,
        /// How it is written.
        format: Format,
        /// Which sheet of a workbook; the first by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sheet: Option<String>,
        /// SHA-256 of its bytes when the sheet was made.
        sha256: String,
    },
    /// A Google spreadsheet.
    Google(GoogleSheet),
}

/// A sheet of a Google spreadsheet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoogleSheet {
    /// Id of the spreadsheet, as in its address.
    pub spreadsheet: String,
    /// Title of the sheet.
    pub sheet: String,
}

/// Where the scores go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// They are only kept, to be looked at or exported later.
    Kept,
    /// A file with the original columns and the scores, written at the end, at once and whole.
    File {
        /// Where; may be the source itself.
        path: PathBuf,
        /// How it is written.
        format: Format,
    },
    /// The Google sheet that they came from, as they come.
    InPlace,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Fields with commas.
    Csv,
    /// Fields with tabs.
    Tsv,
    /// A JSON object a line.
    Jsonl,
    /// A workbook.
    Xlsx,
}

impl Format {
    /// By the end of a file's name.
    pub fn of_path(path: &std::path::Path) -> Result<Self> {
        let extension = path.extension().and_then(|end| end.to_str()).unwrap_or_default().to_lowercase();
        match extension.as_str() {
            "csv" => Ok(Self::Csv),
            "tsv" | "tab" => Ok(Self::Tsv),
            "jsonl" | "ndjson" => Ok(Self::Jsonl),
            "xlsx" => Ok(Self::Xlsx),
            _ => Err(Error::Invalid(format!(
                "{}: the name must end in .csv, .tsv, .jsonl or .xlsx, which says how it is written",
                path.display()
            ))),
        }
    }
}

/// A model by its profile and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelName {
    /// Provider profile; secrets stay there.
    pub profile: String,
    /// The model.
    pub model: String,
}

/// What is asked of each text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A score for each category.
    Scores,
    /// A score and a sentence on why.
    Rationale,
    /// An object of the user's own schema, whose fields become columns.
    Free {
        /// JSON Schema of an object.
        schema: Value,
    },
}

/// What a text is judged by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Category {
    /// Its name, and the name of its column.
    pub name: String,
    /// What it means.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub definition: String,
    /// More of it: examples, what does not count.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// What to do with cells that already have a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Existing {
    /// They stay, and are not paid for: only blanks are filled.
    #[default]
    Keep,
    /// They are scored again.
    Overwrite,
}

impl SheetSettings {
    /// As they are shown: of a file, only its name is told, not where it is on this machine.
    pub(super) fn shown(&self) -> Result<Value> {
        let mut value = serde_json::to_value(self).map_err(|error| Error::Invalid(error.to_string()))?;
        for place in ["/source/file", "/target/file"] {
            let Some(file) = value.pointer_mut(place).and_then(Value::as_object_mut) else { continue };
            let path = file.shift_remove("path");
            let name = path.as_ref().and_then(Value::as_str).and_then(|path| path.rsplit(['/', '\\']).next());
            file.insert("name".to_owned(), name.into());
        }
        Ok(value)
    }

    /// Refuses what makes no sense, by the name of the field.
    pub fn check(&self) -> Result<()> {
        let Work { chunk_rows, parallel_chunks, concurrency, block_categories, failed_share_max, .. } =
            self.work;
        within("chunk_rows", &chunk_rows, &CHUNK_ROWS_RANGE)?;
        within("parallel_chunks", &parallel_chunks, &PARALLEL_CHUNKS_RANGE)?;
        within("concurrency", &concurrency, &CONCURRENCY_RANGE)?;
        within("block_categories", &block_categories, &BLOCK_CATEGORIES_RANGE)?;
        if !(0.0..=1.0).contains(&failed_share_max) {
            return Err(Error::Invalid("failed_share_max must be between 0 and 1".to_owned()));
        }
        if !(self.range.0.is_finite() && self.range.1.is_finite() && self.range.0 < self.range.1) {
            return Err(Error::Invalid("range must be a lower and a higher number, such as 0..1".to_owned()));
        }
        if self.max_tokens == Some(0) {
            return Err(Error::Invalid("max_tokens must be at least 1".to_owned()));
        }
        if self.limit == Some(0) {
            return Err(Error::Invalid("limit must be at least 1".to_owned()));
        }
        self.check_places()
    }

    fn check_places(&self) -> Result<()> {
        let invalid = |text: &str| Err(Error::Invalid(text.to_owned()));
        match (&self.source, &self.target) {
            (Source::File { .. }, Target::InPlace) => invalid(
                "target in_place is for Google sheets; a file is written to a path, which may be its own",
            ),
            (Source::Google(_), Target::File { .. }) if self.limit.is_none() => Ok(()),
            (Source::File { path, format: Format::Xlsx, .. }, Target::File { path: target, .. })
                if is_same(path, target) =>
            {
                invalid("a workbook is not written over: its formats would be lost; name another file")
            }
            (Source::File { .. } | Source::Google(_), _) => Ok(()),
        }
    }
}

/// Whether two names mean one file, by way of links or not.
fn is_same(path: &std::path::Path, other: &std::path::Path) -> bool {
    let real = |path: &std::path::Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(path) == real(other)
}

fn within<T: PartialOrd + std::fmt::Display>(name: &str, value: &T, range: &RangeInclusive<T>) -> Result<()> {
    if range.contains(value) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{name} must be between {} and {}, not {value}", range.start(), range.end())))
}
