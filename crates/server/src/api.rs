//! `/api/v1`: everything that the command line can do, over HTTP. One file a resource; this one is the router and the form of
//! errors, problem+json (RFC 9457). Routes and their description ([`openapi`]) come from the same list, so neither can lack
//! what the other has.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::ctx::Ctx;
use crate::problem::Problem;

mod actions;
mod costs;
mod counts;
mod events;
mod extract;
mod idempotency;
mod job_in;
pub(crate) mod jobs;
pub(crate) mod openapi;
mod page;
mod processes;
pub(crate) mod prompts;
mod queues;
mod remote_workers;
#[expect(unused_qualifications, reason = "written by the macro that describes parameters")]
mod runs;
mod schedules;
mod sheets;
mod verbs;
mod webhooks;
mod work;
mod workers;

pub(crate) use actions::Actions;
pub(crate) use events::Streams;
pub(crate) use remote_workers::RemoteWorkers;
pub(crate) use runs::remove as remove_run;

/// The routes.
pub(crate) fn routes() -> Router<Ctx> {
    described().split_for_parts().0.route("/openapi.json", get(openapi::show))
}

/// The routes with their description.
fn described() -> OpenApiRouter<Ctx> {
    OpenApiRouter::with_openapi(openapi::about())
        .routes(routes!(jobs::list_jobs, jobs::enqueue_jobs))
        .routes(routes!(jobs::show_job, verbs::edit_job, verbs::delete_job))
        .routes(routes!(jobs::explain_job))
        .routes(routes!(verbs::retry_job))
        .routes(routes!(verbs::run_job_now))
        .routes(routes!(verbs::cancel_job))
        .routes(routes!(verbs::unhold_job))
        .routes(routes!(verbs::send_signal))
        .routes(routes!(actions::start_action))
        .routes(routes!(actions::show_action, actions::abort_action))
        .routes(routes!(processes::list_processes))
        .routes(routes!(processes::show_process))
        .routes(routes!(processes::cancel_process))
        .routes(routes!(processes::open_process))
        .routes(routes!(processes::seal_process))
        .routes(routes!(processes::process_results))
        .routes(routes!(processes::consume_process))
        .routes(routes!(counts::count_jobs))
        .routes(routes!(queues::list_queues))
        .routes(routes!(queues::show_queue, queues::change_queue))
        .routes(routes!(queues::pause_queue))
        .routes(routes!(queues::resume_queue))
        .routes(routes!(schedules::list_schedules))
        .routes(routes!(schedules::put_schedule, schedules::delete_schedule))
        .routes(routes!(schedules::run_schedule))
        .routes(routes!(workers::list_workers))
        .routes(routes!(work::claim_work))
        .routes(routes!(work::extend_work))
        .routes(routes!(work::save_work))
        .routes(routes!(work::settle_work))
        .routes(routes!(runs::list_runs))
        .routes(routes!(runs::show_run, runs::delete_run))
        .routes(routes!(runs::run_parts))
        .routes(routes!(runs::run_results))
        .routes(routes!(runs::cancel_run))
        .routes(routes!(runs::pause_run))
        .routes(routes!(runs::resume_run))
        .routes(routes!(runs::retry_run))
        .routes(routes!(prompts::submit_run))
        .routes(routes!(prompts::estimate_run))
        .routes(routes!(prompts::resolve_run))
        .routes(routes!(sheets::score_sheet))
        .routes(routes!(sheets::estimate_sheet))
        .routes(routes!(sheets::tables::sheet_blanks))
        .routes(routes!(sheets::output::sheet_output))
        .routes(routes!(costs::show_costs))
        .routes(routes!(costs::unknown_costs))
        .routes(routes!(costs::resolve_costs))
        .routes(routes!(costs::cost_decisions))
        .routes(routes!(events::stream_events))
        .routes(routes!(webhooks::list_webhooks))
        .routes(routes!(webhooks::show_webhook, webhooks::put_webhook, webhooks::delete_webhook))
        .routes(routes!(webhooks::rotate_webhook))
        .routes(routes!(webhooks::test_webhook))
        .routes(routes!(webhooks::list_deliveries))
        .routes(routes!(webhooks::resend_delivery))
}

/// Whether a path starts a run of a pipeline, or says what one would cost.
pub(crate) fn starts_work(path: &str) -> bool {
    STARTS.iter().any(|start| path.strip_prefix(start).is_some_and(|rest| matches!(rest, "" | "/estimate")))
}

/// Where runs are started: a route of each pipeline.
const STARTS: [&str; 2] = [prompts::START, sheets::START];

/// What a handler of this family answers.
type ApiResult<T> = Result<T, ApiError>;

/// A problem in this family's form.
pub(crate) struct ApiError(pub(crate) Problem);

impl<E: Into<Problem>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        refusal(&self.0)
    }
}

/// Writes a problem.
pub(crate) fn refusal(problem: &Problem) -> Response {
    let mut body = json!({
        "type": format!("urn:longhaul:problem:{}", problem.code),
        "title": problem.status.canonical_reason().unwrap_or("Error"),
        "status": problem.status.as_u16(),
        "code": problem.code,
        "detail": problem.detail,
    });
    if let Some(field) = &problem.field {
        body["field"] = json!(field);
    }
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))];
    let mut response = (problem.status, kind, body.to_string()).into_response();
    if let Some(seconds) = problem.retry_after_seconds() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
