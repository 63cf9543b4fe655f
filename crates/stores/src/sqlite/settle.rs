//! Settle: the only way a running job changes. Every item is guarded by its fence; the job's end, its children, its
//! unique key, its follow-ups and its counters change in one transaction.

use longhaul_queue::job::{JobOptions, Removal, Retention};
use longhaul_queue::limits::{LOG_LINES_MAX, RUNS_KEPT_MAX};
use longhaul_queue::state::{JobError, RunOutcome, Settlement};
use longhaul_queue::store::rules::{self, WakeChange};
use longhaul_queue::store::{Save, SettleItem, Settled, Signal};
use longhaul_queue::{Error, Json, Lease, State, Timestamp};

use super::admin::delete_row;
use super::error::{DbError, DbResult};
use super::rows::{JobRow, flag, from_text, job_by_seq, options_of, read_data, state_number, to_text};
use super::tx::Tx;
use super::{graph, insert, sweep, unique};

/// Applies settlements and answers each.
pub(super) fn settle(tx: &mut Tx<'_>, items: Vec<SettleItem>, now: Timestamp) -> DbResult<Vec<Settled>> {
    items.into_iter().map(|item| settle_one(tx, item, now)).collect()
}

fn settle_one(tx: &mut Tx<'_>, item: SettleItem, now: Timestamp) -> DbResult<Settled> {
    let SettleItem { lease, settlement, follow_ups } = item;
    let Some(mut row) = held(tx, &lease)? else { return Ok(Settled::LostLease) };
    let cancelled = row.cancel && !settlement.state.is_terminal();
    let settlement = if cancelled { settlement.under_cancel() } else { settlement };
    if let Err(error) = settlement.check() {
        return Ok(Settled::Refused(error));
    }
    // What the handler planned before it was cancelled is not to happen. Otherwise follow-ups come first: they belong
    // to the process before this job's end could complete it.
    if !follow_ups.is_empty() && !cancelled {
        if let Err(error) = tx.attempt(|tx| insert::insert(tx, follow_ups, now))? {
            return Ok(Settled::Refused(error));
        }
        // One of them may depend on this job.
        row = held(tx, &lease)?.unwrap_or(row);
    }
    forget_cancel(tx, &row)?;
    write_run(tx, &mut row, &settlement, now)?;
    let (settlement, wake) = take_signal(tx, &row, settlement, now)?;
    apply(tx, row, &settlement, wake, now).map(Settled::Applied)
}

/// A run has ended, so nobody needs to be asked to end it any more.
pub(super) fn forget_cancel(tx: &Tx<'_>, row: &JobRow) -> DbResult<()> {
    if row.cancel {
        let worker = row.worker.as_deref().unwrap_or("");
        tx.run("DELETE FROM lh_cancels WHERE worker = ?1 AND seq = ?2", (worker, row.seq))?;
    }
    Ok(())
}

/// The row, if it is still this holder's: running, and not claimed again since.
pub(super) fn held(tx: &Tx<'_>, lease: &Lease) -> DbResult<Option<JobRow>> {
    let row = job_by_seq(tx, lease.seq)?;
    Ok(row.filter(|row| row.id == lease.job_id && row.state == State::Running && row.fence == lease.fence))
}

/// A park whose signal came first does not wait.
fn take_signal(
    tx: &Tx<'_>,
    row: &JobRow,
    settlement: Settlement,
    now: Timestamp,
) -> DbResult<(Settlement, WakeChange)> {
    let Some(park) = settlement.park.as_ref() else {
        let wake = WakeChange::after(settlement.outcome);
        return Ok((settlement, wake));
    };
    let sql = "SELECT signal FROM lh_signals WHERE key = ?1 AND expires_at > ?2";
    let signal = tx.one(sql, (&park.key, now.as_millis()), |row| row.get::<_, String>(0))?;
    let Some(signal) = from_text::<Signal>("a signal", signal)? else {
        return Ok((settlement, WakeChange::Clear));
    };
    Ok(rules::woken_at_once(settlement, &options_of(tx, row)?, signal, now))
}

/// Writes a settlement to a running or parked job, with all that follows from it.
pub(super) fn apply(
    tx: &mut Tx<'_>,
    mut row: JobRow,
    settlement: &Settlement,
    wake: WakeChange,
    now: Timestamp,
) -> DbResult<State> {
    let from = row.state;
    let state = settlement.state;
    if let Some(data) = &settlement.data {
        write_data(tx, row.seq, data)?;
        row.flags |= flag::DATA;
    }
    if state == State::Succeeded {
        tx.run(
            "INSERT INTO lh_results (seq, result, error) VALUES (?1, ?2, NULL)
             ON CONFLICT DO UPDATE SET result = excluded.result, error = NULL",
            (row.seq, settlement.result.as_ref().map(Json::as_str)),
        )?;
        row.flags |= flag::RESULT;
    } else if let Some(error) = &settlement.error {
        write_error(tx, row.seq, error)?;
        row.flags |= flag::RESULT;
    }
    write_park(tx, &mut row, settlement, wake)?;
    let needs_options = state.is_terminal() && row.has(flag::UNIQUE | flag::RETENTION);
    let options = if needs_options { options_of(tx, &row)? } else { JobOptions::default() };
    let removal = removal(tx, &row, options.retention, state, now)?;
    write_row(tx, &row, settlement, removal, now)?;
    tx.moved(row.subject(), Some(from), Some(state));
    if state.is_terminal() {
        row.state = state;
        unique::free(tx, &row, &options, state, now)?;
        graph::ended(tx, &row, settlement.result.as_ref(), now)?;
        if removal == Removal::Now {
            delete_row(tx, &row)?;
        }
    }
    Ok(state)
}

fn write_row(
    tx: &Tx<'_>,
    row: &JobRow,
    settlement: &Settlement,
    removal: Removal,
    now: Timestamp,
) -> DbResult<()> {
    let spent = settlement.spent;
    let due_at = match settlement.state {
        State::Scheduled => settlement.run_at,
        State::Parked => settlement.park.as_ref().and_then(|park| park.until),
        State::Succeeded | State::Failed | State::Cancelled => removal.pruned_at(),
        State::Blocked | State::Ready | State::Running => None,
    };
    tx.run(
        "UPDATE lh_jobs SET state = ?2, run_at = coalesce(?3, run_at), flags = ?4, attempt = ?5, crashes = ?6,
             throttles = ?7, continues = ?8, parks = ?9, finished_at = ?10, due_at = ?11, cancel = 0, moved_at = ?12
         WHERE seq = ?1",
        (
            row.seq,
            state_number(settlement.state),
            settlement.run_at.map(Timestamp::as_millis),
            row.flags,
            spent.attempt,
            spent.crashes,
            spent.throttles,
            spent.continues,
            spent.parks,
            settlement.state.is_terminal().then_some(now.as_millis()),
            due_at.map(Timestamp::as_millis),
            (!settlement.state.is_terminal()).then_some(now.as_millis()),
        ),
    )?;
    Ok(())
}

fn write_park(tx: &Tx<'_>, row: &mut JobRow, settlement: &Settlement, wake: WakeChange) -> DbResult<()> {
    let write = "INSERT INTO lh_parks (seq, key, park, wake) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET key = excluded.key, park = excluded.park, wake = excluded.wake";
    match (&settlement.park, wake) {
        (Some(park), _) => {
            tx.run(write, (row.seq, &park.key, to_text("a park", park)?, None::<String>))?;
            row.flags |= flag::PARK;
        }
        (None, WakeChange::Set(wake)) => {
            tx.run(write, (row.seq, None::<String>, None::<String>, to_text("a signal", &wake)?))?;
            row.flags |= flag::PARK;
        }
        (None, WakeChange::Keep) if !settlement.state.is_terminal() => {}
        (None, WakeChange::Clear | WakeChange::Keep) => {
            if row.has(flag::PARK) {
                tx.run("DELETE FROM lh_parks WHERE seq = ?1", [row.seq])?;
                row.flags &= !flag::PARK;
            }
        }
    }
    Ok(())
}

/// Adds the run to the history. A plain success is told by the job row itself, which spares it a row.
pub(super) fn write_run(
    tx: &Tx<'_>,
    row: &mut JobRow,
    settlement: &Settlement,
    now: Timestamp,
) -> DbResult<()> {
    if settlement.outcome == RunOutcome::Done && settlement.usage.is_none() {
        return Ok(());
    }
    let error = settlement.error.as_ref();
    insert_run(tx, row, (settlement.outcome, error, settlement.usage.as_ref()), now)
}

/// Before a success runs again, the history takes over what its row alone tells.
pub(super) fn write_success(tx: &Tx<'_>, row: &mut JobRow) -> DbResult<()> {
    // A job that a signal ended has its last run in the history already.
    let written = "SELECT 1 FROM lh_runs WHERE seq = ?1 AND fence = ?2";
    match row.finished_at {
        Some(ended_at) if tx.one(written, (row.seq, row.fence), |_| Ok(()))?.is_none() => {
            insert_run(tx, row, (RunOutcome::Done, None, None), ended_at)
        }
        Some(_) | None => Ok(()),
    }
}

/// How a run ended, with its error and its usage.
type RunEnd<'r> = (RunOutcome, Option<&'r JobError>, Option<&'r Json>);

fn insert_run(
    tx: &Tx<'_>,
    row: &mut JobRow,
    (outcome, error, usage): RunEnd<'_>,
    ended_at: Timestamp,
) -> DbResult<()> {
    let error = error.map(|error| to_text("an error", error)).transpose()?;
    let outcome = to_text("an outcome", &outcome)?;
    tx.run(
        "INSERT INTO lh_runs (seq, fence, worker, started_at, ended_at, outcome, error, usage)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        (
            row.seq,
            row.fence,
            row.worker.as_deref().unwrap_or(""),
            row.started_at.unwrap_or_default().as_millis(),
            ended_at.as_millis(),
            outcome,
            error,
            usage.map(Json::as_str),
        ),
    )?;
    if row.has(flag::RUNS) {
        tx.run(
            "DELETE FROM lh_runs WHERE seq = ?1 AND fence <= (
                 SELECT fence FROM lh_runs WHERE seq = ?1 ORDER BY fence DESC LIMIT 1 OFFSET ?2)",
            (row.seq, RUNS_KEPT_MAX),
        )?;
    }
    row.flags |= flag::RUNS;
    Ok(())
}

/// What a running job stores on the way.
pub(super) fn save(tx: &mut Tx<'_>, lease: &Lease, save: &Save) -> DbResult<()> {
    let Some(row) = held(tx, lease)? else { return Err(DbError::Queue(Error::LostLease(lease.job_id))) };
    let mut flags = row.flags;
    let mut crashes = row.spent.crashes;
    if let Some(data) = &save.data {
        // Only new data is progress: a handler that saves the same again and again is no less poisonous.
        if !row.has(flag::DATA) || read_data(tx.connection(), row.seq)?.as_ref() != Some(data) {
            write_data(tx, row.seq, data)?;
            crashes = 0;
        }
        flags |= flag::DATA;
    }
    if let Some(progress) = &save.progress {
        tx.run(
            "INSERT INTO lh_progress (seq, progress) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET progress = excluded.progress",
            (row.seq, to_text("progress", progress)?),
        )?;
        tx.tell(row.subject(), State::Running, Some(progress.clone()));
        flags |= flag::NOTES;
    }
    if !save.log.is_empty() {
        write_log(tx, row.seq, save)?;
        flags |= flag::NOTES;
    }
    if (flags, crashes) != (row.flags, row.spent.crashes) {
        tx.run("UPDATE lh_jobs SET flags = ?2, crashes = ?3 WHERE seq = ?1", (row.seq, flags, crashes))?;
    }
    Ok(())
}

fn write_log(tx: &Tx<'_>, seq: i64, save: &Save) -> DbResult<()> {
    let last: i64 = tx
        .one("SELECT coalesce(max(line), 0) FROM lh_logs WHERE seq = ?1", [seq], |row| row.get(0))?
        .unwrap_or(0);
    for (line, number) in save.log.iter().zip(last + 1..) {
        tx.run(
            "INSERT INTO lh_logs (seq, line, at, text) VALUES (?1, ?2, ?3, ?4)",
            (seq, number, line.at.as_millis(), &line.text),
        )?;
    }
    let newest = last + i64::try_from(save.log.len()).unwrap_or(i64::MAX);
    let kept = i64::try_from(LOG_LINES_MAX).unwrap_or(i64::MAX);
    tx.run("DELETE FROM lh_logs WHERE seq = ?1 AND line <= ?2", (seq, newest - kept))?;
    Ok(())
}

fn write_data(tx: &Tx<'_>, seq: i64, data: &Json) -> DbResult<()> {
    tx.run(
        "INSERT INTO lh_data (seq, data) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET data = excluded.data",
        (seq, data.as_str()),
    )?;
    Ok(())
}

/// Stores why a job failed, is retried or was cancelled.
pub(super) fn write_error(tx: &Tx<'_>, seq: i64, error: &JobError) -> DbResult<()> {
    tx.run(
        "INSERT INTO lh_results (seq, result, error) VALUES (?1, NULL, ?2) ON CONFLICT DO UPDATE SET error = excluded.error",
        (seq, to_text("an error", error)?),
    )?;
    Ok(())
}

/// Ends a job that is not running: cancelled on request, by expiry or with its parent. Its children are the caller's.
pub(super) fn cancel_waiting(
    tx: &mut Tx<'_>,
    row: &JobRow,
    error: &JobError,
    now: Timestamp,
) -> DbResult<()> {
    let options =
        if row.has(flag::UNIQUE | flag::RETENTION) { options_of(tx, row)? } else { JobOptions::default() };
    let due_at = removal(tx, row, options.retention, State::Cancelled, now)?.pruned_at();
    if row.has(flag::PARK) {
        tx.run("DELETE FROM lh_parks WHERE seq = ?1", [row.seq])?;
    }
    tx.run(
        "UPDATE lh_jobs SET state = 7, finished_at = ?2, due_at = ?3, flags = (flags | ?4) & ~?5
         WHERE seq = ?1",
        (row.seq, now.as_millis(), due_at.map(Timestamp::as_millis), flag::RESULT, flag::PARK),
    )?;
    write_error(tx, row.seq, error)?;
    sweep::forget(tx, row)?;
    unique::free(tx, row, &options, State::Cancelled, now)?;
    tx.moved(row.subject(), Some(row.state), Some(State::Cancelled));
    Ok(())
}

/// When an ended job's row goes: by its own rule, its queue's, or the default.
fn removal(
    tx: &mut Tx<'_>,
    row: &JobRow,
    own: Option<Retention>,
    state: State,
    now: Timestamp,
) -> DbResult<Removal> {
    if !state.is_terminal() {
        return Ok(Removal::Never);
    }
    let rule = match own {
        Some(own) => own,
        None => {
            let queue = tx.queue(&row.queue)?.settings.retention;
            queue.unwrap_or_else(|| Retention::default_for(row.process.is_some()))
        }
    };
    Ok(rule.removal(state, now))
}
