//! What is hidden of jobs on every way out, over HTTP and MCP alike: values under the names of secrets
//! ([`longhaul_queue::redact`]), in JSON and in what handlers said. Who may work gets whole payloads anyway, and sees them here too.

use longhaul_api::runs::RunDetail;
use longhaul_pipeline::{FailedUnit, Part, Results};
use longhaul_prompts::request;
use longhaul_queue::client::Explanation;
use longhaul_queue::job::{JobResult, LogLine, Progress, Run};
use longhaul_queue::redact::{json, text};
use longhaul_queue::state::JobError;
use longhaul_queue::store::Schedule;
use longhaul_queue::{Job, JobDetail, Json, NewJob};

use serde_json::{Map, Value};

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

/// All that is known of a run.
pub(crate) fn run(detail: RunDetail) -> RunDetail {
    let failure = |unit: FailedUnit| FailedUnit { reason: unit.reason.as_deref().map(shown), ..unit };
    let message = detail.run.status.standing.message.as_deref().map(shown);
    let mut hidden = RunDetail {
        settings: hidden_value(&detail.settings),
        parts: detail.parts.into_iter().map(part).collect(),
        failures: detail.failures.into_iter().map(failure).collect(),
        ..detail
    };
    hidden.run.status.standing.message = message;
    hidden
}

/// A part of a run.
pub(crate) fn part(part: Part) -> Part {
    let details = match hidden_value(&Value::Object(part.details)) {
        Value::Object(details) => details,
        _ => Map::new(),
    };
    Part { note: part.note.as_deref().map(shown), details, ..part }
}

/// Results of a run that are not a model's words.
pub(crate) fn results(page: &Results) -> Results {
    Results { items: page.items.iter().map(json).collect(), next: page.next }
}

/// A value is read again from its redacted text: what cannot be is not shown.
fn hidden_value(value: &Value) -> Value {
    Json::of(value).map(|text| json(&text)).and_then(|text| text.to()).unwrap_or_default()
}

fn shown(words: &str) -> String {
    text(words).into_owned()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_in_all_that_is_shown_of_a_run() {
        let detail = json!({
            "id": "words-1", "pipeline": "words", "unit": "file", "title": "t", "created_at": 1, "spent": longhaul_llm::Totals::default(),
            "state": "failed", "units": { "total": 1, "done": 0, "failed": 1, "cancelled": 0, "running": 0 }, "simulated": false,
            "message": "api_key=hidden", "served": true, "settings": { "password": "hidden", "file": "shown" },
            "parts": [{ "name": "part-1", "state": "failed", "units": 1, "note": "token=hidden", "details": { "secret": "hidden" } }],
            "failures": [{ "unit": "index 0", "reason": "password=hidden" }],
        });
        let detail: RunDetail = serde_json::from_value(detail).expect("a run");
        let shown = serde_json::to_string(&run(detail)).expect("JSON");
        assert!(!shown.contains("hidden") && shown.contains("\"file\":\"shown\""), "{shown}");
        let items = vec![Json::of(&json!({ "result": { "password": "hidden" } })).expect("JSON")];
        let shown = results(&Results { items, next: None });
        assert!(!shown.items[0].as_str().contains("hidden"), "{shown:?}");
    }
}
