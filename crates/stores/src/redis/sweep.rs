//! What time moves: promote, rescue, prune. Each takes the most overdue jobs first and says when to come back. The
//! judgements (a crash, a park that timed out) are Rust's: the script hands over rows, and the answer is written only
//! where the row is still the same.

use longhaul_queue::limits::{SWEEP_MAX, WORKER_KEPT};
use longhaul_queue::store::{Swept, rules};
use longhaul_queue::{Result, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, millis};
use super::encode::{Args, Item};
use super::park::{Seen, Waking, end_parks_by_time};
use super::reply;
use super::scripts::Function;
use super::settle::{TRIES_MAX, head as settle_head, too_busy};

/// Entries of a stream that nobody renewed for so long, by the server's clock, are looked at. Longer than any lease, which
/// is what decides.
const IDLE_MS: u64 = 600_000;

fn number(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

pub(super) async fn promote(store: &RedisStore, now: Timestamp, limit: usize) -> Result<Swept> {
    let limit = limit.min(SWEEP_MAX);
    let mut swept = Swept::default();
    for _ in 0..TRIES_MAX {
        let left = limit.saturating_sub(usize::try_from(swept.changed).unwrap_or(usize::MAX));
        let [changed, next_at, judged] =
            reply::fixed(store.link.run(Function::Promote, now, vec![number(left)]).await?)?;
        swept.changed += reply::count(&changed)?;
        swept.next_at = reply::time(&next_at)?;
        let wakings: Vec<Waking> =
            reply::list(judged)?.into_iter().map(|value| timed_out(value, now)).collect::<Result<_>>()?;
        if wakings.is_empty() {
            return Ok(swept);
        }
        let count = wakings.len() as u64;
        if end_parks_by_time(store, wakings, now).await? {
            swept.changed += count;
            if swept.changed >= limit as u64 {
                return Ok(swept);
            }
        }
    }
    Err(too_busy())
}

/// Ends a park without its signal, as the park says.
fn timed_out(value: Value, now: Timestamp) -> Result<Waking> {
    let [seq, row, options, park] = reply::fixed(value)?;
    let seen = Seen::read(&seq, &row, &options)?;
    let park = codec::park(reply::bytes(&park)?)?;
    let (settlement, wake) = rules::park_timed_out(&park, &seen.options, seen.row.job.spent, now);
    Ok(Waking { seen, settlement, wake })
}

pub(super) async fn rescue(store: &RedisStore, now: Timestamp, limit: usize) -> Result<Swept> {
    let args: Args = vec![number(limit.min(SWEEP_MAX)), IDLE_MS.to_string().into_bytes()];
    let [found, next_at] = reply::fixed(store.link.run(Function::ExpiredLeases, now, args).await?)?;
    let next_at = reply::time(&next_at)?;
    let found = reply::list(found)?;
    if found.is_empty() {
        return Ok(Swept { changed: 0, next_at });
    }
    let mut args = settle_head("rescue", &[], found.len());
    for value in found {
        let [seq, row, options] = reply::fixed(value)?;
        let seen = Seen::read(&seq, &row, &options)?;
        let job = &seen.row.job;
        // A job whose cancellation was asked for ends; the script sees to it.
        let settlement = rules::crashed(&seen.options, job.spent, false, now);
        args.push(seen.bytes);
        Item::of((job.seq, job.id, job.fence), &settlement).put(&mut args)?;
    }
    let [_, replies] = reply::fixed(store.link.run(Function::Settle, now, args).await?)?;
    let changed = reply::list(replies)?.iter().filter(|reply| matches!(reply, Value::Int(_))).count();
    Ok(Swept { changed: changed as u64, next_at })
}

pub(super) async fn prune(store: &RedisStore, now: Timestamp, limit: usize) -> Result<Swept> {
    let silent_since = millis(now - WORKER_KEPT).to_string().into_bytes();
    let args: Args = vec![number(limit.min(SWEEP_MAX)), silent_since];
    let [changed, next_at] = reply::fixed(store.link.run(Function::Prune, now, args).await?)?;
    Ok(Swept { changed: reply::count(&changed)?, next_at: reply::time(&next_at)? })
}
