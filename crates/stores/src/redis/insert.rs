//! Enqueue: one script call, all or nothing.

use std::collections::HashSet;

use longhaul_queue::job::{JobOptions, NewJob};
use longhaul_queue::store::{Enqueued, Firing, How};
use longhaul_queue::{Error, Json, Result, Timestamp, graph};
use redis::Value;

use super::RedisStore;
use super::codec::{Reader, corrupt, millis, text};
use super::encode::{Args, first_state, options_text, put_job};
use super::reply;
use super::scripts::Function;

pub(super) async fn insert(store: &RedisStore, jobs: &[NewJob], now: Timestamp) -> Result<Vec<Enqueued>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let mut args = job_args(jobs, now)?;
    let mut seen = HashSet::with_capacity(jobs.len());
    let differ = jobs.iter().all(|job| seen.insert(job.id));
    args.push(if differ { b"1".to_vec() } else { b"0".to_vec() });
    let (head, rest) = reply::headed(store.link.run(Function::Enqueue, now, args).await?)?;
    let [enqueued] = rest.as_slice() else { return Err(refusal(&head, &rest)) };
    match head.as_str() {
        "plain" => return plain(jobs, reply::int(enqueued)?, now),
        "ok" => {}
        _ => return Err(refusal(&head, &rest)),
    }
    let mut reader = Reader::new(reply::bytes(enqueued)?);
    let mut replies = Vec::with_capacity(jobs.len());
    while !reader.is_empty() {
        replies.push(Enqueued {
            id: reader.id()?,
            seq: reader.seq()?,
            state: reader.state()?,
            how: how(reader.byte()?)?,
        });
    }
    Ok(replies)
}

/// Jobs that were all new and wait for nothing but their time, stored after the place `last`.
fn plain(jobs: &[NewJob], last: i64, now: Timestamp) -> Result<Vec<Enqueued>> {
    let enqueued = |(job, seq): (&NewJob, i64)| {
        let id = job.id.ok_or_else(|| corrupt("an answer"))?;
        Ok(Enqueued { id, seq, state: first_state(job, now), how: How::Inserted })
    };
    jobs.iter().zip(last + 1..).map(enqueued).collect()
}

/// How many, and then each.
pub(super) fn job_args(jobs: &[NewJob], now: Timestamp) -> Result<Args> {
    graph::check(jobs)?;
    let mut args = Vec::with_capacity(1 + jobs.len());
    args.push(jobs.len().to_string().into_bytes());
    // Jobs that come together mostly have the same options.
    let mut known: Option<(&JobOptions, Option<Json>)> = None;
    for job in jobs {
        let options = match &known {
            Some((options, text)) if *options == &job.options => text.clone(),
            _ => options_text(&job.options)?,
        };
        put_job(&mut args, job, options.as_ref(), now)?;
        known = Some((&job.options, options));
    }
    Ok(args)
}

fn how(number: u8) -> Result<How> {
    match number {
        0 => Ok(How::Inserted),
        1 => Ok(How::Duplicate),
        2 => Ok(How::Skipped),
        3 => Ok(How::Replaced),
        4 => Ok(How::Debounced),
        _ => Err(corrupt("an answer")),
    }
}

/// Why a script refused jobs, in words.
pub(super) fn refusal(head: &str, rest: &[Value]) -> Error {
    let id = |index: usize| {
        rest.get(index)
            .and_then(|value| reply::bytes(value).ok())
            .and_then(|bytes| Reader::new(bytes).id().ok())
            .map_or_else(String::new, |id| id.to_string())
    };
    let name = |index: usize| {
        rest.get(index)
            .and_then(|value| reply::bytes(value).ok())
            .and_then(|bytes| text(bytes).ok())
            .unwrap_or_default()
    };
    match head {
        "twice" => Error::invalid(format!("id {} is given twice in one submission", id(0))),
        "exists" => Error::invalid(format!("job {} exists with other content", id(0))),
        "parent" => Error::invalid(format!("job {} depends on {}, which does not exist", id(0), id(1))),
        "process" => {
            Error::invalid(format!("job {} waits for process {}, which does not exist", id(0), name(1)))
        }
        "own" => Error::invalid(format!(
            "job {} would wait for its own process {}; make it a helper",
            id(0),
            name(1)
        )),
        _ => corrupt("an answer"),
    }
}

/// Enqueues a schedule's jobs if its time is still the expected one.
pub(super) async fn fire(store: &RedisStore, firing: Firing, now: Timestamp) -> Result<bool> {
    let jobs = match job_args(&firing.jobs, now) {
        Ok(jobs) => jobs,
        // One that has fired already is no error, whatever it would have enqueued.
        Err(error) => {
            let schedules = super::settings::schedules(store).await?;
            let due =
                schedules.iter().any(|row| row.name == firing.name && row.next_at == firing.expected_at);
            return if due { Err(error) } else { Ok(false) };
        }
    };
    let time = |time| millis(time).to_string().into_bytes();
    let mut args: Args = vec![firing.name.into_bytes(), time(firing.expected_at), time(firing.next_at)];
    args.extend(jobs);
    let (head, rest) = reply::headed(store.link.run(Function::Fire, now, args).await?)?;
    match head.as_str() {
        "ok" => Ok(true),
        "no" => Ok(false),
        _ => Err(refusal(&head, &rest)),
    }
}
