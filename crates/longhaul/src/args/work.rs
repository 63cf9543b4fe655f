//! `work`, and the commands that drive workers themselves.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OwnServer;
use crate::parse;

pub(super) const EXAMPLES: &str = "\
Examples:
  longhaul work --queue mail --concurrency 8
  longhaul work --kind resize --exec 'exec ./resize.sh' (protocol: docs/exec.md)
  longhaul work --drain                                 (ends when nothing is left to do)

Without --exec the kinds echo, sleep and fail are built in. Ctrl-C or SIGTERM drains; a second one stops at once.";

/// `work`.
#[derive(Debug, Default, Args)]
pub(crate) struct WorkArgs {
    /// Serve this queue; may be repeated, the first comes first. Default `default`.
    #[arg(long = "queue", value_name = "NAME")]
    pub(crate) queues: Vec<String>,
    /// Run only this kind; may be repeated. Default all kinds that there is a handler for.
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,
    /// Run so many jobs at once.
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<String>,
    /// Lease time: a worker that falls silent loses its jobs after it.
    #[arg(long, value_name = "DURATION")]
    pub(crate) lease: Option<String>,
    /// Run this shell command for each job: payload on stdin, result as JSON on stdout.
    #[arg(long, value_name = "CMD")]
    pub(crate) exec: Option<String>,
    /// Pass this environment variable of the worker to the command; may be repeated.
    #[arg(long = "env", value_name = "NAME", requires = "exec")]
    pub(crate) env: Vec<String>,
    /// End when nothing is left to do.
    #[arg(long)]
    pub(crate) drain: bool,
    /// Run the kinds of this command too; for the workers that it starts.
    #[arg(long, value_name = "COMMAND", hide = true, conflicts_with = "exec")]
    pub(crate) instrument: Option<Instrument>,
}

/// A command that starts workers with kinds of its own, on a store of its own.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Instrument {
    /// `demo`.
    Demo,
    /// `verify`.
    Verify,
}

impl WorkArgs {
    /// The settings that were given as flags: key, flag, value.
    pub(crate) fn flags(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut flags = Vec::new();
        let mut push = |key, flag, value: Option<String>| flags.extend(value.map(|value| (key, flag, value)));
        let list = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
        push("worker.queues", "--queue", list(&self.queues));
        push("worker.concurrency", "--concurrency", self.concurrency.clone());
        push("worker.lease", "--lease", self.lease.clone());
        flags
    }
}

pub(super) const UP_EXAMPLES: &str = "\
Examples:
  longhaul up                                  (http://127.0.0.1:7788, this machine only)
  longhaul up --profile sim                    (answers are made up: no key, no network)
  longhaul up --host 0.0.0.0 --port 8080       (asks for tokens: longhaul tokens add NAME)

OpenAI's SDKs take base_url=http://127.0.0.1:7788/v1, Anthropic's http://127.0.0.1:7788. Ctrl-C or SIGTERM drains.";

/// `up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Port. Default 7788; 0 takes any free one.
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Address to listen on. Default 127.0.0.1; any other asks for tokens.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) host: Option<IpAddr>,
    /// Jobs and requests under way at once. Default llm.concurrency.
    #[arg(long, value_name = "N", conflicts_with = "no_workers")]
    pub(crate) workers: Option<String>,
    /// Only serve; jobs are run by other processes.
    #[arg(long)]
    pub(crate) no_workers: bool,
    /// Answer objects under fixed names, for the test suites of SDKs.
    #[arg(long)]
    pub(crate) seed_test_objects: bool,
}

impl UpArgs {
    /// The settings that were given as flags: key, flag, value.
    pub(crate) fn flags(&self) -> Vec<(&'static str, &'static str, String)> {
        self.workers.iter().map(|slots| ("worker.concurrency", "--workers", slots.clone())).collect()
    }
}

pub(super) const MCP_EXAMPLES: &str = "\
Examples:
  longhaul mcp                                 (looks only)
  longhaul mcp --allow-write --store sqlite:///srv/jobs.db

A client starts it: see docs/mcp.md. It runs no jobs: longhaul work, or longhaul up, does. A running server has the same at /mcp.";

/// `mcp`.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Let agents add, cancel and retry jobs and runs, which may spend money.
    #[arg(long)]
    pub(crate) allow_write: bool,
}

/// `tokens`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokensCommand {
    /// Makes a token and prints it, once.
    #[command(after_help = "Example:\n  longhaul tokens add ci --scope enqueue --scope read")]
    Add {
        /// Whose it is.
        #[arg(value_parser = parse::name)]
        name: String,
        /// What it may do: read, enqueue, work or admin; may be repeated. Default read and enqueue.
        #[arg(long = "scope", value_name = "SCOPE", value_parser = ["read", "enqueue", "work", "admin"])]
        scopes: Vec<String>,
    },
    /// Lists tokens by name; they themselves cannot be shown.
    Ls,
    /// Removes a token.
    Rm {
        /// Whose.
        name: String,
    },
}

/// `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Kill the worker, and then the run of prompts, on the way, and show that nothing was lost.
    #[arg(long)]
    pub(crate) crash: bool,
    /// Open no browser; there is no dashboard to open yet.
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Keep the store in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// So many jobs. Default 300.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) jobs: Option<u32>,
    /// So many prompts to the simulator. Default 200.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) prompts: Option<u32>,
}

/// `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Print the single measurements as well.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Fewer jobs, for a first impression.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure a server that is started for it in the temporary folder (TMPDIR), which should be on a disk.
    #[arg(long, value_name = "SERVER", conflicts_with = "store")]
    pub(crate) own: Option<OwnServer>,
    /// Only this benchmark.
    #[arg(long, value_name = "NAME", value_parser = longhaul_lab::bench::NAMES)]
    pub(crate) only: Option<String>,
    /// Be a worker process of a benchmark.
    #[arg(long, hide = true)]
    pub(crate) child: bool,
}
