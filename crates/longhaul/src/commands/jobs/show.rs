//! One job: everything known of it, why it waits, and its log.

use std::fmt::Write as _;

use anyhow::Result;
use longhaul_api::job_out::{ExplanationOut, JobDetailOut};
use longhaul_queue::job::{LogLine, Run};
use longhaul_queue::{JobDetail, Json, Queue, Timestamp};

use crate::app::{App, resolve};
use crate::exit::Code;
use crate::output::{Format, duration, local, plain, plain_lines};

/// Past runs shown in text; the rest is in `-o json`.
const RUNS_SHOWN_MAX: usize = 10;
/// A value longer than this is cut in text, and says so.
const VALUE_SHOWN_BYTES_MAX: usize = 4_000;

/// `jobs show`.
pub(super) async fn show(app: &App, queue: &Queue, id: &str) -> Result<Code> {
    let detail = queue.get(resolve(queue, id).await?).await?;
    let explanation = queue.explain(detail.job.id).await?;
    app.out.one(&JobDetailOut::from(detail.clone()), || text(app, &detail, &explanation.reason))?;
    if let Some(hint) = explanation.hint {
        app.out.hint(hint);
    }
    Ok(Code::Ok)
}

fn text(app: &App, detail: &JobDetail, reason: &str) -> String {
    let job = &detail.job;
    let now = app.now();
    let mut out = format!("{} {}  {}\n", app.out.label("job"), job.id, app.out.state(job.state));
    let mut line = |label: &str, value: String| {
        let _ = writeln!(out, "{} {value}", app.out.label(&format!("{label:<11}")));
    };
    line("why", plain(reason));
    line("kind", format!("{} in queue {}, priority {}", plain(&job.kind), plain(&job.queue), job.priority));
    if let Some(title) = &job.options.title {
        line("title", plain(title));
    }
    if let Some(process_id) = &job.process_id {
        line("process", plain(process_id.as_str()));
    }
    if !job.options.tags.is_empty() {
        line("tags", plain(&job.options.tags.join(", ")));
    }
    line("created", app.out.detail_time(job.created_at, now));
    let times = [
        ("run at", Some(job.run_at)),
        ("started", job.started_at),
        ("lease until", job.lease_until),
        ("finished", job.finished_at),
        (
            "updated",
            Some(job.updated_at).filter(|at| ![job.started_at, job.finished_at].contains(&Some(*at))),
        ),
        ("expires", job.expires_at),
    ];
    for (label, at) in times {
        if let Some(at) = at.filter(|at| *at != job.created_at) {
            line(label, app.out.detail_time(at, now));
        }
    }
    let spent = job.spent;
    line(
        "spent",
        format!(
            "attempts {} · crashes {} · throttles {} · continues {} · parks {}",
            spent.attempt, spent.crashes, spent.throttles, spent.continues, spent.parks
        ),
    );
    if let Some(progress) = &detail.progress {
        let total = progress.total.map_or_else(String::new, |total| format!(" of {total}"));
        line(
            "progress",
            format!("{}{total} {}", progress.done, plain(progress.message.as_deref().unwrap_or_default())),
        );
    }
    for parent in &detail.depends_on {
        let end = parent.ended.map_or_else(|| "unfinished".to_owned(), |state| state.to_string());
        line("after", format!("{} ({end})", parent.job_id));
    }
    if let Some(error) = &job.error {
        line("error", plain_lines(&error.to_string()));
    }
    for (label, value) in [
        ("payload", Some(&detail.payload)),
        ("data", detail.data.as_ref()),
        ("result", detail.result.as_ref()),
    ] {
        if let Some(value) = value {
            line(label, shown(value));
        }
    }
    out + &runs(app, &detail.runs, now)
}

fn shown(value: &Json) -> String {
    plain_lines(&longhaul_queue::limits::shorten(value.as_str(), VALUE_SHOWN_BYTES_MAX))
}

fn runs(app: &App, runs: &[Run], now: Timestamp) -> String {
    let skipped = runs.len().saturating_sub(RUNS_SHOWN_MAX);
    let mut out = if skipped > 0 {
        format!("{} {skipped} earlier runs\n", app.out.label("runs"))
    } else {
        String::new()
    };
    for run in &runs[skipped..] {
        let outcome =
            serde_json::to_value(run.outcome).ok().and_then(|value| value.as_str().map(str::to_owned));
        let error =
            run.error.as_ref().map_or_else(String::new, |error| format!(" · {}", plain(&error.to_string())));
        let took = duration(run.ended_at.since(run.started_at));
        let _ = writeln!(
            out,
            "{} {} {} · took {took} · worker {}{error}",
            app.out.label(&format!("run {:<7}", run.fence)),
            outcome.unwrap_or_default(),
            app.out.list_time(run.ended_at, now),
            plain(run.worker.as_str()),
        );
    }
    out
}

/// `jobs explain`.
pub(super) async fn explain(app: &App, queue: &Queue, id: &str) -> Result<Code> {
    let explanation = ExplanationOut::from(queue.explain(resolve(queue, id).await?).await?);
    app.out.one(&explanation, || {
        let until = explanation
            .until
            .map_or_else(String::new, |at| format!(", until {}", app.out.detail_time(at, app.now())));
        format!("{}: {}{until}", app.out.state(explanation.state), plain(&explanation.reason))
    })?;
    if let Some(hint) = &explanation.hint {
        app.out.hint(hint);
    }
    Ok(Code::Ok)
}

/// `jobs log`.
pub(super) async fn log(app: &App, queue: &Queue, id: &str, follow: bool) -> Result<Code> {
    let id = resolve(queue, id).await?;
    let mut changes = queue.store().watch();
    let mut printed: Vec<LogLine> = Vec::new();
    loop {
        changes.mark_unchanged();
        let detail = queue.get(id).await?;
        if !follow && app.out.format == Format::Json {
            app.out.items(&detail.log)?;
            return Ok(Code::Ok);
        }
        for line in fresh(&printed, &detail.log) {
            app.out.stream(line, || format!("{} {}", app.out.label(&local(line.at)), plain(&line.text)))?;
        }
        printed = detail.log;
        if !follow || detail.job.state.is_terminal() {
            if printed.is_empty() {
                app.out.note("the job has logged nothing");
            }
            return Ok(Code::Ok);
        }
        crate::commands::wait::changed(&mut changes, None).await;
    }
}

/// The lines of `now` that come after those of `before`. The oldest lines of a long log go, so indices mean nothing.
fn fresh<'a>(before: &[LogLine], now: &'a [LogLine]) -> &'a [LogLine] {
    let Some(last) = before.last() else { return now };
    let known = now.iter().rposition(|line| line == last).map_or(0, |at| at + 1);
    &now[known..]
}
