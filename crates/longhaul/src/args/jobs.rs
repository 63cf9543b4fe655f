//! `jobs …`.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use longhaul_queue::store::Filter;
use longhaul_queue::{ProcessId, State};

use crate::exit::{Code, Failure};
use crate::parse;

/// What to do with jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Lists jobs, newest first.
    #[command(
        after_help = "Examples:\n  longhaul jobs ls --state failed --queue mail --limit 20 -o jsonl\n  longhaul jobs ls --search 'user.id:42 timeout'"
    )]
    Ls(ListArgs),
    /// Shows one job with payload, result, runs and errors.
    #[command(after_help = "Example:\n  longhaul jobs show 0198c5a2-7d1e")]
    Show {
        /// The job, or the start of its id.
        id: String,
    },
    /// Waits until jobs or a process have ended; exit code 3 when any failed, 124 on time-out.
    #[command(after_help = "Example:\n  longhaul jobs wait --process nightly --timeout 2h")]
    Wait(WaitArgs),
    /// Puts failed and cancelled jobs back.
    #[command(
        after_help = "Examples:\n  longhaul jobs retry 0198c5a2-7d1e\n  longhaul jobs retry --queue mail --state failed --yes"
    )]
    Retry(RetryArgs),
    /// Changes priority, title or payload of a job that neither runs nor has succeeded.
    ///
    /// A payload that a run has worked with can be changed once the job has failed or was cancelled, and the next run begins without a
    /// checkpoint. Jobs of runs, sheets and batches stay as they were submitted.
    #[command(
        after_help = "Examples:\n  longhaul jobs edit 0198c5a2-7d1e --priority -10\n  longhaul jobs edit 0198c5a2-7d1e --payload @fixed.json --retry"
    )]
    Edit(EditArgs),
    /// Cancels waiting jobs and asks running ones to end.
    #[command(
        after_help = "Examples:\n  longhaul jobs cancel 0198c5a2-7d1e\n  longhaul jobs cancel --process nightly --yes"
    )]
    Cancel(BulkArgs),
    /// Deletes ended jobs for good.
    #[command(after_help = "Example:\n  longhaul jobs rm --state cancelled --yes")]
    Rm(BulkArgs),
    /// Says why a job waits, and until when.
    #[command(after_help = "Example:\n  longhaul jobs explain 0198c5a2-7d1e")]
    Explain {
        /// The job, or the start of its id.
        id: String,
    },
    /// Prints a job's log.
    #[command(after_help = "Example:\n  longhaul jobs log 0198c5a2-7d1e -f")]
    Log {
        /// The job, or the start of its id.
        id: String,
        /// Go on until the job has ended.
        #[arg(short, long)]
        follow: bool,
    },
    /// Ends the wait of parked jobs.
    #[command(after_help = "Example:\n  longhaul jobs unpark --key approval-42 '{\"approved\":true}'")]
    Unpark(UnparkArgs),
    /// Releases a job held by failed parents: their edges are dropped.
    #[command(after_help = "Example:\n  longhaul jobs unhold 0198c5a2-7d1e")]
    Unhold {
        /// The job, or the start of its id.
        id: String,
    },
}

/// Which jobs.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilterArgs {
    /// In this state; may be repeated.
    #[arg(long = "state", value_name = "STATE")]
    pub(crate) states: Vec<State>,
    /// In this queue.
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Of this kind.
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,
    /// Of this process.
    #[arg(long, value_name = "ID")]
    pub(crate) process: Option<String>,
    /// With this label.
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// Words that must all match: text in the payload, title or error, "quoted text", an id, `user.id:42` for a field of
    /// the payload, or `state:`, `queue:`, `kind:`, `process:`, `tag:`, `id:`.
    #[arg(long, value_name = "TEXT")]
    pub(crate) search: Option<String>,
}

impl FilterArgs {
    /// Whether no condition was given.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { states, queue, kind, process, tag, search } = self;
        states.is_empty() && [queue, kind, process, tag, search].iter().all(|condition| condition.is_none())
    }

    /// As the store takes it.
    pub(crate) fn filter(&self) -> anyhow::Result<Filter> {
        let given = Filter {
            states: self.states.clone(),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            process_id: self.process.clone().map(ProcessId::from),
            tag: self.tag.clone(),
            ..Filter::default()
        };
        let searched = self.search.as_deref().map_or_else(|| Ok(Filter::default()), Filter::parse);
        searched.and_then(|searched| given.and(searched)).map_err(|error| {
            Failure::new(Code::Usage, format!("--search: {error}"))
                .hint("quote what is meant as text: --search '\"a: b\"'")
                .into()
        })
    }
}

/// `jobs ls`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Which jobs.
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// At most this many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit)]
    pub(crate) limit: usize,
    /// Where the last page ended: the `next` of `-o json`.
    #[arg(long, value_name = "CURSOR", value_parser = parse::cursor)]
    pub(crate) cursor: Option<i64>,
    /// In submission order instead of newest first.
    #[arg(long)]
    pub(crate) oldest: bool,
}

/// A page size within the store's bound.
pub(super) fn limit(text: &str) -> Result<usize, String> {
    let max = longhaul_queue::limits::PAGE_MAX;
    text.parse().ok().filter(|limit| (1..=max).contains(limit)).ok_or_else(|| format!("expected 1 to {max}"))
}

/// `jobs wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The jobs, or the starts of their ids.
    #[arg(required_unless_present = "process", value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// All jobs of this process.
    #[arg(long, value_name = "ID")]
    pub(crate) process: Option<String>,
    /// Give up after this time with exit code 124. Default never.
    #[arg(long, value_name = "DURATION", value_parser = parse::duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Jobs by id, or all that match a filter.
#[derive(Debug, Args)]
pub(crate) struct BulkArgs {
    /// The jobs, or the starts of their ids.
    #[arg(value_name = "ID", required_unless_present_any = ["states", "queue", "kind", "process", "tag", "search"])]
    pub(crate) ids: Vec<String>,
    /// Instead of ids: all that match, after a question with the exact count.
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// `jobs retry`.
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    /// Which jobs.
    #[command(flatten)]
    pub(crate) jobs: BulkArgs,
    /// Start afresh: drop the checkpoint.
    #[arg(long)]
    pub(crate) reset: bool,
}

/// `jobs edit`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").required(true).multiple(true).args(["priority", "title", "payload"]))]
pub(crate) struct EditArgs {
    /// The job, or the start of its id.
    pub(crate) id: String,
    /// Lower runs first.
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) priority: Option<i32>,
    /// A name for people; an empty one takes it away.
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// The new input: JSON, @FILE, or - for stdin.
    #[arg(long, value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// Run it again if it has failed or was cancelled.
    #[arg(long)]
    pub(crate) retry: bool,
}

/// `jobs unpark`.
#[derive(Debug, Args)]
pub(crate) struct UnparkArgs {
    /// Tell whoever waits for this key, now or later.
    #[arg(long, value_name = "KEY", required_unless_present = "ids", value_parser = parse::name)]
    pub(crate) key: Option<String>,
    /// Tell this parked job; may be repeated.
    #[arg(long = "id", value_name = "ID", conflicts_with = "key")]
    pub(crate) ids: Vec<String>,
    /// The value for the job as JSON; `-` reads stdin, `@FILE` a file. Default null.
    #[arg(value_name = "JSON")]
    pub(crate) value: Option<String>,
    /// The value is the job's result: it has succeeded.
    #[arg(long, conflicts_with_all = ["retry", "fail"])]
    pub(crate) done: bool,
    /// What was waited for failed this time; the job is retried by its policy.
    #[arg(long, value_name = "ERROR", conflicts_with = "fail")]
    pub(crate) retry: Option<String>,
    /// What was waited for failed for good.
    #[arg(long, value_name = "ERROR")]
    pub(crate) fail: Option<String>,
}
