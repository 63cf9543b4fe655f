//! Pieces of another store, written as they are. Rows travel as JSON records: one statement a table, however many rows.

use std::collections::{HashMap, HashSet};

use longhaul_queue::job::{JobId, ProcessId, WorkerId};
use longhaul_queue::store::{ExportRecord, JobPiece, LedgerRow, QueuePiece, UniquePiece, refusals};
use longhaul_queue::{Error, Json, State};
use serde_json::{Value, json};

use super::error::DbResult;
use super::rows::{
    flag, millis, on_failure_number, options_text, read_id, state_number, stored_count, stored_fence,
    to_text, uuid,
};
use super::settings::{have_keys, put_schedule, write_queue};
use super::tx::Tx;
use crate::changes::JobKey;

/// The place of a parent that is gone; nobody has it.
const NOWHERE: i64 = 0;

/// Writes pieces; those that are there already stay.
pub(super) async fn import(tx: &mut Tx<'_>, pieces: &[ExportRecord]) -> DbResult<()> {
    let jobs: Vec<&JobPiece> = pieces.iter().filter_map(|piece| piece_job(piece)).collect();
    let new = check(tx, &jobs).await?;
    for piece in pieces {
        put(tx, piece).await?;
    }
    put_jobs(tx, &new).await?;
    tx.touch();
    Ok(())
}

fn piece_job(piece: &ExportRecord) -> Option<&JobPiece> {
    if let ExportRecord::Job(job) = piece { Some(job) } else { None }
}

/// Those that are not stored yet. What cannot be stored is refused before anything is.
async fn check<'p>(tx: &Tx<'_>, jobs: &[&'p JobPiece]) -> DbResult<Vec<&'p JobPiece>> {
    let seqs: Vec<i64> = jobs.iter().map(|piece| piece.job.seq).collect();
    let ids: Vec<_> = jobs.iter().map(|piece| uuid(piece.job.id)).collect();
    let sql = "SELECT seq, id FROM lh_jobs WHERE seq = ANY ($1)
         UNION SELECT seq, id FROM lh_ids WHERE id = ANY ($2)";
    let (mut by_seq, mut by_id) = (HashMap::<i64, JobId>::new(), HashMap::<JobId, i64>::new());
    for row in tx.all(sql, &[&seqs, &ids]).await? {
        let (seq, id) = (row.try_get(0)?, read_id(&row, 1)?);
        by_seq.insert(seq, id);
        by_id.insert(id, seq);
    }
    let mut new = Vec::with_capacity(jobs.len());
    for piece in jobs {
        let job = &piece.job;
        if job.state == State::Running {
            return Err(Error::wrong_state(job.id, job.state, "imported").into());
        }
        match (by_seq.insert(job.seq, job.id), by_id.insert(job.id, job.seq)) {
            (None, None) => new.push(*piece),
            (Some(id), Some(seq)) if (id, seq) == (job.id, job.seq) => {}
            _ => return Err(refusals::place_taken(job.id, job.seq).into()),
        }
    }
    Ok(new)
}

async fn put(tx: &mut Tx<'_>, piece: &ExportRecord) -> DbResult<()> {
    match piece {
        ExportRecord::LastSeq(seq) => {
            let sql = "UPDATE lh_meta SET value = greatest(value, $1) WHERE key = 'seq'";
            tx.run(sql, &[seq]).await?;
        }
        ExportRecord::Queue(queue) => put_queue(tx, queue).await?,
        ExportRecord::OpenProcess(id) => {
            let sql = "INSERT INTO lh_processes (id, sealed) VALUES ($1, false)
                 ON CONFLICT (id) DO UPDATE SET sealed = false";
            tx.run(sql, &[&id.as_str()]).await?;
        }
        // All at once, behind the others.
        ExportRecord::Job(_) => {}
        ExportRecord::Unique(unique) => put_unique(tx, unique).await?,
        ExportRecord::Signal { key, signal, expires_at } => {
            let sql = "INSERT INTO lh_signals (key, signal, expires_at) VALUES ($1, $2, $3)
                 ON CONFLICT (key) DO UPDATE SET signal = excluded.signal, expires_at = excluded.expires_at";
            tx.run(sql, &[key, &to_text("a signal", signal)?, &expires_at.as_millis()]).await?;
        }
        ExportRecord::Schedule(schedule) => put_schedule(tx, schedule).await?,
        ExportRecord::Ledger(line) => put_ledger(tx, line).await?,
        ExportRecord::Record { name, version, value } => {
            let sql = "INSERT INTO lh_records (name, version, value) VALUES ($1, $2, $3)
                 ON CONFLICT (name) DO UPDATE SET version = excluded.version, value = excluded.value";
            tx.run(sql, &[name, &stored_fence(*version), &value.as_str()]).await?;
        }
    }
    Ok(())
}

async fn put_queue(tx: &Tx<'_>, piece: &QueuePiece) -> DbResult<()> {
    if !piece.settings.is_default() {
        write_queue(tx, &piece.name, &piece.settings).await?;
    }
    if let Some(last_key) = &piece.last_key {
        have_keys(tx, vec![&piece.name]).await?;
        tx.run("UPDATE lh_queues SET last_key = $2 WHERE name = $1", &[&piece.name, last_key]).await?;
    }
    Ok(())
}

async fn put_unique(tx: &Tx<'_>, piece: &UniquePiece) -> DbResult<()> {
    let sql = "INSERT INTO lh_uniques (queue, kind, key, job_id, seq, ended, taken_until)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (queue, kind, key) DO UPDATE SET job_id = excluded.job_id, seq = excluded.seq,
             ended = excluded.ended, taken_until = excluded.taken_until";
    let UniquePiece { queue, kind, key, job_id, seq, ended, taken_until } = piece;
    let (ended, until) = (ended.map(state_number), millis(*taken_until));
    tx.run(sql, &[queue, kind, key, &uuid(*job_id), seq, &ended, &until]).await?;
    Ok(())
}

/// The line as it is, whatever was counted here before. Whoever folds would put that back.
async fn put_ledger(tx: &Tx<'_>, line: &LedgerRow) -> DbResult<()> {
    tx.one("SELECT pg_advisory_xact_lock($1)", &[&tx.keys().fold()]).await?;
    let LedgerRow { day, queue, kind, state, jobs } = line;
    let state = state_number(*state);
    let sql = "DELETE FROM lh_deltas WHERE what = 2 AND part = $1 AND name = $2 AND kind = $3 AND state = $4";
    tx.run(sql, &[day, queue, kind, &state]).await?;
    let sql = "INSERT INTO lh_totals (what, part, name, kind, state, jobs) VALUES (2, $1, $2, $3, $4, $5)
         ON CONFLICT (what, name, part, state, kind) DO UPDATE SET jobs = excluded.jobs";
    tx.run(sql, &[day, queue, kind, &state, &stored_fence(*jobs)]).await?;
    Ok(())
}

/// Rows of the tables that hold jobs.
#[derive(Default)]
struct Rows {
    jobs: Vec<Value>,
    ids: Vec<Value>,
    edges: Vec<Value>,
    waiters: Vec<Value>,
    runs: Vec<Value>,
    progress: Vec<Value>,
    logs: Vec<Value>,
    tags: Vec<Value>,
}

macro_rules! put_rows {
    ($table:literal, $columns:literal) => {
        concat!(
            "INSERT INTO ",
            $table,
            " (",
            $columns,
            ") SELECT ",
            $columns,
            " FROM json_populate_recordset(NULL::",
            $table,
            ", $1::text::json) ON CONFLICT DO NOTHING"
        )
    };
}

const PUT_JOBS: &str = put_rows!(
    "lh_jobs",
    "seq, id, run_at, created_at, started_at, finished_at, expires_at, due_at, fence, priority, flags, attempt, crashes,
     throttles, continues, parks, waits_for, state, cancel, queue, kind, process, worker, park_key, park, wake, error,
     options, data, result, payload, fair_key, moved_at"
);
const PUT_IDS: &str = put_rows!("lh_ids", "id, seq");
const PUT_EDGES: &str =
    put_rows!("lh_edges", "child, position, parent, parent_id, on_failure, satisfied, ended, result, error");
const PUT_WAITERS: &str = put_rows!("lh_waiters", "child, process, satisfied");
const PUT_RUNS: &str =
    put_rows!("lh_runs", "seq, fence, worker, started_at, ended_at, outcome, error, usage");
const PUT_PROGRESS: &str = put_rows!("lh_progress", "seq, progress");
const PUT_LOGS: &str = put_rows!("lh_logs", "seq, line, entry");
const PUT_TAGS: &str = put_rows!("lh_tags", "tag, seq");

async fn put_jobs(tx: &mut Tx<'_>, pieces: &[&JobPiece]) -> DbResult<()> {
    if pieces.is_empty() {
        return Ok(());
    }
    let mut rows = Rows::default();
    for piece in pieces {
        rows.add(piece)?;
        let job = &piece.job;
        let process = job.process_id.as_ref().map(ProcessId::as_str);
        let subject = JobKey { id: job.id, queue: &job.queue, kind: &job.kind, process, helper: job.helper };
        tx.came(subject, job.state);
    }
    rows.write(tx).await?;
    let last = pieces.iter().map(|piece| piece.job.seq).max();
    tx.run("UPDATE lh_meta SET value = greatest(value, $1) WHERE key = 'seq'", &[&last]).await?;
    let processes: HashSet<&str> =
        pieces.iter().filter_map(|piece| piece.job.process_id.as_ref()).map(ProcessId::as_str).collect();
    let processes: Vec<&str> = processes.into_iter().collect();
    let sql = "INSERT INTO lh_processes (id, sealed) SELECT unnest($1::text[]), true ON CONFLICT DO NOTHING";
    tx.run(sql, &[&processes]).await?;
    let keyed = pieces.iter().filter(|piece| piece.job.options.fair_key.is_some());
    have_keys(tx, keyed.map(|piece| piece.job.queue.as_str()).collect()).await?;
    flag_parents(tx, pieces).await
}

/// A parent and its children may come in any order, and in different calls.
async fn flag_parents(tx: &Tx<'_>, pieces: &[&JobPiece]) -> DbResult<()> {
    let parents = pieces.iter().flat_map(|piece| piece.edges.iter().filter_map(|edge| edge.parent_seq));
    let seqs: Vec<i64> = pieces.iter().map(|piece| piece.job.seq).chain(parents).collect();
    let sql = "UPDATE lh_jobs SET flags = flags | $2
         WHERE seq = ANY ($1) AND flags & $2 = 0 AND EXISTS (SELECT 1 FROM lh_edges e WHERE e.parent = lh_jobs.seq)";
    tx.run(sql, &[&seqs, &flag::CHILDREN]).await?;
    Ok(())
}

impl Rows {
    fn add(&mut self, piece: &JobPiece) -> DbResult<()> {
        let job = &piece.job;
        let seq = job.seq;
        let due_at = match job.state {
            State::Scheduled => Some(job.run_at),
            State::Parked => job.park.as_ref().and_then(|park| park.until),
            State::Succeeded | State::Failed | State::Cancelled => piece.remove_at,
            State::Blocked | State::Ready | State::Running => None,
        };
        let text = |json: &Option<Json>| json.as_ref().map(|json| json.as_str().to_owned());
        self.ids.push(json!({ "id": uuid(job.id), "seq": seq }));
        self.jobs.push(json!({
            "seq": seq,
            "id": uuid(job.id),
            "run_at": job.run_at,
            "created_at": job.created_at,
            "moved_at": job.updated_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
            "expires_at": job.expires_at,
            "due_at": due_at,
            "fence": stored_fence(job.fence),
            "priority": job.priority,
            "flags": flag::of_imported(piece) | flag::all(&[(!piece.runs.is_empty(), flag::RUNS)]),
            "attempt": stored_count(job.spent.attempt),
            "crashes": stored_count(job.spent.crashes),
            "throttles": stored_count(job.spent.throttles),
            "continues": stored_count(job.spent.continues),
            "parks": stored_count(job.spent.parks),
            "waits_for": stored_count(job.waits_for),
            "state": state_number(job.state),
            "cancel": job.cancel_requested,
            "queue": job.queue,
            "kind": job.kind,
            "process": job.process_id.as_ref().map(ProcessId::as_str),
            "worker": job.worker.as_ref().map(WorkerId::as_str),
            "park_key": job.park.as_ref().map(|park| park.key.as_str()),
            "park": job.park.as_ref().map(|park| to_text("a park", park)).transpose()?,
            "wake": piece.wake.as_ref().map(|wake| to_text("a signal", wake)).transpose()?,
            "error": job.error.as_ref().map(|error| to_text("an error", error)).transpose()?,
            "options": options_text(&job.options)?,
            "data": text(&piece.data),
            "result": text(&piece.result),
            "payload": piece.payload.as_str(),
            "fair_key": job.options.fair_key,
        }));
        self.add_sides(piece)
    }

    fn add_sides(&mut self, piece: &JobPiece) -> DbResult<()> {
        let seq = piece.job.seq;
        for (position, edge) in piece.edges.iter().enumerate() {
            self.edges.push(json!({
                "child": seq,
                "position": position,
                "parent": edge.parent_seq.unwrap_or(NOWHERE),
                "parent_id": uuid(edge.parent_id),
                "on_failure": on_failure_number(edge.on_failure),
                "satisfied": edge.satisfied,
                "ended": edge.ended.map(state_number),
                "result": edge.result.as_ref().map(Json::as_str),
                "error": edge.error.as_ref().map(|error| to_text("an error", error)).transpose()?,
            }));
        }
        if let Some(process) = &piece.after_process {
            let satisfied = !piece.waits_for_process;
            self.waiters.push(json!({ "child": seq, "process": process.as_str(), "satisfied": satisfied }));
        }
        for run in &piece.runs {
            self.runs.push(json!({
                "seq": seq,
                "fence": stored_fence(run.fence),
                "worker": run.worker.as_str(),
                "started_at": run.started_at,
                "ended_at": run.ended_at,
                "outcome": to_text("an outcome", &run.outcome)?,
                "error": run.error.as_ref().map(|error| to_text("an error", error)).transpose()?,
                "usage": run.usage.as_ref().map(Json::as_str),
            }));
        }
        if let Some(progress) = &piece.progress {
            self.progress.push(json!({ "seq": seq, "progress": to_text("progress", progress)? }));
        }
        for (line, entry) in (1..).zip(&piece.log) {
            let line: i64 = line;
            self.logs.push(json!({ "seq": seq, "line": line, "entry": to_text("a log line", entry)? }));
        }
        self.tags.extend(piece.job.options.tags.iter().map(|tag| json!({ "tag": tag, "seq": seq })));
        Ok(())
    }

    async fn write(self, tx: &Tx<'_>) -> DbResult<()> {
        let Self { jobs, ids, edges, waiters, runs, progress, logs, tags } = self;
        let tables = [
            (PUT_JOBS, jobs),
            (PUT_IDS, ids),
            (PUT_EDGES, edges),
            (PUT_WAITERS, waiters),
            (PUT_RUNS, runs),
            (PUT_PROGRESS, progress),
            (PUT_LOGS, logs),
            (PUT_TAGS, tags),
        ];
        for (sql, rows) in tables.into_iter().filter(|(_, rows)| !rows.is_empty()) {
            tx.run(sql, &[&to_text("rows", &rows)?]).await?;
        }
        Ok(())
    }
}
