//! Arguments of `score`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use crate::parse;
use crate::texts::TextArg;

use super::{CacheUse, SpendingArgs};

pub(super) const EXAMPLES: &str = "\
Examples:
  longhaul score reviews.csv --text-column text --rubric rubric.toml --out scored.csv
  longhaul score reviews.csv --text-column text --rubric rubric.toml --sample 20
  longhaul score reviews.xlsx --text-column text --rubric rubric.toml --rationale --out scored.xlsx
  longhaul score people.jsonl --text-column bio --schema person.json --out people-2.jsonl
  longhaul score sheets://SPREADSHEET_ID/Sheet1 --layout sheet --google-key key.json

The same table and options go on with the same run: after Ctrl-C, a crash or a reboot, repeat the command.
A rubric is a TOML file: [[category]] with name, and if you like definition and detail.";

/// What is asked of each text of a table: for `score`, and for `estimate` of one.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("texts").args(["text_column", "layout"])))]
pub(crate) struct ScoringArgs {
    /// Column or field with the text.
    #[arg(long, value_name = "NAME")]
    pub(crate) text_column: Option<String>,
    /// TOML file with the categories.
    #[arg(long, value_name = "FILE", requires = "texts", conflicts_with = "schema")]
    pub(crate) rubric: Option<PathBuf>,
    /// Where categories stand in the table itself: text in column C, categories from D, their names, definitions and
    /// details in rows 2 to 4, texts from row 5.
    #[arg(long, value_name = "LAYOUT", conflicts_with_all = ["rubric", "schema", "rationale"])]
    pub(crate) layout: Option<LayoutName>,
    /// Also ask for a reason for each score; a column each.
    #[arg(long, requires = "texts", conflicts_with = "schema")]
    pub(crate) rationale: bool,
    /// Your own instructions for the model, before the built-in ones; @FILE reads them from a file.
    #[arg(long, value_name = "TEXT", requires = "texts")]
    pub(crate) instructions: Option<TextArg>,
    /// Lowest and highest score.
    #[arg(
        long,
        value_name = "LOW..HIGH",
        default_value = "0..1",
        requires = "texts",
        allow_hyphen_values = true
    )]
    pub(crate) range: String,
    /// Score cells again that have a value; by default only blanks are filled and paid for.
    #[arg(long, requires = "texts")]
    pub(crate) overwrite: bool,
    /// Categories in one request.
    #[arg(long, value_name = "N", default_value_t = longhaul_sheets::settings::BLOCK_CATEGORIES, requires = "texts")]
    pub(crate) batch_size: usize,
}

impl ScoringArgs {
    /// Whether a table is meant, where it could also be prompts.
    pub(crate) fn is_given(&self) -> bool {
        self.text_column.is_some() || self.layout.is_some()
    }
}

/// `score`.
#[derive(Debug, Args)]
#[command(mut_group("texts", |group| group.required(true)))]
pub(crate) struct ScoreArgs {
    /// The table: .csv, .tsv, .jsonl or .xlsx, or a Google sheet: sheets://ID/TITLE, or its address.
    pub(crate) table: String,
    /// What is asked of each text.
    #[command(flatten)]
    pub(crate) scoring: ScoringArgs,
    /// JSON Schema of an object instead of scores; its fields become columns.
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Which sheet of a workbook; default the first.
    #[arg(long, value_name = "NAME")]
    pub(crate) sheet: Option<String>,
    /// Where the table goes with its scores; the ending says how it is written.
    #[arg(long, value_name = "FILE", conflicts_with = "in_place")]
    pub(crate) out: Option<PathBuf>,
    /// Overwrite a file that this run did not write.
    #[arg(long)]
    pub(crate) force: bool,
    /// Write over the table itself, at the end and at once. A Google sheet always is.
    #[arg(long)]
    pub(crate) in_place: bool,
    /// Model; default the profile's.
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Address of an OpenAI-compatible server, instead of the profile's.
    #[arg(long, value_name = "URL", value_parser = parse::address)]
    pub(crate) base_url: Option<String>,
    /// Model to ask when the first gives no usable answer.
    #[arg(long, value_name = "MODEL")]
    pub(crate) fallback_model: Option<String>,
    /// Profile of that model; default the same.
    #[arg(long, value_name = "NAME", requires = "fallback_model")]
    pub(crate) fallback_profile: Option<String>,
    /// Most tokens of an answer; default by what is asked for, with room for a model that thinks first.
    #[arg(long, value_name = "N", value_parser = parse::positive::<u32>)]
    pub(crate) max_tokens: Option<u32>,
    /// Only the first rows that have a text.
    #[arg(long, value_name = "N", conflicts_with = "sample", value_parser = parse::positive::<u64>)]
    pub(crate) limit: Option<u64>,
    /// Score only the first N rows, show them, and write nothing. They are not paid for again.
    #[arg(long, value_name = "N", conflicts_with_all = ["out", "in_place", "detach"], value_parser = parse::positive::<u64>)]
    pub(crate) sample: Option<u64>,
    /// What may be spent.
    #[command(flatten)]
    pub(crate) spending: SpendingArgs,
    /// Use of known answers: auto, off, or only those.
    #[arg(long, value_name = "USE", default_value = "auto")]
    pub(crate) cache: CacheUse,
    /// Rows in a chunk.
    #[arg(long, value_name = "N", default_value_t = longhaul_sheets::settings::CHUNK_ROWS)]
    pub(crate) chunk_rows: u64,
    /// Chunks at work at once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) parallel_chunks: u32,
    /// Requests of a chunk under way at once, at most; the rate control stays below.
    #[arg(long, value_name = "N", default_value_t = longhaul_sheets::settings::CONCURRENCY)]
    pub(crate) concurrency: usize,
    /// Times that a request is asked again whose answer cannot be used, for each model.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=20))]
    pub(crate) unit_retries: u32,
    /// Times that a chunk is run again in which too much failed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=20))]
    pub(crate) chunk_retries: u32,
    /// Share of a chunk's requests that may fail before the chunk does, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value = "0.2", value_parser = parse::share)]
    pub(crate) failed_share: f64,
    /// Passes over cells that are still blank at the end.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) fill_rounds: u32,
    /// Key file of a Google service account.
    #[arg(long, value_name = "FILE")]
    pub(crate) google_key: Option<String>,
    /// Label; spending is counted by it too. May be repeated.
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// Only store the work; a worker does it: longhaul work.
    #[arg(long)]
    pub(crate) detach: bool,
    /// Say what would be done and what it would cost, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// A layout by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LayoutName {
    /// Categories above their own columns.
    Sheet,
}

impl ScoreArgs {
    /// The settings that were given as flags: key, flag, value.
    pub(crate) fn flags(&self) -> Vec<(&'static str, &'static str, String)> {
        let key = self.google_key.iter();
        key.map(|key| ("google.key_file", "--google-key", key.clone())).collect()
    }
}
