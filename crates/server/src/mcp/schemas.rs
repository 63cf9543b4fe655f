//! What clients are shown of each tool: a title, what it does, and the JSON Schema by which its arguments are checked. The schema is
//! that of the type into which the arguments are read, with the bounds that types cannot say. There is no choice between shapes at the
//! top of it, because some providers refuse tools that have one.

use longhaul_api::job_in::JobIn;
use longhaul_api::prompts::RunIn;
use longhaul_queue::State;
use longhaul_queue::limits::NAME_BYTES_MAX;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::page::PAGE_MAX;
use super::tools::Tool;
use super::{change, jobs, reports, results, runs};
use crate::api::openapi::bounds;
use longhaul_pipeline::OwnNames;

/// Longest wait of one call. Clients give up on a call after a minute or two.
pub(super) const WAIT_MAX_S: u64 = 60;
pub(super) const WAIT_DEFAULT_S: u64 = 30;
/// Prompts in one call. Files take any number: `longhaul run`.
const PROMPTS_MAX: usize = 10_000;
/// Days that a report goes back.
pub(super) const DAYS_MAX: i64 = 366;
pub(super) const DAYS_DEFAULT: i64 = 31;

/// A title for people, and what it does, for models.
type About = (&'static str, &'static str);

/// What is said of a tool.
pub(super) fn about(tool: Tool) -> About {
    match tool {
        Tool::ListJobs => (
            "List jobs",
            "Lists jobs, newest first, in pages. Filters combine. Runs are listed by list_runs.",
        ),
        Tool::GetJob => (
            "Show a job",
            "Shows a job with its payload, result, error, attempts and log, and the reason why it waits; or, by the name of a run or \
             process, how far it is and what it cost. Values under names of secrets are shown as [redacted].",
        ),
        Tool::WaitJob => (
            "Wait for a job",
            "Waits until a job, run or process has ended, at most 60 seconds a call. ended is false when the time passed first: call \
             again. A run that is held says why; held for `outage`, it goes on by itself.",
        ),
        Tool::ListRuns => LIST_RUNS,
        Tool::GetRun => GET_RUN,
        Tool::GetResults => (
            "Read results",
            "Reads the result of a job, or the results of a run (answers of prompts, rows of a sheet) or process in order, in pages. \
             Long values are cut; the answer says which call gives the rest.",
        ),
        Tool::QueueStats => (
            "Queues and workers",
            "Shows queues with their jobs by state, whether they are paused, and which workers are alive.",
        ),
        Tool::ListJobKinds => (
            "Kinds of jobs",
            "Lists the kinds of jobs that are stored or that a living worker serves, with their queues and counts by state: what can be \
             enqueued and will be run.",
        ),
        Tool::CostReport => (
            "What was spent",
            "Shows what calls to models cost, by day (UTC), profile and model; or the sums of one run or tag. Amounts are in US \
             dollars.",
        ),
        Tool::EstimateCost => (
            "Estimate costs",
            "Says what prompts would cost with a model, one by one and in provider batches. Sends and stores nothing.",
        ),
        Tool::EnqueueJob => (
            "Add a job",
            "Stores a job, which a worker for its kind will run. Give an id of your own to be able to repeat the call safely.",
        ),
        Tool::SubmitBatch => (
            "Ask a model many prompts",
            "Stores a run of prompts (requests, or an input_file), each to be answered once by a model, and returns the run's id at once. \
             Workers answer it, also across restarts. The same call again is the same run: nothing is asked or paid for twice. This \
             spends money with real providers: estimate_cost first, and set max_cost_usd.",
        ),
        Tool::EditJob => (
            "Edit a job",
            "Changes priority, title or payload of a job that neither runs nor has succeeded. A payload that a run has worked with can be changed once the job has failed or was cancelled; retry_job then runs it again.",
        ),
        Tool::CancelJob => (
            "Cancel a job",
            "Cancels a job, or what is unfinished of a run or process. A running job is asked to end; answers so far are kept.",
        ),
        Tool::RetryJob => {
            ("Retry a job", "Puts a failed or cancelled job back, or the failed jobs of a run or process.")
        }
        Tool::PauseRun => PAUSE_RUN,
        Tool::ResumeRun => RESUME_RUN,
        Tool::CancelRun => CANCEL_RUN,
        Tool::RetryRun => RETRY_RUN,
        Tool::RemoveRun => REMOVE_RUN,
    }
}

const LIST_RUNS: About = (
    "List runs",
    "Lists runs of every pipeline, newest first, in pages: state, units done, failed and in all, and what was spent.",
);
const GET_RUN: About = (
    "Show a run",
    "Shows a run: state, units, money, settings, first parts and first failures. With wait_s it answers once nothing more \
     happens by itself, or when the time has passed. A run that is held says why; held for `outage`, it goes on by itself.",
);
const PAUSE_RUN: About =
    ("Pause a run", "Stops the units of a run from being begun; what is under way goes on until it ends.");
const RESUME_RUN: About = (
    "Resume a run",
    "Lets a paused or held run go on, with another limit of its cost if so wanted, and says how many of its jobs were held.",
);
const CANCEL_RUN: About = (
    "Cancel a run",
    "Ends a run early. What was done is kept; provider batches are asked to end, and what they have answered by then is kept too.",
);
const RETRY_RUN: About =
    ("Retry a run", "Tries again what failed in a run, or in one of its parts, and nothing else.");
const REMOVE_RUN: About =
    ("Delete a run", "Deletes a run for good, with its results. Refused while it has not ended.");

/// The schema of a tool's arguments.
pub(super) fn input(tool: Tool) -> Value {
    match tool {
        Tool::ListJobs => bounded::<jobs::ListArguments>(),
        Tool::GetJob => bounded::<jobs::GetArguments>(),
        Tool::WaitJob => bounded::<jobs::WaitArguments>(),
        Tool::ListRuns => bounded::<runs::ListArguments>(),
        Tool::GetRun => bounded::<runs::GetArguments>(),
        Tool::GetResults => bounded::<results::Arguments>(),
        Tool::QueueStats => bounded::<reports::QueueArguments>(),
        Tool::ListJobKinds => bounded::<reports::KindArguments>(),
        Tool::CostReport => bounded::<reports::CostArguments>(),
        Tool::EstimateCost | Tool::SubmitBatch => bounded::<RunIn>(),
        Tool::EnqueueJob => described::<JobIn>(),
        Tool::EditJob => bounded::<change::EditArguments>(),
        Tool::CancelJob => bounded::<change::CancelArguments>(),
        Tool::RetryJob => bounded::<change::RetryArguments>(),
        Tool::PauseRun | Tool::CancelRun | Tool::RemoveRun => bounded::<runs::RunArguments>(),
        Tool::ResumeRun => bounded::<runs::ResumeArguments>(),
        Tool::RetryRun => bounded::<runs::RetryArguments>(),
    }
}

/// The schema of arguments with the bounds that their fields have in tools.
fn bounded<T: ToSchema>() -> Value {
    let mut schema = described::<T>();
    for (field, described) in schema["properties"].as_object_mut().into_iter().flatten() {
        bounds::merge(described, bounds_of(field));
    }
    schema
}

/// The schema of a type, in one piece, with the bounds that the API's description has for it.
fn described<T: ToSchema>() -> Value {
    let mut parts = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut parts);
    let mut all: Value = parts.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
    // Only patterns tell of reserved names, and they are left out here: the check of a job refuses such names in words.
    bounds::add_to_schemas(&mut all, &OwnNames::new(Vec::new()));
    let mut schema = plain(&all[&*T::name()], &all);
    // Which fields go together is refused in words too.
    if let Some(fields) = schema.as_object_mut() {
        fields.retain(|name, _| !matches!(name.as_str(), "oneOf" | "anyOf" | "allOf"));
    }
    for (part, empty) in [("properties", json!({})), ("required", json!([]))] {
        if schema[part].is_null() {
            schema[part] = empty;
        }
    }
    schema
}

/// A schema without references, and without what some providers refuse or a model has no use for: `null` beside a type (a field is left
/// out instead), patterns, examples, exclusions and the widths of numbers.
fn plain(schema: &Value, all: &Value) -> Value {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(members) => return members.iter().map(|member| plain(member, all)).collect(),
        other => return other.clone(),
    };
    let mut whole = Map::new();
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("pattern" | "example" | "default" | "not", _) => {}
            ("enum", Value::Array(values)) => {
                let there = values.iter().filter(|value| !value.is_null()).cloned();
                whole.insert("enum".to_owned(), there.collect());
            }
            ("maximum", most) if *most == u64::MAX => {}
            ("format", format) if format != "uuid" => {}
            ("$ref", name) => {
                let name = name.as_str().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
                add_below(&mut whole, plain(&all[name], all));
            }
            ("type", Value::Array(types)) => {
                let named = types.iter().find(|name| *name != "null");
                whole.insert("type".to_owned(), named.cloned().unwrap_or_default());
            }
            ("oneOf", Value::Array(choices)) => {
                let mut choices: Vec<Value> = choices
                    .iter()
                    .filter(|choice| choice["type"] != "null")
                    .map(|choice| plain(choice, all))
                    .collect();
                match choices.len() {
                    1 => add_below(&mut whole, choices.remove(0)),
                    _ => drop(whole.insert("oneOf".to_owned(), choices.into())),
                }
            }
            // These are names, whatever they mean in a schema.
            ("properties", Value::Object(properties)) => {
                let there = properties.iter().filter(|(_, schema)| schema["type"] != "null");
                let there = there.map(|(name, schema)| (name.clone(), plain(schema, all)));
                whole.insert("properties".to_owned(), there.collect());
            }
            (name, value) => drop(whole.insert(name.to_owned(), plain(value, all))),
        }
    }
    Value::Object(whole)
}

/// Adds what a schema says to what already stands there and goes before it.
fn add_below(whole: &mut Map<String, Value>, schema: Value) {
    let Value::Object(fields) = schema else { return };
    for (name, value) in fields {
        whole.entry(name).or_insert(value);
    }
}

/// What holds for a field of this name, in the arguments of every tool.
fn bounds_of(field: &str) -> Value {
    let name = || json!({ "minLength": 1, "maxLength": NAME_BYTES_MAX });
    let within = |least: i64, most: i64| json!({ "minimum": least, "maximum": most });
    match field {
        "id" | "queue" | "kind" | "process" | "tag" | "search" | "run" | "name" | "pipeline" | "cursor" => {
            name()
        }
        "title" => json!({ "maxLength": NAME_BYTES_MAX }),
        "states" => json!({ "items": { "enum": State::ALL.map(State::as_str) } }),
        "limit" => json!({ "minimum": 1, "maximum": PAGE_MAX }),
        "timeout_seconds" | "wait_s" => json!({ "minimum": 0, "maximum": WAIT_MAX_S }),
        "offset" => within(0, i64::from(u32::MAX)),
        "days" => within(1, DAYS_MAX),
        "priority" => within(-1_000, 1_000),
        "max_tokens" => within(1, 10_000_000),
        "temperature" => within(0, 2),
        "max_cost_usd" => json!({ "exclusiveMinimum": 0, "maximum": 1_000_000 }),
        "requests" => json!({ "minItems": 1, "maxItems": PROMPTS_MAX }),
        _ => json!({}),
    }
}
