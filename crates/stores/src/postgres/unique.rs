//! Unique keys: at most one unfinished job per (queue, kind, key), and none within the window. Kept apart from the
//! jobs, so that a window outlives the deletion of its job. Keys are taken by calls that run alone.

use std::collections::HashMap;
use std::time::Duration;

use longhaul_queue::job::{JobId, NewJob, UniquePolicy, Window};
use longhaul_queue::store::{InsertOutcome, refusals, rules};
use longhaul_queue::{State, Timestamp};

use super::error::DbResult;
use super::rows::{JobRow, flag, job_by_seq, millis, read_id, read_state_or_null, state_number, uuid};
use super::tx::Tx;

/// Within what a key is unique: queue, kind and key.
pub(super) type Scope<'a> = (&'a str, &'a str, &'a str);

/// Who holds a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pub(super) id: JobId,
    pub(super) seq: i64,
    pub(super) ended: Option<State>,
    taken_until: Option<Timestamp>,
}

impl Holder {
    pub(super) fn is_taken(&self, now: Timestamp) -> bool {
        self.ended.is_none() || self.taken_until.is_some_and(|until| until > now)
    }
}

pub(super) fn scope_of(job: &NewJob) -> Option<Scope<'_>> {
    let unique = job.options.unique.as_ref()?;
    Some((&job.queue, &job.kind, &unique.key))
}

/// Who holds the keys of these jobs, where anybody does.
pub(super) async fn holders<'j>(tx: &Tx<'_>, jobs: &'j [NewJob]) -> DbResult<HashMap<Scope<'j>, Holder>> {
    let scopes: Vec<Scope<'j>> = jobs.iter().filter_map(scope_of).collect();
    if scopes.is_empty() {
        return Ok(HashMap::new());
    }
    let queues: Vec<&str> = scopes.iter().map(|scope| scope.0).collect();
    let kinds: Vec<&str> = scopes.iter().map(|scope| scope.1).collect();
    let keys: Vec<&str> = scopes.iter().map(|scope| scope.2).collect();
    let sql = "SELECT place, job_id, seq, ended, taken_until
         FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS u (u_queue, u_kind, u_key, place)
         JOIN lh_uniques ON queue = u_queue AND kind = u_kind AND key = u_key";
    let mut holders = HashMap::new();
    for row in tx.all(sql, &[&queues, &kinds, &keys]).await? {
        let place = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(1) - 1;
        let holder = Holder {
            id: read_id(&row, 1)?,
            seq: row.try_get(2)?,
            ended: read_state_or_null(&row, 3)?,
            taken_until: row.try_get::<_, Option<i64>>(4)?.map(Timestamp::from_millis),
        };
        holders.insert(scopes[place], holder);
    }
    Ok(holders)
}

/// Applies the policy of a second enqueue to the stored job that holds the key.
pub(super) async fn second_enqueue(
    tx: &mut Tx<'_>,
    holder: &JobRow,
    job: &NewJob,
    policy: UniquePolicy,
    now: Timestamp,
) -> DbResult<InsertOutcome> {
    match policy {
        UniquePolicy::Skip => Ok(InsertOutcome::Skipped),
        UniquePolicy::Replace => {
            // What a run has left behind (its checkpoint, what it has done outside) belongs to the payload that it was given.
            if holder.started_at.is_some() || holder.state.is_terminal() {
                return Ok(InsertOutcome::Skipped);
            }
            let sql = "UPDATE lh_jobs SET payload = $2 WHERE seq = $1";
            tx.run(sql, &[&holder.seq, &job.payload.as_str()]).await?;
            tx.touch();
            Ok(InsertOutcome::Replaced)
        }
        UniquePolicy::Debounce { wait, cap } => {
            let run_at = pushed_back(holder.created_at, holder.run_at, now + wait, cap);
            debounce(tx, holder, run_at, now).await
        }
    }
}

/// Later, but not past the cap; and never earlier than the job waits anyway, for a retry or a rate limit.
pub(super) fn pushed_back(
    created_at: Timestamp,
    run_at: Timestamp,
    to: Timestamp,
    cap: Duration,
) -> Timestamp {
    to.min(created_at + cap).max(run_at)
}

async fn debounce(
    tx: &mut Tx<'_>,
    holder: &JobRow,
    run_at: Timestamp,
    now: Timestamp,
) -> DbResult<InsertOutcome> {
    let state = match holder.state {
        State::Blocked => State::Blocked,
        State::Scheduled | State::Ready => rules::first_state(false, run_at, now),
        State::Running | State::Parked | State::Succeeded | State::Failed | State::Cancelled => {
            return Ok(InsertOutcome::Skipped);
        }
    };
    let due_at = millis(Some(run_at).filter(|_| state == State::Scheduled));
    tx.run(
        "UPDATE lh_jobs SET state = $2, run_at = $3, due_at = $4,
             moved_at = CASE WHEN state = $2 THEN moved_at ELSE $5 END
         WHERE seq = $1",
        &[&holder.seq, &state_number(state), &run_at.as_millis(), &due_at, &now.as_millis()],
    )
    .await?;
    if state != holder.state {
        tx.moved(holder.subject(), Some(holder.state), Some(state));
    }
    tx.touch();
    Ok(InsertOutcome::Debounced)
}

const TAKE: &str =
    "INSERT INTO lh_uniques (queue, kind, key, job_id, seq, taken_until) VALUES ($1, $2, $3, $4, $5, $6)
     ON CONFLICT (queue, kind, key) DO UPDATE SET job_id = excluded.job_id, seq = excluded.seq, ended = NULL,
         taken_until = excluded.taken_until";

/// Takes the key for a new job.
pub(super) async fn hold(tx: &Tx<'_>, job: &NewJob, id: JobId, seq: i64, now: Timestamp) -> DbResult<()> {
    let Some(unique) = &job.options.unique else { return Ok(()) };
    let window_end = unique.enqueue_window_end(now).map(Timestamp::as_millis);
    tx.run(TAKE, &[&job.queue, &job.kind, &unique.key, &uuid(id), &seq, &window_end]).await?;
    Ok(())
}

/// Takes the key for a job that comes back to life; refused when another unfinished job has it.
pub(super) async fn retake(tx: &Tx<'_>, row: &JobRow) -> DbResult<()> {
    if !row.has(flag::UNIQUE) {
        return Ok(());
    }
    let Some(unique) = row.options()?.unique else { return Ok(()) };
    let sql = "SELECT job_id FROM lh_uniques
         WHERE queue = $1 AND kind = $2 AND key = $3 AND ended IS NULL AND seq <> $4";
    if let Some(other) = tx.one(sql, &[&row.queue, &row.kind, &unique.key, &row.seq]).await? {
        return Err(refusals::key_taken(row.id, read_id(&other, 0)?, &unique.key).into());
    }
    let window_end = unique.enqueue_window_end(row.created_at).map(Timestamp::as_millis);
    tx.run(TAKE, &[&row.queue, &row.kind, &unique.key, &uuid(row.id), &row.seq, &window_end]).await?;
    Ok(())
}

/// Frees the key of a job that has ended, unless a window keeps it.
pub(super) async fn free(tx: &Tx<'_>, row: &JobRow, state: State, now: Timestamp) -> DbResult<()> {
    if !row.has(flag::UNIQUE) {
        return Ok(());
    }
    let Some(unique) = row.options()?.unique else { return Ok(()) };
    let cooldown = match unique.window {
        Some(Window::Success { length }) if state == State::Succeeded => Some((now + length).as_millis()),
        Some(Window::Success { .. } | Window::Enqueue { .. }) | None => None,
    };
    tx.run(
        "UPDATE lh_uniques SET ended = $5, taken_until = coalesce($6, taken_until)
         WHERE queue = $1 AND kind = $2 AND key = $3 AND seq = $4",
        &[&row.queue, &row.kind, &unique.key, &row.seq, &state_number(state), &cooldown],
    )
    .await?;
    // Whether a window has passed is asked when the key is, so that a clock that steps back asks again.
    tx.run(
        "DELETE FROM lh_uniques
         WHERE queue = $1 AND kind = $2 AND key = $3 AND seq = $4 AND ended IS NOT NULL AND taken_until IS NULL",
        &[&row.queue, &row.kind, &unique.key, &row.seq],
    )
    .await?;
    Ok(())
}

/// The stored job behind a holder, if it is not gone.
pub(super) async fn holding_row(tx: &Tx<'_>, holder: &Holder) -> DbResult<Option<JobRow>> {
    job_by_seq(tx, holder.seq).await
}
