//! Detects a store with inconsistent answers: it counts ready jobs that no claim returns, or a sweep or a settlement cannot read
//! what is stored. There may be a harmless reason (another worker was faster), so this only triggers a check of the store, and only
//! damage ends the worker. Without the check, a draining worker would wait for ever.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error};

use super::ClaimLoop;

/// How long ready jobs may be counted that no claim gets, in real time.
const MISSING_MAX: Duration = Duration::from_secs(2);
/// Least time between two checks, which may read the whole store, in real time.
const LOOK_GAP: Duration = Duration::from_secs(60);

/// What is odd, and since when.
#[derive(Default)]
pub(super) struct Suspicion {
    missing_since: Option<Instant>,
    looked_at: Option<Instant>,
}

impl Suspicion {
    /// Whether there are ready jobs that an idle worker should have been given.
    pub(super) fn counted_but_not_handed_out(&mut self, missing: bool) {
        let now = Instant::now();
        self.missing_since = missing.then(|| self.missing_since.unwrap_or(now));
    }

    fn is_due(&mut self, suspected: bool) -> bool {
        let now = Instant::now();
        let missing = self.missing_since.is_some_and(|since| now - since >= MISSING_MAX);
        let due = suspected || missing;
        let due = due && self.looked_at.is_none_or(|looked_at| now - looked_at >= LOOK_GAP);
        if due {
            self.looked_at = Some(now);
        }
        due
    }
}

impl ClaimLoop {
    /// Checks the store when something is odd; damage ends the worker.
    pub(super) async fn follow_suspicion(&mut self) {
        let engine = &self.identity.services.engine;
        if self.fatal.is_some() || !self.suspicion.is_due(engine.outages().take_suspicion()) {
            return;
        }
        debug!("the store's answers are inconsistent, checking the store");
        match engine.store().verify().await {
            Ok(()) => {}
            Err(error) if error.is_transient() => debug!(%error, "the store could not be checked"),
            Err(error) => {
                error!(%error, "the store is damaged, the worker drains");
                self.fatal = Some(error);
            }
        }
    }
}
