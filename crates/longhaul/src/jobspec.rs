//! A job as people and programs write it on one line of JSON: for `enqueue -` and for the control line `enqueue` of
//! a command. Unknown fields are refused, so that a misspelt one is not ignored in silence.

use std::collections::HashMap;

use longhaul_queue::job::{Dependency, JobOptions, OnFailure, Retention, Unique, UniquePolicy, Window};
use longhaul_queue::{JobId, Json, NewJob, ProcessId, RetryPolicy, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::parse;
use crate::pipelines::own_names;

/// Local names of jobs: `"ref": "a"` gives one, `"after": ["@a"]` uses it.
pub(crate) type Refs = HashMap<String, JobId>;

/// One job on one line.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JobSpec {
    kind: String,
    payload: Option<Json>,
    id: Option<JobId>,
    #[serde(rename = "ref")]
    local_name: Option<String>,
    queue: Option<String>,
    process: Option<ProcessId>,
    helper: bool,
    priority: Option<i32>,
    delay: Option<String>,
    at: Option<String>,
    expires: Option<String>,
    after: Vec<Value>,
    after_process: Option<ProcessId>,
    fair_key: Option<String>,
    unique: Option<Value>,
    max_attempts: Option<u32>,
    max_crashes: Option<u32>,
    max_throttles: Option<u32>,
    max_continues: Option<u32>,
    retry: Option<Value>,
    run_limit: Option<String>,
    idle_limit: Option<String>,
    continue_delay: Option<String>,
    retention: Option<Value>,
    tags: Vec<String>,
    title: Option<String>,
    owner: Option<String>,
    trace: Option<String>,
}

/// A unique key as an object.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UniqueSpec {
    key: String,
    window: Option<String>,
    #[serde(default)]
    since: Since,
    #[serde(default)]
    policy: PolicyName,
    wait: Option<String>,
    cap: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Since {
    #[default]
    Enqueue,
    Success,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyName {
    #[default]
    Skip,
    Replace,
    Debounce,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AfterSpec {
    id: String,
    #[serde(default)]
    on_failure: OnFailure,
}

impl JobSpec {
    /// Reads one line.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        // serde would take a list as well, by the order of the fields, which nobody could rely on.
        if !line.trim_start().starts_with('{') {
            return Err("expected a JSON object such as {\"kind\":\"echo\"} (column 1)".to_owned());
        }
        let spec: Self = serde_json::from_str(line).map_err(|error| describe(&error))?;
        if spec.kind.is_empty() {
            return Err("the field `kind` is missing".to_owned());
        }
        Ok(spec)
    }

    /// The name that other lines may use for it.
    pub(crate) fn local_name(&self) -> Option<&str> {
        self.local_name.as_deref()
    }

    /// Its own id.
    pub(crate) fn id(&self) -> Option<JobId> {
        self.id
    }

    /// Gives it an id, so that others can name it as a parent before it is stored.
    pub(crate) fn set_id(&mut self, id: JobId) {
        self.id = Some(id);
    }

    /// The job; fields that it leaves open come from `defaults`.
    pub(crate) fn into_job(self, defaults: &NewJob, refs: &Refs, now: Timestamp) -> Result<NewJob, String> {
        own_names().check_kind(&self.kind).map_err(|error| format!("`kind`: {error}"))?;
        if let Some(queue) = &self.queue {
            own_names().check_queue(queue).map_err(|error| format!("`queue`: {error}"))?;
        }
        if let Some(process) = &self.process {
            own_names().check_process(process.as_str()).map_err(|error| format!("`process`: {error}"))?;
        }
        self.id
            .map_or(Ok(()), |name| own_names().check_id(name))
            .map_err(|error| format!("`id`: {error}"))?;
        let run_at = match (&self.delay, &self.at) {
            (Some(_), Some(_)) => return Err("`delay` and `at` exclude each other".to_owned()),
            (Some(delay), None) => Some(now + field("delay", parse::duration(delay))?),
            (None, Some(at)) => Some(field("at", parse::time(at, now))?),
            (None, None) => defaults.run_at,
        };
        let expires_at =
            self.expires.as_deref().map(|text| field("expires", parse::time(text, now))).transpose()?;
        let mut depends_on = defaults.depends_on.clone();
        for parent in &self.after {
            depends_on.push(dependency(parent, refs)?);
        }
        let options = self.options(&defaults.options)?;
        Ok(NewJob {
            id: self.id.or(defaults.id),
            queue: self.queue.unwrap_or_else(|| defaults.queue.clone()),
            kind: self.kind,
            payload: self.payload.unwrap_or_else(Json::null),
            process_id: self.process.or_else(|| defaults.process_id.clone()),
            helper: self.helper,
            priority: self.priority.unwrap_or(defaults.priority),
            run_at,
            expires_at: expires_at.or(defaults.expires_at),
            depends_on,
            after_process: self.after_process.or_else(|| defaults.after_process.clone()),
            options,
        })
    }

    fn options(&self, defaults: &JobOptions) -> Result<JobOptions, String> {
        let time = |name, text: &Option<String>| {
            text.as_deref().map(|text| field(name, parse::duration(text))).transpose()
        };
        let mut tags = defaults.tags.clone();
        tags.extend(self.tags.iter().cloned());
        let unique = self.unique.as_ref().map(|value| field("unique", unique(value))).transpose()?;
        let retry: Option<RetryPolicy> = text_or_object("retry", self.retry.as_ref(), parse::retry)?;
        let retention: Option<Retention> =
            text_or_object("retention", self.retention.as_ref(), parse::retention)?;
        let or = |own: &Option<String>, default: &Option<String>| own.clone().or_else(|| default.clone());
        Ok(JobOptions {
            title: or(&self.title, &defaults.title),
            owner: or(&self.owner, &defaults.owner),
            tags,
            trace: or(&self.trace, &defaults.trace),
            parent_id: defaults.parent_id,
            max_attempts: self.max_attempts.or(defaults.max_attempts),
            max_crashes: self.max_crashes.or(defaults.max_crashes),
            max_throttles: self.max_throttles.or(defaults.max_throttles),
            max_continues: self.max_continues.or(defaults.max_continues),
            retry: retry.or_else(|| defaults.retry.clone()),
            run_limit: time("run_limit", &self.run_limit)?.or(defaults.run_limit),
            idle_limit: time("idle_limit", &self.idle_limit)?.or(defaults.idle_limit),
            delay: time("continue_delay", &self.continue_delay)?.or(defaults.delay),
            fair_key: or(&self.fair_key, &defaults.fair_key),
            unique: unique.or_else(|| defaults.unique.clone()),
            retention: retention.or(defaults.retention),
        })
    }
}

/// Names the field that a value belongs to.
fn field<T>(name: &str, result: Result<T, String>) -> Result<T, String> {
    result.map_err(|problem| format!("`{name}`: {problem}"))
}

/// serde's text without its line number: the caller knows the real one.
pub(crate) fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => format!("{} (column {})", &text[..at], error.column()),
        None => text,
    }
}

/// A text as on the command line, or the object that `jobs show -o json` prints.
fn text_or_object<T: DeserializeOwned>(
    name: &str,
    value: Option<&Value>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => field(name, parse(text)).map(Some),
        Some(value) => field(name, T::deserialize(value).map_err(|error| error.to_string())).map(Some),
    }
}

fn dependency(parent: &Value, refs: &Refs) -> Result<Dependency, String> {
    let spec = match parent {
        Value::String(id) => AfterSpec { id: id.clone(), on_failure: OnFailure::default() },
        value => field("after", AfterSpec::deserialize(value).map_err(|error| error.to_string()))?,
    };
    let job_id = match spec.id.strip_prefix('@') {
        Some(name) => *refs.get(name).ok_or_else(|| format!("`after`: no line has \"ref\": {name:?}"))?,
        None => field("after", spec.id.parse().map_err(|error: longhaul_queue::Error| error.to_string()))?,
    };
    Ok(Dependency { job_id, on_failure: spec.on_failure })
}

fn unique(value: &Value) -> Result<Unique, String> {
    if let Value::String(key) = value {
        return Ok(Unique::key(key));
    }
    let spec = UniqueSpec::deserialize(value).map_err(|error| error.to_string())?;
    let length = spec.window.as_deref().map(parse::duration).transpose()?;
    let window = length.map(|length| match spec.since {
        Since::Enqueue => Window::Enqueue { length },
        Since::Success => Window::Success { length },
    });
    let policy = match (spec.policy, spec.wait, spec.cap) {
        (PolicyName::Skip, None, None) => UniquePolicy::Skip,
        (PolicyName::Replace, None, None) => UniquePolicy::Replace,
        (PolicyName::Debounce, Some(wait), Some(cap)) => {
            UniquePolicy::Debounce { wait: parse::duration(&wait)?, cap: parse::duration(&cap)? }
        }
        (PolicyName::Debounce, _, _) => return Err("the policy debounce needs `wait` and `cap`".to_owned()),
        (PolicyName::Skip | PolicyName::Replace, _, _) => {
            return Err("`wait` and `cap` belong to the policy debounce".to_owned());
        }
    };
    Ok(Unique { key: spec.key, window, policy })
}

#[cfg(test)]
mod tests;
