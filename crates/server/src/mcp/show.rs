//! Jobs as agents see them: short, with times that people read, without secrets, and with a word about everything that was left out.

use longhaul_pipeline::Status;
use longhaul_queue::client::Explanation;
use longhaul_queue::limits::shorten;
use longhaul_queue::redact::text;
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{Job, JobDetail, JobId, Json, State, Timestamp};
use serde_json::{Map, Value, json};

use crate::redact;

/// Bytes of a job's payload and of its result that are shown beside everything else.
const PAYLOAD_BYTES_MAX: usize = 4_000;
const RESULT_BYTES_MAX: usize = 8_000;
/// Bytes of an error in a list, and of one log line.
const ERROR_BYTES_MAX: usize = 400;
const LOG_LINE_BYTES_MAX: usize = 300;
/// Newest runs, newest log lines and first parents that are shown.
const RUNS_MAX: usize = 5;
const LOG_LINES_MAX: usize = 20;
const PARENTS_MAX: usize = 20;

/// A job on one line of a list. What is not there is left out.
pub(super) fn brief(job: &Job) -> Value {
    let mut shown = Map::new();
    let mut put = |name: &str, value: Value| drop(shown.insert(name.to_owned(), value));
    put("id", json!(job.id));
    put("state", json!(job.state));
    put("kind", json!(job.kind));
    put("queue", json!(job.queue));
    put("created_at", time(job.created_at));
    put("updated_at", time(job.updated_at));
    let mut put_if = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            put(name, value);
        }
    };
    put_if("process_id", job.process_id.as_ref().map(|process| json!(process)));
    put_if("title", job.options.title.as_ref().map(|title| json!(title)));
    put_if("tags", (!job.options.tags.is_empty()).then(|| json!(job.options.tags)));
    put_if("run_at", (job.state == State::Scheduled).then(|| time(job.run_at)));
    put_if("started_at", job.started_at.map(time));
    put_if("finished_at", job.finished_at.map(time));
    put_if("failures", (job.spent.attempt > 0).then(|| json!(job.spent.attempt)));
    put_if("waits_for", job.park.as_ref().map(|park| json!(park.key)));
    put_if(
        "error",
        job.error.as_ref().map(|error| json!(shorten(&text(&error.to_string()), ERROR_BYTES_MAX))),
    );
    Value::Object(shown)
}

/// A job with all that is known of it.
pub(super) fn detail(detail: JobDetail, explained: &Explanation) -> Value {
    let detail = &redact::detail(detail);
    let job = &detail.job;
    let mut shown = brief(job);
    let mut cut = Vec::new();
    shown["priority"] = json!(job.priority);
    shown["why"] = json!({
        "reason": text(&explained.reason),
        "until": explained.until.map(time),
        "hint": explained.hint,
    });
    let payload = Clipped::of(&detail.payload, PAYLOAD_BYTES_MAX);
    cut.extend(payload.word(job.id, "payload"));
    shown["payload"] = payload.shown;
    if let Some(result) = &detail.result {
        let result = Clipped::of(result, RESULT_BYTES_MAX);
        cut.extend(result.word(job.id, "result"));
        shown["result"] = result.shown;
    }
    if let Some(progress) = &detail.progress {
        shown["progress"] = json!(progress);
    }
    cut.extend(history(&mut shown, detail));
    if !cut.is_empty() {
        shown["cut"] = json!(cut);
    }
    shown
}

/// Adds past runs, log lines and parents, and says how many are left out.
fn history(shown: &mut Value, detail: &JobDetail) -> Vec<String> {
    let mut cut = Vec::new();
    let mut left = |what: &str, all: usize, max: usize| {
        if all > max {
            cut.push(format!("{what}: {max} of {all} are shown"));
        }
    };
    left("runs", detail.runs.len(), RUNS_MAX);
    left("log", detail.log.len(), LOG_LINES_MAX);
    left("depends_on", detail.depends_on.len(), PARENTS_MAX);
    let runs = detail.runs.iter().skip(detail.runs.len().saturating_sub(RUNS_MAX));
    let runs: Vec<Value> = runs
        .map(|run| {
            json!({
                "started_at": time(run.started_at),
                "ended_at": time(run.ended_at),
                "outcome": run.outcome,
                "error": run.error.as_ref().map(|error| shorten(&error.to_string(), ERROR_BYTES_MAX)),
            })
        })
        .collect();
    let lines = detail.log.iter().skip(detail.log.len().saturating_sub(LOG_LINES_MAX));
    let lines: Vec<String> =
        lines.map(|line| format!("{} {}", line.at, shorten(&line.text, LOG_LINE_BYTES_MAX))).collect();
    if !runs.is_empty() {
        shown["runs"] = json!(runs);
    }
    if !lines.is_empty() {
        shown["log"] = json!(lines);
    }
    if !detail.depends_on.is_empty() {
        shown["depends_on"] = json!(&detail.depends_on[..detail.depends_on.len().min(PARENTS_MAX)]);
    }
    cut
}

/// A run: how far it is and what it cost.
pub(super) fn run(status: &Status) -> Value {
    let mut shown = json!(status);
    shown["created_at"] = time(status.created_at);
    if let Some(ended_at) = status.ended_at {
        shown["ended_at"] = time(ended_at);
    }
    shown
}

/// A process: its jobs by state.
pub(super) fn process(info: &ProcessInfo) -> Value {
    json!({
        "process": info.id,
        "sealed": info.sealed,
        "total": info.total(),
        "unfinished": info.unfinished(),
        "states": states(&info.counts),
    })
}

/// Jobs by state, without the states that have none.
pub(super) fn states(counts: &[u64; 8]) -> Value {
    let there = State::ALL.into_iter().filter(|state| counts[*state as usize] > 0);
    Value::Object(there.map(|state| (state.to_string(), json!(counts[state as usize]))).collect())
}

/// A time as people write it, in UTC.
pub(super) fn time(at: Timestamp) -> Value {
    at.to_string().into()
}

/// A value that may have been cut.
pub(super) struct Clipped {
    /// Itself when it is short, else the beginning of its JSON text.
    pub(super) shown: Value,
    /// Bytes shown and bytes there, when it was cut.
    cut: Option<(usize, usize)>,
}

impl Clipped {
    pub(super) fn of(json: &Json, bytes_max: usize) -> Self {
        if json.len() <= bytes_max {
            return Self { shown: json.to().unwrap_or_default(), cut: None };
        }
        let end = json.as_str().floor_char_boundary(bytes_max);
        Self { shown: json.as_str()[..end].into(), cut: Some((end, json.len())) }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// What was cut of a job's part, and how to get the rest.
    pub(super) fn word(&self, id: JobId, part: &str) -> Option<String> {
        let (shown, all) = self.cut?;
        let call = json!({ "id": id, "part": part, "offset": shown });
        Some(format!(
            "{part}: the first {shown} of {all} bytes of its JSON text; the rest: get_results {call}"
        ))
    }
}
