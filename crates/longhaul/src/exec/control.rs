//! A line of stdout that is an object with the key `longhaul`: the command talks to the queue.

use std::time::Duration;

use longhaul_api::job_in::Refs;
use longhaul_queue::state::{JobError, OnTimeout, Park, Reason};
use longhaul_queue::{Json, NewJob, Outcome, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::jobspec::{self, describe};
use crate::parse;

/// What a control line asks for.
#[derive(Debug)]
pub(super) enum Control {
    /// Report how far the run has come.
    Progress { done: u64, total: Option<u64>, message: Option<String> },
    /// Add a line to the job's log.
    Log(String),
    /// Store a checkpoint.
    Save(Json),
    /// Enqueue a job together with the outcome.
    Enqueue(Box<NewJob>),
    /// How the run ends; the last one counts.
    Decide(Outcome),
}

/// The lines, as they are written.
#[derive(Debug, Deserialize)]
#[serde(tag = "longhaul", rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Progress {
        done: u64,
        total: Option<u64>,
        message: Option<String>,
    },
    Log {
        text: String,
    },
    Save {
        #[serde(rename = "data")]
        _data: serde_json::Value,
    },
    Continue {
        after: Option<String>,
        data: Option<serde_json::Value>,
    },
    Park {
        key: String,
        until: Option<String>,
        timeout: Option<String>,
        on_timeout: Option<OnTimeout>,
        data: Option<serde_json::Value>,
    },
    Retry {
        error: String,
        after: Option<String>,
        class: Option<Class>,
        data: Option<serde_json::Value>,
    },
    Fail {
        error: String,
    },
    Enqueue {
        #[serde(rename = "job")]
        _job: serde_json::Value,
    },
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Class {
    Failure,
    Throttle,
}

/// Only that the key is there; what it says is read afterwards.
#[derive(Debug, Deserialize)]
struct Marked<'a> {
    #[serde(borrow)]
    longhaul: Option<&'a RawValue>,
}

/// The fields whose text must stay as it was written: numbers of any size survive only so.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Verbatim {
    data: Option<Json>,
    job: Option<Json>,
}

/// Whether a line is for the queue: an object with the key `longhaul`.
pub(super) fn is_control(line: &str) -> bool {
    line.trim_start().starts_with('{')
        && serde_json::from_str::<Marked<'_>>(line).is_ok_and(|marked| marked.longhaul.is_some())
}

/// Reads a control line.
pub(super) fn parse(line: &str, now: Timestamp) -> Result<Control, String> {
    let read: Line = serde_json::from_str(line).map_err(|error| describe(&error))?;
    let verbatim: Verbatim = serde_json::from_str(line).map_err(|error| describe(&error))?;
    let wait = |text: Option<&String>| text.map(|text| parse::duration(text)).transpose();
    Ok(match read {
        Line::Progress { done, total, message } => Control::Progress { done, total, message },
        Line::Log { text } => Control::Log(text),
        Line::Save { .. } => Control::Save(verbatim.data.unwrap_or_else(Json::null)),
        Line::Continue { after, data } => {
            Control::Decide(Outcome::Continue { after: wait(after.as_ref())?, data: data.and(verbatim.data) })
        }
        Line::Park { key, until, timeout, on_timeout, data } => {
            let until = deadline(until.as_deref(), wait(timeout.as_ref())?, now)?;
            let park = Park { key, until, on_timeout: on_timeout.unwrap_or_default() };
            Control::Decide(Outcome::Park { park, data: data.and(verbatim.data) })
        }
        Line::Retry { error, after, class, data } => {
            let reason = match class {
                None | Some(Class::Failure) => Reason::Failure,
                Some(Class::Throttle) => Reason::Throttle,
            };
            let error = JobError::new(reason, error);
            Control::Decide(Outcome::Retry {
                error,
                after: wait(after.as_ref())?,
                data: data.and(verbatim.data),
            })
        }
        Line::Fail { error } => Control::Decide(Outcome::Fail(JobError::new(Reason::Failure, error))),
        Line::Enqueue { .. } => {
            let job = verbatim.job.unwrap_or_else(Json::null);
            let job = jobspec::new_job(jobspec::read(job.as_str())?, &Refs::default(), now);
            Control::Enqueue(Box::new(job.map_err(|misfit| misfit.to_string())?))
        }
    })
}

fn deadline(
    until: Option<&str>,
    timeout: Option<Duration>,
    now: Timestamp,
) -> Result<Option<Timestamp>, String> {
    match (until, timeout) {
        (Some(_), Some(_)) => Err("`until` and `timeout` exclude each other".to_owned()),
        (Some(until), None) => parse::time(until, now).map(Some),
        (None, timeout) => Ok(timeout.map(|timeout| now + timeout)),
    }
}

#[cfg(test)]
mod tests;
