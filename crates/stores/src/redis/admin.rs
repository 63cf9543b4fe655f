//! A person's verbs: cancel, retry, unhold, run now, delete.

use longhaul_queue::job::{JobId, WorkerId};
use longhaul_queue::store::{CancelReply, Deleted, RetryRequest, refusals};
use longhaul_queue::{Error, Result, State, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, Reader, corrupt};
use super::encode::Args;
use super::reply;
use super::scripts::Function;

fn id_args(ids: &[JobId]) -> Args {
    ids.iter().map(|id| id.as_bytes().to_vec()).collect()
}

fn state_of(value: &Value) -> Result<State> {
    codec::state(u8::try_from(reply::int(value)?).map_err(|_| corrupt("a state"))?)
}

pub(super) async fn cancel(store: &RedisStore, ids: &[JobId], now: Timestamp) -> Result<Vec<CancelReply>> {
    let replies = reply::list(store.link.run(Function::Cancel, now, id_args(ids)).await?)?;
    let answer = |value: &Value| match reply::int(value)? {
        1 => Ok(CancelReply::Cancelled),
        2 => Ok(CancelReply::Requested),
        3 => Ok(CancelReply::NotFound),
        ended => state_of(&Value::Int(ended - 10)).map(CancelReply::Ended),
    };
    replies.iter().map(answer).collect()
}

pub(super) async fn cancelling(store: &RedisStore, worker: &WorkerId) -> Result<Vec<JobId>> {
    let args = vec![worker.as_str().as_bytes().to_vec()];
    let ids = reply::list(store.link.run(Function::Cancelling, Timestamp::default(), args).await?)?;
    ids.iter().map(|id| Reader::new(reply::bytes(id)?).id()).collect()
}

/// A verb of `scripts/revive.lua`, and how its refusal is worded.
#[derive(Clone, Copy)]
enum Verb {
    Retry,
    Unhold,
    RunNow,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Unhold => "unhold",
            Self::RunNow => "run_now",
        }
    }

    fn done_to(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Unhold => "released from a hold",
            Self::RunNow => "started now",
        }
    }
}

pub(super) async fn retry(store: &RedisStore, request: &RetryRequest) -> Result<Vec<Result<State>>> {
    revive(store, Verb::Retry, &request.ids, request.keep_data, request.now).await
}

pub(super) async fn unhold(store: &RedisStore, id: JobId, now: Timestamp) -> Result<State> {
    one(revive(store, Verb::Unhold, &[id], true, now).await?)
}

pub(super) async fn run_now(store: &RedisStore, id: JobId, now: Timestamp) -> Result<State> {
    one(revive(store, Verb::RunNow, &[id], true, now).await?)
}

fn one(mut replies: Vec<Result<State>>) -> Result<State> {
    replies.pop().unwrap_or_else(|| Err(corrupt("an answer")))
}

async fn revive(
    store: &RedisStore,
    verb: Verb,
    ids: &[JobId],
    keep_data: bool,
    now: Timestamp,
) -> Result<Vec<Result<State>>> {
    let keep = if keep_data { b"1" } else { b"0" };
    let mut args: Args = vec![verb.name().as_bytes().to_vec(), keep.to_vec()];
    args.extend(id_args(ids));
    let replies = reply::list(store.link.run(Function::Revive, now, args).await?)?;
    replies.into_iter().zip(ids).map(|(value, id)| revived(value, *id, verb)).collect()
}

fn revived(value: Value, id: JobId, verb: Verb) -> Result<Result<State>> {
    if matches!(value, Value::Int(_)) {
        return state_of(&value).map(Ok);
    }
    let (head, rest) = reply::headed(value)?;
    let error = match (head.as_str(), rest.as_slice()) {
        ("gone", _) => refusals::no_job(id),
        ("state", [state]) => Error::wrong_state(id, state_of(state)?, verb.done_to()),
        ("free", _) => refusals::not_held(id),
        ("unique", [other, scope]) => {
            let other = Reader::new(reply::bytes(other)?).id()?;
            let scope = codec::text(reply::bytes(scope)?)?;
            let key = scope.splitn(3, '\u{1f}').nth(2).unwrap_or_default();
            refusals::key_taken(id, other, key)
        }
        _ => return Err(corrupt("an answer")),
    };
    Ok(Err(error))
}

pub(super) async fn delete(store: &RedisStore, ids: &[JobId]) -> Result<Deleted> {
    let value = store.link.run(Function::Delete, Timestamp::default(), id_args(ids)).await?;
    let [deleted, refused] = reply::fixed(value)?;
    let refusal = |value: Value| {
        let [id, state, child] = reply::fixed(value)?;
        let (id, state) = (Reader::new(reply::bytes(&id)?).id()?, state_of(&state)?);
        let child = reply::bytes(&child)?;
        if child.is_empty() {
            return Ok((id, Error::wrong_state(id, state, "deleted")));
        }
        let child = Reader::new(child).id()?;
        Ok((id, refusals::holds_child(id, state, child)))
    };
    let refused = reply::list(refused)?.into_iter().map(refusal).collect::<Result<_>>()?;
    Ok(Deleted { deleted: reply::count(&deleted)?, refused })
}
