//! Enqueue of jobs that concern nobody else: one statement writes them and takes their places, or they are copied in
//! when they are many. Nothing is looked up before. An id that is taken makes the transaction fail, and it is run again
//! in the careful way of [`super::insert`].

use longhaul_queue::job::ProcessId;
use longhaul_queue::store::{Enqueued, InsertOutcome, rules};
use longhaul_queue::{NewJob, State, Timestamp};
use tokio_postgres::error::SqlState;

use super::columns::Jobs;
use super::error::{DbError, DbResult};
use super::insert::{id_of, lock_seq, write_tags};
use super::rows::{flag, millis, options_text, state_number, uuid};
use super::tx::Tx;
use crate::changes::JobKey;

/// From so many jobs on, copying is faster than one statement with arrays.
const COPY_FROM_JOBS: usize = 50;

/// Stores the jobs of several submissions, each at its own time, and answers each.
pub(super) async fn insert(
    tx: &mut Tx<'_>,
    parts: &[(&[NewJob], Timestamp)],
) -> DbResult<Vec<Vec<Enqueued>>> {
    let mut jobs = Jobs::default();
    let mut states = Vec::new();
    for (new, now) in parts {
        for job in *new {
            let state = add(&mut jobs, job, *now)?;
            let process = job.process_id.as_ref().map(ProcessId::as_str);
            let subject =
                JobKey { id: id_of(job)?, queue: &job.queue, kind: &job.kind, process, helper: job.helper };
            tx.moved(subject, None, Some(state));
            states.push(state);
        }
    }
    let tagged = parts.iter().flat_map(|(new, _)| new.iter()).any(|job| !job.options.tags.is_empty());
    let first = match write(tx, &mut jobs, !tagged).await {
        Err(DbError::Sql(error)) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            return Err(DbError::Alone);
        }
        other => other?,
    };
    let placed = parts.iter().flat_map(|(new, _)| new.iter());
    write_tags(tx, (first..).zip(placed)).await?;
    let mut rest = (first..).zip(states);
    let mut replies = Vec::with_capacity(parts.len());
    for (new, _) in parts {
        let mut enqueued = Vec::with_capacity(new.len());
        for (job, (seq, state)) in new.iter().zip(rest.by_ref().take(new.len())) {
            enqueued.push(Enqueued { id: id_of(job)?, seq, state, how: InsertOutcome::Inserted });
        }
        replies.push(enqueued);
    }
    Ok(replies)
}

fn add<'j>(jobs: &mut Jobs<'j>, job: &'j NewJob, now: Timestamp) -> DbResult<State> {
    let run_at = job.run_at.unwrap_or(now);
    let state = rules::first_state(false, run_at, now);
    jobs.id.push(uuid(id_of(job)?));
    jobs.queue.push(&job.queue);
    jobs.kind.push(&job.kind);
    jobs.state.push(state_number(state));
    jobs.priority.push(job.priority);
    jobs.run_at.push(run_at.as_millis());
    jobs.flags.push(flag::of_new(job));
    jobs.process.push(job.process_id.as_ref().map(ProcessId::as_str));
    jobs.waits_for.push(0);
    jobs.expires_at.push(millis(job.expires_at));
    jobs.due_at.push(millis(Some(run_at).filter(|_| state == State::Scheduled)));
    jobs.options.push(options_text(&job.options)?);
    jobs.payload.push(job.payload.as_str());
    jobs.created_at.push(now.as_millis());
    jobs.fair_key.push(job.options.fair_key.as_deref());
    Ok(state)
}

/// Writes jobs that have no place yet, and returns the first of their places. With `last`, nothing follows.
async fn write(tx: &mut Tx<'_>, jobs: &mut Jobs<'_>, last: bool) -> DbResult<i64> {
    if jobs.id.len() < COPY_FROM_JOBS {
        return jobs.place(tx, last).await;
    }
    let last = lock_seq(tx).await?;
    jobs.seq = (last + 1..).take(jobs.id.len()).collect();
    jobs.copy(tx).await?;
    jobs.write_places(tx, last).await?;
    Ok(last + 1)
}
