//! `enqueue` and the options that describe one job.

use std::time::Duration;

use clap::Args;
use longhaul_queue::job::{OnFailure, Retention};
use longhaul_queue::{JobId, RetryPolicy};

use crate::parse;

pub(super) const EXAMPLES: &str = "\
Examples:
  longhaul enqueue echo '{\"hello\":\"world\"}'
  longhaul enqueue report @payload.json --at 08:00 --unique daily-report --unique-window 1d
  longhaul enqueue - <<'END'
  {\"kind\":\"fetch\",\"payload\":{\"url\":\"a\"},\"ref\":\"a\",\"process_id\":\"nightly\"}
  {\"kind\":\"merge\",\"depends_on\":[\"a\"],\"process_id\":\"nightly\"}
  END";

/// `enqueue KIND [JSON]` or `enqueue -`.
#[derive(Debug, Args)]
pub(crate) struct EnqueueArgs {
    /// The kind of the job, which chooses its handler; `-` reads jobs as JSONL from stdin.
    #[arg(value_parser = parse::name)]
    pub(crate) kind: String,
    /// The input as JSON; `-` reads it from stdin, `@FILE` from a file. Default null.
    #[arg(value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// What the job is.
    #[command(flatten)]
    pub(crate) flags: JobFlags,
}

/// Options of one job; with `enqueue -` they are defaults for lines that do not say otherwise.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobFlags {
    /// An id of your own (a UUID): enqueuing it twice is harmless.
    #[arg(long, value_name = "UUID")]
    pub(crate) id: Option<JobId>,
    /// The group that the job belongs to.
    #[arg(long, value_name = "ID", value_parser = parse::name)]
    pub(crate) process: Option<String>,
    /// The lane. Default `default`.
    #[arg(long, value_name = "NAME", value_parser = parse::name)]
    pub(crate) queue: Option<String>,
    /// Lower runs first. Default 0.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Earliest start from now: 250ms, 5s, 2h.
    #[arg(long, value_name = "DURATION", value_parser = parse::duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Earliest start: RFC 3339, a local date and time, or HH:MM for the next such time.
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// Cancel the job if it has not started by then.
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
    /// Jobs that must end first.
    #[arg(long, value_name = "ID", num_args = 1..)]
    pub(crate) after: Vec<String>,
    /// What a failed parent does to this job: cancel, run or hold.
    #[arg(long, value_name = "POLICY", value_parser = parse::on_failure, requires = "after")]
    pub(crate) on_failure: Option<OnFailure>,
    /// Wait until this process is sealed and finished.
    #[arg(long, value_name = "ID", value_parser = parse::name)]
    pub(crate) after_process: Option<String>,
    /// Whose job it is: keys of a queue take turns, so that nobody waits behind another's backlog.
    #[arg(long, value_name = "KEY", value_parser = parse::name)]
    pub(crate) fair_key: Option<String>,
    /// At most one unfinished job per key, within queue and kind.
    #[arg(long, value_name = "KEY", value_parser = parse::name)]
    pub(crate) unique: Option<String>,
    /// Keep the unique key taken for this long after the enqueue.
    #[arg(long, value_name = "DURATION", value_parser = parse::duration, requires = "unique")]
    pub(crate) unique_window: Option<Duration>,
    /// How often the handler may fail. Default 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: Option<u32>,
    /// When to try again: exponential:1s, quadratic:2s, fixed:5s or list:1s,5s,30s.
    #[arg(long, value_name = "POLICY", value_parser = parse::retry)]
    pub(crate) retry: Option<RetryPolicy>,
    /// A label; may be repeated.
    #[arg(long = "tag", value_name = "TAG", value_parser = parse::name)]
    pub(crate) tags: Vec<String>,
    /// A name for people.
    #[arg(long, value_name = "TEXT", value_parser = parse::name)]
    pub(crate) title: Option<String>,
    /// Who asked.
    #[arg(long, value_name = "NAME", value_parser = parse::name)]
    pub(crate) owner: Option<String>,
    /// W3C traceparent of the caller.
    #[arg(long, value_name = "TRACEPARENT", value_parser = parse::name)]
    pub(crate) trace: Option<String>,
    /// Hard time for one run. Default 1h.
    #[arg(long, value_name = "DURATION", value_parser = parse::duration)]
    pub(crate) run_limit: Option<Duration>,
    /// What happens to the row at the end: until-consumed, keep:24h,7d or delete-on-success.
    #[arg(long, value_name = "RULE", value_parser = parse::retention)]
    pub(crate) retention: Option<Retention>,
}
