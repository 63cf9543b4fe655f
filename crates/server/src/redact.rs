//! What is hidden of jobs on every way out, over HTTP and MCP alike: values under the names of secrets
//! ([`longhaul_queue::redact`]), in JSON and in what handlers said. Who may work gets whole payloads anyway, and sees them here too.

use longhaul_prompts::request;
use longhaul_queue::client::Explanation;
use longhaul_queue::job::{JobResult, LogLine, Progress, Run};
use longhaul_queue::redact::{json, text};
use longhaul_queue::state::JobError;
use longhaul_queue::store::Schedule;
use longhaul_queue::{Job, JobDetail, Json, NewJob};

use crate::guard::Caller;
use crate::tokens::Scope;

/// Whether secrets are hidden from this caller. Without a token there is no scope `work`.
pub(crate) fn hides_from(caller: &Caller) -> bool {
    caller.name.is_none() || !caller.may(Scope::Work)
}

/// A job of a list.
pub(crate) fn job(job: Job) -> Job {
    Job { error: job.error.map(error), ..job }
}

/// A job with everything known of it.
pub(crate) fn detail(detail: JobDetail) -> JobDetail {
    let run = |run: Run| Run { error: run.error.map(error), usage: run.usage.as_ref().map(json), ..run };
    let progress = |progress: Progress| Progress {
        message: progress.message.map(|message| text(&message).into_owned()),
        ..progress
    };
    let line = |line: LogLine| LogLine { text: text(&line.text).into_owned(), ..line };
    JobDetail {
        payload: json(&detail.payload),
        data: detail.data.as_ref().map(json),
        result: detail.result.as_ref().map(|result| value(&detail.job.kind, result)),
        runs: detail.runs.into_iter().map(run).collect(),
        progress: detail.progress.map(progress),
        log: detail.log.into_iter().map(line).collect(),
        job: job(detail.job),
        ..detail
    }
}

/// A job that has ended.
pub(crate) fn result(ended: JobResult) -> JobResult {
    let result = ended.result.as_ref().map(|result| value(&ended.kind, result));
    JobResult { result, error: ended.error.map(error), ..ended }
}

/// Why a job stands where it stands; an error may be a part of that.
pub(crate) fn explanation(explained: Explanation) -> Explanation {
    Explanation { reason: text(&explained.reason).into_owned(), ..explained }
}

/// A job that recurs.
pub(crate) fn schedule(schedule: Schedule) -> Schedule {
    Schedule { job: NewJob { payload: json(&schedule.job.payload), ..schedule.job }, ..schedule }
}

/// A result. Handlers may hand back what they were given, secrets included; what a model said is shown as it is.
fn value(kind: &str, result: &Json) -> Json {
    if kind == request::KIND { result.clone() } else { json(result) }
}

fn error(mut error: JobError) -> JobError {
    error.text = text(&error.text).into_owned();
    error
}
