//! Breaks things on purpose and proves from the store, and from what the jobs themselves wrote down, that nothing was lost, run
//! out of turn or taken from a stale writer. What is proved and how: docs/verify.md.
//!
//! Reading order: `plan` (the jobs and what must come out), `step` (what a job does), `journal` (what it writes
//! down), `supervisor` (kills and pauses), `check` (the proof), `report`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_queue::{Engine, Worker};
use longhaul_stores::temporary::Kind;
use serde::{Deserialize, Serialize};

use crate::Host;

mod check;
mod crash;
mod fair;
mod faults;
mod journal;
mod lease;
mod plan;
mod proxy;
mod report;
mod rows;
mod sharing;
mod step;
mod submit;
mod supervisor;

pub use crash::run as crash;
pub use fair::run as fair;
pub use lease::run as lease;
pub use report::{Check, Report};
pub use sharing::run as sharing;

/// Kills and pauses worker processes at random and checks every job, result and checkpoint afterwards.
#[derive(Debug, Clone)]
pub struct Crash {
    /// How often a worker is killed.
    pub kills: u32,
    /// Jobs.
    pub jobs: u32,
    /// How often connections to the server are cut, or the server is restarted.
    pub faults: u32,
    /// On a temporary server.
    pub own: Option<Kind>,
    /// For the random choices; drawn where there is none.
    pub seed: Option<u64>,
    /// Where the store and all logs are kept.
    pub keep: Option<PathBuf>,
}

/// Lets several processes use one store at once.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Processes.
    pub processes: u32,
    /// For how long.
    pub seconds: u64,
    /// Where the store and all logs are kept.
    pub keep: Option<PathBuf>,
}

/// Lets two tenants share a queue by fair keys.
#[derive(Debug, Clone)]
pub struct Fair {
    /// Worker processes.
    pub processes: u32,
    /// Jobs of the small tenant.
    pub jobs: u32,
    /// How long a job takes, on average.
    pub job_ms: u32,
    /// How often it is measured.
    pub rounds: u32,
    /// On a temporary server.
    pub own: Option<Kind>,
    /// Where the store and all logs are kept.
    pub keep: Option<PathBuf>,
}

/// Blocks a worker's only thread for much longer than its lease.
#[derive(Debug, Clone)]
pub struct Lease {
    /// For how long.
    pub seconds: u64,
    /// The lease.
    pub lease: Duration,
    /// Where the store and all logs are kept.
    pub keep: Option<PathBuf>,
}

/// What a process of a verification does.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    /// Runs one job of [`Crash`] as a command.
    Step,
    /// Submits the jobs of [`Crash`].
    Submit(submit::Submit),
    /// Is one of the processes of [`Sharing`].
    Share(sharing::Share),
    /// Is the blocked worker of [`Lease`].
    Hold(lease::Hold),
}

impl Role {
    /// The words that start the program in this role.
    fn words(&self) -> Result<[String; 3]> {
        Ok(["verify".to_owned(), "child".to_owned(), serde_json::to_string(self)?])
    }
}

/// Registers the kinds that verifications run. Their payloads name files and waits, so they are for the processes that a
/// verification starts, and never for a worker that serves others.
pub fn register(worker: &mut Worker) {
    step::register(worker);
    lease::register(worker);
    fair::register(worker);
}

/// Is a process of a verification, in the role that its parent gave it, on the host's store.
pub async fn child(host: &Host, role: &str) -> Result<()> {
    match serde_json::from_str(role).context("the role of a process")? {
        Role::Step => step::run_as_command(),
        Role::Submit(submit) => submit.run(host).await,
        Role::Share(share) => share.run(host).await,
        Role::Hold(hold) => hold.run(host).await,
    }
}

/// The engine on the store that a child's parent named.
async fn engine(host: &Host) -> Result<Engine> {
    let url = host.store.as_deref().context("a process without a store")?;
    Ok(Engine::new(longhaul_stores::connect(&url.parse()?, host.sqlite.clone()).await?))
}
