//! `sheet score`: a table in, every cell scored. It stores the texts, answers them with a worker of its own, and writes the
//! table; interrupted at any point, the same command goes on.

use anyhow::Result;
use longhaul_llm::NanoUsd;
use longhaul_pipelines::scoring::estimate::{self, Estimate};
use longhaul_pipelines::scoring::manage::Again;
use longhaul_pipelines::scoring::settings::{Source, Target};
use longhaul_pipelines::scoring::status::SheetState;
use longhaul_pipelines::scoring::tables::StoredSheet;
use longhaul_pipelines::scoring::{ChunkScheduler, Error, Scoring, SheetId, SheetSettings, Status, manage};
use longhaul_queue::Worker;
use serde::Serialize;
use serde_json::{Value, json};

use super::{follow, settings, summary};
use crate::app::App;
use crate::args::SheetScoreArgs;
use crate::commands::interrupts::Interrupts;
use crate::commands::provider_outage::{never_reached, unreached};
use crate::commands::run::estimate::about;
use crate::commands::working::{self, Working};
use crate::exit::{Code, Failure};
use crate::output::{counted, grouped, plain};
use crate::store::Missing;
use crate::{answers, models, outputs, sheets};

/// Slots of the worker: chunks that run at once are limited by their queue.
const SLOTS: usize = 32;
/// Characters of a text in a sample.
const TEXT_SHOWN: usize = 40;

/// Runs the command.
pub(super) async fn run(app: &App, args: &SheetScoreArgs) -> Result<Code> {
    let max_cost = args.spending.max_cost;
    let places = [("--out", args.out.as_deref())];
    if args.out.is_some() {
        let instead = "name another file, or overwrite the table with --in-place";
        outputs::refuse_inputs(&places, &settings::inputs(args), instead)?;
        answers::check_places(&places)?;
    }
    let models = models::Setup::new(app, args.base_url.as_deref())?;
    let (engine, data) = app.engine_with_data(Missing::Create).await?;
    let google = match &data {
        Some(data) => sheets::google(app, &engine, data).await?,
        None => None,
    };
    let mut wanted = settings::of(args, &models, google.as_ref()).await?;
    let scoring = sheets::open(app, &engine, data, models.llm(app)?).await?;
    let sharing = models::open_books(app, &engine, scoring.llm()).await?;
    let id = SheetId::of(&wanted)?;
    let known = scoring.tables().find(id.as_str()).await?;
    if !args.force && known.as_ref().is_none_or(|sheet| sheet.settings.target != wanted.target) {
        outputs::refuse_foreign(&engine, id.as_str(), &places).await?;
    }
    if known.as_ref().is_none_or(|sheet| !sheet.read_whole) {
        let estimate = estimate::estimate(&scoring, &wanted).await.map_err(unusable)?;
        (wanted.estimate_usd, wanted.estimate_max_usd) = (estimate.cost_usd, estimate.cost_max_usd);
        wanted.raw_estimate_usd = estimate.raw_cost_usd;
        if args.dry_run {
            return describe(app, &id, &estimate, max_cost);
        }
        introduce(app, &id, &estimate, max_cost);
    } else if args.dry_run {
        app.out.note(format_args!("{id} is there already: the same command goes on with it"));
        app.out.one(&json!({ "id": id.as_str(), "exists": true }), String::new)?;
        return Ok(Code::Ok);
    } else {
        app.out.note(format_args!("going on with {id}"));
    }
    models::set_limits(scoring.llm(), id.as_str(), &args.spending).await?;
    let target = wanted.target.clone();
    make(app, &scoring, wanted).await?;
    if known.is_some() {
        go_on(app, &scoring, &id, &target).await?;
    }
    let ending = match (args.detach, args.sample) {
        (true, _) => Ending::Detached,
        (false, Some(_)) => Ending::Sample,
        (false, None) => Ending::Whole,
    };
    let code = work_on(app, &scoring, &id, ending).await?;
    sharing.end().await;
    if known
        .is_some_and(|sheet| sheet.exported.is_some() && matches!(sheet.settings.source, Source::Google(_)))
    {
        app.out.hint(format_args!(
            "rows that were added since are not among them: delete it with longhaul sheet rm {id} and repeat the command; \
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
async fn make(app: &App, scoring: &Scoring, wanted: SheetSettings) -> Result<()> {
    let mut interrupts = Interrupts::new()?;
    tokio::select! {
        made = ChunkScheduler::make(scoring, wanted) => {
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
async fn go_on(app: &App, scoring: &Scoring, id: &SheetId, target: &Target) -> Result<()> {
    let sheet = scoring.tables().get(id.as_str()).await?;
    let status = Status::of(scoring, &sheet).await?;
    match status.state {
        SheetState::Held => {
            manage::resume(scoring, id).await?;
        }
        SheetState::PartlyFailed | SheetState::Failed | SheetState::Cancelled => {
            manage::retry(scoring, id, Again::Failed).await?;
            app.out.note("asking again what has no answer");
        }
        SheetState::Reading | SheetState::Running | SheetState::Completed => {}
    }
    if let Target::File { path, .. } = target
        && sheet.settings.target != *target
    {
        scoring.tables().set_target(sheet.seq, target).await?;
        if status.is_over() {
            manage::export_all(scoring, id).await?;
        }
        app.out.note(format_args!("its scores now go to {}", path.display()));
    }
    Ok(())
}

/// How a command is done with a sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// A worker goes on with it.
    Detached,
    /// It is scored to its end.
    Whole,
    /// The same, and its rows are shown.
    Sample,
}

impl Ending {
    pub(super) const fn of(detach: bool) -> Self {
        if detach { Self::Detached } else { Self::Whole }
    }
}

/// Works on a sheet until it ends, is held, or somebody presses Ctrl-C.
pub(super) async fn work_on(app: &App, scoring: &Scoring, id: &SheetId, ending: Ending) -> Result<Code> {
    if ending == Ending::Detached {
        app.out.one(&json!({ "id": id.as_str() }), || id.to_string())?;
        app.out.hint(format_args!("do it with longhaul work, look at it with longhaul sheet status {id}"));
        return Ok(Code::Ok);
    }
    let mut interrupts = Interrupts::new()?;
    let mut worker = Worker::new(scoring.engine().clone(), working::options(app, id.as_str(), SLOTS)?);
    scoring.register(&mut worker);
    let mut working = Working::start(worker);
    let model = scoring.tables().get(id.as_str()).await?.settings.model;
    let route = scoring.llm().route(&model.profile, &model.model).await?;
    let ended = tokio::select! {
        status = follow::show(app, scoring, id) => Some(status?),
        () = never_reached(&route) => {
            working.stop().await?;
            let status = Status::of(scoring, &scoring.tables().get(id.as_str()).await?).await?;
            return Err(unreached(&route, id.as_str(), status.message).into());
        }
        () = working.ended() => None,
        () = interrupts.next() => {
            interrupts.drain(app, &mut working).await;
            working.stop().await?;
            scoring.llm().save_learnt().await;
            let status = Status::of(scoring, &scoring.tables().get(id.as_str()).await?).await?;
            app.out.one(&status, String::new)?;
            app.out.note(format_args!("interrupted; nothing is lost, {id} is stored"));
            app.out.hint("go on with the same command, or in the background: longhaul work");
            return Ok(Code::Interrupted);
        }
    };
    working.stop().await?;
    scoring.llm().save_learnt().await;
    let Some(status) = ended else {
        return Err(Failure::new(
            Code::Failure,
            format!("the worker ended before {id} did; nothing is lost"),
        )
        .hint("go on with the same command")
        .into());
    };
    if status.state == SheetState::Cancelled {
        // Whoever cancelled it wrote what there was by then; what was under way has come to its end since.
        manage::export_all(scoring, id).await?;
    }
    tell_end(app, scoring, id, ending).await
}

/// Says what became of a sheet.
async fn tell_end(app: &App, scoring: &Scoring, id: &SheetId, ending: Ending) -> Result<Code> {
    let sheet = scoring.tables().get(id.as_str()).await?;
    let status = Status::of(scoring, &sheet).await?;
    let rows = match ending {
        Ending::Sample => Some(sample(scoring, &sheet).await?),
        Ending::Detached | Ending::Whole => None,
    };
    app.out.one(&Ended { status: &status, sample: rows.as_deref() }, || {
        let rows = rows.iter().flatten().map(|row| format!("\n{}", row.text()));
        rows.fold(summary::lines(&sheet, &status, true), |text, row| text + &row)
    })?;
    if let Some(hint) = summary::way_out(&status) {
        app.out.hint(hint);
    }
    Ok(summary::code_of(&status))
}

/// A sheet for programs, with the rows of a sample.
#[derive(Serialize)]
struct Ended<'a> {
    #[serde(flatten)]
    status: &'a Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<&'a [SampleRow]>,
}

fn describe(app: &App, id: &SheetId, estimate: &Estimate, max_cost: Option<NanoUsd>) -> Result<Code> {
    app.out.one(&json!({ "id": id.as_str(), "estimate": estimate }), || {
        let mut text = format!("{id}: {}", words(estimate));
        if let Some(max) = max_cost {
            text += &format!("\nstops before {max}");
        }
        text
    })?;
    app.out.note("nothing was sent or stored");
    Ok(Code::Ok)
}

fn introduce(app: &App, id: &SheetId, estimate: &Estimate, max_cost: Option<NanoUsd>) {
    app.out.note(format_args!("{id}: {}", words(estimate)));
    if let Some(max) = max_cost {
        app.out.note(format_args!("stops before {max}"));
    }
}

fn words(estimate: &Estimate) -> String {
    let cost = match estimate.cost() {
        _ if estimate.free => "free on this machine".to_owned(),
        Some(cost) if estimate.measured_calls > 0 => {
            format!("about {cost}, by what {} cost before", counted(estimate.measured_calls, "call"))
        }
        Some(cost) => about(cost),
        None => "unpriced: no price is known for this model".to_owned(),
    };
    let simulated = if estimate.simulated { " (simulated)" } else { "" };
    let filled = match estimate.filled {
        0 => String::new(),
        filled => format!(", {} have all their cells already", grouped(filled)),
    };
    format!(
        "{} in {} to {}{simulated} for {}{filled}; {cost}",
        counted(estimate.cells, "cell"),
        counted(estimate.units, "request"),
        estimate.model,
        counted(estimate.rows, "row"),
    )
}

/// A row of a sample with its scores.
#[derive(Serialize)]
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

async fn sample(scoring: &Scoring, sheet: &StoredSheet) -> Result<Vec<SampleRow>> {
    let rows = manage::rows(scoring, sheet, 0, sheet.settings.limit.unwrap_or(1).min(1_000)).await?;
    let names = sheet.plan.targets.iter().map(|target| target.name.clone());
    let rows = rows.into_iter().map(|(number, row)| SampleRow {
        row: number + 1,
        cells: names.clone().zip(row.cells.into_iter().map(Option::unwrap_or_default)).collect(),
        text: row.text,
    });
    Ok(rows.collect())
}
