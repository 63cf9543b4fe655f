//! Pieces of another store, written as they are by one call of `scripts/import.lua`.

use longhaul_queue::job::{JobId, NewJob, Run};
use longhaul_queue::state::JobError;
use longhaul_queue::store::{EdgePiece, ExportRecord, JobPiece, LedgerRow, QueuePiece, UniquePiece};
use longhaul_queue::{Error, Json, Result, State, Timestamp};

use super::RedisStore;
use super::codec::{
    NOT_ENDED, flag, has, millis, outcome_number, park_bytes, put_name, put_short_time, put_spent, put_time,
};
use super::encode::{
    Args, BODY_IN_ROW_MAX, body, digest, on_failure, options_text, put_lane, put_rule, unique_bytes,
};
use super::scripts::{Function, OUT_IN_ROW_MAX};
use super::settings::{Queue, schedule_bytes};
use super::{records, reply};

pub(super) async fn import(store: &RedisStore, pieces: &[ExportRecord]) -> Result<()> {
    let mut args: Args = vec![number(&pieces.len())];
    for piece in pieces {
        put_piece(&mut args, piece)?;
    }
    let answer = store.link.run(Function::Import, Timestamp::default(), args).await?;
    let (head, rest) = reply::headed(answer)?;
    if head == "ok" {
        return Ok(());
    }
    let (job_id, seq) = match rest.as_slice() {
        [id, seq] => {
            (super::codec::Reader::new(reply::bytes(id)?).id()?, super::codec::text(reply::bytes(seq)?)?)
        }
        _ => return Err(super::codec::corrupt("an answer")),
    };
    Err(Error::invalid(format!("job {job_id}: its place {seq} is taken")))
}

fn number(number: &impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn text(json: &Json) -> Vec<u8> {
    json.as_str().as_bytes().to_vec()
}

/// Adds a piece behind the letter that says what it is.
fn put_piece(args: &mut Args, piece: &ExportRecord) -> Result<()> {
    match piece {
        ExportRecord::LastSeq(seq) => args.extend([b"L".to_vec(), number(seq)]),
        ExportRecord::Queue(queue) => {
            let QueuePiece { name, settings, last_key } = queue.clone();
            let queue = Queue { settings, last_key };
            args.extend([b"Q".to_vec(), name.into_bytes(), queue.bytes()]);
        }
        ExportRecord::OpenProcess(id) => args.extend([b"P".to_vec(), id.as_str().as_bytes().to_vec()]),
        ExportRecord::Job(job) => put_job(args, job)?,
        ExportRecord::Unique(unique) => put_unique(args, unique),
        ExportRecord::Signal { key, signal, expires_at } => {
            let mut bytes = Vec::new();
            put_time(&mut bytes, Some(*expires_at));
            bytes.extend(text(&Json::of(signal)?));
            args.extend([b"S".to_vec(), key.as_bytes().to_vec(), bytes, number(&millis(*expires_at))]);
        }
        ExportRecord::Schedule(schedule) => {
            args.extend([b"C".to_vec(), schedule.name.as_bytes().to_vec(), schedule_bytes(schedule)?]);
        }
        ExportRecord::Ledger(LedgerRow { day, queue, kind, state, jobs }) => {
            let name = format!("{day}\u{1f}{queue}\u{1f}{kind}\u{1f}{}", *state as u8);
            args.extend([b"D".to_vec(), name.into_bytes(), number(jobs)]);
        }
        ExportRecord::Record { name, version, value } => {
            args.extend([b"R".to_vec(), name.as_bytes().to_vec(), records::bytes(*version, value)]);
        }
    }
    Ok(())
}

/// As `HOLDER` in `scripts/graph.lua` has it, and when the key may be forgotten.
fn put_unique(args: &mut Args, unique: &UniquePiece) {
    let UniquePiece { queue, kind, key, job_id, seq, ended, taken_until } = unique;
    let mut holder = job_id.as_bytes().to_vec();
    holder.extend(&seq.to_be_bytes()[2..]);
    holder.push(ended.map_or(NOT_ENDED, |state| state as u8));
    put_time(&mut holder, *taken_until);
    let forgotten_at = taken_until.filter(|_| ended.is_some()).map(|until| number(&millis(until)));
    let scope = format!("{queue}\u{1f}{kind}\u{1f}{key}").into_bytes();
    args.extend([b"U".to_vec(), scope, holder, forgotten_at.unwrap_or_default()]);
}

/// What stands beside a row: the bit that says so, and the bytes. In the order of `FIELDS` in `scripts/tables.lua`.
type Beside = (u16, Option<Vec<u8>>);

fn put_job(args: &mut Args, piece: &JobPiece) -> Result<()> {
    let job = &piece.job;
    if job.state == State::Running {
        return Err(Error::wrong_state(job.id, job.state, "imported"));
    }
    let submitted = piece.submitted();
    let options = options_text(&job.options)?;
    let body = body(&piece.payload, options.as_ref());
    let (short_body, long_body) =
        if body.len() > BODY_IN_ROW_MAX { (Vec::new(), Some(body)) } else { (body, None) };
    let result = piece.result.as_ref().map(text);
    let (out, long_result) = match result {
        Some(result) if result.len() > OUT_IN_ROW_MAX => (Vec::new(), Some(result)),
        result => (result.unwrap_or_default(), None),
    };
    let json = |json: Option<Json>| json.as_ref().map(text);
    let beside: [Beside; 10] = [
        (has::LONG, long_body),
        (has::DATA, piece.data.as_ref().map(text)),
        (has::RESULT, long_result),
        (has::ERROR, job.error.as_ref().map(|error| error_bytes(error, &piece.edges)).transpose()?),
        (has::PARK, job.park.as_ref().map(park_bytes).transpose()?),
        (has::WAKE, json(piece.wake.as_ref().map(Json::of).transpose()?)),
        (has::RUNS, (!piece.runs.is_empty()).then(|| runs_bytes(&piece.runs)).transpose()?),
        (has::PROGRESS, json(piece.progress.as_ref().map(Json::of).transpose()?)),
        (has::AFTER, piece.after_process.as_ref().map(|process| process.as_str().as_bytes().to_vec())),
        // Without policy, wait and cap, which are for the enqueue alone.
        (
            has::UNIQUE,
            job.options.unique.as_ref().map(|unique| unique_bytes(&submitted, unique).split_off(17)),
        ),
    ];
    let mut having = beside.iter().filter(|(_, value)| value.is_some()).fold(0, |sum, (bit, _)| sum | bit);
    having |= if piece.log.is_empty() { 0 } else { has::LOG };
    having |= if piece.edges.is_empty() { 0 } else { has::EDGES };

    let mut row = head(piece, &submitted, options.as_ref(), having)?;
    if !is_fresh(piece) {
        put_lived(&mut row, piece, &out);
    }
    put_name(&mut row, &short_body);
    args.extend([b"J".to_vec(), number(&job.seq), row]);
    args.extend(beside.into_iter().filter_map(|(_, value)| value));
    if !piece.log.is_empty() {
        args.push(number(&piece.log.len()));
        for line in &piece.log {
            args.push(text(&Json::of(line)?));
        }
    }
    put_edges(args, &piece.edges)
}

/// Nothing of a run is in it.
fn is_fresh(piece: &JobPiece) -> bool {
    let job = &piece.job;
    job.fence == 0 && job.finished_at.is_none() && job.updated_at == job.created_at
}

/// The first part of a row: `HEAD` in `scripts/tables.lua`.
fn head(piece: &JobPiece, submitted: &NewJob, options: Option<&Json>, having: u16) -> Result<Vec<u8>> {
    let job = &piece.job;
    let flags = [
        (flag::HELPER, job.helper),
        (flag::WAITS_PROCESS, piece.waits_for_process),
        (flag::PARK_UNTIL, job.park.as_ref().is_some_and(|park| park.until.is_some())),
        (flag::SUSPECT, job.spent.crashes > 0),
        (flag::FRESH, is_fresh(piece)),
    ];
    let mut row = job.id.as_bytes().to_vec();
    row.extend(digest(submitted, options)?.to_be_bytes());
    row.push(job.state as u8);
    row.push(flags.iter().filter(|(_, on)| *on).fold(0, |sum, (bit, _)| sum | bit));
    row.extend(job.priority.to_be_bytes());
    for time in [Some(job.run_at), job.expires_at, Some(job.created_at)] {
        put_short_time(&mut row, time);
    }
    row.extend(having.to_be_bytes());
    row.extend(u16::try_from(job.waits_for).unwrap_or(u16::MAX).to_be_bytes());
    put_lane(&mut row, submitted);
    put_rule(&mut row, job.options.retention);
    Ok(row)
}

/// The second part: `LIVED`.
fn put_lived(row: &mut Vec<u8>, piece: &JobPiece, out: &[u8]) {
    let job = &piece.job;
    for time in [job.started_at, Some(job.updated_at), piece.remove_at] {
        put_short_time(row, time);
    }
    put_spent(row, job.spent);
    row.extend(u32::try_from(job.fence).unwrap_or(u32::MAX).to_be_bytes());
    row.extend([0; 6]);
    put_name(row, job.worker.as_ref().map_or("", |worker| worker.as_str()).as_bytes());
    put_name(row, out);
}

/// That a job fell with a parent is a byte for the scripts: a retry of the parent brings it back.
fn error_bytes(error: &JobError, edges: &[EdgePiece]) -> Result<Vec<u8>> {
    let by = |parent: JobId, ended: State| {
        let mut bytes = vec![1];
        bytes.extend(parent.as_bytes());
        bytes.push(ended as u8);
        bytes
    };
    let mut ends =
        edges.iter().flat_map(|edge| [State::Failed, State::Cancelled].map(|ended| (edge.parent_id, ended)));
    match ends.find(|(parent, ended)| *error == JobError::dependency(*parent, *ended)) {
        Some((parent, ended)) => Ok(by(parent, ended)),
        None => Ok(text(&Json::of(error)?)),
    }
}

/// How many, and then each as `RUN` in `scripts/settlement.lua` has it.
fn runs_bytes(runs: &[Run]) -> Result<Vec<u8>> {
    let mut bytes = vec![u8::try_from(runs.len()).unwrap_or(u8::MAX)];
    for run in runs {
        bytes.extend(run.fence.to_be_bytes());
        put_time(&mut bytes, Some(run.started_at));
        put_time(&mut bytes, Some(run.ended_at));
        bytes.push(outcome_number(run.outcome));
        put_name(&mut bytes, run.worker.as_str().as_bytes());
        let error = run.error.as_ref().map(Json::of).transpose()?;
        for value in [error.as_ref(), run.usage.as_ref()] {
            let value = value.map_or("", |json| json.as_str());
            bytes.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend(value.as_bytes());
        }
    }
    Ok(bytes)
}

/// How many, and of each its name, the edge as `EDGE` in `scripts/graph.lua` has it, the parent's result and its error.
fn put_edges(args: &mut Args, edges: &[EdgePiece]) -> Result<()> {
    if edges.is_empty() {
        return Ok(());
    }
    args.push(number(&edges.len()));
    for (edge, index) in edges.iter().zip(1_u32..) {
        let mut bytes = edge.parent_id.as_bytes().to_vec();
        bytes.extend(index.to_be_bytes());
        bytes.extend([on_failure(edge.on_failure), u8::from(edge.satisfied)]);
        bytes.push(edge.ended.map_or(NOT_ENDED, |state| state as u8));
        let name = edge.parent_seq.map_or_else(|| format!("-{index}"), |seq| seq.to_string());
        let error = edge.error.as_ref().map(Json::of).transpose()?;
        let values = [edge.result.as_ref(), error.as_ref()].map(|value| value.map(text).unwrap_or_default());
        args.extend([name.into_bytes(), bytes]);
        args.extend(values);
    }
    Ok(())
}
