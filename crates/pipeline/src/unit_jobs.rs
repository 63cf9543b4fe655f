//! Runs whose units are jobs: what [`Pipeline`] does for them unless a pipeline knows better. A helper, such as the manifest, is not a
//! unit.

use std::time::Duration;

use longhaul_llm::{Llm, Scope};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{CancelReply, Filter, ListRequest, Page};
use longhaul_queue::{Job, JobContext, Json, Outcome, Queue, State};

use crate::pipeline::{FailedUnit, Listener, Pipeline};
use crate::run::status::Status;
use crate::run::{Run, RunId};
use crate::{Error, Result, numbered};

/// How often a run that is about to end is looked at before it is removed, and how long in between.
const END_LOOKS_MAX: u32 = 60;
const END_LOOK_GAP: Duration = Duration::from_millis(50);

/// Ends a run: the answer of its manifest. `listener` is told, and the status is kept as the run's last word.
pub async fn end(pipeline: &dyn Pipeline, listener: &dyn Listener, context: &JobContext) -> Result<Outcome> {
    let Some(process) = &context.job().process_id else {
        return Err(Error::Invalid("a run's job belongs to its process".to_owned()));
    };
    let run = Run::get(pipeline.queue(), &RunId::named(process.as_str())).await?;
    let status = Status::of(pipeline, &run).await?;
    listener.ended(context, &status, pipeline.queue().clock().now());
    Ok(Outcome::Done(Json::of(&status)?))
}

/// Deletes a run for good: its jobs, their results and its part of the ledger. Refused while units are unfinished.
pub async fn remove(queue: &Queue, llm: Option<&Llm>, run: &RunId) -> Result<u64> {
    let info = queue.store().process(run.process()).await?;
    if info.is_some_and(|info| info.sealed && info.unfinished() == 0) {
        end_helpers(queue, run).await?;
    }
    let deleted = queue.consume_process(&run.process()).await?;
    if let Some(llm) = llm {
        llm.ledger().forget(&Scope::run(run.as_str())).await.map_err(longhaul_llm::Error::from)?;
    }
    Ok(deleted)
}

/// Ends what a run has left when all of its units have ended: other helpers, and its own last word, which nobody will read. What
/// runs is given the time to end by itself.
async fn end_helpers(queue: &Queue, run: &RunId) -> Result<()> {
    for _ in 0..END_LOOKS_MAX {
        let left = page(queue, run, unfinished(), None).await?.items;
        if left.is_empty() {
            return Ok(());
        }
        let waits = |job: &&Job| job.id == run.manifest() && job.state != State::Running;
        let waiting = left.iter().filter(waits).map(|job| job.id).collect();
        queue.store().cancel(waiting, queue.clock().now()).await?;
        tokio::time::sleep(END_LOOK_GAP).await;
    }
    Err(Error::Invalid(format!("{run} is about to end: try again")))
}

/// Cancels the units of a run, and says how many. Its manifest is left to end the run.
pub(crate) async fn cancel(queue: &Queue, run: &RunId) -> Result<u64> {
    let (mut cancelled, mut cursor) = (0, None);
    loop {
        let page = page(queue, run, unfinished(), cursor).await?;
        let units = page.items.iter().filter(|job| !job.helper).map(|job| job.id).collect();
        let replies = queue.store().cancel(units, queue.clock().now()).await?;
        let took = |reply: &&CancelReply| matches!(reply, CancelReply::Cancelled | CancelReply::Requested);
        cancelled += replies.iter().filter(took).count() as u64;
        cursor = page.next;
        if cursor.is_none() {
            return Ok(cancelled);
        }
    }
}

/// Puts back the units of a run that failed or were cancelled, with their checkpoints, and says how many. A manifest without a last
/// word ends the run once more.
pub(crate) async fn retry(queue: &Queue, run: &Run) -> Result<u64> {
    let states = vec![State::Failed, State::Cancelled];
    let with_manifest = states.contains(&queue.get(run.id.manifest()).await?.job.state);
    let filter = Filter { states, process_id: Some(run.id.process()), ..Filter::default() };
    let retried = queue.retry_where(filter, true).await?;
    Ok(retried.saturating_sub(u64::from(with_manifest)))
}

/// The first units of a run that failed, at most `limit`.
pub(crate) async fn failures(queue: &Queue, run: &RunId, limit: usize) -> Result<Vec<FailedUnit>> {
    let (mut failed, mut cursor) = (Vec::new(), None);
    loop {
        let page = page(queue, run, vec![State::Failed], cursor).await?;
        let units = page.items.into_iter().filter(|job| !job.helper).map(|job| FailedUnit {
            // As in files of results.
            unit: job.options.title.unwrap_or_else(|| format!("index {}", numbered::number(job.id))),
            reason: job.error.map(|error| error.text),
        });
        failed.extend(units.take(limit - failed.len()));
        cursor = page.next;
        if cursor.is_none() || failed.len() == limit {
            return Ok(failed);
        }
    }
}

async fn page(queue: &Queue, run: &RunId, states: Vec<State>, cursor: Option<i64>) -> Result<Page<Job>> {
    let filter = Filter { states, process_id: Some(run.process()), ..Filter::default() };
    Ok(queue.list(ListRequest { filter, newest_first: false, cursor, limit: PAGE_MAX }).await?)
}

fn unfinished() -> Vec<State> {
    State::ALL.into_iter().filter(|state| !state.is_terminal()).collect()
}
