//! Enqueue: one call of a function, all or nothing.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use longhaul_queue::job::{JobOptions, NewJob, ProcessId};
use longhaul_queue::store::{Enqueued, Firing, InsertOutcome, refusals};
use longhaul_queue::{Error, Json, Result, Timestamp, graph};
use redis::Value;

use super::RedisStore;
use super::codec::{Reader, corrupt, millis, text};
use super::encode::{Args, first_state, options_text, put_job};
use super::link::Link;
use super::reply;
use super::scripts::Function;
use crate::insert_batcher::{Gather, Inserts, Part};

/// Where jobs come in.
pub(super) struct Enqueues {
    pub(super) link: Arc<Link>,
    pub(super) gather: Gather,
}

#[async_trait]
impl Inserts for Enqueues {
    fn gather(&self) -> &Gather {
        &self.gather
    }

    async fn together(&self, parts: &[&Part]) -> Result<Vec<Vec<Enqueued>>> {
        insert(&self.link, parts).await
    }

    async fn alone(&self, part: &Part) -> Result<Vec<Enqueued>> {
        Ok(insert(&self.link, &[part]).await?.pop().unwrap_or_default())
    }
}

/// Stores submissions, all or none, and answers for each.
async fn insert(link: &Link, parts: &[&Part]) -> Result<Vec<Vec<Enqueued>>> {
    let jobs = || parts.iter().flat_map(|part| &part.jobs);
    let count = jobs().count();
    if count == 0 {
        return Ok(parts.iter().map(|_| Vec::new()).collect());
    }
    let mut args: Args = vec![count.to_string().into_bytes()];
    for part in parts {
        put_jobs(&mut args, &part.jobs, part.now)?;
    }
    let mut seen = HashSet::with_capacity(count);
    let differ = jobs().all(|job| seen.insert(job.id));
    args.push(if differ { b"1".to_vec() } else { b"0".to_vec() });
    let now = parts.iter().map(|part| part.now).max().unwrap_or_default();
    let (head, rest) = reply::headed(link.run(Function::Enqueue, now, args).await?)?;
    let [enqueued] = rest.as_slice() else { return Err(refusal(&head, &rest)) };
    let mut replies = match head.as_str() {
        "plain" => plain(parts, reply::int(enqueued)?)?,
        "ok" => each(reply::bytes(enqueued)?)?,
        _ => return Err(refusal(&head, &rest)),
    }
    .into_iter();
    Ok(parts.iter().map(|part| replies.by_ref().take(part.jobs.len()).collect()).collect())
}

/// What became of each.
fn each(bytes: &[u8]) -> Result<Vec<Enqueued>> {
    let mut reader = Reader::new(bytes);
    let mut replies = Vec::new();
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
fn plain(parts: &[&Part], last: i64) -> Result<Vec<Enqueued>> {
    let jobs = parts.iter().flat_map(|part| part.jobs.iter().map(|job| (job, part.now)));
    let enqueued = |((job, now), seq): ((&NewJob, Timestamp), i64)| {
        let id = job.id.ok_or_else(|| corrupt("an answer"))?;
        Ok(Enqueued { id, seq, state: first_state(job, now), how: InsertOutcome::Inserted })
    };
    jobs.zip(last + 1..).map(enqueued).collect()
}

/// How many, and then each.
pub(super) fn job_args(jobs: &[NewJob], now: Timestamp) -> Result<Args> {
    let mut args = Vec::with_capacity(1 + jobs.len());
    args.push(jobs.len().to_string().into_bytes());
    put_jobs(&mut args, jobs, now)?;
    Ok(args)
}

fn put_jobs(args: &mut Args, jobs: &[NewJob], now: Timestamp) -> Result<()> {
    graph::check(jobs)?;
    // Jobs that come together mostly have the same options.
    let mut known: Option<(&JobOptions, Option<Json>)> = None;
    for job in jobs {
        let options = match &known {
            Some((options, text)) if *options == &job.options => text.clone(),
            _ => options_text(&job.options)?,
        };
        put_job(args, job, options.as_ref(), now)?;
        known = Some((&job.options, options));
    }
    Ok(())
}

fn how(number: u8) -> Result<InsertOutcome> {
    match number {
        0 => Ok(InsertOutcome::Inserted),
        1 => Ok(InsertOutcome::Duplicate),
        2 => Ok(InsertOutcome::Skipped),
        3 => Ok(InsertOutcome::Replaced),
        4 => Ok(InsertOutcome::Debounced),
        _ => Err(corrupt("an answer")),
    }
}

/// Why a script refused jobs, in words.
pub(super) fn refusal(head: &str, rest: &[Value]) -> Error {
    let bytes = |index: usize| rest.get(index).ok_or_else(|| corrupt("an answer")).and_then(reply::bytes);
    let id = |index: usize| bytes(index).and_then(|bytes| Reader::new(bytes).id());
    let process = |index: usize| bytes(index).and_then(text).map(ProcessId::from);
    let refusal = || {
        Ok(match head {
            "twice" => refusals::given_twice(id(0)?),
            "exists" => refusals::other_content(id(0)?),
            "parent" => refusals::no_parent(id(0)?, id(1)?),
            "process" => refusals::no_process(id(0)?, &process(1)?),
            "own" => refusals::own_process(id(0)?, &process(1)?),
            _ => corrupt("an answer"),
        })
    };
    refusal().unwrap_or_else(|error: Error| error)
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
