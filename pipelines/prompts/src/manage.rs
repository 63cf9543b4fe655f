//! What a person can do with a run that is under way or has ended.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use longhaul_pipeline::run::hold::{self, Hold};
use longhaul_pipeline::{numbered, unit_jobs};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{CancelReply, Filter, ListRequest, RetryRequest, Signal};
use longhaul_queue::{Job, JobDetail, Json, Queue, State};

use super::batch::{self, BatchPayload, BatchTold};
use super::run::{Mode, Run};
use super::{Error, Prompts, Result, RunId, request};

/// How long to wait for batches to take an order, and how often to look.
const TELL_TRIES_MAX: u32 = 60;
const TELL_WAIT: Duration = Duration::from_millis(500);

/// Lets the held jobs of a run go on, and says how many.
pub(super) async fn resume(prompts: &Prompts, run: &RunId) -> Result<u64> {
    let settings = Run::get(prompts.queue(), run).await?.settings;
    prompts.llm().route(&settings.profile, &settings.model).await?.reopen();
    hold::open(prompts.queue(), run, &Hold::RESUMED).await
}

/// Goes on with a run that is submitted again: whatever held it may be gone, and what has no answer is asked once more,
/// be it failed or cancelled. Says how many requests that are.
pub async fn go_on(prompts: &Prompts, run: &RunId) -> Result<u64> {
    hold::open(prompts.queue(), run, &Hold::RESUMED).await?;
    retry(prompts, run).await
}

/// Ends a run early. Batches are asked to end at the provider, and what they have answered by then is kept.
/// Answers how many requests were cancelled at once.
pub async fn cancel(prompts: &Prompts, run: &RunId) -> Result<u64> {
    Run::get(prompts.queue(), run).await?;
    let mut told = HashSet::new();
    let mut cancelled = 0;
    loop {
        let batches = batches(prompts, run).await?;
        cancelled += cancel_requests(prompts, run, &batches).await?;
        let news: Vec<_> = batches.iter().filter(|(detail, _)| told.insert(detail.job.id)).collect();
        if news.is_empty() {
            return Ok(cancelled);
        }
        for (detail, payload) in news {
            tell(prompts, &detail.job, payload, BatchTold::Cancel).await?;
        }
        // Again: a batch that was about to end may have sent its rest into a next one, or on their own.
    }
}

/// The run with which a job must be cancelled, if it may not be cancelled alone: a batch is at the provider, and requests
/// wait for it. `None` for all other jobs.
pub fn cancelled_with(job: &Job) -> Option<RunId> {
    let process = job.process_id.as_ref().filter(|_| job.kind == batch::KIND)?;
    Some(RunId::named(process.as_str()))
}

/// What became of jobs that were to be cancelled.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CancelledWhere {
    /// How many were cancelled, or asked to end.
    pub cancelled: u64,
    /// The runs of those that may not be cancelled alone; see [`cancelled_with`].
    pub kept: BTreeSet<String>,
}

/// Cancels every unfinished job that matches and may be cancelled alone. For jobs of all kinds.
pub async fn cancel_where(queue: &Queue, filter: Filter) -> Result<CancelledWhere> {
    let states = if filter.states.is_empty() { State::ALL.to_vec() } else { filter.states.clone() };
    let states = states.into_iter().filter(|state| !state.is_terminal()).collect::<Vec<_>>();
    let mut outcome = CancelledWhere::default();
    if states.is_empty() {
        return Ok(outcome);
    }
    let filter = Filter { states, ..filter };
    let mut cursor = None;
    loop {
        let request = ListRequest { filter: filter.clone(), newest_first: false, cursor, limit: PAGE_MAX };
        let page = queue.list(request).await?;
        outcome.kept.extend(page.items.iter().filter_map(cancelled_with).map(|run| run.to_string()));
        let alone = page.items.iter().filter(|job| cancelled_with(job).is_none());
        let replies = queue.store().cancel(alone.map(|job| job.id).collect(), queue.clock().now()).await?;
        let took = |reply: &&CancelReply| matches!(reply, CancelReply::Cancelled | CancelReply::Requested);
        outcome.cancelled += replies.iter().filter(took).count() as u64;
        cursor = page.next;
        if cursor.is_none() {
            return Ok(outcome);
        }
    }
}

/// Cancels the requests that wait for none of these batches. The others are cancelled by their batch, once it is known
/// which of them have an answer.
async fn cancel_requests(
    prompts: &Prompts,
    run: &RunId,
    batches: &[(JobDetail, BatchPayload)],
) -> Result<u64> {
    let mut cancelled = 0;
    let mut cursor = None;
    loop {
        let filter = Filter {
            states: unfinished(),
            kind: Some(request::KIND.to_owned()),
            process_id: Some(run.process()),
            ..Filter::default()
        };
        let page = prompts
            .queue()
            .list(ListRequest { filter, newest_first: false, cursor, limit: PAGE_MAX })
            .await?;
        let mine = |job: &&Job| !batches.iter().any(|(_, batch)| waits_for(job, run, batch));
        let ids: Vec<_> = page.items.iter().filter(mine).map(|job| job.id).collect();
        let replies = prompts.queue().store().cancel(ids, prompts.queue().clock().now()).await?;
        let at_once = |reply: &&CancelReply| matches!(reply, CancelReply::Cancelled);
        cancelled += replies.iter().filter(at_once).count() as u64;
        cursor = page.next;
        if cursor.is_none() {
            return Ok(cancelled);
        }
    }
}

fn waits_for(job: &Job, run: &RunId, batch: &BatchPayload) -> bool {
    let key = request::batch_key(run, batch.chunk);
    let member =
        batch.members.iter().any(|(first, last)| (*first..=*last).contains(&numbered::number(job.id)));
    member && job.park.as_ref().map_or(job.spent.parks == 0, |park| park.key == key)
}

/// Puts the requests of a run back that failed or were cancelled, with what they know, and says how many. They are sent one by one.
pub async fn retry(prompts: &Prompts, run: &RunId) -> Result<u64> {
    let mode = Run::get(prompts.queue(), run).await?.settings.mode;
    // One that was cancelled before it waited for its batch would wait for ever: the batch was cancelled with it.
    let may_run = |job: &&Job| job.state == State::Failed || mode == Mode::Sync || job.spent.parks > 0;
    let filter = Filter {
        states: vec![State::Failed, State::Cancelled],
        kind: Some(request::KIND.to_owned()),
        process_id: Some(run.process()),
        ..Filter::default()
    };
    let (queue, mut back, mut cursor) = (prompts.queue(), 0, None);
    loop {
        let page = ListRequest { filter: filter.clone(), newest_first: false, cursor, limit: PAGE_MAX };
        let page = queue.list(page).await?;
        let ids = page.items.iter().filter(may_run).map(|job| job.id).collect();
        let request = RetryRequest { ids, keep_data: true, now: queue.clock().now() };
        back += queue.store().retry(request).await?.iter().filter(|reply| reply.is_ok()).count() as u64;
        cursor = page.next;
        if cursor.is_none() {
            return Ok(back);
        }
    }
}

/// Decides what to do with batches whose fate is unknown or that the provider refuses, and says how many there were.
pub async fn resolve(prompts: &Prompts, run: &RunId, decision: BatchTold) -> Result<u64> {
    Run::get(prompts.queue(), run).await?;
    let mut told = 0;
    for (detail, _) in batches(prompts, run).await? {
        for held in [Hold::Ambiguous, Hold::BatchLimit] {
            let (key, signal) = (held.key(run), Signal::Resume(Json::of(&decision)?));
            told +=
                prompts.queue().unpark_waiting(&key, vec![detail.job.id], signal).await?.jobs.len() as u64;
        }
    }
    Ok(told)
}

/// Deletes a run for good: its results, its settings and its part of the ledger. Refused while requests are unfinished.
pub async fn remove(prompts: &Prompts, run: &RunId) -> Result<u64> {
    let deleted = unit_jobs::remove(prompts.queue(), Some(prompts.llm()), run).await?;
    prompts.forget(run);
    Ok(deleted)
}

/// The batches of a run that have not ended.
pub async fn batches(prompts: &Prompts, run: &RunId) -> Result<Vec<(JobDetail, BatchPayload)>> {
    batches_in(prompts, run, unfinished()).await
}

/// The batches of a run that its provider did not take, so that their requests were sent one by one. The error of each
/// says why.
pub async fn refused_batches(prompts: &Prompts, run: &RunId) -> Result<Vec<(JobDetail, BatchPayload)>> {
    batches_in(prompts, run, vec![State::Failed]).await
}

async fn batches_in(
    prompts: &Prompts,
    run: &RunId,
    states: Vec<State>,
) -> Result<Vec<(JobDetail, BatchPayload)>> {
    let filter = Filter {
        states,
        kind: Some(batch::KIND.to_owned()),
        process_id: Some(run.process()),
        ..Filter::default()
    };
    let page = prompts
        .queue()
        .list(ListRequest { filter, newest_first: false, cursor: None, limit: PAGE_MAX })
        .await?;
    let details = prompts.queue().store().get(page.items.iter().map(|job| job.id).collect()).await?;
    let with_payload = |detail: JobDetail| {
        let payload: BatchPayload = detail.payload.to()?;
        let kept = detail.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default();
        Ok((detail, payload.kept(kept)))
    };
    details.into_iter().map(with_payload).collect()
}

fn unfinished() -> Vec<State> {
    State::ALL.into_iter().filter(|state| !state.is_terminal()).collect()
}

/// Tells a batch job something, once it waits.
async fn tell(prompts: &Prompts, job: &Job, payload: &BatchPayload, told: BatchTold) -> Result<()> {
    let queue = prompts.queue();
    let run = payload.run_id();
    let mut keys = vec![payload.poll_key()];
    keys.extend(Hold::ALL.map(|held| held.key(&run)));
    for _ in 0..TELL_TRIES_MAX {
        let Some(detail) = queue.store().get(vec![job.id]).await?.pop() else { return Ok(()) };
        if detail.job.state.is_terminal() {
            return Ok(());
        }
        for key in &keys {
            let signal = Signal::Resume(Json::of(&told)?);
            if !queue.unpark_waiting(key, vec![job.id], signal).await?.jobs.is_empty() {
                return Ok(());
            }
        }
        // Nobody has run it yet: it has sent nothing.
        if detail.job.spent.parks == 0 && detail.job.started_at.is_none() {
            queue.store().cancel(vec![job.id], queue.clock().now()).await?;
            let members = payload.indexes().map(|index| run.job(index)).collect::<Vec<_>>();
            for page in members.chunks(PAGE_MAX) {
                queue.store().cancel(page.to_vec(), queue.clock().now()).await?;
            }
            return Ok(());
        }
        tokio::time::sleep(TELL_WAIT).await;
    }
    Err(Error::Invalid(format!("batch job {} does not answer: is a worker running? try again", job.id)))
}
