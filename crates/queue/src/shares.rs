//! A limit that several processes share, such as a provider's requests a minute: each holds a share of it under a lease
//! in the store, and uses no more than its share. What all shares make together is never more than the whole, whoever
//! comes, goes or dies; but for the hundredth that a newcomer has while the others make room.
//!
//! A process says how much it wants. Everybody gets what it wants as long as that is no more than an equal share; who
//! wants less leaves the rest to the others; what nobody wants is divided too, so that it is at hand. A newcomer gets
//! what is free, and the rest when the others come to renew and give it up.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::store::LEASE_PREFIX;

/// How often a share is renewed.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How long a share is kept for its holder.
pub const LEASE: Duration = Duration::from_secs(8);
/// The least that a process has, also before the others have made room: enough to find out that it could use more.
pub const SHARE_MIN: f64 = 0.01;
/// Tries to write a record that others write at the same time, and the longest pause between two.
const TRIES_MAX: usize = 10;
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// The longest that the store is waited for: the old share is used meanwhile, and must not outlast its lease.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(4);
/// Processes that share one limit; more than these get the least.
const HOLDERS_MAX: usize = 500;

/// Who holds how much of one limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Table {
    holders: BTreeMap<String, Holder>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Holder {
    want: f64,
    share: f64,
    until: Timestamp,
}

/// This process's shares.
pub struct Shares {
    engine: Engine,
    holder: String,
    /// Until when each is ours.
    held: Mutex<BTreeMap<String, (f64, Timestamp)>>,
}

impl Shares {
    /// Shares of limits that are shared through a store.
    pub fn new(engine: Engine, holder: impl Into<String>) -> Self {
        Self { engine, holder: holder.into(), held: Mutex::default() }
    }

    /// Asks for as much of a limit as `want` says, as a share of the whole. Answers the share that may be used from now
    /// on. While the store cannot be asked that is what was held for as long as the lease lasts, then the least; `None`
    /// where nothing was ever held.
    pub async fn renew(&self, limit: &str, want: f64) -> Option<f64> {
        let renewal = self.try_renew(limit, want.clamp(SHARE_MIN, 1.0));
        let late = |_| Err(Error::Unavailable("no answer from the store in time".to_owned()));
        let renewed = tokio::time::timeout(ANSWER_WAIT_MAX, renewal).await.unwrap_or_else(late);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.engine.clock().now();
        let still = held.get(limit).map(|(share, until)| if *until > now { *share } else { SHARE_MIN });
        match renewed {
            Ok(Some((share, until))) => {
                held.insert(limit.to_owned(), (share, until));
                Some(share)
            }
            // Others are there, so it is not the whole.
            Ok(None) => Some(still.unwrap_or(SHARE_MIN)),
            Err(error) => {
                tracing::debug!(%error, limit, "the share of a limit could not be renewed");
                still
            }
        }
    }

    /// `None` when others write the record all the time.
    async fn try_renew(&self, limit: &str, want: f64) -> Result<Option<(f64, Timestamp)>> {
        for _ in 0..TRIES_MAX {
            let now = self.engine.clock().now();
            let until = now + LEASE;
            let (version, mut table) = self.read(limit).await?;
            let share = table.grant(&self.holder, want, now, until);
            if self.write(limit, version, &table).await? {
                return Ok(Some((share, until)));
            }
            // Apart from the others, who lost as well.
            tokio::time::sleep(TRY_AGAIN.mul_f64(fastrand::f64())).await;
        }
        Ok(None)
    }

    /// Gives a share up, so that others need not wait for the end of its lease.
    pub async fn release(&self, limit: &str) -> Result<()> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(limit);
        for _ in 0..TRIES_MAX {
            let (version, mut table) = self.read(limit).await?;
            if table.holders.remove(&self.holder).is_none() || self.write(limit, version, &table).await? {
                break;
            }
        }
        Ok(())
    }

    async fn read(&self, limit: &str) -> Result<(u64, Table)> {
        match self.engine.store().record(record_of(limit)).await? {
            None => Ok((0, Table::default())),
            Some(record) => Ok((record.version, record.value.to()?)),
        }
    }

    async fn write(&self, limit: &str, version: u64, table: &Table) -> Result<bool> {
        self.engine.store().put_record(record_of(limit), version, Json::of(table)?).await
    }
}

fn record_of(limit: &str) -> String {
    format!("{LEASE_PREFIX}shares/{limit}")
}

impl Table {
    /// Gives `holder` its share: no more than its due, and no more than the others have left.
    fn grant(&mut self, holder: &str, want: f64, now: Timestamp, until: Timestamp) -> f64 {
        // No lease is longer than this, whatever a clock said that was wrong.
        self.holders.retain(|_, other| other.until > now && other.until <= now + LEASE * 2);
        let known = self.holders.contains_key(holder);
        if !known && self.holders.len() >= HOLDERS_MAX {
            return SHARE_MIN;
        }
        let share = self.holders.get(holder).map_or(0.0, |own| own.share);
        self.holders.insert(holder.to_owned(), Holder { want, share, until });
        let dues = divide(&self.holders.values().map(|holder| holder.want).collect::<Vec<_>>());
        let due = self.holders.keys().zip(dues).find(|(name, _)| *name == holder).map_or(0.0, |(_, due)| due);
        let others = self.holders.iter().filter(|(name, _)| *name != holder);
        let free = 1.0 - others.map(|(_, other)| other.share).sum::<f64>();
        let share = due.min(free).max(SHARE_MIN.min(1.0 / self.holders.len() as f64));
        if let Some(own) = self.holders.get_mut(holder) {
            own.share = share;
        }
        share
    }
}

/// Divides a whole by what each wants: nobody gets more than it wants while another lacks something, and the rest goes to
/// all in proportion.
fn divide(wants: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| wants[*a].total_cmp(&wants[*b]));
    let mut dues = vec![0.0; wants.len()];
    let mut left = 1.0;
    for (place, index) in order.iter().enumerate() {
        let equal = left / (wants.len() - place) as f64;
        dues[*index] = wants[*index].min(equal);
        left -= dues[*index];
    }
    let given: f64 = dues.iter().sum();
    if given > 0.0 {
        dues.iter_mut().for_each(|due| *due /= given);
    }
    dues
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::memory::MemoryStore;

    #[test]
    fn who_wants_little_gets_it_and_the_rest_share_equally() {
        let table: [(&[f64], &[f64]); 6] = [
            (&[1.0], &[1.0]),
            (&[0.2], &[1.0]),
            (&[1.0, 1.0], &[0.5, 0.5]),
            (&[0.1, 1.0, 1.0], &[0.1, 0.45, 0.45]),
            (&[0.1, 0.1], &[0.5, 0.5]),
            (&[0.1, 0.3], &[0.25, 0.75]),
        ];
        for (wants, expected) in table {
            let dues = divide(wants);
            assert!(dues.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{wants:?}: {dues:?}");
        }
        assert_eq!(divide(&[]), [0.0; 0]);
    }

    struct Stage {
        clock: Arc<ManualClock>,
        engine: Engine,
    }

    impl Stage {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
            let engine = Engine::new(Arc::new(MemoryStore::new())).with_clock(clock.clone());
            Self { clock, engine }
        }

        fn process(&self, name: &str) -> Shares {
            Shares::new(self.engine.clone(), name)
        }

        fn pass(&self) {
            self.clock.advance(RENEW_EVERY);
        }
    }

    #[tokio::test]
    async fn shares_never_make_more_than_the_whole() {
        let stage = Stage::new();
        let names = ["a", "b", "c", "d"];
        let processes = names.map(|name| stage.process(name));
        let seed = fastrand::u64(..);
        let mut rng = fastrand::Rng::with_seed(seed);
        // What each may use: its share until the lease ends, or the least.
        let mut used = [(0.0, stage.clock.now()); 4];
        for step in 0..2_000 {
            let index = rng.usize(..4);
            stage.clock.advance(Duration::from_millis(rng.u64(0..3_000)));
            let now = stage.clock.now();
            let share = processes[index].renew("l", rng.f64()).await.expect("the store answers");
            used[index] = (share, now + LEASE);
            let sum: f64 = used.iter().map(|(share, until)| if *until > now { *share } else { 0.0 }).sum();
            assert!(sum <= 1.0 + 4.0 * SHARE_MIN, "seed {seed}, step {step}: {used:?}");
        }
    }

    #[tokio::test]
    async fn many_processes_share_without_exceeding_the_whole() {
        let stage = Stage::new();
        let processes: Vec<Shares> = (0..300).map(|number| stage.process(&number.to_string())).collect();
        let mut sum = 0.0;
        for _ in 0..3 {
            sum = 0.0;
            for process in &processes {
                sum += process.renew("l", 1.0).await.expect("the store answers");
            }
            stage.pass();
        }
        assert!((0.99..=1.01).contains(&sum), "{sum}");
    }

    #[tokio::test]
    async fn a_newcomer_has_its_share_after_one_round_and_a_dead_ones_share_comes_back() {
        let stage = Stage::new();
        let (a, b) = (stage.process("a"), stage.process("b"));
        assert_eq!(a.renew("l", 1.0).await, Some(1.0));
        assert_eq!(b.renew("l", 1.0).await, Some(SHARE_MIN), "nothing is free yet");
        stage.pass();
        assert_eq!(a.renew("l", 1.0).await, Some(0.5));
        assert_eq!(b.renew("l", 1.0).await, Some(0.5));
        // b dies: until its lease has ended, its share may still be in use.
        for _ in 0..3 {
            stage.pass();
            assert_eq!(a.renew("l", 1.0).await, Some(0.5));
        }
        stage.pass();
        assert_eq!(a.renew("l", 1.0).await, Some(1.0));
        let c = stage.process("c");
        assert_eq!(c.renew("l", 1.0).await, Some(SHARE_MIN));
        a.release("l").await.expect("released");
        assert_eq!(c.renew("l", 1.0).await, Some(1.0), "who leaves in peace keeps nobody waiting");
        assert_eq!(a.renew("other", 1.0).await, Some(1.0), "limits are shared one by one");
    }

    #[tokio::test]
    async fn without_the_store_a_slice_holds_as_long_as_its_lease() {
        use crate::testing::{Fault, FaultyStore};
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        let engine = Engine::new(store.clone()).with_clock(clock.clone());
        let shares = Shares::new(engine, "a");
        store.fail_call(1, Fault::Before);
        assert_eq!(shares.renew("l", 1.0).await, None);
        assert_eq!(shares.renew("l", 1.0).await, Some(1.0));
        for call in 1..=20 {
            store.fail_call(store.calls() + call, Fault::Before);
        }
        clock.advance(LEASE - Duration::from_millis(1));
        assert_eq!(shares.renew("l", 1.0).await, Some(1.0));
        clock.advance(Duration::from_millis(1));
        assert_eq!(shares.renew("l", 1.0).await, Some(SHARE_MIN));
    }
}
