//! One process leads the duties: it holds a lease in the store, and sweeps a moment after anything changes, as each duty's pace
//! says. The others wait longer after a change, and trust it for as long as their own sweeps find nothing left to do. So many
//! processes cost the store little, and a leader that dies is missed for a moment only, however long its lease.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{debug, info};

use super::Pace;
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::error::Result;
use crate::json::Json;
use crate::shutdown::Shutdown;
use crate::store::Swept;

/// The record that names the leader.
const RECORD: &str = "lease/maintenance";
/// How long a leader stays one without renewing it.
const LEASE: Duration = Duration::from_secs(60);
/// Each is a durable write, which an idle store is to see seldom. A longer lease costs little: followers do the work of a leader that died.
const RENEW_EVERY: Duration = Duration::from_secs(20);
/// A follower comes so much later than the leader would, to find it done.
const LATER: Duration = Duration::from_millis(250);
/// How long after a change a follower sweeps, at least: this, when it had to do the leader's work,
const GAP_MIN: Duration = Duration::from_millis(500);
/// and up to this, doubled each time that nothing was left to do.
const GAP_MAX: Duration = Duration::from_secs(10);

/// Who leads the duties of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The process: its worker's id where it has one.
    pub holder: String,
    /// Until when it leads unless it renews.
    pub until: Timestamp,
}

impl Leader {
    /// Who leads at present.
    pub async fn of(engine: &Engine) -> Result<Option<Self>> {
        let record = engine.store().record(RECORD.to_owned()).await?;
        let leader = record.map(|record| record.value.to::<Self>()).transpose()?;
        let now = engine.clock().now();
        Ok(leader.filter(|leader| !leader.left(now).is_zero()))
    }

    /// For how long it leads. No lease is much longer than it may be, whatever a clock said that was wrong.
    fn left(&self, now: Timestamp) -> Duration {
        let left = self.until.since(now);
        if left > LEASE * 2 { Duration::ZERO } else { left }
    }
}

/// This process's part in it.
pub(super) struct Leadership {
    engine: Engine,
    holder: String,
    /// Until the store has said who leads, everybody does.
    leads: watch::Sender<bool>,
}

impl Leadership {
    pub(super) fn new(engine: Engine, holder: String) -> Arc<Self> {
        Arc::new(Self { engine, holder, leads: watch::Sender::new(true) })
    }

    /// Whether this process leads, and when that changes.
    pub(super) fn watch(&self) -> watch::Receiver<bool> {
        self.leads.subscribe()
    }

    /// Seeks the lead and keeps it until the shutdown asks for the end, then gives it up.
    pub(super) async fn run(&self, shutdown: Shutdown) {
        let clock = self.engine.clock();
        while !shutdown.is_requested() {
            let wait = match self.renew(LEASE).await {
                Ok(wait) => wait,
                Err(error) => {
                    debug!(%error, "the lead could not be renewed");
                    RENEW_EVERY
                }
            };
            tokio::select! {
                () = clock.sleep_until(clock.now() + wait) => {}
                () = shutdown.requested() => {}
            }
        }
        if *self.leads.borrow()
            && let Err(error) = self.renew(Duration::ZERO).await
        {
            debug!(%error, "the lead could not be given up, it ends by itself");
        }
    }

    /// Takes or renews the lead where nobody else has it. Says when to ask again.
    async fn renew(&self, lease: Duration) -> Result<Duration> {
        let now = self.engine.clock().now();
        let record = self.engine.store().record(RECORD.to_owned()).await?;
        let version = record.as_ref().map_or(0, |record| record.version);
        let other = match record {
            None => None,
            Some(record) => Some(record.value.to::<Leader>()?).filter(|leader| leader.holder != self.holder),
        };
        let left = other.map(|leader| leader.left(now)).filter(|left| !left.is_zero());
        if let Some(left) = left {
            self.set(false);
            return Ok(left.min(RENEW_EVERY));
        }
        let value = Json::of(&Leader { holder: self.holder.clone(), until: now + lease })?;
        let led = self.engine.store().put_record(RECORD.to_owned(), version, value).await?;
        self.set(led);
        Ok(if led { RENEW_EVERY } else { Duration::from_millis(1) })
    }

    fn set(&self, leads: bool) {
        let changed = self.leads.send_if_modified(|was| std::mem::replace(was, leads) != leads);
        if changed {
            info!(
                leads,
                "maintenance: {}",
                if leads { "this process leads" } else { "another process leads" }
            );
        }
    }
}

/// How long a duty waits, by whether it leads.
pub(super) struct Patience {
    gap: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { gap: GAP_MIN }
    }

    /// After a sweep: when to come back, and how long after a change.
    pub(super) fn after(
        &mut self,
        swept: Swept,
        leads: bool,
        pace: Pace,
        now: Timestamp,
    ) -> (Timestamp, Option<Duration>) {
        let next_at = swept.next_at.unwrap_or(now + pace.interval);
        if leads {
            self.gap = GAP_MIN;
            return (next_at.min(now + pace.interval), pace.change_gap);
        }
        // A sweep that was cut by its limit has more to do at once.
        let late = if swept.changed > 0 { Duration::ZERO } else { LATER };
        self.gap = if swept.changed > 0 { GAP_MIN } else { (self.gap * 2).min(GAP_MAX) };
        let gap = pace.change_gap.map(|gap| gap.max(self.gap));
        ((next_at + late).min(now + pace.interval), gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_from_a_wrong_clock_is_none() {
        let now = Timestamp::from_millis(1_000_000);
        let left = |until| Leader { holder: "a".to_owned(), until }.left(now);
        assert_eq!(left(now + LEASE), LEASE);
        assert_eq!(left(now - LEASE), Duration::ZERO);
        assert_eq!(left(now + Duration::from_secs(86_400)), Duration::ZERO);
    }

    #[test]
    fn a_follower_trusts_the_leader_while_it_finds_nothing_to_do() {
        let pace = Pace {
            interval: Duration::from_secs(10),
            change_gap: Some(Duration::from_millis(5)),
            batch_max: 10,
        };
        let now = Timestamp::from_millis(1_000_000);
        let at = now + Duration::from_secs(3);
        let nothing = Swept { changed: 0, next_at: Some(at) };
        let something = Swept { changed: 2, next_at: Some(at) };
        let mut patience = Patience::new();
        assert_eq!(patience.after(nothing, true, pace, now), (at, pace.change_gap));
        let gaps: Vec<_> = (0..6).map(|_| patience.after(nothing, false, pace, now)).collect();
        assert!(gaps.iter().all(|(until, _)| *until == at + LATER));
        let millis: Vec<_> = gaps.iter().map(|(_, gap)| gap.map_or(0, |gap| gap.as_millis())).collect();
        assert_eq!(millis, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert_eq!(patience.after(something, false, pace, now), (at, Some(GAP_MIN)), "the leader is missing");
        assert_eq!(patience.after(something, true, pace, now).1, pace.change_gap);
        let quiet = Pace { change_gap: None, ..pace };
        assert_eq!(patience.after(nothing, false, quiet, now).1, None);
    }
}
