//! What clients are shown of each tool: a title, what it does, and the JSON Schema by which its arguments are checked. There is no
//! choice between shapes at the top of a schema, because some providers refuse tools that have one.

use longhaul_queue::State;
use longhaul_queue::limits::NAME_BYTES_MAX;
use serde_json::{Value, json};

use super::tools::Tool;

/// Jobs and results on one page.
pub(super) const PAGE_MAX: usize = 100;
pub(super) const PAGE_DEFAULT: usize = 20;
/// Longest wait of one call. Clients give up on a call after a minute or two.
pub(super) const WAIT_MAX_S: u64 = 60;
pub(super) const WAIT_DEFAULT_S: u64 = 30;
/// Prompts in one call. Files take any number: `longhaul run`.
pub(super) const PROMPTS_MAX: usize = 10_000;
/// Messages of one conversation.
const MESSAGES_MAX: usize = 1_000;
/// Days that a report goes back.
pub(super) const DAYS_MAX: i64 = 366;
pub(super) const DAYS_DEFAULT: i64 = 31;
/// Longest delay: a year.
const DELAY_MAX_S: u64 = 366 * 24 * 3600;

/// A title for people, and what it does, for models.
pub(super) fn about(tool: Tool) -> (&'static str, &'static str) {
    match tool {
        Tool::ListJobs => (
            "List jobs",
            "Lists jobs, newest first, in pages. Filters combine. Runs of prompts are jobs with the tag llm.run.",
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
        Tool::GetResults => (
            "Read results",
            "Reads what a job answered, or the answers of a run or process in submission order, in pages. Long values are cut; the \
             answer says which call gives the rest.",
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
            "Shows what calls to models cost, by day (UTC), profile and model; or the sums of one run or tag. Amounts are in millionths \
             of a US dollar.",
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
            "Stores a run of prompts (or conversations), each to be answered once by a model, and returns the run's name at once. \
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
    }
}

/// The schema of a tool's arguments.
pub(super) fn input(tool: Tool) -> Value {
    match tool {
        Tool::ListJobs => object(&list_jobs(), &[]),
        Tool::GetJob => object(&json!({ "id": id() }), &["id"]),
        Tool::WaitJob => object(&wait_job(), &["id"]),
        Tool::GetResults => object(&get_results(), &["id"]),
        Tool::QueueStats => object(&json!({ "queue": name("Only this queue.") }), &[]),
        Tool::ListJobKinds => object(&json!({}), &[]),
        Tool::CostReport => object(&cost_report(), &[]),
        Tool::EstimateCost => object(&prompts(), &["model"]),
        Tool::EnqueueJob => object(&enqueue_job(), &["kind"]),
        Tool::SubmitBatch => object(&submit_batch(), &["model"]),
        Tool::EditJob => object(&edit_job(), &["id"]),
        Tool::CancelJob => object(&json!({ "id": id() }), &["id"]),
        Tool::RetryJob => object(&retry_job(), &["id"]),
    }
}

fn object(properties: &Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn name(about: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "description": about })
}

fn id() -> Value {
    name("A job's id (a UUID), or the name of a run (run-…) or of a process.")
}

fn tags(about: &str) -> Value {
    json!({ "type": "array", "maxItems": 32, "items": name("A tag."), "description": about })
}

fn integer(min: u64, max: u64, about: &str) -> Value {
    json!({ "type": "integer", "minimum": min, "maximum": max, "description": about })
}

fn page(what: &str) -> Value {
    integer(1, PAGE_MAX as u64, &format!("How many {what}; default {PAGE_DEFAULT}."))
}

fn list_jobs() -> Value {
    json!({
        "states": {
            "type": "array",
            "items": { "type": "string", "enum": State::ALL.map(State::as_str) },
            "description": "Any of these states; default all.",
        },
        "queue": name("Only this queue."),
        "kind": name("Only this kind."),
        "process": name("Only jobs of this process or run."),
        "tag": name("Only jobs with this tag."),
        "search": name("Text in the payload, title or error, or the start of an id."),
        "oldest_first": { "type": "boolean", "description": "In submission order instead of newest first." },
        "limit": page("jobs"),
        "cursor": { "type": "integer", "description": "next_cursor of the page before." },
    })
}

fn wait_job() -> Value {
    json!({
        "id": id(),
        "timeout_seconds":
            integer(0, WAIT_MAX_S, &format!("How long to wait; default {WAIT_DEFAULT_S}.")),
    })
}

fn get_results() -> Value {
    json!({
        "id": id(),
        "part": {
            "type": "string",
            "enum": ["result", "payload"],
            "description": "Of a single job: its result (default) or its payload.",
        },
        "offset": integer(0, u64::from(u32::MAX), "Of a single job: the byte of the value's JSON text to go on from."),
        "limit": page("results of a run or process"),
        "after": integer(0, i64::MAX.unsigned_abs(), "Of a run or process: next_after of the page before."),
        "failed_only": { "type": "boolean", "description": "Of a run or process: only what has no result." },
    })
}

fn cost_report() -> Value {
    json!({
        "days": integer(1, DAYS_MAX.unsigned_abs(), &format!("How many days back; default {DAYS_DEFAULT}.")),
        "run": name("The sums of this run instead."),
        "tag": name("The sums of this tag instead."),
    })
}

fn prompts() -> Value {
    json!({
        "model": name("The model as its provider names it, or PROFILE/MODEL, such as sim/sim-small."),
        "prompts": {
            "type": "array",
            "minItems": 1,
            "maxItems": PROMPTS_MAX,
            "items": { "type": "string", "minLength": 1 },
            "description": "Texts, each a request of its own. Give these or messages.",
        },
        "messages": {
            "type": "array",
            "minItems": 1,
            "maxItems": PROMPTS_MAX,
            "items": {
                "type": "array",
                "minItems": 1,
                "maxItems": MESSAGES_MAX,
                "items": {
                    "type": "object",
                    "properties": {
                        "role": { "type": "string", "enum": ["system", "user", "assistant"] },
                        "content": { "type": "string" },
                    },
                    "required": ["role", "content"],
                    "additionalProperties": false,
                },
            },
            "description": "Conversations, each a list of messages and a request of its own. Give these or prompts.",
        },
        "system": { "type": "string", "description": "A system text for all of them." },
        "max_tokens": integer(1, 10_000_000, "Most output tokens of each answer."),
    })
}

fn submit_batch() -> Value {
    let mut fields = prompts();
    fields["custom_ids"] = json!({
        "type": "array",
        "uniqueItems": true,
        "maxItems": PROMPTS_MAX,
        "items": { "type": "string", "minLength": 1, "maxLength": 512 },
        "description": "Your names for the requests, one each, in the same order; they come back with the answers.",
    });
    fields["temperature"] =
        json!({ "type": "number", "minimum": 0, "maximum": 2, "description": "For all of them." });
    fields["schema"] =
        json!({ "type": "object", "description": "A JSON Schema that every answer must fit." });
    fields["mode"] = json!({
        "type": "string",
        "enum": ["auto", "sync", "batch"],
        "description":
            "sync: one by one, at once; batch: in provider batches, cheaper, up to a day; auto: in batches where there are any. Default \
             as the server is set.",
    });
    fields["max_cost_usd"] = json!({
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1_000_000,
        "description": "Nothing is sent that could cost more in all; the run is then held.",
    });
    fields["tags"] = tags("Labels; spending is counted by them too.");
    fields["name"] = name("A name for people.");
    fields
}

fn enqueue_job() -> Value {
    json!({
        "kind": name("Which handler runs it, such as echo."),
        "payload": { "description": "Its input: any JSON. Put no secrets into it. Default null." },
        "id": { "type": "string", "format": "uuid", "description": "An id of your own; the same job again is stored once." },
        "queue": name("The queue; default `default`."),
        "process": name("A group it belongs to, by which results are read together."),
        "priority": { "type": "integer", "minimum": -1000, "maximum": 1000, "description": "Lower runs first; default 0." },
        "delay_seconds": integer(0, DELAY_MAX_S, "Start it so much later; default at once."),
        "unique_key": name("At most one unfinished job per key: a second call returns the first job."),
        "max_attempts": integer(1, 1_000, "How often it may fail; default 3."),
        "title": name("A name for people."),
        "tags": tags("Labels."),
    })
}

fn edit_job() -> Value {
    json!({
        "id": id(),
        "priority": { "type": "integer", "minimum": -1000, "maximum": 1000, "description": "Lower runs first." },
        "title": { "type": "string", "maxLength": NAME_BYTES_MAX, "description": "A name for people; an empty one takes it away." },
        "payload": { "description": "The input of the next run, which begins without a checkpoint: any JSON. Put no secrets into it." },
    })
}

fn retry_job() -> Value {
    json!({
        "id": id(),
        "from_start": {
            "type": "boolean",
            "description": "Of a single job: forget its checkpoint. Default: go on from there.",
        },
    })
}
