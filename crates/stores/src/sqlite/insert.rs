//! Enqueue: jobs, their edges and unique keys, all or none.

use longhaul_queue::graph::{self as graph_rules, Edge};
use longhaul_queue::job::{Dependency, JobId, NewJob, ProcessId};
use longhaul_queue::store::{Enqueued, InsertOutcome, refusals, rules};
use longhaul_queue::{State, Timestamp};

use super::error::{DbResult, corrupt};
use super::rows::{
    Body, JobRow, fits_row, flag, job_by_id, job_by_seq, on_failure_number, options_text, read_on_failure,
    read_result, state_number,
};
use super::tx::Tx;
use super::{fairness, graph, process, sweep, unique};
use crate::changes::JobKey;

/// Jobs of a submission whose short payloads go into their rows. More share the pages of `lh_bodies`, and narrow rows
/// are cheaper to claim and settle by the hundred.
const IN_ROW_JOBS_MAX: usize = 10;

/// Stores jobs in the order given; parents may stand after their children.
pub(super) fn insert(tx: &mut Tx<'_>, jobs: Vec<NewJob>, now: Timestamp) -> DbResult<Vec<Enqueued>> {
    graph_rules::check(&jobs)?;
    let first_seq = tx.next_seq()?;
    let few = jobs.len() <= IN_ROW_JOBS_MAX;
    let mut enqueued = Vec::with_capacity(jobs.len());
    let mut waiting = Vec::new();
    for job in jobs {
        let Some(id) = job.id else {
            return Err(refusals::no_id(&job.kind).into());
        };
        if let Some(holder) = unique::holder(tx, id, &job, now)? {
            enqueued.push(holder);
            continue;
        }
        let seq = tx.next_seq()?;
        let Some(state) = insert_one(tx, id, seq, &job, few, now)? else {
            enqueued.push(duplicate(tx, id, &job, first_seq)?);
            continue;
        };
        tx.take_seq(seq);
        enqueued.push(Enqueued { id, seq, state, how: InsertOutcome::Inserted });
        if state == State::Blocked {
            waiting.push((seq, job));
        }
    }
    // Edges come last, when every member of the submission has its row.
    for (seq, job) in &waiting {
        link(tx, *seq, job)?;
    }
    for (seq, job) in &waiting {
        resolve(tx, *seq, &job.depends_on, now)?;
    }
    // A plain job stands where it was put. Others may have been moved since: by their parents, or by a later member
    // that has the same unique key.
    let moved = |entry: &Enqueued| matches!(entry.how, InsertOutcome::Replaced | InsertOutcome::Debounced);
    if !waiting.is_empty() || enqueued.iter().any(moved) {
        for entry in &mut enqueued {
            entry.state = job_by_seq(tx, entry.seq)?.map_or(entry.state, |row| row.state);
        }
    }
    Ok(enqueued)
}

/// What a second enqueue of the same id finds. Jobs of this submission have places from `first_seq` on.
fn duplicate(tx: &Tx<'_>, id: JobId, job: &NewJob, first_seq: i64) -> DbResult<Enqueued> {
    let Some(row) = job_by_id(tx.connection(), id)? else {
        return Err(corrupt("a job's id", format!("{id} is taken by no job")));
    };
    if row.seq >= first_seq {
        return Err(refusals::given_twice(id).into());
    }
    if !rules::same_content(&stored(tx, &row)?, job) {
        return Err(refusals::other_content(id).into());
    }
    Ok(Enqueued { id, seq: row.seq, state: row.state, how: InsertOutcome::Duplicate })
}

/// What was submitted, but for the times, which have moved since.
fn stored(tx: &Tx<'_>, row: &JobRow) -> DbResult<NewJob> {
    let depends_on = tx.all(
        "SELECT parent_id, on_failure FROM lh_edges WHERE child = ?1 ORDER BY position",
        [row.seq],
        |row| Ok(Dependency { job_id: JobId::from_bytes(row.get(0)?), on_failure: read_on_failure(row, 1)? }),
    )?;
    let after: Option<String> =
        tx.one("SELECT process FROM lh_waiters WHERE child = ?1", [row.seq], |row| row.get(0))?;
    let Body { payload, options } = Body::read(tx.connection(), row)?;
    Ok(NewJob {
        id: Some(row.id),
        queue: row.queue.clone(),
        priority: row.priority,
        helper: row.has(flag::HELPER),
        process_id: row.process.clone().map(ProcessId::from),
        after_process: after.map(ProcessId::from),
        depends_on,
        options,
        ..NewJob::new(row.kind.clone(), payload)
    })
}

/// Writes one job; `None` when its id is taken. Asking the unique index by writing spares most jobs a look-up.
fn insert_one(
    tx: &mut Tx<'_>,
    id: JobId,
    seq: i64,
    job: &NewJob,
    few: bool,
    now: Timestamp,
) -> DbResult<Option<State>> {
    let run_at = job.run_at.unwrap_or(now);
    let waits = !job.depends_on.is_empty() || job.after_process.is_some();
    let state = rules::first_state(waits, run_at, now);
    let options = options_text(&job.options)?;
    let payload = job.payload.as_str();
    let in_row = few && fits_row(options.as_deref(), payload);
    let process = job.process_id.as_ref().map(ProcessId::as_str);
    let inserted = tx.run(
        "INSERT INTO lh_jobs (seq, id, queue, kind, state, priority, run_at, fence, flags, process, attempt, crashes,
             throttles, continues, parks, waits_for, cancel, created_at, expires_at, due_at, options, payload,
             fair_key)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9, 0, 0, 0, 0, 0, 0, 0, ?10, ?11, ?12, ?13, ?14, ?15)
         ON CONFLICT (id) DO NOTHING",
        (
            seq,
            id.as_bytes(),
            &job.queue,
            &job.kind,
            state_number(state),
            job.priority,
            run_at.as_millis(),
            flag::of_new(job) | if in_row { 0 } else { flag::BODY },
            process,
            now.as_millis(),
            job.expires_at.map(Timestamp::as_millis),
            (state == State::Scheduled).then_some(run_at.as_millis()),
            options.as_deref().filter(|_| in_row),
            in_row.then_some(payload),
            &job.options.fair_key,
        ),
    )?;
    if inserted == 0 {
        return Ok(None);
    }
    if !in_row {
        tx.run("INSERT INTO lh_bodies (seq, options, payload) VALUES (?1, ?2, ?3)", (seq, options, payload))?;
    }
    if job.options.fair_key.is_some() {
        fairness::expect_keys(tx, &job.queue)?;
    }
    if process.is_some() {
        tx.run("INSERT INTO lh_processes (id, sealed) VALUES (?1, 1) ON CONFLICT DO NOTHING", [process])?;
    }
    if let Some(expires_at) = job.expires_at {
        sweep::remind_at(tx, expires_at, seq)?;
    }
    for tag in &job.options.tags {
        tx.run("INSERT INTO lh_tags (tag, seq) VALUES (?1, ?2) ON CONFLICT DO NOTHING", (tag, seq))?;
    }
    if let Some(unique) = &job.options.unique {
        unique::hold(tx, unique, job, seq, now)?;
    }
    let subject = JobKey { id, queue: &job.queue, kind: &job.kind, process, helper: job.helper };
    tx.moved(subject, None, Some(state));
    Ok(Some(state))
}

/// Writes what a new job waits for; all of it must be stored by now.
fn link(tx: &mut Tx<'_>, child: i64, job: &NewJob) -> DbResult<()> {
    let id = job.id.unwrap_or_else(|| JobId::from_bytes([0; 16]));
    for (position, dependency) in job.depends_on.iter().enumerate() {
        let parent_id = dependency.job_id;
        let sql = "UPDATE lh_jobs SET flags = flags | ?2 WHERE id = ?1 RETURNING seq";
        let parent: Option<i64> = tx.one(sql, (parent_id.as_bytes(), flag::CHILDREN), |row| row.get(0))?;
        let Some(parent) = parent else {
            return Err(refusals::no_parent(id, parent_id).into());
        };
        tx.run(
            "INSERT INTO lh_edges (child, position, parent, parent_id, on_failure, satisfied) VALUES (?1, ?2, ?3, ?4, ?5, 0)",
            (child, position, parent, parent_id.as_bytes(), on_failure_number(dependency.on_failure)),
        )?;
    }
    if let Some(process) = &job.after_process {
        if job.process_id.as_ref() == Some(process) && !job.helper {
            return Err(refusals::own_process(id, process).into());
        }
        if !process::wait_for(tx, child, process.as_str())? {
            return Err(refusals::no_process(id, process).into());
        }
    }
    let waits_for = job.depends_on.len() + usize::from(process::is_awaited_by(tx, child)?);
    tx.run("UPDATE lh_jobs SET waits_for = ?2 WHERE seq = ?1", (child, waits_for))?;
    Ok(())
}

/// Lets a new job find out what its parents and its process have done before.
fn resolve(tx: &mut Tx<'_>, child: i64, dependencies: &[Dependency], now: Timestamp) -> DbResult<()> {
    let mut cancelled_by = None;
    for (position, dependency) in dependencies.iter().enumerate() {
        let Some(parent) = job_by_id(tx.connection(), dependency.job_id)? else { continue };
        let open = "SELECT 1 FROM lh_edges WHERE child = ?1 AND position = ?2 AND satisfied = 0";
        // A member of the same submission that was cancelled a moment ago has told its children.
        if tx.one(open, (child, position), |_| Ok(()))?.is_none() {
            continue;
        }
        match graph_rules::edge(parent.state, dependency.on_failure) {
            Edge::Open => {}
            Edge::Satisfied => {
                let result = read_result(tx.connection(), parent.seq)?;
                graph::satisfy(tx, child, position, parent.state, result.as_ref())?;
                graph::one_less(tx, child, now)?;
            }
            Edge::Cancels => {
                graph::mark_ended(tx, child, position, parent.state)?;
                cancelled_by = cancelled_by.or(Some((parent.id, parent.state)));
            }
            Edge::Holds => graph::mark_ended(tx, child, position, parent.state)?,
        }
    }
    if let Some((parent, state)) = cancelled_by {
        return graph::cancel_by_parent(tx, child, parent, state, now);
    }
    let waits_for_nothing = |row: &JobRow| row.state == State::Blocked && row.waits_for == 0;
    if job_by_seq(tx, child)?.is_some_and(|row| waits_for_nothing(&row)) {
        graph::release(tx, child, now)?;
    }
    Ok(())
}
