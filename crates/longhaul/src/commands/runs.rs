//! `runs …`: runs that are stored, by whatever process they were submitted.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use longhaul_llm::rate::AdaptiveConcurrency;
use longhaul_pipelines::bulk::batch::{BatchTold, Refused, Step};
use longhaul_pipelines::bulk::eta::eta_seconds;
use longhaul_pipelines::bulk::{Bulk, Progress, Run, RunId, manage};
use longhaul_queue::{Job, State, Timestamp};
use serde::Serialize;

use super::run::{
    Answers, STDOUT, code_of, form_of, print_object, print_summary, show, shown_model, write_answers,
};
use super::workers::served;
use crate::app::App;
use crate::args::{Decision, RunsCommand, SpendingArgs};
use crate::exit::{Code, Failure};
use crate::models;
use crate::output::{Cell, Table, counted, duration, grouped};
use crate::prompts::Form;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &RunsCommand) -> Result<Code> {
    let bulk = Bulk::new(app.engine().await?, models::Setup::new(app, None)?.llm(app)?);
    // What a killed process left under way may have been billed, and is part of what a run cost.
    bulk.llm().ledger().abandon_dead(app.now().as_millis()).await?;
    match command {
        RunsCommand::Ls { limit } => ls(app, &bulk, *limit).await,
        RunsCommand::Show { id } => show_one(app, &bulk, &found(&bulk, id).await?).await,
        RunsCommand::Wait { id, timeout } => wait(app, &bulk, &found(&bulk, id).await?, *timeout).await,
        RunsCommand::Pause { id } => {
            let run = found(&bulk, id).await?;
            manage::pause(&bulk, &run.id).await?;
            said(app, &run.id, "paused", format!("{} is paused; requests under way end", run.id))
        }
        RunsCommand::Resume { id, spending } => resume(app, &bulk, id, spending).await,
        RunsCommand::Cancel { id } => {
            let run = found(&bulk, id).await?;
            app.confirm(&format!("cancel {}", run.id))?;
            let cancelled = manage::cancel(&bulk, &run.id).await?;
            let text =
                format!("{} of {} cancelled; answers so far are kept", counted(cancelled, "request"), run.id);
            said(app, &run.id, "cancelled", text)
        }
        RunsCommand::RetryFailed { id } => {
            let run = found(&bulk, id).await?;
            let retried = manage::retry_failed(&bulk, &run.id).await?;
            if retried == 0 {
                return Err(
                    Failure::new(Code::NothingMatched, format!("no request of {} failed", run.id)).into()
                );
            }
            app.out.hint("answer them with longhaul work --drain");
            said(
                app,
                &run.id,
                "retried",
                format!("to be asked again: {} of {}", counted(retried, "request"), run.id),
            )
        }
        RunsCommand::Results { id, out, errors, force, consume } => {
            let run = found(&bulk, id).await?;
            let answers =
                Answers { out: out.as_deref(), errors: errors.as_deref(), prompts: None, force: *force };
            let written = write_answers(app, &bulk, &run, &answers).await?;
            tell_lost_columns(app, &run, out.as_deref());
            if *consume {
                super::run::consume(&bulk, &run.id).await?;
            }
            if let Some(out) = out {
                let told =
                    serde_json::json!({ "id": run.id.as_str(), "file": out, "failed": written.failed });
                app.out.one(&told, String::new)?;
            }
            Ok(if written.failed > 0 { Code::JobsFailed } else { Code::Ok })
        }
        RunsCommand::Resolve { id, decision } => resolve(app, &bulk, id, decision).await,
        RunsCommand::Rm { id } => {
            let run = found(&bulk, id).await?;
            app.confirm(&format!("delete {} with its answers", run.id))?;
            let deleted = super::run::consume(&bulk, &run.id).await?;
            said(app, &run.id, "deleted", format!("{} is deleted ({})", run.id, counted(deleted, "job")))
        }
    }
}

async fn wait(app: &App, bulk: &Bulk, run: &Run, timeout: Option<Duration>) -> Result<Code> {
    let shown = show(app, bulk, run, None);
    let progress = match timeout {
        None => shown.await?,
        Some(timeout) => match tokio::time::timeout(timeout, shown).await {
            Ok(progress) => progress?,
            Err(_) => {
                print_object(app, run, &Progress::of(bulk, &run.id, &run.settings).await?, None)?;
                app.out.note("the wait timed out; the run goes on");
                return Ok(Code::TimedOut);
            }
        },
    };
    print_summary(app, run, &progress, None);
    print_object(app, run, &progress, None)?;
    Ok(code_of(&progress))
}

fn said(app: &App, id: &RunId, what: &str, text: String) -> Result<Code> {
    app.out.one(&serde_json::json!({ "id": id.as_str(), "done": what }), || text)?;
    Ok(Code::Ok)
}

/// The run of this name, with or without `run-`.
async fn found(bulk: &Bulk, name: &str) -> Result<Run> {
    let name = if name.starts_with("run-") { name.to_owned() } else { format!("run-{name}") };
    match Run::find(bulk.queue(), &RunId::named(&name)).await? {
        Some(run) => Ok(run),
        None => Err(Failure::new(Code::NothingMatched, format!("there is no run {name}"))
            .hint("list runs with: longhaul runs ls")
            .into()),
    }
}

/// A table's other columns are in its file, not in the store.
fn tell_lost_columns(app: &App, run: &Run, out: Option<&Path>) {
    let source = &run.settings.source;
    let form = Form::named(&source.form);
    let written = form_of(app, out.unwrap_or(Path::new(STDOUT)), form, None);
    if !(form.is_table() && written.is_table()) {
        return;
    }
    let name = &source.name;
    app.out.warn(format_args!("the columns of {name} are not stored, so they are not beside the answers"));
    app.out.hint(format_args!(
        "the command that began the run writes them too, with --out, and asks nothing again: longhaul run {name} …"
    ));
}

/// A run in a list.
#[derive(Debug, Serialize)]
struct Line {
    id: String,
    source: String,
    model: String,
    profile: String,
    created_at: Timestamp,
    /// Whether a worker serves it now; otherwise nothing moves.
    served: bool,
    /// When it will have ended at its present pace.
    #[serde(skip_serializing_if = "Option::is_none")]
    eta_seconds: Option<u64>,
    #[serde(flatten)]
    progress: Progress,
}

async fn ls(app: &App, bulk: &Bulk, limit: usize) -> Result<Code> {
    let page = Run::list(bulk.queue(), None, limit).await?;
    let served = served(bulk.queue()).await?;
    let mut lines = Vec::with_capacity(page.items.len());
    for job in page.items {
        let Some(process) = &job.process_id else { continue };
        let run = Run::get(bulk.queue(), &RunId::named(process.as_str())).await?;
        let progress = Progress::of(bulk, &run.id, &run.settings).await?;
        lines.push(Line {
            eta_seconds: eta_seconds(bulk, &run, &progress).await?,
            id: run.id.as_str().to_owned(),
            source: run.settings.source.name,
            model: run.settings.model,
            profile: run.settings.profile,
            created_at: run.job.created_at,
            served: served.contains(run.id.as_str()),
            progress,
        });
    }
    let now = app.now();
    app.out.list(&lines, page.next, || {
        let mut table =
            Table::new(&["ID", "STATUS", "DONE", "FAILED", "MODEL", "MODE", "COST", "FILE", "STARTED"]);
        for line in &lines {
            let progress = &line.progress;
            table.row(vec![
                Cell::new(&line.id),
                Cell::new(status_word(progress, line.served)),
                Cell::new(format!("{}/{}", grouped(progress.ended()), grouped(progress.total))),
                Cell::new(grouped(progress.failed)),
                Cell::new(shown_model(&line.model)),
                Cell::new(progress.mode.to_string()),
                Cell::new(cost(progress)),
                Cell::new(&line.source),
                Cell::new(app.out.list_time(line.created_at, now)),
            ]);
        }
        table
    })?;
    if lines.is_empty() {
        app.out.note("there are no runs; start one: longhaul run FILE");
    }
    Ok(Code::Ok)
}

fn status_word(progress: &Progress, served: bool) -> String {
    use longhaul_pipelines::bulk::progress::Status;
    match (progress.status, progress.held) {
        (Status::Held, Some(held)) => format!("{}: {held}", Status::Held),
        (Status::Running, _) if !served => "waits for a worker".to_owned(),
        (status, _) => status.to_string(),
    }
}

fn cost(progress: &Progress) -> String {
    let simulated = if progress.simulated { " (simulated)" } else { "" };
    format!("{}{simulated}", progress.spent.spent())
}

async fn show_one(app: &App, bulk: &Bulk, run: &Run) -> Result<Code> {
    let progress = Progress::of(bulk, &run.id, &run.settings).await?;
    let served = served(bulk.queue()).await?.contains(run.id.as_str());
    let eta = eta_seconds(bulk, run, &progress).await?;
    let mut batches = Vec::new();
    let mut found = manage::batches(bulk, &run.id).await?;
    found.extend(manage::refused_batches(bulk, &run.id).await?);
    for (detail, payload) in found {
        let step: Step = detail.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default();
        let refused: Refused = detail.data.and_then(|data| data.to().ok()).unwrap_or_default();
        batches.push((payload, detail.job, step, refused));
    }
    let adaptive = bulk.llm().adaptive_concurrency(&run.settings.profile, &run.settings.model).await;
    let view = serde_json::json!({
        "id": run.id.as_str(), "settings": run.settings, "progress": progress, "eta_seconds": eta,
        "created_at": run.job.created_at, "adaptive_concurrency": adaptive,
        "batches": batches.iter().map(|(payload, job, step, refused)| serde_json::json!({
            "job_id": job.id, "chunk": payload.chunk, "round": payload.round, "requests": payload.len(), "at": step,
            "refusals": refused.refusals, "reason": reason(job, refused),
        })).collect::<Vec<_>>(),
    });
    app.out.one(&view, || {
        let now = app.now();
        let settings = &run.settings;
        let mut lines = vec![
            format!("run          {}", run.id),
            format!("status       {}", status_word(&progress, served)),
            format!(
                "file         {} ({})",
                settings.source.name,
                counted(settings.source.requests, "request")
            ),
            format!("model        {} by profile {}", shown_model(&settings.model), settings.profile),
            format!("mode         {}", settings.mode),
            format!("started      {}", app.out.detail_time(run.job.created_at, now)),
            format!(
                "requests     {} answered · {} failed · {} cancelled · {} of {} open",
                grouped(progress.completed),
                grouped(progress.failed),
                grouped(progress.cancelled),
                grouped(progress.total - progress.ended()),
                grouped(progress.total),
            ),
        ];
        lines.extend(eta.map(|seconds| format!("ETA          {}", duration(Duration::from_secs(seconds)))));
        lines.extend(super::run::spending(&progress));
        lines.extend(
            adaptive.as_ref().map(|adaptive| format!("concurrency  {}", adaptive_text(app, adaptive))),
        );
        lines.extend(progress.message.iter().map(|message| format!("note         {message}")));
        for (payload, job, step, refused) in &batches {
            let what = batch_text(job, step, refused);
            lines.push(format!("batch        {}, {what}", counted(payload.len(), "request")));
        }
        lines.join("\n")
    })?;
    if let Some(held) = progress.held {
        let message = progress.message.as_deref().unwrap_or_default();
        app.out.hint(super::run::way_out(held, message, &run.id));
    }
    Ok(Code::Ok)
}

/// Where a batch stands, and why it is not further.
fn batch_text(job: &Job, step: &Step, refused: &Refused) -> String {
    match reason(job, refused) {
        Some(reason) if job.state == State::Failed => reason.to_owned(),
        Some(reason) if *step == Step::Prepare => {
            format!("refused {}, to be sent again: {reason}", counted(refused.refusals.into(), "time"))
        }
        Some(_) | None => step_text(step, job),
    }
}

/// Adaptive concurrency in a line.
pub(super) fn adaptive_text(app: &App, adaptive: &AdaptiveConcurrency) -> String {
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

/// Why the provider did not take a batch.
fn reason<'a>(job: &'a Job, refused: &'a Refused) -> Option<&'a str> {
    match &job.error {
        Some(error) if job.state == State::Failed => Some(&error.text),
        _ => refused.refused.as_deref(),
    }
}

fn step_text(step: &Step, job: &Job) -> String {
    match step {
        Step::Prepare => format!("not sent yet ({})", job.state),
        Step::Uploaded { .. } => "uploaded".to_owned(),
        Step::Submitting { candidates, .. } if candidates.is_empty() => "asked for, not confirmed".to_owned(),
        Step::Submitting { candidates, .. } => format!("ambiguous: may be {}", candidates.join(" or ")),
        Step::Submitted { id, missing: Some(missing), .. } => {
            format!("{id}: the provider no longer knows it (asked {})", counted(missing.looks.into(), "time"))
        }
        Step::Ended { id, missing: Some(missing), .. } => {
            let asked = counted(missing.looks.into(), "time");
            format!("{id}: the provider no longer has its results (asked {asked})")
        }
        Step::Submitted { id, completed, .. } => {
            let done = completed.map_or_else(String::new, |count| format!(", {} answered", grouped(count)));
            format!("{id} at the provider{done}")
        }
        Step::Ended { id, .. } => format!("{id} has ended, results are read"),
        Step::Over { .. } => "given up, its requests are told".to_owned(),
    }
}

async fn resume(app: &App, bulk: &Bulk, id: &str, spending: &SpendingArgs) -> Result<Code> {
    let run = found(bulk, id).await?;
    models::set_limits(bulk.llm(), run.id.as_str(), spending).await?;
    let opened = manage::resume(bulk, &run.id).await?;
    app.out.hint("answer it with longhaul work --drain");
    said(app, &run.id, "resumed", format!("{} goes on (jobs that were held: {opened})", run.id))
}

async fn resolve(app: &App, bulk: &Bulk, id: &str, decision: &Decision) -> Result<Code> {
    let run = found(bulk, id).await?;
    let told = match decision {
        Decision { resubmit: true, .. } => BatchTold::Resubmit,
        Decision { one_by_one: true, .. } => BatchTold::Alone,
        Decision { drop: true, .. } => BatchTold::Drop,
        Decision { .. } => BatchTold::Wait,
    };
    let count = manage::resolve(bulk, &run.id, told).await?;
    if count == 0 {
        let text = format!("no batch of {} waits for a decision", run.id);
        return Err(Failure::new(Code::NothingMatched, text).into());
    }
    said(app, &run.id, "resolved", format!("of the batches of {}, {count} go on as you decided", run.id))
}
