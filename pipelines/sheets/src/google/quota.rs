//! Google takes 60 reads and 60 writes a minute of each user. They are counted before they are made, in the data store:
//! for all processes together, and across restarts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_queue::{Clock, Timestamp};

use super::super::places::SinkError;
use super::super::tables::Tables;
use super::errors::outage;

/// Calls of a kind a minute. Google takes 60; the rest is for calls that were counted here and arrive a little later there.
pub const CALLS_PER_MINUTE: u32 = 56;
/// Calls that need not wait for each other.
const BURST: u32 = 10;
/// Time between calls after that. Without it a minute's calls would be gone in seconds, and a minute of waiting follow.
const PACE: Duration = Duration::from_millis(60_000 / (CALLS_PER_MINUTE - BURST - 1) as u64);

/// What a call counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// Values or properties are asked for.
    Read,
    /// Something is changed.
    Write,
}

pub(super) struct Quota {
    tables: Tables,
    clock: Arc<dyn Clock>,
    email: String,
    /// When the next read and the next write would be in step.
    next: Mutex<[Timestamp; 2]>,
}

impl Quota {
    pub(super) fn new(tables: Tables, clock: Arc<dyn Clock>, email: &str) -> Self {
        Self { tables, clock, email: email.to_owned(), next: Mutex::default() }
    }

    /// Waits until a call may be made, and counts it.
    pub(super) async fn take(&self, kind: CallKind) -> Result<(), SinkError> {
        self.clock.sleep_until(self.in_step(kind)).await;
        let account = match kind {
            CallKind::Read => format!("{}/r", self.email),
            CallKind::Write => format!("{}/w", self.email),
        };
        loop {
            let now = self.clock.now();
            let taken = self.tables.take_write(&account, CALLS_PER_MINUTE, now).await;
            match taken.map_err(|error| outage(format!("cannot count calls of Google: {error}"), None))? {
                Ok(()) => return Ok(()),
                Err(wait) => self.clock.sleep_until(now + wait).await,
            }
        }
    }

    fn in_step(&self, kind: CallKind) -> Timestamp {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let next = &mut next[kind as usize];
        let at = (*next).max(self.clock.now());
        *next = at + PACE;
        at - PACE * (BURST - 1)
    }
}
