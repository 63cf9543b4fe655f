//! The demo's run of prompts: `longhaul run` as anybody would type it, against a simulator that has a bad day. The
//! simulator lives in this process and is asked over HTTP, so that its books outlive a run that is killed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use longhaul_lab::Scratch;
use longhaul_pipeline::{Found, Runs, Units};
use longhaul_prompts::{Prompts, Run};
use longhaul_sim::{Faults, Latency, Limits, SimOptions, SimServer};
use serde_json::json;
use tokio::process::Child;

use super::answered::Answered;
use super::tally::Kill;
use super::{LOOK_EVERY, STANDSTILL_MAX, said};
use crate::app::App;
use crate::models;
use crate::progress::Status;

/// Files in the scratch's folder.
/// Draws a 429, a 5xx and a broken answer within the first 80 prompts.
const SEED: u64 = 5;
const INPUT: &str = "prompts.jsonl";
const SCHEMA: &str = "label.json";
const OUTPUT: &str = "answers.jsonl";
const LOG: &str = "run.log";
/// What the prompts are about.
const TOPICS: [&str; 4] = ["a late parcel", "a wrong invoice", "a lost password", "a broken lamp"];
/// How far a run is killed, in hundredths.
const KILL_AT_PERCENT: u64 = 40;

/// A run of prompts on the scratch.
pub(super) struct PromptsPart<'a> {
    app: &'a App,
    scratch: &'a Scratch,
    server: SimServer,
    runs: Runs,
    count: u64,
    kill: Option<Kill>,
}

/// A day with a bit of everything; each fault is over at the second attempt, so that the demo ends in time.
pub(super) fn bad_day() -> SimOptions {
    SimOptions {
        seed: SEED,
        faults: Faults {
            rate_429: 0.03,
            rate_5xx: 0.03,
            rate_malformed: 0.04,
            calm_after: Some(1),
            retry_after_ms: 100,
            ..Faults::default()
        },
        // Told in headers, as providers do; the run keeps below it.
        limits: Limits { rpm: Some(60_000), tpm: None },
        latency: Latency { base_ms: 80, per_token_us: 0, spread: 0.5 },
        ..SimOptions::default()
    }
}

impl<'a> PromptsPart<'a> {
    /// Writes the prompts and starts the simulator.
    pub(super) async fn prepare(app: &'a App, scratch: &'a Scratch, count: u32) -> Result<Self> {
        let line = |number: usize| {
            json!({ "id": format!("t{number}"), "prompt": text_of(number) }).to_string() + "\n"
        };
        let schema = json!({
            "type": "object", "required": ["label", "urgent"], "additionalProperties": false,
            "properties": { "label": { "enum": ["delivery", "billing", "account", "product"] },
                            "urgent": { "type": "boolean" } },
        });
        write(&scratch.path(INPUT), &(0..count as usize).map(line).collect::<String>())?;
        write(&scratch.path(SCHEMA), &schema.to_string())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = SimServer::bind(bad_day(), address).await.context("starting the simulator")?;
        let llm = models::Setup::new(app, None)?.llm_at(app, &scratch.path("llm.db"))?;
        let pipeline = Arc::new(Prompts::new(scratch.queue().clone(), llm.clone()));
        let runs = Runs::new(scratch.queue().clone(), llm, vec![pipeline]);
        app.out.note(format_args!(
            "{count} prompts with a JSON schema to the simulator: 3 % of calls refused with 429, 3 % failed with 5xx, 4 % \
             of answers broken"
        ));
        Ok(Self { app, scratch, server, runs, count: count.into(), kill: None })
    }

    /// Runs `longhaul run` to its end; with `crash` it is killed on the way, and the same command goes on.
    pub(super) async fn run(&mut self, crash: bool) -> Result<()> {
        let started = Instant::now();
        let mut child = self.spawn()?;
        let mut crash_due = crash;
        let mut progress = self.app.progress()?;
        let mut last_change = (0, Instant::now());
        let status = loop {
            let now = self.look().await?;
            let (done, running) = now.as_ref().map_or((0, 0), |now| (now.ended(), now.running));
            let failed = now.as_ref().map_or(0, |now| now.failed);
            progress.update(Status { done, total: self.count, failed, running });
            if crash_due && running > 0 && done * 100 >= self.count * KILL_AT_PERCENT {
                crash_due = false;
                // The bar must not write over the lines that tell of the kill.
                drop(progress);
                child = self.crash(child, started).await?;
                progress = self.app.progress()?;
            }
            if let Some(status) = child.try_wait().context("looking at the run")? {
                break status;
            }
            if last_change.0 != done {
                last_change = (done, Instant::now());
            }
            if last_change.1.elapsed() > STANDSTILL_MAX {
                bail!("no prompt was answered for {} s", STANDSTILL_MAX.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        drop(progress);
        if !status.success() {
            bail!("longhaul run ended with {status}: {}", said(&self.scratch.path(LOG)));
        }
        Ok(())
    }

    /// The very command that a person would repeat. A short lease, so that the death of a run is noticed soon.
    fn spawn(&self) -> Result<Child> {
        let url = format!("{}/v1", self.server.url());
        let settings = [
            ("LONGHAUL_PROFILES__DEMO__PROVIDER", "openai"),
            ("LONGHAUL_PROFILES__DEMO__BASE_URL", url.as_str()),
            ("LONGHAUL_PROFILES__DEMO__MODEL", "sim-small"),
            ("LONGHAUL_WORKER__LEASE", "1s"),
        ];
        let (input, schema, out) =
            (self.scratch.path(INPUT), self.scratch.path(SCHEMA), self.scratch.path(OUTPUT));
        let [input, schema, out] = [&input, &schema, &out].map(|path| path.to_string_lossy().into_owned());
        let args = ["-q", "run", &input, "--schema", &schema, "--out", &out, "--profile", "demo"];
        let args = [args.as_slice(), &["--max-tokens", "100", "--concurrency", "16"]].concat();
        self.scratch.spawn_with(&args, LOG, &settings)
    }

    async fn crash(&mut self, mut child: Child, started: Instant) -> Result<Child> {
        let pid = child.id().unwrap_or(0);
        child.kill().await.context("killing the run")?;
        let (done, in_flight) = self.look().await?.map_or((0, 0), |now| (now.ended(), now.running));
        let after = started.elapsed();
        self.app.out.note(format_args!(
            "killed longhaul run {pid} with SIGKILL after {:.1} s: {done} of {} answered, {in_flight} claimed",
            after.as_secs_f64(),
            self.count,
        ));
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self.kill = Some(Kill { after_ms, in_flight, done });
        let child = self.spawn()?;
        self.app.out.note(format_args!("the same command again: {}", child.id().unwrap_or(0)));
        Ok(child)
    }

    /// The scratch's only run of prompts, once it is there.
    async fn found(&self) -> Result<Option<Found>> {
        match self.runs.list(Some(longhaul_prompts::ABOUT.name), None, 1).await?.items.first() {
            Some(job) => Ok(self.runs.of_manifest(job).await?),
            None => Ok(None),
        }
    }

    async fn look(&self) -> Result<Option<Units>> {
        let Some(found) = self.found().await? else { return Ok(None) };
        Ok(Some(found.status().await?.standing.units))
    }

    /// Counts what came out, by the answers' file, the ledger and the simulator's own books.
    pub(super) async fn answered(&self) -> Result<Answered> {
        let found = self.found().await?.context("the run is not in the store")?;
        let (run, status) = (Run::read(found.run.clone())?, found.status().await?);
        let ended = status.standing.state.is_end();
        let text = std::fs::read_to_string(self.scratch.path(OUTPUT)).context("reading the answers")?;
        let seed = self.server.core().options().seed;
        Answered::count(&run, &text, seed, &status, &self.server.core().stats(), self.kill, ended)
    }

    /// Deletes the run.
    pub(super) async fn consume(&self) -> Result<()> {
        if let Some(found) = self.found().await? {
            found.remove().await?;
        }
        Ok(())
    }
}

/// The prompt at a place.
pub(super) fn text_of(place: usize) -> String {
    format!("Ticket {place}: {}", TOPICS[place % TOPICS.len()])
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
