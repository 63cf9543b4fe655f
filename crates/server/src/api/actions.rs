//! One verb for all jobs that match a filter. It goes on in the background, page by page, and tells how far it is. Actions are
//! kept in memory: each verb is harmless when repeated, so one that a restart cut off is simply asked for again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Extension;
use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_api::actions::{ActionIn, ActionOut, FilterIn, Verb};
use longhaul_prompts::manage;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{CancelReply, Filter, ListRequest, RetryRequest};
use longhaul_queue::{Job, JobId, State};

use super::ApiResult;
use super::extract::ApiJson;
use super::jobs::searched;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::redact;

/// Actions remembered; the oldest that is done goes first.
const ACTIONS_MAX: usize = 100;

/// The actions of this process.
#[derive(Debug, Default)]
pub(crate) struct Actions(Mutex<VecDeque<Arc<Action>>>);

#[derive(Debug)]
struct Action {
    id: String,
    verb: Verb,
    matched: AtomicU64,
    changed: AtomicU64,
    aborted: AtomicBool,
    ended: Mutex<Option<Result<(), String>>>,
}

/// The states that a verb applies to.
fn narrow(verb: Verb, states: Vec<State>) -> Vec<State> {
    let applies = |state: &State| match verb {
        Verb::Retry => matches!(state, State::Failed | State::Cancelled),
        Verb::Cancel => !state.is_terminal(),
        Verb::Delete => state.is_terminal(),
    };
    let states = match (verb, states.is_empty()) {
        // Cancelled jobs come back only when named: somebody meant it.
        (Verb::Retry, true) => vec![State::Failed],
        (Verb::Cancel | Verb::Delete, true) => State::ALL.to_vec(),
        (_, false) => states,
    };
    states.into_iter().filter(applies).collect()
}

fn read(filter: FilterIn, hide_secrets: bool) -> Result<Filter, Problem> {
    let FilterIn { state, queue, kind, process, tag, search } = filter;
    let process_id = process.map(Into::into);
    let given = Filter { states: state, queue, kind, process_id, tag, hide_secrets, ..Filter::default() };
    searched(given, search.as_deref())
}

impl Action {
    fn show(&self) -> ActionOut {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ActionOut {
            id: self.id.clone(),
            action: self.verb,
            matched_so_far: self.matched.load(Ordering::Relaxed),
            changed: self.changed.load(Ordering::Relaxed),
            done: ended.is_some(),
            aborted: self.aborted.load(Ordering::Relaxed),
            error: ended.and_then(Result::err),
        }
    }

    fn is_done(&self) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn end(&self, how: Result<(), String>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
    }
}

impl Actions {
    fn add(&self, verb: Verb) -> Result<Arc<Action>, Problem> {
        let mut actions = self.lock();
        if actions.len() >= ACTIONS_MAX {
            let over = actions.iter().position(|action| action.is_done());
            let Some(over) = over else {
                return Err(Problem::unavailable(format!(
                    "{ACTIONS_MAX} actions are under way: wait for one"
                )));
            };
            actions.remove(over);
        }
        let action = Arc::new(Action {
            id: format!("act_{:016x}", fastrand::u64(..)),
            verb,
            matched: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
            ended: Mutex::new(None),
        });
        actions.push_back(Arc::clone(&action));
        Ok(action)
    }

    fn find(&self, id: &str) -> Result<Arc<Action>, Problem> {
        let found = self.lock().iter().find(|action| action.id == id).cloned();
        found.ok_or_else(|| Problem::not_found(format!("there is no action {id}: it is too long ago")))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Action>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a verb for all jobs that match a filter.
#[utoipa::path(post, path = "/api/v1/jobs/actions", tag = "jobs", request_body = ActionIn, responses((status = 202, body = ActionOut)))]
pub(super) async fn start_action(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<ActionIn>,
) -> ApiResult<(StatusCode, Answer<ActionOut>)> {
    let hide_secrets = redact::hides_from(&caller);
    let filter = read(asked.filter, hide_secrets)?;
    if filter == (Filter { hide_secrets, ..Filter::default() }) && !asked.all {
        let text = "the filter is empty, which means every job: say so with \"all\": true";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at("filter").into());
    }
    let filter = Filter { states: narrow(asked.action, filter.states), ..filter };
    let action = ctx.actions.add(asked.action)?;
    let shown = action.show();
    tokio::spawn(async move {
        let ended = walk(&ctx, &action, filter, asked.keep_data).await;
        action.end(ended.map_err(|problem| problem.detail));
    });
    Ok((StatusCode::ACCEPTED, Answer(shown)))
}

async fn walk(ctx: &Ctx, action: &Action, filter: Filter, keep_data: bool) -> Result<(), Problem> {
    if filter.states.is_empty() {
        return Ok(());
    }
    let mut cursor = None;
    loop {
        if action.aborted.load(Ordering::Relaxed) {
            return Ok(());
        }
        if *ctx.draining.borrow() {
            return Err(Problem::unavailable("the server ended before the action did: ask for it again"));
        }
        // In submission order: what a verb changes does not move, so no page repeats or skips a job.
        let request = ListRequest { filter: filter.clone(), newest_first: false, cursor, limit: PAGE_MAX };
        let page = ctx.queue().list(request).await?;
        // A batch at the provider goes with its run, or not at all.
        let alone = |job: &&Job| action.verb != Verb::Cancel || manage::cancelled_with(job).is_none();
        let ids: Vec<JobId> = page.items.iter().filter(alone).map(|job| job.id).collect();
        action.matched.fetch_add(ids.len() as u64, Ordering::Relaxed);
        let changed = change(ctx, action.verb, ids, keep_data).await?;
        action.changed.fetch_add(changed, Ordering::Relaxed);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

async fn change(ctx: &Ctx, verb: Verb, ids: Vec<JobId>, keep_data: bool) -> Result<u64, Problem> {
    let queue = ctx.queue();
    match verb {
        Verb::Retry => {
            let replies =
                queue.store().retry(RetryRequest { ids, keep_data, now: queue.clock().now() }).await?;
            Ok(replies.iter().filter(|reply| reply.is_ok()).count() as u64)
        }
        Verb::Cancel => {
            let took =
                |reply: &&CancelReply| matches!(reply, CancelReply::Cancelled | CancelReply::Requested);
            Ok(queue.store().cancel(ids, queue.clock().now()).await?.iter().filter(took).count() as u64)
        }
        Verb::Delete => Ok(queue.consume(ids).await?.deleted),
    }
}

/// Tells how far an action is.
#[utoipa::path(get, path = "/api/v1/jobs/actions/{id}", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = ActionOut)))]
pub(super) async fn show_action(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<ActionOut>> {
    Ok(Answer(ctx.actions.find(&id)?.show()))
}

/// Ends an action early; what it has changed stays changed.
#[utoipa::path(delete, path = "/api/v1/jobs/actions/{id}", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = ActionOut)))]
pub(super) async fn abort_action(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<ActionOut>> {
    let action = ctx.actions.find(&id)?;
    action.aborted.store(true, Ordering::Relaxed);
    Ok(Answer(action.show()))
}
