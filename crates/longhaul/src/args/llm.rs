//! Arguments of the commands about models.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use longhaul_llm::NanoUsd;
use longhaul_llm::cache::CacheMode;

use super::ScoringArgs;
use crate::parse;
use crate::texts::TextArg;

/// Examples of `run`.
pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  longhaul run prompts.txt --profile sim --model sim-small --out answers.jsonl
  longhaul run tickets.csv --template 'Classify: {{text}}' --schema label.json --out labels.csv
  longhaul run batch.jsonl --batch --max-cost 5 --watch
  longhaul run texts.txt --embed --model text-embedding-3-small --out vectors.jsonl
  cat prompts.jsonl | longhaul run - --model gpt-5-mini --by 06:00 --detach

The same file and options go on with the same run: after Ctrl-C, a crash or a reboot, repeat the command.";

/// Which prompts, and how each is asked.
#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    /// The prompts: JSONL in OpenAI's batch form, JSONL of prompts, CSV, TSV, XLSX, or text with one prompt per line; - is stdin.
    pub(crate) file: PathBuf,
    /// Form of the file; default by its name and first line.
    #[arg(long, value_name = "FORM", default_value = "auto", hide_default_value = true)]
    pub(crate) format: crate::prompts::Format,
    /// Sheet of a workbook; default the first.
    #[arg(long, value_name = "NAME")]
    pub(crate) sheet: Option<String>,
    /// Text with {{column}} placeholders, filled from each row; @FILE reads it from a file.
    #[arg(long, value_name = "TEXT")]
    pub(crate) template: Option<TextArg>,
    /// Embed texts instead of asking prompts: a vector each.
    #[arg(long)]
    pub(crate) embed: bool,
    /// Length of the vectors, where the model can choose.
    #[arg(long, value_name = "N", value_parser = parse::positive::<u32>)]
    pub(crate) dimensions: Option<u32>,
    /// Model for prompts that name none; default the profile's.
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Instructions for prompts without their own; @FILE reads them from a file.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<TextArg>,
    /// JSON Schema file that each answer must fit.
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", value_parser = parse::positive::<u32>)]
    pub(crate) max_tokens: Option<u32>,
    /// Sampling temperature.
    #[arg(long, value_name = "T", value_parser = parse::not_negative)]
    pub(crate) temperature: Option<f64>,
    /// Only the first prompts.
    #[arg(long, value_name = "N", value_parser = parse::positive::<u64>)]
    pub(crate) limit: Option<u64>,
    /// Address of an OpenAI-compatible server, instead of the profile's.
    #[arg(long, value_name = "URL", value_parser = parse::address)]
    pub(crate) base_url: Option<String>,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What to ask.
    #[command(flatten)]
    pub(crate) prompts: PromptArgs,
    /// Send requests one by one.
    #[arg(long, conflicts_with_all = ["batch", "by"])]
    pub(crate) sync: bool,
    /// Send provider batches: cheaper, up to 24 hours.
    #[arg(long, conflicts_with = "by")]
    pub(crate) batch: bool,
    /// Be done by this time, as cheaply as possible: 06:00, or a date and time.
    #[arg(long, value_name = "TIME")]
    pub(crate) by: Option<String>,
    /// Model to ask when the first gives no usable answer.
    #[arg(long, value_name = "MODEL")]
    pub(crate) fallback_model: Option<String>,
    /// What may be spent.
    #[command(flatten)]
    pub(crate) spending: SpendingArgs,
    /// Use of known answers: auto, off, or only those.
    #[arg(long, value_name = "USE", default_value = "auto")]
    pub(crate) cache: CacheUse,
    /// Requests under way at once, at most; the rate control stays below.
    #[arg(long, value_name = "N", value_parser = parse::positive::<u32>)]
    pub(crate) concurrency: Option<u32>,
    /// Label; spending is counted by it too. May be repeated.
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// Where answers go, in order: .jsonl, .csv, .tsv or .txt by name; default stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Where requests without an answer go; default among the answers.
    #[arg(long, value_name = "FILE")]
    pub(crate) errors: Option<PathBuf>,
    /// Overwrite a file that this run did not write.
    #[arg(long)]
    pub(crate) force: bool,
    /// Only store the requests; a worker answers them: longhaul work.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) detach: bool,
    /// Follow a run that other workers answer, without working here.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Say what would be done and what it would cost, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Ask only this many prompts, spread over the file, and estimate the cost of the rest.
    #[arg(long, value_name = "N", value_parser = parse::positive::<u64>)]
    pub(crate) sample: Option<u64>,
    /// Delete the run once its answers are written.
    #[arg(long)]
    pub(crate) consume: bool,
}

/// What a run or a sheet may spend.
#[derive(Debug, Args)]
pub(crate) struct SpendingArgs {
    /// Stop before more than this is spent in all, in dollars.
    #[arg(long, value_name = "USD", value_parser = parse::money)]
    pub(crate) max_cost: Option<NanoUsd>,
    /// Let calls without a price pass under --max-cost and other budgets, without counting them.
    #[arg(long)]
    pub(crate) allow_unpriced: bool,
}

/// Examples of `estimate`.
pub(super) const ESTIMATE_EXAMPLES: &str = "\
Examples:
  longhaul estimate prompts.jsonl --model gpt-5-mini
  longhaul estimate reviews.csv --text-column text --rubric rubric.toml --model gpt-5-mini

With --text-column or --layout it is the table of longhaul score, otherwise the prompts of longhaul run.";

/// `estimate`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("asking").multiple(true).conflicts_with("texts")
    .args(["format", "template", "embed", "dimensions", "system", "temperature", "batch"])))]
pub(crate) struct EstimateArgs {
    /// What would be asked.
    #[command(flatten)]
    pub(crate) prompts: PromptArgs,
    /// Estimate provider batches only.
    #[arg(long)]
    pub(crate) batch: bool,
    /// What would be asked of each text of a table.
    #[command(flatten, next_help_heading = "Scores of a table")]
    pub(crate) scoring: ScoringArgs,
}

/// Use of the response cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheUse {
    /// Look up answers, and keep new ones.
    Auto,
    /// Neither.
    Off,
    /// Look up answers, and never ask.
    Only,
}

impl From<CacheUse> for CacheMode {
    fn from(cache: CacheUse) -> Self {
        match cache {
            CacheUse::Auto => Self::Auto,
            CacheUse::Off => Self::Off,
            CacheUse::Only => Self::Only,
        }
    }
}

/// Examples of `costs`.
pub(super) const COSTS_EXAMPLES: &str = "\
Examples:
  longhaul costs
  longhaul costs unknown --run run-515f03f2db19
  longhaul costs resolve --not-billed --profile openai --day 2026-11-15
  longhaul costs resolve --bill 4.20 --profile openai --day 2026-11-15";

/// `costs`.
#[derive(Debug, Args)]
pub(crate) struct CostsArgs {
    /// What about them.
    #[command(subcommand)]
    pub(crate) command: Option<CostsCommand>,
}

/// `costs …`.
#[derive(Debug, Subcommand)]
pub(crate) enum CostsCommand {
    /// Lists calls that may have been billed; until resolved, they count at the most they can have cost.
    Unknown {
        /// Which of them.
        #[command(flatten)]
        which: WhichCallsArgs,
    },
    /// Records what such calls cost, and releases the rest of what budgets hold for them.
    Resolve {
        /// Which of them.
        #[command(flatten)]
        which: WhichCallsArgs,
        /// What became of them.
        #[command(flatten)]
        verdict: BillArgs,
    },
    /// Lists what was decided, by whom and when.
    Decisions,
}

/// Which calls; all where nothing is named.
#[derive(Debug, Args)]
pub(crate) struct WhichCallsArgs {
    /// Only calls of this run or sheet.
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
    /// Only calls to this model.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Only calls of this day (UTC), such as 2026-11-15.
    #[arg(long, value_name = "DAY")]
    pub(crate) day: Option<String>,
}

/// What became of calls of unknown end.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct BillArgs {
    /// The provider did not bill them.
    #[arg(long)]
    pub(crate) not_billed: bool,
    /// The provider billed them; they are booked at the most they can have cost.
    #[arg(long)]
    pub(crate) billed: bool,
    /// The total on the provider's usage page for these days, profiles or models; what exceeds the amount already booked is
    /// their cost.
    #[arg(long, value_name = "USD", value_parser = parse::money)]
    pub(crate) bill: Option<NanoUsd>,
    /// Ask the provider: the results of a batch say what each request cost.
    #[arg(long)]
    pub(crate) ask: bool,
}

/// `runs …`.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// Lists runs, newest first.
    Ls {
        /// Only those of the pipeline of this name, as in the column PIPELINE.
        #[arg(long, value_name = "NAME")]
        pipeline: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 20, value_name = "N", value_parser = parse::positive::<usize>)]
        limit: usize,
        /// Where the last page ended: the `next` of `-o json`.
        #[arg(long, value_name = "CURSOR", value_parser = parse::cursor)]
        cursor: Option<i64>,
    },
    /// Shows a run: settings, progress, spending, and its parts, such as batches or chunks.
    Show {
        /// The run.
        id: String,
        /// Parts that are shown.
        #[arg(long, value_name = "N", default_value_t = 20)]
        parts: usize,
    },
    /// Waits until a run has ended or cannot go on.
    Wait {
        /// The run.
        id: String,
        /// Give up after this time.
        #[arg(long, value_parser = parse::duration, value_name = "TIME")]
        timeout: Option<Duration>,
    },
    /// Begins no more units of a run; what is under way goes on.
    Pause {
        /// The run.
        id: String,
    },
    /// Lets a paused or held run go on.
    Resume {
        /// The run.
        id: String,
        /// What may be spent.
        #[command(flatten)]
        spending: SpendingArgs,
    },
    /// Ends a run early; what was done is kept.
    Cancel {
        /// The run.
        id: String,
    },
    /// Tries again what failed or was cancelled.
    Retry {
        /// The run.
        id: String,
        /// Only what failed in this part, counted from 1.
        #[arg(long, value_name = "N")]
        part: Option<u64>,
    },
    /// Writes the results of a run: answers in order, or the table with its scores.
    Results {
        /// The run.
        id: String,
        /// Where results go; default stdout, or where the run writes them.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Where requests without an answer go; default among the answers.
        #[arg(long, value_name = "FILE")]
        errors: Option<PathBuf>,
        /// Overwrite a file that this run did not write.
        #[arg(long)]
        force: bool,
        /// Delete the run once they are written.
        #[arg(long)]
        consume: bool,
    },
    /// Decides about batches whose fate is unknown.
    Resolve {
        /// The run.
        id: String,
        /// What to do.
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Deletes a run that has ended, with its results; files stay.
    Rm {
        /// The run.
        id: String,
    },
}

/// What to do with a batch whose fate is unknown, or that the provider refuses.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct DecisionArgs {
    /// Send it again: it may be paid for twice.
    #[arg(long)]
    pub(crate) resubmit: bool,
    /// Look for it once more.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Send its requests one by one, at the full price: they are paid for twice if the batch was run.
    #[arg(long)]
    pub(crate) one_by_one: bool,
    /// Give up on it: its requests fail.
    #[arg(long)]
    pub(crate) drop: bool,
}

/// `keys …`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Stores a key, read from stdin, in a file that only you can read.
    Set {
        /// The profile.
        profile: String,
    },
    /// Lists profiles and where their keys come from; never shows one.
    Ls,
    /// Removes a stored key.
    Rm {
        /// The profile.
        profile: String,
    },
}

/// `sim …`.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Serves made-up answers over HTTP, in the forms of OpenAI, Anthropic and Gemini.
    #[command(after_help = "Example:\n  longhaul sim serve --port 7799 --rpm 600 --rate-429 0.05")]
    Serve(Box<SimServeArgs>),
}

/// `sim serve`.
#[derive(Debug, Args)]
pub(crate) struct SimServeArgs {
    /// Port; 0 takes a free one and prints it.
    #[arg(long, default_value_t = 7799, value_name = "PORT")]
    pub(crate) port: u16,
    /// Address.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,
    /// Seed: the same seed gives the same answers and faults.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,
    /// Time of an answer.
    #[arg(long, value_parser = parse::duration, default_value = "0s", value_name = "TIME")]
    pub(crate) latency: Duration,
    /// Requests a minute.
    #[arg(long, value_name = "N")]
    pub(crate) rpm: Option<u64>,
    /// Tokens a minute.
    #[arg(long, value_name = "N")]
    pub(crate) tpm: Option<u64>,
    /// Requests answered at once, as a local engine does.
    #[arg(long, value_name = "N", value_parser = parse::positive::<usize>)]
    pub(crate) slots: Option<usize>,
    /// Share of requests answered with 429.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = parse::share)]
    pub(crate) rate_429: f64,
    /// Share of requests answered with a server error.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = parse::share)]
    pub(crate) rate_5xx: f64,
    /// Share of answers that are not what was asked for.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = parse::share)]
    pub(crate) rate_malformed: f64,
    /// Share of answers whose connection is dropped.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = parse::share)]
    pub(crate) rate_drop: f64,
    /// How much faster the batches' 24 hours pass.
    #[arg(long, default_value_t = 1000.0, value_name = "FACTOR", value_parser = parse::not_negative)]
    pub(crate) time_scale: f64,
    /// Accept only this key.
    #[arg(long, value_name = "KEY")]
    pub(crate) require_key: Option<String>,
    /// Append every executed request to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// All settings of the simulator as JSON, over those above.
    #[arg(long, value_name = "JSON")]
    pub(crate) options: Option<String>,
}
