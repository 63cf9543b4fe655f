//! The command line as types. Names follow one grammar; global options may stand before or after the command.

use std::fmt;
use std::path::PathBuf;

use clap::{ArgAction, ArgMatches, Args, Parser, Subcommand, ValueEnum};

use crate::exit::EXIT_CODES_HELP;
use crate::output::{Color, Format, TimeStyle};
use crate::program::Start;
use crate::progress::Style as ProgressStyle;

mod admin;
mod enqueue;
mod jobs;
mod llm;
mod score;
mod verify;
mod work;

pub(crate) use admin::{
    BackupArgs, ConfigCommand, EventsArgs, MoveArgs, ProcessCommand, QueueSetArgs, QueuesCommand,
    RestoreArgs, ResultsArgs, ScheduleAddArgs, ScheduleCommand, WorkersCommand,
};
pub(crate) use enqueue::{EnqueueArgs, JobFlags};
pub(crate) use jobs::{BulkArgs, EditArgs, JobsCommand, ListArgs, RetryArgs, UnparkArgs, WaitArgs};
pub(crate) use llm::{
    BillArgs, CacheUse, CostsArgs, CostsCommand, DecisionArgs, EstimateArgs, KeysCommand, PromptArgs,
    RunArgs, RunsCommand, SimCommand, SimServeArgs, SpendingArgs, WhichCallsArgs,
};
pub(crate) use score::{ScoreArgs, ScoringArgs};
pub(crate) use verify::{CrashArgs, FairArgs, LeaseArgs, OwnServer, SharingArgs, VerifyArgs, VerifyCommand};
pub(crate) use work::{BenchArgs, DemoArgs, Instrument, McpArgs, TokensCommand, UpArgs, WorkArgs};

/// Runs LLM work that takes minutes to days and must not be lost, paid for twice or left hanging.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, max_term_width = 110, disable_help_subcommand = true)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES_HELP}"))]
pub(crate) struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  longhaul run prompts.txt --profile sim --out answers.jsonl
  longhaul enqueue echo '{\"hello\":\"world\"}'
  longhaul work --drain
  longhaul jobs ls --state failed -o json

Jobs are kept in sqlite://.longhaul/longhaul.db unless --store names another place.
Settings come from flags, then LONGHAUL_SECTION__KEY, then longhaul.toml, then defaults: longhaul config show.";

/// Options of every command. Each is a line of its own, and none has a longer text or a list of values: one that has makes the
/// help of every command three times as long, and its own options are lost in it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Where jobs are: sqlite://PATH, redis://HOST, postgres://HOST/DB, memory://.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Where pipelines keep tables beside Redis or Postgres: sqlite://PATH.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) data: Option<String>,
    /// A running server instead of a store; its token is in LONGHAUL_TOKEN.
    #[arg(long, global = true, value_name = "URL", conflicts_with = "store")]
    pub(crate) server: Option<String>,
    /// Settings file. Default longhaul.toml, else .longhaul/config.toml.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Provider: openai, anthropic, gemini, ollama, llamacpp, sim, or your own.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Results on stdout: text, json, jsonl or none.
    #[arg(short, long, global = true, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) output: Option<Format>,
    /// Colours: auto (which honours NO_COLOR), always or never.
    #[arg(long, global = true, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: Option<Color>,
    /// Progress on stderr: auto, bar, lines or none.
    #[arg(long, global = true, value_name = "STYLE", hide_possible_values = true)]
    pub(crate) progress: Option<ProgressStyle>,
    /// Times in text: auto, relative, iso or unix.
    #[arg(long, global = true, value_name = "STYLE", hide_possible_values = true)]
    pub(crate) time: Option<TimeStyle>,
    /// Only results, warnings and errors.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// More logging on stderr: -v info, -vv debug, -vvv trace.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Answer yes to every question; needed for bulk changes off a terminal.
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
}

impl Global {
    /// The settings that were given as flags: key, flag, value.
    pub(crate) fn flags(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut flags = Vec::new();
        let mut push = |key, flag, value: Option<String>| flags.extend(value.map(|value| (key, flag, value)));
        push("store.url", "--store", self.store.clone());
        push("store.data", "--data", self.data.clone());
        push("store.server", "--server", self.server.clone());
        push("llm.profile", "--profile", self.profile.clone());
        push("output.format", "--output", self.output.map(name_of));
        push("output.color", "--color", self.color.map(name_of));
        push("output.progress", "--progress", self.progress.map(name_of));
        push("output.time", "--time", self.time.map(name_of));
        flags
    }
}

/// The word for a choice on the command line and in settings.
#[expect(clippy::needless_pass_by_value, reason = "choices are Copy")]
fn name_of<T: ValueEnum>(choice: T) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows jobs and a run of prompts at work on this machine, with no key and no network.
    #[command(after_help = "Example:\n  longhaul demo --crash")]
    Demo(DemoArgs),
    /// Answers a file of prompts, each once and in order.
    #[command(after_help = llm::RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Scores the texts of a table: CSV, TSV, JSONL, XLSX, or a Google sheet.
    #[command(after_help = score::EXAMPLES)]
    Score(Box<ScoreArgs>),
    /// Lists, shows, waits for and changes runs, whatever started them.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Says what a file of prompts or the scores of a table would cost; sends nothing and needs no key.
    #[command(after_help = llm::ESTIMATE_EXAMPLES)]
    Estimate(Box<EstimateArgs>),
    /// Shows what was spent, by day and model, and resolves calls that may have been billed.
    #[command(after_help = llm::COSTS_EXAMPLES)]
    Costs(CostsArgs),
    /// Lists the models of a profile, and local engines that answer.
    #[command(after_help = "Example:\n  longhaul models --profile ollama")]
    Models,
    /// Stores, lists and removes keys of providers.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// A simulator of models, for tests and trials.
    #[command(subcommand)]
    Sim(SimCommand),
    /// Serves the HTTP API, runs jobs and keeps time, in one process.
    #[command(after_help = work::UP_EXAMPLES)]
    Up(UpArgs),
    /// Serves tools for agents over stdin and stdout (Model Context Protocol).
    #[command(after_help = work::MCP_EXAMPLES)]
    Mcp(McpArgs),
    /// Prints the description of the HTTP API: OpenAPI 3.1 as JSON.
    #[command(after_help = "Example:\n  longhaul openapi > openapi.json")]
    Openapi,
    /// Makes, lists and removes tokens of the server's clients.
    #[command(subcommand)]
    Tokens(TokensCommand),
    /// Runs jobs.
    #[command(after_help = work::EXAMPLES)]
    Work(WorkArgs),
    /// Adds a job, or many from JSONL on stdin.
    #[command(after_help = enqueue::EXAMPLES)]
    Enqueue(Box<EnqueueArgs>),
    /// Lists, shows, waits for and changes jobs.
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// Lists and changes queues.
    #[command(subcommand)]
    Queues(QueuesCommand),
    /// Lists workers.
    #[command(subcommand)]
    Workers(WorkersCommand),
    /// Lists and changes processes: groups of jobs of one caller.
    #[command(subcommand)]
    Process(ProcessCommand),
    /// Prints the results of a process as JSONL, in submission order.
    #[command(
        after_help = "Examples:\n  longhaul results nightly > results.jsonl\n  longhaul results nightly --out results.jsonl --consume"
    )]
    Results(ResultsArgs),
    /// Deletes a finished process for good; refuses while a job of it is unfinished.
    #[command(after_help = "Example:\n  longhaul consume nightly")]
    Consume {
        /// The process.
        process: String,
    },
    /// Lists, adds, removes and fires jobs that recur.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Prints what has changed, newest last.
    #[command(after_help = "Example:\n  longhaul events -f --process nightly -o jsonl")]
    Events(EventsArgs),
    /// Writes a consistent copy of the store, llm.db and uploaded files to one file, while they are in use.
    #[command(after_help = "Example:\n  longhaul backup longhaul-2026-11-15.db")]
    Backup(BackupArgs),
    /// Puts a backup in the store's place.
    #[command(after_help = "Example:\n  longhaul restore longhaul-2026-11-15.db --yes")]
    Restore(RestoreArgs),
    /// Moves a stopped installation's queues, jobs, graph, schedules and results to another store, and compares both.
    #[command(
        after_help = "Example:\n  longhaul move --from sqlite:///var/lib/longhaul/jobs.db --to postgres://longhaul@db/work"
    )]
    Move(MoveArgs),
    /// Kills workers on purpose and proves from the store and the jobs' own journal that nothing was lost.
    #[command(after_help = verify::EXAMPLES)]
    Verify(VerifyArgs),
    /// Measures this machine and store.
    #[command(after_help = "Example:\n  longhaul bench --quick")]
    Bench(BenchArgs),
    /// Checks store, settings, workers, keys, local engines and prices; exit code 8 when something is wrong.
    #[command(after_help = "Example:\n  longhaul doctor -o json")]
    Doctor,
    /// Writes a commented longhaul.toml.
    #[command(after_help = "Example:\n  longhaul init")]
    Init,
    /// Shows settings and where they come from.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Prints a completion script.
    #[command(
        after_help = "Example:\n  longhaul completions bash > ~/.local/share/bash-completion/completions/longhaul"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints the manual page of the program or of one command.
    #[command(
        after_help = "Examples:\n  longhaul man | man -l -\n  longhaul man run | man -l -\n  longhaul man jobs ls | man -l -"
    )]
    Man {
        /// The command; default the program itself.
        command: Vec<String>,
    },
    /// A command that this program has beside the built-in ones.
    #[command(skip)]
    Added(AddedCommand),
}

/// See [`Command::Added`].
pub(crate) struct AddedCommand {
    /// What it does.
    pub(crate) start: Start,
    /// What it was given.
    pub(crate) args: ArgMatches,
}

impl fmt::Debug for AddedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddedCommand").field("args", &self.args).finish_non_exhaustive()
    }
}
