//! Jobs as agents see them: the API's forms without secrets and without what is not there, long values cut, and a word about
//! everything that was left out.

use longhaul_api::job_out::{ExplanationOut, JobDetailOut, JobOut};
use longhaul_queue::client::Explanation;
use longhaul_queue::limits::shorten;
use longhaul_queue::state::JobError;
use longhaul_queue::{Job, JobDetail, JobId, Json, State};
use serde::Serialize;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::redact;

/// Bytes of a job's payload, of its checkpoint and of its result that are shown beside everything else.
pub(super) const VALUE_BYTES_MAX: usize = 4_000;
const RESULT_BYTES_MAX: usize = 8_000;
/// Bytes of an error, and of one log line.
const ERROR_BYTES_MAX: usize = 400;
const LOG_LINE_BYTES_MAX: usize = 300;
/// Newest runs, newest log lines and first parents that are shown.
const RUNS_MAX: usize = 5;
const LOG_LINES_MAX: usize = 20;
const PARENTS_MAX: usize = 20;

/// A value as JSON. What is not there is left out: an agent pays for each byte that it reads.
pub(super) fn value<T: Serialize>(shown: &T) -> Result<Value, Problem> {
    let mut shown = serde_json::to_value(shown).map_err(Problem::internal)?;
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(shown)
}

/// A job of a list.
pub(super) fn job(job: Job) -> Result<Value, Problem> {
    value(&brief(redact::job(job).into()))
}

fn brief(mut job: JobOut) -> JobOut {
    shorten_error(job.error.as_mut());
    job
}

fn shorten_error(error: Option<&mut JobError>) {
    if let Some(error) = error {
        error.text = shorten(&error.text, ERROR_BYTES_MAX);
    }
}

/// A job with all that is known of it.
pub(super) fn detail(detail: JobDetail, explained: Explanation) -> Result<Value, Problem> {
    let mut shown = JobDetailOut::from(redact::detail(detail));
    let mut cut = Vec::new();
    let id = shown.job.id;
    let mut clip = |part: &str, value: &mut Json, bytes_max: usize| -> Result<(), Problem> {
        let clipped = Clipped::of(value, bytes_max);
        if let Some(word) = clipped.word(id, part) {
            cut.push(word);
            *value = Json::of(&clipped.shown)?;
        }
        Ok(())
    };
    clip("payload", &mut shown.payload, VALUE_BYTES_MAX)?;
    if let Some(data) = &mut shown.data {
        clip("data", data, VALUE_BYTES_MAX)?;
    }
    if let Some(result) = &mut shown.result {
        clip("result", result, RESULT_BYTES_MAX)?;
    }
    shown.job = brief(shown.job);
    cut.extend(clip_history(&mut shown));
    let mut shown = value(&shown)?;
    shown["explanation"] = value(&ExplanationOut::from(redact::explanation(explained)))?;
    if !cut.is_empty() {
        shown["cut"] = json!(cut);
    }
    Ok(shown)
}

/// Keeps the newest runs and log lines and the first parents, and says how many are left out.
fn clip_history(shown: &mut JobDetailOut) -> Vec<String> {
    let lengths = [
        ("runs", shown.runs.len(), RUNS_MAX),
        ("log", shown.log.len(), LOG_LINES_MAX),
        ("depends_on", shown.depends_on.len(), PARENTS_MAX),
    ];
    shown.runs.drain(..shown.runs.len().saturating_sub(RUNS_MAX));
    shown.log.drain(..shown.log.len().saturating_sub(LOG_LINES_MAX));
    shown.depends_on.truncate(PARENTS_MAX);
    for run in &mut shown.runs {
        shorten_error(run.error.as_mut());
    }
    for line in &mut shown.log {
        line.text = shorten(&line.text, LOG_LINE_BYTES_MAX);
    }
    let longer = lengths.into_iter().filter(|(_, all, max)| all > max);
    longer.map(|(what, all, max)| format!("{what}: {max} of {all} are shown")).collect()
}

/// Jobs by state, without the states that have none.
pub(super) fn states(counts: &[u64; 8]) -> Value {
    let there = State::ALL.into_iter().filter(|state| counts[*state as usize] > 0);
    Value::Object(there.map(|state| (state.to_string(), json!(counts[state as usize]))).collect())
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

    /// How much of what is shown, if it was cut.
    pub(super) fn measure(&self, part: &str) -> Option<String> {
        let (shown, all) = self.cut?;
        Some(format!("{part}: the first {shown} of {all} bytes of its JSON text"))
    }

    /// What was cut of a job's part, and how to get the rest.
    fn word(&self, id: JobId, part: &str) -> Option<String> {
        let (offset, _) = self.cut?;
        let call = json!({ "id": id, "part": part, "offset": offset });
        Some(format!("{}; the rest: get_results {call}", self.measure(part)?))
    }
}
