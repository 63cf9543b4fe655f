//! Sheets: how a table is handed in.

use longhaul_llm::NanoUsd;
use longhaul_llm::cache::CacheMode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A table to score, or to estimate: `file_id` or `google`, what its texts are judged by, and a `model`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SheetIn {
    /// A file uploaded with `/v1/files`. It may be deleted once the sheet is there.
    #[schema(example = "file-0198c5a2")]
    pub file_id: Option<String>,
    /// How the file is written; by the end of its name by default.
    pub format: Option<FormatIn>,
    /// Which sheet of a workbook; the first by default.
    pub sheet: Option<String>,
    /// A Google sheet instead of a file. Its scores are written to it as they come.
    pub google: Option<GoogleIn>,
    /// Where in the table what stands; by default the fixed layout, with categories in the heads of their columns.
    pub layout: Option<LayoutIn>,
    /// What the texts are judged by, in the layout `columns`.
    pub categories: Vec<CategoryIn>,
    /// `scores` (default), or `rationale` for a score and a sentence on why.
    pub mode: Option<ModeIn>,
    /// JSON Schema of an object that is asked for instead of scores: each of its properties becomes a column.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Words of the user's own for the model, before ours.
    pub instructions: Option<String>,
    /// The lowest and the highest score; 0 and 1 by default.
    pub range: Option<(f64, f64)>,
    /// The model, as its provider names it or as `PROFILE/MODEL`.
    #[schema(example = "sim/sim-small")]
    pub model: Option<String>,
    /// The provider profile; default by the model's name.
    pub profile: Option<String>,
    /// Asked when the first gives no usable answer.
    pub fallback_model: Option<String>,
    /// Its provider profile; default by its name.
    pub fallback_profile: Option<String>,
    /// `keep` (default): cells that have a value keep it and are not paid for; `overwrite`: they are scored again.
    pub existing: ExistingIn,
    /// Most tokens of an answer; the default depends on what is asked for.
    pub max_tokens: Option<u32>,
    /// Only this many rows with a text, from the top.
    pub limit: Option<u64>,
    /// Nothing is sent that could exceed this total.
    pub max_cost_usd: Option<f64>,
    /// Calls without a price pass under its budgets, uncounted. Needs the scope `admin`.
    pub allow_unpriced: bool,
    /// Whether answers are looked up and kept: `auto` (default), `off` or `only`.
    #[schema(value_type = String, default = "auto")]
    pub cache: CacheMode,
    /// How the work is cut and repeated.
    pub work: WorkIn,
    /// Where the same sheet was there before: ask again what has no answer.
    pub ask_again: bool,
    /// Labels; spending is counted by them too.
    pub tags: Vec<String>,
}

/// A sheet of a Google spreadsheet. It must be shared with the server's service account.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GoogleIn {
    /// Its id, or its address from the browser.
    pub spreadsheet: String,
    /// The title of the sheet.
    pub sheet: String,
}

/// What a text is judged by.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CategoryIn {
    /// Its name, and the name of its column.
    pub name: String,
    /// What it means.
    #[serde(default)]
    pub definition: String,
    /// More of it: examples, what does not count.
    #[serde(default)]
    pub detail: String,
}

/// What is asked of each text.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SheetMode)]
pub enum ModeIn {
    /// A score for each category.
    Scores,
    /// A score and a sentence on why.
    Rationale,
}

/// What to do with cells that already have a value.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ExistingCells)]
pub enum ExistingIn {
    /// They stay, and are not paid for.
    #[default]
    Keep,
    /// They are scored again.
    Overwrite,
}

/// Where in the table what stands.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SheetLayout)]
pub enum LayoutIn {
    /// The first row names the columns; scores go to columns named after their categories.
    Columns(ColumnsIn),
    /// Names, definitions and details of the categories stand above their own columns.
    Sheet(HeadsIn),
}

/// A table whose first row names its columns.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ColumnsIn {
    /// Name of the column with the text, or of the field in JSONL.
    #[schema(example = "review")]
    pub text: String,
}

/// A table with its categories in its heads. Rows and columns count from 1.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeadsIn {
    /// Column of the text; default 3.
    pub text_column: Option<usize>,
    /// First column of the categories; default 4.
    pub first_category: Option<usize>,
    /// Row of their names; default 2.
    pub name_row: Option<u64>,
    /// Row of their definitions; default 3.
    pub definition_row: Option<u64>,
    /// Row of their details; default 4.
    pub detail_row: Option<u64>,
    /// First row of texts; default 5.
    pub first_row: Option<u64>,
}

/// How the work is cut and repeated. All limits count repetitions: 3 means four runs at most.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = SheetWork)]
pub struct WorkIn {
    /// Rows with a text in a chunk, 50 to 5000; default 500.
    pub chunk_rows: Option<u64>,
    /// Chunks that run at once, 1 to 32; default 1.
    pub parallel_chunks: Option<u32>,
    /// Requests of a chunk under way at once, 1 to 200; default 50.
    pub concurrency: Option<usize>,
    /// Categories in one request, 1 to 50; default 10.
    pub block_categories: Option<usize>,
    /// Repetitions of a unit whose answer cannot be used, for each model, at most 20; default 3.
    pub unit_retries: Option<u32>,
    /// Repetitions of a chunk, at most 20; default 3.
    pub chunk_retries: Option<u32>,
    /// Passes over cells that are still blank, after all chunks, at most 10; default 1.
    pub fill_rounds: Option<u32>,
    /// Part of a chunk's units that may fail before the chunk does, 0 to 1; default 0.2.
    pub failed_share_max: Option<f64>,
}

/// How a table is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TableFormat)]
pub enum FormatIn {
    /// Fields with commas.
    Csv,
    /// Fields with tabs.
    Tsv,
    /// A JSON object a line.
    Jsonl,
    /// A workbook.
    Xlsx,
}

/// What scoring a table would cost.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EstimatedSheet<T> {
    /// The name that the sheet would have.
    pub id: String,
    /// What it would cost.
    #[serde(flatten)]
    pub estimate: T,
}

/// A sheet that was handed in.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SubmittedSheet {
    /// Its name.
    pub id: String,
    /// It was there before: the same table with the same settings is the same sheet.
    pub resumed: bool,
    /// Requests that are asked again, where that was wanted.
    pub asked_again: u64,
    /// Rows with a text.
    pub rows: u64,
    /// Requests that they take.
    pub units: u64,
    /// Chunks of the work.
    pub chunks: u64,
    /// The columns that are filled.
    pub columns: Vec<String>,
    /// What it is expected to cost, in dollars; absent without a price.
    #[schema(value_type = Option<f64>)]
    pub estimate_usd: Option<NanoUsd>,
}
