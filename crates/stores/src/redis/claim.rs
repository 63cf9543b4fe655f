//! Claim, and what the holder of a lease does before it settles: extend and save.

use longhaul_queue::job::{Claimed, Lease, WorkerId};
use longhaul_queue::limits::CLAIM_MAX;
use longhaul_queue::store::{ClaimRequest, ExtendRequest, Renewal, Save};
use longhaul_queue::{Error, Json, Result, State, Timestamp};
use redis::Value;
use tracing::warn;

use super::RedisStore;
use super::codec::{self, Reader, Row, corrupt, millis};
use super::encode::{Args, lease_arg};
use super::reply;
use super::scripts::Function;

/// More than any claim can take, and exact as a Lua number.
const MANY: usize = 1_000_000_000;

fn number(number: usize) -> Vec<u8> {
    number.min(MANY).to_string().into_bytes()
}

pub(super) async fn claim(store: &RedisStore, request: ClaimRequest) -> Result<Vec<Claimed>> {
    let ClaimRequest { queues, kinds, worker, limit, suspects_max, lease_for, now } = request;
    let now = now + store.link.ready().await?;
    let until = now + lease_for;
    let mut args: Args = vec![
        worker.as_str().as_bytes().to_vec(),
        millis(until).to_string().into_bytes(),
        number(limit.min(CLAIM_MAX)),
        number(suspects_max),
        number(queues.len()),
    ];
    args.extend(queues.into_iter().map(String::into_bytes));
    match kinds {
        None => args.push(b"-1".to_vec()),
        Some(kinds) => {
            args.push(number(kinds.len()));
            args.extend(kinds.into_iter().map(String::into_bytes));
        }
    }
    let [places, rows, besides, foreign] = reply::fixed(store.link.run(Function::Claim, now, args).await?)?;
    for queue in reply::list(foreign)? {
        tell_foreign(store, &codec::text(reply::bytes(&queue)?)?);
    }
    let mut places = Reader::new(reply::bytes(&places)?);
    let mut besides = reply::list(besides)?.into_iter().map(beside).peekable();
    let mut claimed = Vec::new();
    for (index, row) in (1..).zip(reply::list(rows)?) {
        let of_this = besides.next_if(|beside| !matches!(beside, Ok((of, _)) if *of != index));
        let beside = of_this.transpose()?.map_or_else(Beside::default, |(_, beside)| beside);
        claimed.push(handed_out(places.seq()?, &row, beside, &worker, (now, until))?);
    }
    Ok(claimed)
}

/// A program that adds to a queue's stream by hand expects a job from it, and waits in vain.
fn tell_foreign(store: &RedisStore, queue: &str) {
    let stream = store.link.key(&format!("s:{queue}"));
    warn!(
        queue,
        stream,
        "this stream had entries that longhaul did not write, or is none; no job comes of them, and it was begun anew; enqueue \
         with `longhaul enqueue` or the API"
    );
}

/// What stands beside a row: a long body, data, the last error, what woke it, its edges.
#[derive(Default)]
struct Beside {
    values: Option<[Value; 4]>,
    edges: Vec<codec::Edge>,
}

/// For which of the jobs, and what.
fn beside(value: Value) -> Result<(i64, Beside)> {
    let [index, long, data, error, wake, edges] = reply::fixed(value)?;
    let edges = if edges == Value::Nil { Vec::new() } else { codec::edges(&reply::pairs(edges)?)? };
    Ok((reply::int(&index)?, Beside { values: Some([long, data, error, wake]), edges }))
}

fn handed_out(
    seq: i64,
    row: &Value,
    beside: Beside,
    worker: &WorkerId,
    (now, until): (Timestamp, Timestamp),
) -> Result<Claimed> {
    let nothing = [Value::Nil, Value::Nil, Value::Nil, Value::Nil];
    let [long, data, error, wake] = beside.values.unwrap_or(nothing);
    let Row { mut job, payload, .. } = Row::read(seq, reply::bytes(row)?, reply::maybe(&long)?)?;
    // The row stands as it was before the claim; this is what `under_way` in `scripts/tables.lua` sees in it.
    job.state = State::Running;
    job.fence += 1;
    job.worker = Some(worker.clone());
    job.started_at = Some(now);
    job.updated_at = now;
    job.lease_until = Some(until);
    let lease = Lease { job_id: job.id, seq, fence: job.fence, worker: worker.clone(), until };
    job.error = reply::maybe(&error)?.map(codec::error).transpose()?;
    Ok(Claimed {
        job,
        lease,
        payload,
        data: reply::maybe(&data)?.map(codec::json).transpose()?,
        parents: beside.edges.into_iter().filter_map(codec::Edge::parent).collect(),
        wake: reply::maybe(&wake)?.map(|wake| codec::from_json("a wake", wake)).transpose()?,
    })
}

pub(super) async fn extend(store: &RedisStore, request: ExtendRequest) -> Result<Vec<Renewal>> {
    let ExtendRequest { leases, lease_for, now } = request;
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let now = now + store.link.ready().await?;
    let until = now + lease_for;
    let mut args: Args = vec![millis(until).to_string().into_bytes()];
    args.extend(leases.iter().map(lease_arg));
    let replies = reply::list(store.link.run(Function::Extend, now, args).await?)?;
    let renewal = |value: &Value| match reply::int(value)? {
        0 => Ok(Renewal::Lost),
        1 => Ok(Renewal::Extended { until, cancel_requested: false }),
        2 => Ok(Renewal::Extended { until, cancel_requested: true }),
        _ => Err(corrupt("an answer")),
    };
    replies.iter().map(renewal).collect()
}

pub(super) async fn save(store: &RedisStore, lease: Lease, save: Save, now: Timestamp) -> Result<()> {
    let Save { data, progress, log } = save;
    let given = [(data.is_some(), "d"), (progress.is_some(), "g")];
    let given: String = given.into_iter().filter_map(|(there, letter)| there.then_some(letter)).collect();
    let text = |json: Option<Json>| json.map_or_else(Vec::new, |json| json.as_str().as_bytes().to_vec());
    let progress = progress.map(|progress| Json::of(&progress)).transpose()?;
    let mut args: Args = vec![lease_arg(&lease), given.into_bytes(), text(data), text(progress)];
    for line in &log {
        args.push(Json::of(line)?.as_str().as_bytes().to_vec());
    }
    let held = store.link.run(Function::Save, now, args).await?;
    if reply::int(&held)? == 1 { Ok(()) } else { Err(Error::LostLease(lease.job_id)) }
}
