//! `runs …`: runs of every pipeline that are stored, by whatever process they were started.

use std::time::Duration;

use anyhow::Result;
use longhaul_api::Listed;
use longhaul_api::processes::Number;
use longhaul_api::runs::{Decision, Run, RunDetail};
use longhaul_llm::rate::AdaptiveConcurrency;
use longhaul_pipeline::{FailedUnit, Retry, RunId, Status};
use longhaul_queue::Timestamp;
use serde::Serialize;

use super::follow::{code_of, show};
use super::run::shown_model;
use super::summary::{cost, spending, state_word, tell_state, way_out};
use crate::app::App;
use crate::args::{DecisionArgs, RunsCommand, SpendingArgs};
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, counted, duration, grouped};
use crate::pipelines::{self, Place};
use crate::run_client::{self, RunClient};
use crate::store;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &RunsCommand) -> Result<Code> {
    let runs = run_client::open(app).await?;
    let found = async |id: &str| runs.get(id).await;
    match command {
        RunsCommand::Ls { pipeline, limit, cursor } => {
            let page = runs.list(pipeline.as_deref(), *cursor, *limit).await?;
            ls(app, &page, cursor.is_none())
        }
        RunsCommand::Show { id, parts } => show_one(app, &*found(id).await?, *parts).await,
        RunsCommand::Wait { id, timeout } => wait(app, &*found(id).await?, *timeout).await,
        RunsCommand::Pause { id } => {
            let run = found(id).await?;
            let text = || format!("{} is paused; {}s in flight will finish", run.id(), run.unit());
            app.out.one(&run.pause().await?, text)?;
            Ok(Code::Ok)
        }
        RunsCommand::Resume { id, spending } => resume(app, &*found(id).await?, spending).await,
        RunsCommand::Cancel { id } => cancel(app, &*found(id).await?).await,
        RunsCommand::Retry { id, part } => retry(app, &*found(id).await?, *part).await,
        RunsCommand::Results { id, out, errors, force, consume } => {
            let run = found(id).await?;
            let place = Place { out: out.as_deref(), errors: errors.as_deref(), force: *force };
            let code = run.write_results(app, &place).await?;
            if *consume {
                run.remove().await?;
            }
            Ok(code)
        }
        RunsCommand::Resolve { id, decision } => resolve(app, &*found(id).await?, decision).await,
        RunsCommand::Rm { id } => {
            let run = found(id).await?;
            app.confirm(&format!("delete {} with its results", run.id()))?;
            let changed = run.remove().await?;
            let jobs = counted(changed, "job");
            said(app, run.id(), changed, format!("{} is deleted ({jobs}); files stay", run.id()))
        }
    }
}

/// What a verb changed, as the API tells it, and of which run.
#[derive(Serialize)]
struct Said<'a> {
    id: &'a str,
    #[serde(flatten)]
    number: Number,
}

fn said(app: &App, id: &RunId, changed: u64, text: String) -> Result<Code> {
    app.out.one(&Said { id: id.as_str(), number: Number { changed } }, || text)?;
    Ok(Code::Ok)
}

/// Names the command that does what is left to do. A server has workers of its own.
fn tell_worker(app: &App, text: &str) -> Result<()> {
    if store::server(&app.settings)?.is_none() {
        app.out.hint(format_args!("{text}: longhaul work --drain"));
    }
    Ok(())
}

async fn cancel(app: &App, run: &dyn RunClient) -> Result<Code> {
    let id = run.id();
    app.confirm(&format!("cancel {id}"))?;
    let jobs = run.cancel().await?;
    let units = units_text(&run.status().await?);
    let text = match jobs {
        0 => format!("nothing of {id} is left to cancel: {units}"),
        _ => format!("{id} is cancelled, what was done is kept: {units}"),
    };
    said(app, id, jobs, text)
}

async fn wait(app: &App, run: &dyn RunClient, timeout: Option<Duration>) -> Result<Code> {
    let shown = show(app, run, None);
    let in_time = match timeout {
        None => Ok(shown.await),
        Some(timeout) => tokio::time::timeout(timeout, shown).await,
    };
    let ended = in_time.ok().transpose()?.is_some();
    let run = run.run().await?;
    let status = &run.status;
    app.out.one(&run, String::new)?;
    if !ended {
        app.out.note(format_args!("the wait timed out; the run: {}", state_word(status, run.served)));
        return Ok(Code::TimedOut);
    }
    app.out.note(format_args!("{}: {}", status.id, units_text(status)));
    spending(status).into_iter().for_each(|line| app.out.note(line));
    tell_state(app, status);
    Ok(code_of(status))
}

/// A page of runs; `first` of all of them.
fn ls(app: &App, page: &Listed<Run>, first: bool) -> Result<Code> {
    let now = app.now();
    app.out.listed(page, || {
        let mut table =
            Table::new(&["ID", "PIPELINE", "STATE", "DONE", "FAILED", "MODEL", "COST", "TITLE", "STARTED"]);
        for Run { served, status, .. } in &page.items {
            let units = &status.standing.units;
            let model = status.standing.model.as_ref().map_or("", |model| shown_model(&model.name));
            table.row(vec![
                Cell::new(&status.id),
                Cell::new(&status.pipeline),
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
    if let Some(next) = &page.next {
        app.out.hint(format_args!("there are more: add --cursor {next}"));
    } else if page.items.is_empty() && first {
        app.out.note("there are no runs; start one: longhaul run FILE, or longhaul score TABLE");
    } else if page.items.is_empty() {
        app.out.note("there are no more runs");
    }
    Ok(Code::Ok)
}

async fn show_one(app: &App, run: &dyn RunClient, limit: usize) -> Result<Code> {
    // One more shows whether there are more.
    let mut detail = run.detail(limit.saturating_add(1)).await?;
    let more_parts = detail.parts.len() > limit;
    detail.parts.truncate(limit);
    app.out.one(&detail, || text_of(app, &detail, more_parts))?;
    if let Some(hint) = way_out(&detail.run.status) {
        app.out.hint(hint);
    }
    Ok(Code::Ok)
}

fn text_of(app: &App, detail: &RunDetail, more_parts: bool) -> String {
    let Run { status, served, .. } = &detail.run;
    let standing = &status.standing;
    let now = app.now();
    let mut lines = vec![
        format!("run          {} ({})", status.id, status.pipeline),
        format!("state        {}", state_word(status, *served)),
        format!("title        {}", status.title),
    ];
    if let Some(model) = &standing.model {
        lines.push(format!("model        {} by profile {}", shown_model(&model.name), model.profile));
    }
    lines.push(format!("started      {}", app.out.detail_time(status.created_at, now)));
    lines.extend(status.ended_at.map(|at| format!("ended        {}", app.out.detail_time(at, now))));
    lines.push(format!("{:<12} {}", format!("{}s", status.unit), units_text(status)));
    lines.extend(
        standing
            .eta_seconds
            .map(|seconds| format!("ETA          {}", duration(Duration::from_secs(seconds)))),
    );
    lines.extend(spending(status));
    lines.extend(pipelines::detail_lines(status));
    let adaptive = detail.adaptive_concurrency.as_ref();
    lines.extend(adaptive.map(|adaptive| format!("concurrency  {}", adaptive_text(app, adaptive))));
    lines.extend(standing.message.iter().map(|message| format!("note         {message}")));
    if !detail.parts.is_empty() {
        let mut table = Table::new(&["PART", "STATE", "UNITS", "NOTE"]);
        for part in &detail.parts {
            table.row(vec![
                Cell::new(&part.name),
                Cell::new(app.out.state(part.state)),
                Cell::number(part.units),
                Cell::new(part.note.as_deref().unwrap_or_default()),
            ]);
        }
        lines.push(format!("\n{}", table.render(false).trim_end()));
    }
    if more_parts {
        lines.push("… and more: --parts N shows as many as you like".to_owned());
    }
    for FailedUnit { unit, reason } in &detail.failures {
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

async fn resume(app: &App, run: &dyn RunClient, spending: &SpendingArgs) -> Result<Code> {
    let opened = run.resume(spending).await?;
    tell_worker(app, "a worker goes on with it")?;
    said(app, run.id(), opened, format!("{} goes on (jobs that were held: {opened})", run.id()))
}

async fn retry(app: &App, run: &dyn RunClient, part: Option<u64>) -> Result<Code> {
    let which = match part {
        Some(0) => return Err(Failure::new(Code::Usage, "--part counts from 1, as in runs show").into()),
        Some(number) => Retry::Part(number - 1),
        None => Retry::Failed,
    };
    let (retried, id, unit) = (run.retry(which).await?, run.id(), run.unit());
    if retried == 0 {
        return Err(Failure::new(Code::NothingMatched, format!("no {unit} of {id} failed")).into());
    }
    tell_worker(app, "a worker does it")?;
    said(app, id, retried, format!("to be tried again: {} of {id}", counted(retried, unit)))
}

async fn resolve(app: &App, run: &dyn RunClient, decision: &DecisionArgs) -> Result<Code> {
    let decision = match decision {
        DecisionArgs { resubmit: true, .. } => Decision::Resubmit,
        DecisionArgs { one_by_one: true, .. } => Decision::OneByOne,
        DecisionArgs { drop: true, .. } => Decision::Drop,
        DecisionArgs { .. } => Decision::Wait,
    };
    let (count, id) = (run.resolve(decision).await?, run.id());
    if count == 0 {
        let text = format!("no batch of {id} waits for a decision");
        return Err(Failure::new(Code::NothingMatched, text).into());
    }
    let batches = if count == 1 { "batch" } else { "batches" };
    said(app, id, count, format!("resolved {} {batches} of {id}", grouped(count)))
}
