//! `verify`. The hidden command is run by `verify` itself, in processes of their own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::parse;

pub(super) const EXAMPLES: &str = "\
Examples:
  longhaul verify crash --kills 25 --jobs 600
  longhaul verify crash --kills 2000 --jobs 100000 --seed 7 --keep proof
  longhaul verify crash --own redis --kills 100 --faults 100
  longhaul verify sharing --processes 8 --seconds 60
  longhaul verify fair --own redis
  longhaul verify lease

Works in a new store in a temporary folder, which goes at the end unless something is wrong. What is proved and how:
docs/verify.md.";

/// `verify`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct VerifyArgs {
    /// What to verify; everything by default.
    #[command(subcommand)]
    pub(crate) what: Option<VerifyCommand>,
    /// How.
    #[command(flatten)]
    pub(crate) crash: CrashArgs,
}

/// What to verify.
#[derive(Debug, Subcommand)]
pub(crate) enum VerifyCommand {
    /// Kills and pauses worker processes at random and checks every job, result and checkpoint afterwards.
    #[command(after_help = "Example:\n  longhaul verify crash --kills 25 --jobs 600 --seed 7")]
    Crash(CrashArgs),
    /// Lets several processes use one file at once; an error that reaches a caller is a violation.
    #[command(after_help = "Example:\n  longhaul verify sharing --processes 8 --seconds 60")]
    Sharing(SharingArgs),
    /// Lets two tenants share a queue by fair keys: the small one must not wait behind the large one's backlog.
    #[command(after_help = "Example:\n  longhaul verify fair --own postgres")]
    Fair(FairArgs),
    /// Blocks a worker's only thread for much longer than its lease; the job must run once.
    #[command(after_help = "Example:\n  longhaul verify lease --seconds 20")]
    Lease(LeaseArgs),
    /// Is a process of a verification.
    #[command(hide = true)]
    Child {
        /// What it does, as JSON.
        role: String,
    },
}

/// A server that is started for `verify` or `bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OwnServer {
    /// `redis-server`.
    Redis,
    /// Postgres.
    Postgres,
}

/// `verify crash`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CrashArgs {
    /// Kill so often.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) kills: u32,
    /// So many jobs.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(20..=90_000))]
    pub(crate) jobs: u32,
    /// Also break what lies between processes and the server of their store so often: cut all connections, and restart a server
    /// that was started by --own.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) faults: u32,
    /// Start a server for the store in a temporary folder: Redis with every write on disk, or Postgres.
    #[arg(long, value_name = "SERVER", conflicts_with = "store")]
    pub(crate) own: Option<OwnServer>,
    /// For the random choices; printed, so that a run can be repeated.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Keep the store and all logs in this new folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// `verify sharing`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SharingArgs {
    /// So many processes at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) processes: u32,
    /// For so long.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) seconds: u64,
    /// Keep the store and all logs in this new folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// `verify fair`.
#[derive(Debug, Clone, Args)]
pub(crate) struct FairArgs {
    /// So many worker processes, of two slots each.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) processes: u32,
    /// Jobs of the small tenant; the large one has a hundred times as many.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) jobs: u32,
    /// How many milliseconds a job takes, on average.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) job_ms: u32,
    /// Measure so often.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Start a server for the store in a temporary folder.
    #[arg(long, value_name = "SERVER", conflicts_with = "store")]
    pub(crate) own: Option<OwnServer>,
    /// Keep the store and all logs in this new folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// `verify lease`.
#[derive(Debug, Clone, Args)]
pub(crate) struct LeaseArgs {
    /// Block for so long.
    #[arg(long, value_name = "N", default_value_t = 90)]
    pub(crate) seconds: u64,
    /// Under this lease.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse::duration)]
    pub(crate) lease: Duration,
    /// Keep the store and all logs in this new folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}
