//! `score`: a table in, every cell scored. It stores the texts, answers them with a worker of its own, and writes the
//! table; interrupted at any point, the same command goes on.

use std::sync::Arc;

use anyhow::Result;
use longhaul_api::sheets::EstimatedSheet;
use longhaul_pipeline::{Found, Pipeline as _, RunId, RunState, Status};
use longhaul_queue::{Engine, Worker};
use longhaul_sheets::settings::{Source, Target};
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{ChunkScheduler, Details, Error, SheetSettings, Sheets, manage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::follow::{self, Asks, Shown};
use super::interrupts::Interrupts;
use super::provider_outage::unreached;
use super::run::{detached, tell_asked_again};
use super::runs::units_text;
use super::summary;
use super::working::{self, Working};
use crate::app::App;
use crate::args::ScoreArgs;
use crate::exit::{Code, Failure};
use crate::output::{counted, grouped, plain};
use crate::pipelines::{self, Pipelines};
use crate::progress::Fact;
use crate::remote::RemoteRuns;
use crate::store::{self, Missing};
use crate::{answers, models, outputs};

pub(crate) mod estimate;
pub(crate) mod export;
mod remote;
mod settings;

/// Slots of the worker: chunks that run at once are limited by their queue.
const SLOTS: usize = 32;
/// Characters of a text in a sample.
const TEXT_SHOWN: usize = 40;

/// Runs the command.
pub(crate) async fn run(app: &App, args: &ScoreArgs) -> Result<Code> {
    let max_cost = args.spending.max_cost;
    let places = [("--out", args.out.as_deref())];
    if args.out.is_some() {
        let instead = "name another file, or overwrite the table with --in-place";
        outputs::refuse_inputs(&places, &settings::inputs(args), instead)?;
        answers::check_places(&places)?;
    }
    if let Some(server) = store::remote(&app.settings)? {
        return remote::run(app, args, RemoteRuns::new(server)).await;
    }
    let models = models::Setup::new(app, args.base_url.as_deref())?;
    let (engine, data) = app.engine_with_data(Missing::Create).await?;
    let google = match &data {
        Some(data) => pipelines::google(app, &engine, data).await?,
        None => None,
    };
    let mut wanted = settings::of(args, &models, google.as_ref()).await?;
    let pipelines = Pipelines::open(app, (&engine, data), models.llm(app)?, Arc::new(())).await?;
    let sheets = pipelines.sheets()?;
    let sharing = models::open_books(app, &engine, sheets.llm()).await?;
    let id = wanted.run_id()?;
    let known = sheets.tables().find(id.as_str()).await?;
    if !args.force && known.as_ref().is_none_or(|sheet| sheet.settings.target != wanted.target) {
        outputs::refuse_foreign(Some(&engine), id.as_str(), &places).await?;
    }
    let resumed = known.as_ref().is_some_and(|sheet| sheet.read_whole);
    if !resumed || args.dry_run {
        let estimate = longhaul_sheets::estimate::estimate(sheets, &wanted).await.map_err(unusable)?;
        (wanted.estimate_usd, wanted.estimate_max_usd) = (estimate.cost_usd, estimate.cost_max_usd);
        wanted.raw_estimate_usd = estimate.raw_cost_usd;
        if args.dry_run {
            if resumed {
                app.out.note(format_args!("{id} is there already: the same command goes on with it"));
            }
            return estimate::describe(app, &EstimatedSheet { id: id.to_string(), estimate }, max_cost);
        }
        estimate::introduce(app, &id, &estimate, max_cost);
    } else {
        app.out.note(format_args!("going on with {id}"));
    }
    models::set_limits(sheets.llm(), id.as_str(), &args.spending).await?;
    let target = wanted.target.clone();
    make(app, sheets, wanted).await?;
    if known.is_some() {
        go_on(app, sheets, &id, &target).await?;
    }
    let ending = match (args.detach, args.sample) {
        (true, _) => Ending::Detached,
        (false, Some(_)) => Ending::Sample,
        (false, None) => Ending::Whole,
    };
    let code = work_on(app, (&engine, sheets), &id, ending).await?;
    sharing.end().await;
    if known
        .is_some_and(|sheet| sheet.exported.is_some() && matches!(sheet.settings.source, Source::Google(_)))
    {
        app.out.hint(format_args!(
            "rows that were added since are not among them: delete it with longhaul runs rm {id} and repeat the command; \
             cells that are there are kept and not paid for"
        ));
    }
    if ending == Ending::Sample {
        app.out.hint("answers are kept: score the whole table with --out FILE instead of --sample");
    }
    Ok(code)
}

/// A table that cannot be read is wrong input. When a file is written, the same error is a failure.
fn unusable(error: Error) -> anyhow::Error {
    match error {
        Error::Table(text) => Failure::new(Code::Usage, text).into(),
        error => error.into(),
    }
}

/// Reads the table. Interrupted, what is kept so far stays, and the same command goes on.
async fn make(app: &App, sheets: &Sheets, wanted: SheetSettings) -> Result<()> {
    let mut interrupts = Interrupts::new()?;
    tokio::select! {
        made = ChunkScheduler::make(sheets, wanted) => {
            made.map_err(unusable)?;
            Ok(())
        }
        () = interrupts.next() => {
            app.out.note("interrupted while the table was read; nothing was sent");
            Err(Failure::new(Code::Interrupted, "interrupted").hint("go on with the same command").into())
        }
    }
}

/// Whatever held it may be gone: a key was set, more money allowed. Where its scores go may be new, too.
async fn go_on(app: &App, sheets: &Sheets, id: &RunId, target: &Target) -> Result<()> {
    let sheet = sheets.tables().get(id.as_str()).await?;
    let found = found(sheets, id).await?;
    let was_over = found.status().await?.is_over();
    tell_asked_again(app, found.go_on().await?);
    if let Target::File { path, .. } = target
        && sheet.settings.target != *target
    {
        sheets.tables().set_target(sheet.seq, target).await?;
        if was_over {
            manage::export_all(sheets, id).await?;
        }
        app.out.note(format_args!("its scores now go to {}", path.display()));
    }
    Ok(())
}

/// How a command is done with a sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// A worker goes on with it.
    Detached,
    /// It is scored to its end.
    Whole,
    /// The same, and its rows are shown.
    Sample,
}

/// Works on a sheet until it ends, is held, or somebody presses Ctrl-C.
async fn work_on(
    app: &App,
    (engine, sheets): (&Engine, &Sheets),
    id: &RunId,
    ending: Ending,
) -> Result<Code> {
    if ending == Ending::Detached {
        return detached(app, id);
    }
    let mut interrupts = Interrupts::new()?;
    let mut worker = Worker::new(engine.clone(), working::options(app, id.as_str(), SLOTS)?);
    sheets.register(&mut worker);
    let mut working = Working::start(worker);
    let model = sheets.tables().get(id.as_str()).await?.settings.model;
    let route = sheets.llm().route(&model.profile, &model.model).await?;
    let found = found(sheets, id).await?;
    let asks = Asks { route: &route, one_by_one: true };
    let ended = follow::until_the_end(app, &found, (Some(&mut working), asks), &mut interrupts).await;
    working.stop().await?;
    sheets.llm().save_learnt().await;
    let status = match ended? {
        Shown::Ended(status) => status,
        Shown::NeverReached => {
            let why = found.status().await?.standing.message;
            return Err(unreached(&route, id.as_str(), why).into());
        }
        Shown::Interrupted => {
            app.out.one(&found.status().await?, String::new)?;
            app.out.note(format_args!("interrupted; nothing is lost, {id} is stored"));
            app.out.hint("go on with the same command, or in the background: longhaul work");
            return Ok(Code::Interrupted);
        }
        Shown::WorkerEnded => {
            let text = format!("the worker ended before {id} did; nothing is lost");
            return Err(Failure::new(Code::Failure, text).hint("go on with the same command").into());
        }
    };
    if status.standing.state == RunState::Cancelled {
        // Whoever cancelled it wrote what there was by then; what was under way has come to its end since.
        manage::export_all(sheets, id).await?;
    }
    tell_end(app, sheets, &found, ending).await
}

async fn found(sheets: &Sheets, id: &RunId) -> Result<Found> {
    let run = longhaul_pipeline::Run::get(sheets.queue(), id).await?;
    Ok(Found { pipeline: Arc::new(sheets.clone()), run })
}

/// Says what became of a sheet that is open here.
async fn tell_end(app: &App, sheets: &Sheets, found: &Found, ending: Ending) -> Result<Code> {
    let sheet = sheets.tables().get(found.run.id.as_str()).await?;
    let status = found.status().await?;
    let rows = match ending {
        Ending::Sample => Some(sample(found, &sheet).await?),
        Ending::Detached | Ending::Whole => None,
    };
    tell(app, &status, file_line(&sheet, &status), rows.as_deref())
}

/// Says what became of a sheet, with the line about its file and the rows of a sample.
fn tell(app: &App, status: &Status, file: Option<String>, sample: Option<&[SampleRow]>) -> Result<Code> {
    app.out.one(&Ended { status, sample }, || {
        let mut lines = vec![format!("{}: {}", status.id, units_text(status))];
        lines.extend(summary::spending(status));
        lines.extend(detail_lines(status));
        lines.extend(file);
        // Why it is held is said on stderr.
        let missing = status.standing.message.iter().filter(|_| status.standing.hold.is_none());
        lines.extend(missing.map(|message| format!("note         {message}")));
        lines.extend(sample.into_iter().flatten().map(SampleRow::text));
        lines.join("\n")
    })?;
    summary::tell_state(app, status);
    Ok(follow::code_of(status))
}

/// The file that was written, if it was.
fn file_line(sheet: &StoredSheet, status: &Status) -> Option<String> {
    Details::of(status)?.exported?;
    match &sheet.settings.target {
        Target::File { path, .. } => Some(format!("file         {}", path.display())),
        Target::InPlace | Target::Kept => None,
    }
}

/// Lines of a run that only sheets have.
pub(crate) fn detail_lines(status: &Status) -> Vec<String> {
    let Some(Details { chunks, counts, answered_by, lost_calls, exported, .. }) = Details::of(status) else {
        return Vec::new();
    };
    let mut lines = vec![
        format!(
            "rows         {} of {} through: {} written, {} to write, {} left alone because somebody changed the row",
            grouped(counts.processed_rows),
            counted(counts.rows, "row"),
            grouped(counts.written),
            grouped(counts.scored),
            grouped(counts.edited),
        ),
        format!(
            "chunks       {} of {} completed, {} running, {} failed",
            chunks.completed, chunks.total, chunks.running, chunks.failed
        ),
    ];
    if counts.cached > 0 {
        lines.push(format!("cached       {} from the cache of sheets", counted(counts.cached, "unit")));
    }
    if let Some(by) = answered_by.get(1) {
        let units = counted(by.units, "unit");
        lines.push(format!("fallback     {units} by {} of profile {}", by.model, by.profile));
    }
    if let Some(lost) = lost_calls.filter(|lost| *lost > 0) {
        lines.push(format!(
            "lost         {} answered and paid for just before a crash, not stored yet, and asked again",
            counted(lost, "call")
        ));
    }
    // A Google sheet is no file: nothing is counted then.
    if let Some(exported) = exported.filter(|exported| exported.rows > 0) {
        let (rows, cells) = (counted(exported.rows, "row"), counted(exported.cells, "cell"));
        lines.push(format!("exported     {rows}, {cells} filled"));
        if exported.changed > 0 {
            let changed = counted(exported.changed, "row");
            lines.push(format!("changed      {changed} changed since the table was read: left alone"));
        }
    }
    lines
}

/// What only sheets tell beside the bar.
pub(crate) fn facts(status: &Status) -> Vec<Fact> {
    let counts = Details::of(status).map(|details| details.counts).unwrap_or_default();
    Fact::counts(&[("cached", counts.cached, "cached"), ("to_write", counts.scored, "to write")])
}

/// A sheet for programs, with the rows of a sample.
#[derive(Serialize)]
struct Ended<'a> {
    #[serde(flatten)]
    status: &'a Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<&'a [SampleRow]>,
}

/// A row of a sample with its scores.
#[derive(Serialize, Deserialize)]
struct SampleRow {
    /// From 1.
    row: u64,
    text: String,
    /// By the names of their columns; `null` is blank.
    cells: serde_json::Map<String, Value>,
}

impl SampleRow {
    fn text(&self) -> String {
        let text: String = plain(&self.text).chars().take(TEXT_SHOWN).collect();
        let cells = self.cells.iter().map(|(name, cell)| match cell {
            Value::String(text) => format!("{name} {}", plain(text)),
            Value::Null => format!("{name} blank"),
            value => format!("{name} {value}"),
        });
        format!("row {}: {text}\n  {}", self.row, cells.collect::<Vec<_>>().join(" · "))
    }
}

async fn sample(found: &Found, sheet: &StoredSheet) -> Result<Vec<SampleRow>> {
    let limit = usize::try_from(sheet.settings.limit.unwrap_or(1)).unwrap_or(1_000).min(1_000);
    let rows = found.pipeline.results(&found.run, 0, limit).await?;
    rows.items.iter().map(|row| Ok(row.to::<SampleRow>()?)).collect()
}
