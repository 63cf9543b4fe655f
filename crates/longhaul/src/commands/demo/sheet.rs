//! The demo's sheet: `longhaul score` as anybody would type it, against the simulator on its bad day; with `--crash` it is
//! killed in the middle, and the same command goes on. Each cell of the file is held against the answer key.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use longhaul_lab::Scratch;
use longhaul_pipeline::{Found, Run, RunId, Status as RunStatus};
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{Parts, Sheets, prompt};
use longhaul_sim::{self, SimServer};
use serde::Serialize;
use serde_json::Value;
use tokio::process::Child;

use super::{LOOK_EVERY, STANDSTILL_MAX, prompts, said};
use crate::app::App;
use crate::progress::Status;
use crate::{models, store};

const INPUT: &str = "reviews.csv";
const RUBRIC: &str = "rubric.toml";
const OUTPUT: &str = "scored.csv";
const LOG: &str = "sheet.log";
const CATEGORIES: [&str; 4] = ["delivery", "quality", "price", "service"];
/// How far a sheet is killed, in hundredths.
const KILL_AT_PERCENT: u64 = 40;

/// What came of the sheet.
#[derive(Debug, Serialize)]
pub(super) struct Scored {
    rows: u64,
    cells: u64,
    /// Cells of the file that say what the answer key says.
    right: u64,
    calls: u64,
    /// Calls whose end the kill hid.
    unknown_calls: u64,
    /// Calls that the simulator executed.
    executed: u64,
    kills: u64,
}

impl Scored {
    /// Every cell is right, and every call is booked.
    pub(super) fn is_right(&self) -> bool {
        self.right == self.cells && self.executed <= self.calls + self.unknown_calls
    }

    /// In a line.
    pub(super) fn line(&self) -> String {
        let kills = if self.kills > 0 { ", killed once" } else { "" };
        let unknown = match self.unknown_calls {
            0 => String::new(),
            unknown => format!(", {unknown} may have been billed twice"),
        };
        format!(
            "a sheet of {} rows and {} categories{kills}: {} of {} cells right, {} calls{unknown}\n",
            self.rows,
            CATEGORIES.len(),
            self.right,
            self.cells,
            self.calls
        )
    }
}

/// A sheet on the scratch.
struct Show<'a> {
    app: &'a App,
    scratch: &'a Scratch,
    server: SimServer,
    sheets: Sheets,
    rows: u64,
}

/// Scores a table of so many rows, counts what came out, and deletes the sheet unless it is to be kept.
pub(super) async fn run(app: &App, scratch: &Scratch, rows: u64, crash: bool, keep: bool) -> Result<Scored> {
    let text: String = std::iter::once("id,text\n".to_owned()).chain((0..rows).map(line_of)).collect();
    std::fs::write(scratch.path(INPUT), text).context("writing the table")?;
    let rubric: String = CATEGORIES.iter().map(|name| format!("[[category]]\nname = \"{name}\"\n")).collect();
    std::fs::write(scratch.path(RUBRIC), rubric).context("writing the rubric")?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = SimServer::bind(prompts::bad_day(), address).await.context("starting the simulator")?;
    let llm = models::Setup::new(app, None)?.llm_at(app, &scratch.path("llm.db"))?;
    let file = scratch.sqlite_file().context("the demo's store is a file")?;
    let data = store::open_file(&app.settings, file)?.db().clone();
    let sheets = Sheets::open(scratch.queue().clone(), llm, data, Parts::default()).await?;
    app.out.note(format_args!("{rows} rows of a CSV file, each scored by {} categories", CATEGORIES.len()));
    let show = Show { app, scratch, server, sheets, rows };
    let kills = show.run(crash).await?;
    let scored = show.count(kills).await?;
    if !keep {
        let sheet = show.sheet().await?.context("the sheet is not in the store")?;
        show.found(&sheet).await?.remove().await?;
    }
    Ok(scored)
}

fn line_of(number: u64) -> String {
    format!("{number},{}\n", text_of(number))
}

fn text_of(number: u64) -> String {
    format!("Review {number}: it came late but works")
}

impl Show<'_> {
    /// Runs the command to its end, and says how often it was killed.
    async fn run(&self, crash: bool) -> Result<u64> {
        let mut child = self.spawn()?;
        let (mut crash_due, mut kills) = (crash, 0);
        let mut progress = self.app.progress()?;
        let mut last_change = (0, Instant::now());
        let status = loop {
            let done = self.look().await?.map_or(0, |status| status.standing.units.ended());
            progress.update(Status { done, total: self.rows, failed: 0, running: 0 });
            if crash_due && done * 100 >= self.rows * KILL_AT_PERCENT {
                crash_due = false;
                kills += 1;
                // The bar must not write over the lines that tell of the kill.
                drop(progress);
                child.kill().await.context("killing the sheet's command")?;
                self.app.out.note(format_args!(
                    "killed longhaul score with SIGKILL at {done} of {} rows, and gave the same command again",
                    self.rows
                ));
                child = self.spawn()?;
                progress = self.app.progress()?;
            }
            if let Some(status) = child.try_wait().context("looking at the sheet's command")? {
                break status;
            }
            if last_change.0 != done {
                last_change = (done, Instant::now());
            }
            if last_change.1.elapsed() > STANDSTILL_MAX {
                bail!("no row was scored for {} s", STANDSTILL_MAX.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        drop(progress);
        if !status.success() {
            bail!("longhaul score ended with {status}: {}", said(&self.scratch.path(LOG)));
        }
        Ok(kills)
    }

    fn spawn(&self) -> Result<Child> {
        let url = format!("{}/v1", self.server.url());
        let settings = [
            ("LONGHAUL_PROFILES__DEMO__PROVIDER", "openai"),
            ("LONGHAUL_PROFILES__DEMO__BASE_URL", url.as_str()),
            ("LONGHAUL_PROFILES__DEMO__MODEL", "sim-small"),
            ("LONGHAUL_WORKER__LEASE", "1s"),
        ];
        let [input, rubric, out] =
            [INPUT, RUBRIC, OUTPUT].map(|name| self.scratch.path(name).to_string_lossy().into_owned());
        let args = ["-q", "score", &input, "--text-column", "text", "--rubric", &rubric, "--out", &out];
        let args = [args.as_slice(), &["--profile", "demo", "--concurrency", "16"]].concat();
        self.scratch.spawn_with(&args, LOG, &settings)
    }

    /// The scratch's only sheet, once it is there.
    async fn sheet(&self) -> Result<Option<StoredSheet>> {
        Ok(self.sheets.tables().list(1).await?.pop())
    }

    async fn found(&self, sheet: &StoredSheet) -> Result<Found> {
        let run = Run::get(self.scratch.queue(), &RunId::named(&sheet.id)).await?;
        Ok(Found { pipeline: Arc::new(self.sheets.clone()), run })
    }

    async fn look(&self) -> Result<Option<RunStatus>> {
        match self.sheet().await?.filter(|sheet| sheet.read_whole) {
            Some(sheet) => Ok(Some(self.found(&sheet).await?.status().await?)),
            None => Ok(None),
        }
    }

    /// Reads the file and the books.
    async fn count(&self, kills: u64) -> Result<Scored> {
        let (Some(sheet), Some(status)) = (self.sheet().await?, self.look().await?) else {
            bail!("the sheet is not in the store");
        };
        let seed = self.server.core().options().seed;
        let text = std::fs::read_to_string(self.scratch.path(OUTPUT)).context("reading the scored table")?;
        let mut right = 0;
        for (number, line) in (0..self.rows).zip(text.lines().skip(1)) {
            let key = longhaul_sim::answer_key(seed, &prompt::request(&sheet, &text_of(number), 0));
            let answer: Value = serde_json::from_str(&key).context("reading the answer key")?;
            let scores = answer["scores"].as_array().into_iter().flatten().filter_map(Value::as_f64);
            let cells = line.rsplitn(CATEGORIES.len() + 1, ',').take(CATEGORIES.len());
            let cells: Vec<f64> = cells.filter_map(|cell| cell.parse().ok()).collect();
            let rounded = scores.map(|score| (score * 100.0).round() / 100.0);
            right +=
                rounded.zip(cells.iter().rev()).filter(|(score, cell)| (score - **cell).abs() < 1e-9).count()
                    as u64;
        }
        Ok(Scored {
            rows: self.rows,
            cells: self.rows * CATEGORIES.len() as u64,
            right,
            calls: status.spent.calls,
            unknown_calls: status.spent.unknown_calls,
            executed: self.server.core().stats().executed,
            kills,
        })
    }
}
