//! The tools: what there is, who may call it, and the way of a call from its arguments to its result.

use std::sync::OnceLock;

use axum::http::StatusCode;
use longhaul_llm::schema::Compiled;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Access, ask, change, jobs, reports, results, runs, schemas};
use crate::ctx::Ctx;
use crate::problem::Problem;
use crate::tokens::Scope;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    ListJobs,
    GetJob,
    WaitJob,
    ListRuns,
    GetRun,
    GetResults,
    QueueStats,
    ListJobKinds,
    CostReport,
    EstimateCost,
    EnqueueJob,
    SubmitBatch,
    EditJob,
    CancelJob,
    RetryJob,
    PauseRun,
    ResumeRun,
    CancelRun,
    RetryRun,
    RemoveRun,
}

impl Tool {
    /// All of them, in the order in which they are listed.
    pub(super) const ALL: [Self; 20] = [
        Self::ListJobs,
        Self::GetJob,
        Self::WaitJob,
        Self::ListRuns,
        Self::GetRun,
        Self::GetResults,
        Self::QueueStats,
        Self::ListJobKinds,
        Self::CostReport,
        Self::EstimateCost,
        Self::EnqueueJob,
        Self::SubmitBatch,
        Self::EditJob,
        Self::CancelJob,
        Self::RetryJob,
        Self::PauseRun,
        Self::ResumeRun,
        Self::CancelRun,
        Self::RetryRun,
        Self::RemoveRun,
    ];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ListJobs => "list_jobs",
            Self::GetJob => "get_job",
            Self::WaitJob => "wait_job",
            Self::ListRuns => "list_runs",
            Self::GetRun => "get_run",
            Self::GetResults => "get_results",
            Self::QueueStats => "queue_stats",
            Self::ListJobKinds => "list_job_kinds",
            Self::CostReport => "cost_report",
            Self::EstimateCost => "estimate_cost",
            Self::EnqueueJob => "enqueue_job",
            Self::SubmitBatch => "submit_batch",
            Self::EditJob => "edit_job",
            Self::CancelJob => "cancel_job",
            Self::RetryJob => "retry_job",
            Self::PauseRun => "pause_run",
            Self::ResumeRun => "resume_run",
            Self::CancelRun => "cancel_run",
            Self::RetryRun => "retry_run",
            Self::RemoveRun => "remove_run",
        }
    }

    /// What its caller must be allowed to.
    pub(super) fn needs(self) -> Scope {
        match self {
            Self::ListJobs
            | Self::GetJob
            | Self::WaitJob
            | Self::ListRuns
            | Self::GetRun
            | Self::GetResults
            | Self::QueueStats
            | Self::ListJobKinds
            | Self::CostReport
            | Self::EstimateCost => Scope::Read,
            Self::EnqueueJob | Self::SubmitBatch => Scope::Enqueue,
            Self::EditJob
            | Self::CancelJob
            | Self::RetryJob
            | Self::PauseRun
            | Self::ResumeRun
            | Self::CancelRun
            | Self::RetryRun
            | Self::RemoveRun => Scope::Admin,
        }
    }

    /// As clients list it.
    pub(super) fn described(self) -> Value {
        let (title, about) = schemas::about(self);
        json!({
            "name": self.name(),
            "title": title,
            "description": about,
            "inputSchema": self.input(),
            "annotations": {
                "title": title,
                "readOnlyHint": self.needs() == Scope::Read,
                "destructiveHint": matches!(self, Self::CancelJob | Self::CancelRun | Self::RemoveRun),
                // A job without an id of the caller's own is another job each time.
                "idempotentHint": self != Self::EnqueueJob,
                // Only a run goes out to a provider.
                "openWorldHint": self == Self::SubmitBatch,
            },
        })
    }

    /// The schema of its arguments.
    fn input(self) -> &'static Value {
        static INPUTS: OnceLock<Vec<Value>> = OnceLock::new();
        let all = INPUTS.get_or_init(|| Self::ALL.into_iter().map(schemas::input).collect());
        all.get(self as usize).unwrap_or(&Value::Null)
    }

    /// The schema of its arguments, ready to check them.
    fn compiled(self) -> Result<&'static Compiled, Problem> {
        static COMPILED: OnceLock<Vec<Result<Compiled, String>>> = OnceLock::new();
        let compile = |tool: Self| Compiled::new(tool.input()).map_err(|error| error.to_string());
        let all = COMPILED.get_or_init(|| Self::ALL.into_iter().map(compile).collect());
        match all.get(self as usize) {
            Some(Ok(compiled)) => Ok(compiled),
            Some(Err(error)) => Err(Problem::internal(error)),
            None => Err(Problem::internal("a tool has no schema")),
        }
    }
}

/// Calls a tool.
pub(super) async fn call(ctx: &Ctx, access: &Access, tool: Tool, arguments: Value) -> Result<Value, Problem> {
    if !access.allows(tool.needs()) {
        return Err(refused(tool));
    }
    refuse_unknown(tool, &arguments)?;
    tool.compiled()?.check(&arguments).map_err(|complaint| wrong(tool, &complaint))?;
    let caller = &access.caller;
    match tool {
        Tool::ListJobs => jobs::list(ctx, caller, read(tool, arguments)?).await,
        Tool::GetJob => jobs::get(ctx, caller, read(tool, arguments)?).await,
        Tool::WaitJob => jobs::wait(ctx, caller, read(tool, arguments)?).await,
        Tool::ListRuns => runs::list(ctx, caller, read(tool, arguments)?).await,
        Tool::GetRun => runs::get(ctx, caller, read(tool, arguments)?).await,
        Tool::GetResults => results::get(ctx, caller, read(tool, arguments)?).await,
        Tool::QueueStats => reports::queues(ctx, read(tool, arguments)?).await,
        Tool::ListJobKinds => reports::kinds(ctx, read(tool, arguments)?).await,
        Tool::CostReport => reports::costs(ctx, caller, read(tool, arguments)?).await,
        Tool::EstimateCost => ask::estimate(ctx, caller, read(tool, arguments)?).await,
        Tool::EnqueueJob => change::enqueue(ctx, caller, read(tool, arguments)?).await,
        Tool::SubmitBatch => ask::submit(ctx, caller, read(tool, arguments)?).await,
        Tool::EditJob => change::edit(ctx, caller, read(tool, arguments)?).await,
        Tool::CancelJob => change::cancel(ctx, caller, read(tool, arguments)?).await,
        Tool::RetryJob => change::retry(ctx, caller, read(tool, arguments)?).await,
        Tool::PauseRun => runs::pause(ctx, caller, read(tool, arguments)?).await,
        Tool::ResumeRun => runs::resume(ctx, caller, read(tool, arguments)?).await,
        Tool::CancelRun => runs::cancel(ctx, caller, read(tool, arguments)?).await,
        Tool::RetryRun => runs::retry(ctx, caller, read(tool, arguments)?).await,
        Tool::RemoveRun => runs::remove(ctx, caller, read(tool, arguments)?).await,
    }
}

/// Refuses an unknown argument and names the known ones: a model can then choose the one that it meant.
fn refuse_unknown(tool: Tool, arguments: &Value) -> Result<(), Problem> {
    let (Some(known), Some(given)) = (tool.input()["properties"].as_object(), arguments.as_object()) else {
        return Ok(());
    };
    let Some(unknown) = given.keys().find(|name| !known.contains_key(*name)) else { return Ok(()) };
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let there =
        if names.is_empty() { "it takes none".to_owned() } else { format!("there are {}", names.join(", ")) };
    Err(wrong(tool, &format!("there is no argument {unknown:?}; {there}")))
}

fn read<T: DeserializeOwned>(tool: Tool, arguments: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        wrong(tool, &format!("at /{}: {}", path.trim_matches('.').replace('.', "/"), error.into_inner()))
    })
}

fn wrong(tool: Tool, complaint: &str) -> Problem {
    Problem::invalid(format!("wrong arguments for {}: {complaint}", tool.name()))
}

/// What would have to be changed for it, by whoever runs the server.
fn refused(tool: Tool) -> Problem {
    let (name, scope) = (tool.name(), tool.needs().as_str());
    let text = format!(
        "{name} is not allowed: this endpoint is read-only. To allow writes, start it with longhaul mcp --allow-write; over HTTP, use a \
         token with the scope {scope}, or set server.mcp_write where no token is needed"
    );
    Problem::new(StatusCode::FORBIDDEN, "not_allowed", text)
}

/// What a call answers: the value for programs, and the same as text for clients that know no other. A problem is told to the
/// model, which can do something about it.
pub(super) fn result(called: Result<Value, Problem>) -> Value {
    match called {
        Ok(value) => json!({
            "content": [{ "type": "text", "text": value.to_string() }],
            "structuredContent": value,
            "isError": false,
        }),
        Err(problem) => {
            let mut text = problem.detail.clone();
            let mut told = json!({ "code": problem.code, "detail": problem.detail });
            if let Some(field) = &problem.field {
                told["field"] = field.as_str().into();
                text.push_str(&format!(" (field {field})"));
            }
            if let Some(seconds) = problem.retry_after_seconds() {
                told["retry_after_s"] = seconds.into();
                text.push_str(&format!(" (try again in {seconds} s)"));
            }
            json!({ "content": [{ "type": "text", "text": text }], "structuredContent": told, "isError": true })
        }
    }
}
