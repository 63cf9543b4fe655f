//! `runs …`: runs of every pipeline that are stored, by whatever process they were started.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use longhaul_llm::rate::AdaptiveConcurrency;
use longhaul_pipeline::{Error, FailedUnit, Found, Part, Retry, Status};
use longhaul_prompts::batch::BatchTold;
use longhaul_prompts::manage;
use longhaul_queue::{Engine, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::follow::{code_of, show};
use super::run::shown_model;
use super::summary::{cost, spending, state_word, tell_state, way_out};
use super::workers::served;
use crate::app::App;
use crate::args::{Decision, RunsCommand, SpendingArgs};
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, counted, duration, grouped};
use crate::pipelines::{self, Pipelines, Place, unit_of};
use crate::store::Missing;
use crate::{models, outputs};

/// Failed units whose reasons are shown.
const FAILURES_SHOWN: usize = 10;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &RunsCommand) -> Result<Code> {
    let (engine, data) = app.engine_with_data(Missing::Refuse).await?;
    let llm = models::Setup::new(app, None)?.llm(app)?;
    let pipelines = Pipelines::open(app, (&engine, data), llm, Arc::new(())).await?;
    pipelines.runs.book_abandoned().await?;
    let found = async |id: &str| found(&pipelines, id).await;
    match command {
        RunsCommand::Ls { limit, pipeline } => ls(app, &pipelines, pipeline.as_deref(), *limit).await,
        RunsCommand::Show { id, parts } => show_one(app, &found(id).await?, *parts).await,
        RunsCommand::Wait { id, timeout } => wait(app, &found(id).await?, *timeout).await,
        RunsCommand::Pause { id } => {
            let run = found(id).await?;
            run.pause().await?;
            said(app, &run, "paused", format!("{} is paused; what is under way ends", run.run.id))
        }
        RunsCommand::Resume { id, spending } => resume(app, &found(id).await?, spending).await,
        RunsCommand::Cancel { id } => {
            let run = found(id).await?;
            app.confirm(&format!("cancel {}", run.run.id))?;
            let (jobs, id) = (run.cancel().await?, &run.run.id);
            let units = units_text(&run.status().await?);
            let text = match jobs {
                0 => format!("nothing of {id} is left to cancel: {units}"),
                _ => format!("{id} is cancelled, what was done is kept: {units}"),
            };
            said(app, &run, "cancelled", text)
        }
        RunsCommand::Retry { id, part } => retry(app, &found(id).await?, *part).await,
        RunsCommand::Results { id, out, errors, force, consume } => {
            let run = found(id).await?;
            let place = Place { out: out.as_deref(), errors: errors.as_deref(), force: *force };
            let code = pipelines.write_results(app, &run, &place).await?;
            if *consume {
                remove(&engine, &run).await?;
            }
            Ok(code)
        }
        RunsCommand::Resolve { id, decision } => resolve(app, &pipelines, &found(id).await?, decision).await,
        RunsCommand::Rm { id } => {
            let run = found(id).await?;
            app.confirm(&format!("delete {} with its results", run.run.id))?;
            let deleted = remove(&engine, &run).await?;
            said(
                app,
                &run,
                "deleted",
                format!("{} is deleted ({}); files stay", run.run.id, counted(deleted, "job")),
            )
        }
    }
}

/// Deletes a run that has ended, with its results and whatever is known of its files; answers how many jobs that were.
pub(super) async fn remove(engine: &Engine, found: &Found) -> Result<u64> {
    let deleted = found.remove().await?;
    outputs::forget(engine, found.run.id.as_str()).await?;
    Ok(deleted)
}

/// The run of this name, with or without the prefix.
async fn found(pipelines: &Pipelines, name: &str) -> Result<Found> {
    pipelines.runs.get(name).await.map_err(|error| match error {
        Error::NoRun(name) => Failure::new(Code::NothingMatched, format!("there is no run {name}"))
            .hint("list runs with: longhaul runs ls")
            .into(),
        error => error.into(),
    })
}

fn said(app: &App, found: &Found, what: &str, text: String) -> Result<Code> {
    app.out.one(&json!({ "id": found.run.id.as_str(), "done": what }), || text)?;
    Ok(Code::Ok)
}

async fn wait(app: &App, found: &Found, timeout: Option<Duration>) -> Result<Code> {
    let shown = show(app, found, None);
    let status = match timeout {
        None => shown.await?,
        Some(timeout) => match tokio::time::timeout(timeout, shown).await {
            Ok(status) => status?,
            Err(_) => {
                let status = found.status().await?;
                let served = served(found.pipeline.queue()).await?.contains(found.run.id.as_str());
                app.out.one(&status, String::new)?;
                app.out.note(format_args!("the wait timed out; the run: {}", state_word(&status, served)));
                return Ok(Code::TimedOut);
            }
        },
    };
    app.out.note(format_args!("{}: {}", status.id, units_text(&status)));
    spending(&status).into_iter().for_each(|line| app.out.note(line));
    tell_state(app, &status);
    app.out.one(&status, String::new)?;
    Ok(code_of(&status))
}

/// A run in a list.
#[derive(Debug, Serialize)]
struct Line {
    /// Whether a worker serves it now; otherwise nothing moves.
    served: bool,
    #[serde(flatten)]
    status: Status,
}

async fn ls(app: &App, pipelines: &Pipelines, pipeline: Option<&str>, limit: usize) -> Result<Code> {
    let runs = &pipelines.runs;
    let page = runs.list(pipeline, None, limit).await.map_err(|error| match error {
        Error::Invalid(text) => Failure::new(Code::Usage, format!("--pipeline: {text}")).into(),
        error => anyhow::Error::from(error),
    })?;
    let served = served(runs.queue()).await?;
    let mut lines = Vec::with_capacity(page.items.len());
    for job in &page.items {
        // One that was removed between two reads is not there any more.
        let Some(found) = runs.of_manifest(job).await? else { continue };
        let status = found.status().await?;
        lines.push(Line { served: served.contains(&status.id), status });
    }
    let now = app.now();
    app.out.list(&lines, page.next, || {
        let mut table =
            Table::new(&["ID", "PIPELINE", "STATE", "DONE", "FAILED", "MODEL", "COST", "TITLE", "STARTED"]);
        for Line { served, status } in &lines {
            let units = &status.standing.units;
            let model = status.standing.model.as_ref().map_or("", |model| shown_model(&model.name));
            table.row(vec![
                Cell::new(&status.id),
                Cell::new(status.pipeline),
                Cell::new(state_word(status, *served)),
                Cell::quantity(format!("{}/{}", grouped(units.ended()), grouped(units.total))),
                Cell::number(units.failed),
                Cell::new(model),
                Cell::quantity(cost(status)),
                Cell::new(&status.title),
                Cell::new(app.out.list_time(status.created_at, now)),
            ]);
        }
        table
    })?;
    if lines.is_empty() {
        app.out.note("there are no runs; start one: longhaul run FILE, or longhaul score TABLE");
    }
    Ok(Code::Ok)
}

/// All that is known of a run.
#[derive(Debug, Serialize)]
struct View {
    served: bool,
    #[serde(flatten)]
    status: Status,
    settings: Value,
    adaptive_concurrency: Option<AdaptiveConcurrency>,
    parts: Vec<Part>,
    /// There are more parts than these.
    #[serde(skip)]
    more_parts: bool,
    /// The first units that failed.
    failures: Vec<FailedUnit>,
}

async fn show_one(app: &App, found: &Found, limit: usize) -> Result<Code> {
    let status = found.status().await?;
    let mut parts = found.pipeline.parts(&found.run, 0, limit.saturating_add(1)).await?;
    let more_parts = parts.len() > limit;
    parts.truncate(limit);
    let adaptive_concurrency = match (&status.standing.model, found.pipeline.llm()) {
        (Some(model), Some(llm)) => llm.adaptive_concurrency(&model.profile, &model.name).await,
        _ => None,
    };
    let view = View {
        served: served(found.pipeline.queue()).await?.contains(found.run.id.as_str()),
        settings: found.pipeline.settings(&found.run).await?,
        adaptive_concurrency,
        failures: match status.standing.units.failed {
            0 => Vec::new(),
            _ => found.pipeline.failures(&found.run, FAILURES_SHOWN).await?,
        },
        parts,
        more_parts,
        status,
    };
    app.out.one(&view, || text_of(app, &view))?;
    if let Some(hint) = way_out(&view.status) {
        app.out.hint(hint);
    }
    Ok(Code::Ok)
}

fn text_of(app: &App, view: &View) -> String {
    let (status, standing) = (&view.status, &view.status.standing);
    let now = app.now();
    let mut lines = vec![
        format!("run          {} ({})", status.id, status.pipeline),
        format!("state        {}", state_word(status, view.served)),
        format!("title        {}", status.title),
    ];
    if let Some(model) = &standing.model {
        lines.push(format!("model        {} by profile {}", shown_model(&model.name), model.profile));
    }
    lines.push(format!("started      {}", app.out.detail_time(status.created_at, now)));
    lines.extend(status.ended_at.map(|at| format!("ended        {}", app.out.detail_time(at, now))));
    lines.push(format!("{:<12} {}", format!("{}s", unit_of(status)), units_text(status)));
    lines.extend(
        standing
            .eta_seconds
            .map(|seconds| format!("ETA          {}", duration(Duration::from_secs(seconds)))),
    );
    lines.extend(spending(status));
    lines.extend(pipelines::detail_lines(status));
    let adaptive = view.adaptive_concurrency.as_ref();
    lines.extend(adaptive.map(|adaptive| format!("concurrency  {}", adaptive_text(app, adaptive))));
    lines.extend(standing.message.iter().map(|message| format!("note         {message}")));
    if !view.parts.is_empty() {
        let mut table = Table::new(&["PART", "STATE", "UNITS", "NOTE"]);
        for part in &view.parts {
            table.row(vec![
                Cell::new(&part.name),
                Cell::new(app.out.state(part.state)),
                Cell::number(part.units),
                Cell::new(part.note.as_deref().unwrap_or_default()),
            ]);
        }
        lines.push(format!("\n{}", table.render(false).trim_end()));
    }
    if view.more_parts {
        lines.push("… and more: --parts N shows as many as you like".to_owned());
    }
    for FailedUnit { unit, reason } in &view.failures {
        lines.push(format!("failed: {unit}: {}", reason.as_deref().unwrap_or("no reason is known")));
    }
    lines.join("\n")
}

/// Units by what became of them.
pub(super) fn units_text(status: &Status) -> String {
    let units = &status.standing.units;
    let open = units.total.saturating_sub(units.ended());
    let counts = [(units.failed, "failed"), (units.cancelled, "cancelled"), (open, "open")];
    let others = counts.iter().filter(|(count, _)| *count > 0);
    let mut parts = vec![format!("{} of {} done", grouped(units.done), grouped(units.total))];
    parts.extend(others.map(|(count, word)| format!("{} {word}", grouped(*count))));
    parts.join(" · ")
}

/// Adaptive concurrency in a line.
fn adaptive_text(app: &App, adaptive: &AdaptiveConcurrency) -> String {
    let cuts = adaptive.changes.iter().filter(|change| change.refused);
    let mut text = format!("{} adaptive", adaptive.concurrency);
    if let Some(last) = cuts.clone().next_back() {
        let at = app.out.detail_time(Timestamp::from_millis(last.at_ms), app.now());
        text += &format!(
            ", lowered {} by 429s, last to {} {at}",
            counted(cuts.count() as u64, "time"),
            last.concurrency
        );
    }
    text
}

async fn resume(app: &App, found: &Found, spending: &SpendingArgs) -> Result<Code> {
    if let Some(llm) = found.pipeline.llm() {
        models::set_limits(llm, found.run.id.as_str(), spending).await?;
    }
    let opened = found.resume().await?;
    app.out.hint("a worker goes on with it: longhaul work --drain");
    said(app, found, "resumed", format!("{} goes on (jobs that were held: {opened})", found.run.id))
}

async fn retry(app: &App, found: &Found, part: Option<u64>) -> Result<Code> {
    let which = match part {
        Some(0) => return Err(Failure::new(Code::Usage, "--part counts from 1, as in runs show").into()),
        Some(number) => Retry::Part(number - 1),
        None => Retry::Failed,
    };
    let retried = found.retry(which).await.map_err(|error| match error {
        Error::Invalid(text) => Failure::new(Code::Usage, text).into(),
        error => anyhow::Error::from(error),
    })?;
    let (id, unit) = (&found.run.id, found.pipeline.about().unit);
    if retried == 0 {
        return Err(Failure::new(Code::NothingMatched, format!("no {unit} of {id} failed")).into());
    }
    app.out.hint("a worker does it: longhaul work --drain");
    said(app, found, "retried", format!("to be tried again: {} of {id}", counted(retried, unit)))
}

async fn resolve(app: &App, pipelines: &Pipelines, found: &Found, decision: &Decision) -> Result<Code> {
    let told = match decision {
        Decision { resubmit: true, .. } => BatchTold::Resubmit,
        Decision { one_by_one: true, .. } => BatchTold::Alone,
        Decision { drop: true, .. } => BatchTold::Drop,
        Decision { .. } => BatchTold::Wait,
    };
    let id = &found.run.id;
    let count = manage::resolve(&pipelines.prompts, id, told).await?;
    if count == 0 {
        let text = format!("no batch of {id} waits for a decision");
        return Err(Failure::new(Code::NothingMatched, text).into());
    }
    said(app, found, "resolved", format!("of the batches of {id}, {count} go on as you decided"))
}
