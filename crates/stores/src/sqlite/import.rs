//! Pieces of another store's export, written as they are.

use longhaul_queue::job::{Job, ProcessId, Run};
use longhaul_queue::store::{
    EdgePiece, ExportRecord, JobPiece, LedgerRow, QueuePiece, Signal, UniquePiece, refusals,
};
use longhaul_queue::{Error, Json, State, Timestamp, WorkerId};
use rusqlite::params;

use super::error::{DbError, DbResult};
use super::rows::{flag, on_failure_number, options_text, state_number, to_text};
use super::settings::{put_schedule, write_queue};
use super::tx::Tx;
use super::{fairness, sweep};
use crate::changes::JobKey;
use crate::history::{Newest, with_newest};
use crate::queue_row::QueueRow;

/// The place of a parent that is gone: no job has it.
const GONE: i64 = 0;

/// Writes pieces; one that is there already is left alone or written again.
pub(super) fn import(tx: &mut Tx<'_>, pieces: Vec<ExportRecord>) -> DbResult<()> {
    for piece in pieces {
        put(tx, piece)?;
    }
    tx.touch();
    Ok(())
}

fn put(tx: &mut Tx<'_>, piece: ExportRecord) -> DbResult<()> {
    match piece {
        ExportRecord::LastSeq(seq) => {
            tx.run("UPDATE lh_meta SET value = max(value, ?1) WHERE key = 'deleted_seq'", [seq])?;
            tx.forget_seq();
            Ok(())
        }
        ExportRecord::Queue(queue) => put_queue(tx, queue),
        ExportRecord::OpenProcess(id) => open_process(tx, &id),
        ExportRecord::Job(piece) => put_job(tx, &piece),
        ExportRecord::Unique(unique) => put_unique(tx, &unique),
        ExportRecord::Signal { key, signal, expires_at } => put_signal(tx, &key, &signal, expires_at),
        ExportRecord::Schedule(schedule) => put_schedule(tx, &schedule),
        ExportRecord::Ledger(row) => put_ledger(tx, &row),
        ExportRecord::Record { name, version, value } => {
            tx.run(
                "INSERT INTO lh_records (name, version, value) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET version = excluded.version, value = excluded.value",
                (name, version, value.as_str()),
            )?;
            Ok(())
        }
    }
}

fn put_queue(tx: &mut Tx<'_>, piece: QueuePiece) -> DbResult<()> {
    let QueuePiece { name, settings, last_key } = piece;
    if let Some(last_key) = last_key {
        fairness::expect_keys(tx, &name)?;
        fairness::served(tx, &name, &last_key)?;
    }
    if settings.is_default() {
        return Ok(());
    }
    let queue = QueueRow { settings, ..tx.queue(&name)? };
    write_queue(tx, &name, queue)
}

fn open_process(tx: &mut Tx<'_>, id: &ProcessId) -> DbResult<()> {
    let sql = "INSERT INTO lh_processes (id, sealed) VALUES (?1, 0) ON CONFLICT DO UPDATE SET sealed = 0";
    tx.run(sql, [id.as_str()])?;
    tx.forget_standing(id.as_str());
    Ok(())
}

fn put_unique(tx: &Tx<'_>, piece: &UniquePiece) -> DbResult<()> {
    tx.run(
        "INSERT INTO lh_uniques (queue, kind, key, job_id, seq, ended, taken_until) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET job_id = excluded.job_id, seq = excluded.seq, ended = excluded.ended,
             taken_until = excluded.taken_until",
        (
            &piece.queue,
            &piece.kind,
            &piece.key,
            piece.job_id.as_bytes(),
            piece.seq,
            piece.ended.map(state_number),
            piece.taken_until.map(Timestamp::as_millis),
        ),
    )?;
    Ok(())
}

fn put_signal(tx: &Tx<'_>, key: &str, signal: &Signal, expires_at: Timestamp) -> DbResult<()> {
    tx.run(
        "INSERT INTO lh_signals (key, signal, expires_at) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET signal = excluded.signal, expires_at = excluded.expires_at",
        (key, to_text("a signal", signal)?, expires_at.as_millis()),
    )?;
    Ok(())
}

fn put_ledger(tx: &Tx<'_>, row: &LedgerRow) -> DbResult<()> {
    tx.run(
        "INSERT INTO lh_ledger (day, queue, kind, state, jobs) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO UPDATE SET jobs = excluded.jobs",
        (row.day, &row.queue, &row.kind, state_number(row.state), row.jobs),
    )?;
    Ok(())
}

fn put_job(tx: &mut Tx<'_>, piece: &JobPiece) -> DbResult<()> {
    let job = &piece.job;
    if job.state == State::Running {
        return Err(DbError::Queue(Error::wrong_state(job.id, job.state, "imported")));
    }
    let sql = "SELECT seq = ?1 AND id = ?2 FROM lh_jobs WHERE seq = ?1 OR id = ?2 ORDER BY 1 LIMIT 1";
    match tx.one(sql, (job.seq, job.id.as_bytes()), |row| row.get(0))? {
        Some(true) => return Ok(()),
        Some(false) => {
            return Err(refusals::place_taken(job.id, job.seq).into());
        }
        None => {}
    }
    put_row(tx, piece)?;
    put_waits(tx, piece)?;
    put_history(tx, piece)?;
    for tag in &job.options.tags {
        tx.run("INSERT INTO lh_tags (tag, seq) VALUES (?1, ?2) ON CONFLICT DO NOTHING", (tag, job.seq))?;
    }
    if let (Some(expires_at), None, false) = (job.expires_at, job.started_at, job.state.is_terminal()) {
        sweep::remind_at(tx, expires_at, job.seq)?;
    }
    if job.options.fair_key.is_some() {
        fairness::expect_keys(tx, &job.queue)?;
    }
    let process = job.process_id.as_ref().map(ProcessId::as_str);
    if process.is_some() {
        tx.run("INSERT INTO lh_processes (id, sealed) VALUES (?1, 1) ON CONFLICT DO NOTHING", [process])?;
    }
    let subject = JobKey { id: job.id, queue: &job.queue, kind: &job.kind, process, helper: job.helper };
    tx.moved_in(subject, job.state);
    tx.forget_seq();
    Ok(())
}

/// The job's row, its payload and options beside it, and its values.
fn put_row(tx: &Tx<'_>, piece: &JobPiece) -> DbResult<()> {
    let job = &piece.job;
    let time = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
    tx.run(
        "INSERT INTO lh_jobs (seq, id, queue, kind, state, priority, run_at, fence, flags, process, attempt, crashes,
             throttles, continues, parks, waits_for, cancel, created_at, started_at, finished_at, expires_at, worker,
             due_at, fair_key, moved_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
             ?9 | (SELECT CASE WHEN EXISTS (SELECT 1 FROM lh_edges WHERE parent = ?1) THEN ?10 ELSE 0 END),
             ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)",
        params![
            job.seq,
            job.id.as_bytes(),
            job.queue,
            job.kind,
            state_number(job.state),
            job.priority,
            job.run_at.as_millis(),
            job.fence,
            flags_of(piece),
            flag::CHILDREN,
            job.process_id.as_ref().map(ProcessId::as_str),
            job.spent.attempt,
            job.spent.crashes,
            job.spent.throttles,
            job.spent.continues,
            job.spent.parks,
            job.waits_for,
            job.cancel_requested,
            job.created_at.as_millis(),
            time(job.started_at),
            time(job.finished_at),
            time(job.expires_at),
            job.worker.as_ref().map(WorkerId::as_str),
            time(due_at(piece)),
            job.options.fair_key,
            job.updated_at.as_millis(),
        ],
    )?;
    let options = options_text(&job.options)?;
    let body = "INSERT INTO lh_bodies (seq, options, payload) VALUES (?1, ?2, ?3)";
    tx.run(body, (job.seq, options, piece.payload.as_str()))?;
    if let Some(data) = &piece.data {
        tx.run("INSERT INTO lh_data (seq, data) VALUES (?1, ?2)", (job.seq, data.as_str()))?;
    }
    if piece.result.is_some() || job.error.is_some() {
        let error = job.error.as_ref().map(|error| to_text("an error", error)).transpose()?;
        let result = piece.result.as_ref().map(Json::as_str);
        tx.run("INSERT INTO lh_results (seq, result, error) VALUES (?1, ?2, ?3)", (job.seq, result, error))?;
    }
    Ok(())
}

fn flags_of(piece: &JobPiece) -> i32 {
    let job = &piece.job;
    let own = [
        (piece.data.is_some(), flag::DATA),
        (job.park.is_some() || piece.wake.is_some(), flag::PARK),
        (piece.result.is_some() || job.error.is_some(), flag::RESULT),
        (!written_runs(piece).is_empty(), flag::RUNS),
    ];
    flag::BODY | flag::of_imported(piece) | flag::all(&own)
}

/// When a sweep must look at the job.
fn due_at(piece: &JobPiece) -> Option<Timestamp> {
    match piece.job.state {
        State::Scheduled => Some(piece.job.run_at),
        State::Parked => piece.job.park.as_ref().and_then(|park| park.until),
        State::Succeeded | State::Failed | State::Cancelled => piece.remove_at,
        State::Blocked | State::Ready | State::Running => None,
    }
}

/// What the job waits for, and what woke it.
fn put_waits(tx: &mut Tx<'_>, piece: &JobPiece) -> DbResult<()> {
    let job = &piece.job;
    for (position, edge) in piece.edges.iter().enumerate() {
        put_edge(tx, job, position, edge)?;
    }
    if let Some(process) = &piece.after_process {
        tx.run(
            "INSERT INTO lh_waiters (child, process, satisfied) VALUES (?1, ?2, ?3)",
            (job.seq, process.as_str(), !piece.waits_for_process),
        )?;
        tx.forget_standing(process.as_str());
    }
    if job.park.is_some() || piece.wake.is_some() {
        let park = job.park.as_ref().map(|park| to_text("a park", park)).transpose()?;
        let wake = piece.wake.as_ref().map(|wake| to_text("a signal", wake)).transpose()?;
        let key = job.park.as_ref().map(|park| &park.key);
        tx.run(
            "INSERT INTO lh_parks (seq, key, park, wake) VALUES (?1, ?2, ?3, ?4)",
            (job.seq, key, park, wake),
        )?;
    }
    Ok(())
}

fn put_edge(tx: &Tx<'_>, child: &Job, position: usize, edge: &EdgePiece) -> DbResult<()> {
    let parent = edge.parent_seq.unwrap_or(GONE);
    tx.run(
        "INSERT INTO lh_edges (child, position, parent, parent_id, on_failure, satisfied, ended, result, error)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        (
            child.seq,
            position,
            parent,
            edge.parent_id.as_bytes(),
            on_failure_number(edge.on_failure),
            edge.satisfied,
            edge.ended.map(state_number),
            edge.result.as_ref().map(Json::as_str),
            edge.error.as_ref().map(|error| to_text("an error", error)).transpose()?,
        ),
    )?;
    // A parent that comes later finds the edge.
    tx.run("UPDATE lh_jobs SET flags = flags | ?2 WHERE seq = ?1", (parent, flag::CHILDREN))?;
    Ok(())
}

/// Runs, progress and log.
fn put_history(tx: &Tx<'_>, piece: &JobPiece) -> DbResult<()> {
    let seq = piece.job.seq;
    for run in written_runs(piece) {
        let error = run.error.as_ref().map(|error| to_text("an error", error)).transpose()?;
        tx.run(
            "INSERT INTO lh_runs (seq, fence, worker, started_at, ended_at, outcome, error, usage)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            (
                seq,
                run.fence,
                run.worker.as_str(),
                run.started_at.as_millis(),
                run.ended_at.as_millis(),
                to_text("an outcome", &run.outcome)?,
                error,
                run.usage.as_ref().map(Json::as_str),
            ),
        )?;
    }
    if let Some(progress) = &piece.progress {
        let sql = "INSERT INTO lh_progress (seq, progress) VALUES (?1, ?2)";
        tx.run(sql, (seq, to_text("progress", progress)?))?;
    }
    for (line, number) in piece.log.iter().zip(1..) {
        let number: i64 = number;
        tx.run(
            "INSERT INTO lh_logs (seq, line, at, text) VALUES (?1, ?2, ?3, ?4)",
            (seq, number, line.at.as_millis(), &line.text),
        )?;
    }
    Ok(())
}

/// The runs that need a row: a plain success is told by the job's own.
fn written_runs(piece: &JobPiece) -> &[Run] {
    let job = &piece.job;
    let newest = Newest {
        state: job.state,
        fence: job.fence,
        worker: job.worker.as_ref().map(WorkerId::as_str),
        started_at: job.started_at,
        finished_at: job.finished_at,
    };
    match piece.runs.split_last() {
        Some((last, before)) if with_newest(Vec::new(), &newest).last() == Some(last) => before,
        Some(_) | None => &piece.runs,
    }
}
