//! Settle: what Rust judged, written by one script under the fence. A signal that came before its park is the one thing
//! that the judgement needs and only the server knows: the script names it and writes nothing, and the call is repeated
//! with a settlement that has taken it in.

use longhaul_queue::job::{JobOptions, WorkerId};
use longhaul_queue::state::Settlement;
use longhaul_queue::store::rules::{self, WakeChange};
use longhaul_queue::store::{SettleItem, Settled, Signal};
use longhaul_queue::{Error, Result, Timestamp};
use redis::Value;

use super::RedisStore;
use super::codec::{self, corrupt};
use super::encode::{Args, Item};
use super::insert::{job_args, refusal};
use super::reply;
use super::scripts::Function;

mod done;

/// Times that a call is repeated because something changed between judging and writing.
pub(super) const TRIES_MAX: usize = 20;

/// An item with what a waiting signal has made of it.
struct Judged {
    item: SettleItem,
    /// Jobs that cannot be stored whatever the server says.
    refused: Option<Error>,
    settlement: Settlement,
    wake: WakeChange,
}

impl Judged {
    fn new(item: SettleItem) -> Self {
        let settlement = item.settlement.clone();
        let wake = WakeChange::after(settlement.outcome);
        Self { item, refused: None, settlement, wake }
    }

    fn take_signal(&mut self, signal: Signal, options: &JobOptions, now: Timestamp) {
        let parked = self.item.settlement.clone();
        (self.settlement, self.wake) = rules::woken_at_once(parked, options, signal, now);
    }

    fn put(&mut self, args: &mut Args, workers: &mut Workers, now: Timestamp) -> Result<()> {
        let follow_ups = match job_args(&self.item.follow_ups, now) {
            Ok(jobs) => jobs.into_iter().skip(1).collect(),
            Err(error) => {
                self.refused = Some(error);
                Vec::new()
            }
        };
        let lease = &self.item.lease;
        let count = if self.refused.is_some() { 0 } else { self.item.follow_ups.len() };
        let item = Item {
            wake: self.wake.clone(),
            outcome: self.item.settlement.outcome,
            worker: workers.place(&lease.worker),
            follow_ups: count,
            invalid: self.refused.is_some(),
            ..Item::of((lease.seq, lease.job_id, lease.fence), &self.settlement)
        };
        item.put(args)?;
        args.extend(follow_ups);
        Ok(())
    }
}

/// The workers of a call's leases, each once.
#[derive(Default)]
struct Workers(Vec<WorkerId>);

impl Workers {
    /// Which of them, from 1 on.
    fn place(&mut self, worker: &WorkerId) -> usize {
        let known = self.0.iter().position(|known| known == worker);
        known.map_or_else(
            || {
                self.0.push(worker.clone());
                self.0.len()
            },
            |index| index + 1,
        )
    }
}

/// The arguments of a call before its items.
pub(super) fn head(mode: &str, workers: &[WorkerId], items: usize) -> Args {
    let number = |number: usize| number.to_string().into_bytes();
    let mut args: Args = vec![mode.as_bytes().to_vec(), number(workers.len())];
    args.extend(workers.iter().map(|worker| worker.as_str().as_bytes().to_vec()));
    args.push(number(items));
    args
}

pub(super) async fn settle(
    store: &RedisStore,
    items: Vec<SettleItem>,
    now: Timestamp,
) -> Result<Vec<Settled>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let mut judged: Vec<Judged> = items.into_iter().map(Judged::new).collect();
    for _ in 0..TRIES_MAX {
        let args = match done::args(&judged) {
            Some(args) => args,
            None => item_args(&mut judged, now)?,
        };
        let (answer, mut rest) = reply::headed(store.link.run(Function::Settle, now, args).await?)?;
        let values = match rest.pop().unwrap_or(Value::Nil) {
            // All of them have ended alike.
            Value::Int(state) => vec![Value::Int(state); judged.len()],
            values => reply::list(values)?,
        };
        if answer == "settled" {
            return values.into_iter().zip(judged).map(|(value, item)| settled(value, item)).collect();
        }
        for value in values {
            let [index, signal, options] = reply::fixed(value)?;
            let index = usize::try_from(reply::int(&index)?).ok().and_then(|index| index.checked_sub(1));
            let item = index.and_then(|index| judged.get_mut(index)).ok_or_else(|| corrupt("an answer"))?;
            let signal = codec::from_json("a signal", reply::bytes(&signal)?)?;
            item.take_signal(signal, &codec::options(Some(reply::bytes(&options)?))?, now);
        }
    }
    Err(too_busy())
}

fn item_args(judged: &mut [Judged], now: Timestamp) -> Result<Args> {
    let (mut items, mut workers) = (Vec::with_capacity(2 * judged.len()), Workers::default());
    for item in judged.iter_mut() {
        item.put(&mut items, &mut workers, now)?;
    }
    let mut args = head("settle", &workers.0, judged.len());
    args.extend(items);
    Ok(args)
}

/// Others change the same jobs faster than this call can judge them.
pub(super) fn too_busy() -> Error {
    Error::Unavailable("other calls changed the same jobs too often meanwhile".to_owned())
}

fn settled(value: Value, item: Judged) -> Result<Settled> {
    if let Value::Int(number) = value {
        let number = u8::try_from(number).map_err(|_| corrupt("an answer"))?;
        return Ok(Settled::Applied(codec::state(number)?));
    }
    let (head, rest) = reply::headed(value)?;
    match head.as_str() {
        "lost" => Ok(Settled::LostLease),
        "check" => {
            let error = item.settlement.check().err().or(item.refused);
            Ok(Settled::Refused(error.ok_or_else(|| corrupt("an answer"))?))
        }
        _ => Ok(Settled::Refused(refusal(&head, &rest))),
    }
}
