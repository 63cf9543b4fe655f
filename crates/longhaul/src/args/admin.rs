//! Queues, workers, processes, results, schedules, events, backups and settings.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use longhaul_queue::job::Retention;
use longhaul_queue::limits::AGEING_MAX;
use longhaul_queue::store::Missed;

use crate::parse;

/// `queues …`.
#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// Lists queues with settings and counts.
    #[command(after_help = "Example:\n  longhaul queues ls -o json")]
    Ls,
    /// Stops claims from a queue; what runs goes on.
    #[command(
        after_help = "Examples:\n  longhaul queues pause mail\n  longhaul queues pause reports --create   (before its first job)"
    )]
    Pause {
        /// The queue.
        #[arg(value_parser = parse::name)]
        name: String,
        /// Also if there is no such queue yet: its first jobs then wait.
        #[arg(long)]
        create: bool,
    },
    /// Lets claims from a queue go on.
    #[command(after_help = "Example:\n  longhaul queues resume mail")]
    Resume {
        /// The queue.
        #[arg(value_parser = parse::name)]
        name: String,
    },
    /// Changes a queue's settings.
    #[command(
        after_help = "Examples:\n  longhaul queues set mail --max-running 4 --retention keep:1h,7d\n  longhaul queues set tenants --max-running-per-key 2 --ageing 10m"
    )]
    Set(QueueSetArgs),
}

/// `queues set`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("settings").required(true).multiple(true)
    .args(["max_running", "max_running_per_key", "ageing", "retention"])))]
pub(crate) struct QueueSetArgs {
    /// The queue.
    #[arg(value_parser = parse::name)]
    pub(crate) name: String,
    /// At most so many of its jobs run at once over all workers, or `none`.
    #[arg(long, value_name = "N|none", value_parser = number_or_none)]
    pub(crate) max_running: Option<Change<u32>>,
    /// At most so many jobs of one fair key run at once over all workers, or `none`.
    #[arg(long, value_name = "N|none", value_parser = number_or_none)]
    pub(crate) max_running_per_key: Option<Change<u32>>,
    /// Waiting this long makes up for one level of priority, or `none`: then priority decides alone.
    #[arg(long, value_name = "DURATION|none", value_parser = ageing_or_none)]
    pub(crate) ageing: Option<Change<Duration>>,
    /// For jobs that name none: until-consumed, keep:24h,7d, delete-on-success or `none`.
    #[arg(long, value_name = "RULE|none", value_parser = retention_or_none)]
    pub(crate) retention: Option<Change<Retention>>,
}

/// A new value for a setting, or its removal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<T>(pub(crate) Option<T>);

fn number_or_none(text: &str) -> Result<Change<u32>, String> {
    if text == "none" {
        return Ok(Change(None));
    }
    text.parse().map(|number| Change(Some(number))).map_err(|_| "expected a number or `none`".to_owned())
}

fn ageing_or_none(text: &str) -> Result<Change<Duration>, String> {
    if text == "none" {
        return Ok(Change(None));
    }
    let ageing = parse::duration(text)?;
    if ageing < Duration::from_millis(1) || ageing > AGEING_MAX {
        return Err("expected 1ms to 365d, or `none`".to_owned());
    }
    Ok(Change(Some(ageing)))
}

fn retention_or_none(text: &str) -> Result<Change<Retention>, String> {
    if text == "none" {
        Ok(Change(None))
    } else {
        parse::retention(text).map(|retention| Change(Some(retention)))
    }
}

/// `workers …`.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// Lists the workers heard of within a day.
    #[command(after_help = "Example:\n  longhaul workers ls")]
    Ls,
}

/// `process …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProcessCommand {
    /// Lists processes by id.
    #[command(after_help = "Example:\n  longhaul process ls --limit 20")]
    Ls {
        /// At most this many.
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = super::jobs::limit)]
        limit: usize,
        /// Start after this id: the `next` of `-o json`.
        #[arg(long, value_name = "ID")]
        cursor: Option<String>,
    },
    /// Shows how far a process has come.
    #[command(after_help = "Example:\n  longhaul process show nightly")]
    Show {
        /// The process.
        id: String,
    },
    /// Cancels every unfinished job of a process.
    #[command(after_help = "Example:\n  longhaul process cancel nightly --yes")]
    Cancel {
        /// The process.
        id: String,
    },
    /// Says that a process gets no more jobs.
    #[command(after_help = "Example:\n  longhaul process seal nightly")]
    Seal {
        /// The process.
        #[arg(value_parser = parse::name)]
        id: String,
    },
    /// Leaves a process open for more jobs: what waits for it waits for the seal too.
    #[command(after_help = "Example:\n  longhaul process open nightly")]
    Open {
        /// The process.
        #[arg(value_parser = parse::name)]
        id: String,
    },
}

/// `results`.
#[derive(Debug, Args)]
pub(crate) struct ResultsArgs {
    /// The process.
    pub(crate) process: String,
    /// Append to this file instead of writing to stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Append even to a file that does not begin with results.
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Delete each page for good once it is safely in the file.
    #[arg(long, requires = "out")]
    pub(crate) consume: bool,
    /// Wait until the process has finished.
    #[arg(long)]
    pub(crate) wait: bool,
}

/// `schedule …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Lists schedules with their next time.
    #[command(after_help = "Example:\n  longhaul schedule ls")]
    Ls,
    /// Adds or replaces a schedule.
    #[command(
        after_help = "Example:\n  longhaul schedule add report --cron '0 8 * * 1-5' --tz Europe/Berlin --kind report '{\"to\":\"all\"}'"
    )]
    Add(Box<ScheduleAddArgs>),
    /// Removes a schedule.
    #[command(after_help = "Example:\n  longhaul schedule rm report")]
    Rm {
        /// Its name.
        name: String,
    },
    /// Enqueues a schedule's job now; its next time stays.
    #[command(after_help = "Example:\n  longhaul schedule run report")]
    Run {
        /// Its name.
        name: String,
    },
}

/// `schedule add`.
#[derive(Debug, Args)]
pub(crate) struct ScheduleAddArgs {
    /// Its name.
    #[arg(value_parser = parse::name)]
    pub(crate) name: String,
    /// Five fields, or six with seconds first.
    #[arg(long, value_name = "EXPR")]
    pub(crate) cron: String,
    /// IANA time zone in which the expression is read. Default this machine's.
    #[arg(long, value_name = "ZONE")]
    pub(crate) tz: Option<String>,
    /// The kind of the job.
    #[arg(long, value_name = "KIND", value_parser = parse::name)]
    pub(crate) kind: String,
    /// The input as JSON; `-` reads stdin, `@FILE` a file. Default null.
    #[arg(value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// What happens to times that were missed: skip, once or all.
    #[arg(long, value_name = "POLICY", default_value = "once", value_parser = missed)]
    pub(crate) missed: Missed,
    /// The lane of the job.
    #[arg(long, value_name = "NAME", value_parser = parse::name)]
    pub(crate) queue: Option<String>,
    /// The job's priority; lower runs first.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// How often the handler may fail.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: Option<u32>,
    /// A label; may be repeated.
    #[arg(long = "tag", value_name = "TAG", value_parser = parse::name)]
    pub(crate) tags: Vec<String>,
}

fn missed(text: &str) -> Result<Missed, String> {
    match text {
        "skip" => Ok(Missed::Skip),
        "once" => Ok(Missed::Once),
        "all" => Ok(Missed::All),
        _ => Err("expected skip, once or all".to_owned()),
    }
}

/// `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Go on until interrupted.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only changes of this process.
    #[arg(long, value_name = "ID")]
    pub(crate) process: Option<String>,
    /// Start with the newest so many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = super::jobs::limit)]
    pub(crate) limit: usize,
}

/// `backup`.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The copy; must not exist yet.
    pub(crate) file: PathBuf,
    /// Include client tokens and webhook secrets. Provider keys are never part of a backup.
    #[arg(long)]
    pub(crate) secrets: bool,
}

/// `restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The backup.
    pub(crate) file: PathBuf,
}

/// `move`.
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// The store to move, which nobody uses.
    #[arg(long, value_name = "URL")]
    pub(crate) from: String,
    /// The store to move to, which is empty or not there yet.
    #[arg(long, value_name = "URL")]
    pub(crate) to: String,
}

/// `config …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Shows every setting and every field of a profile, with its value and where it comes from; never a key.
    #[command(after_help = "Example:\n  longhaul config show -o json")]
    Show,
}
