//! Events that are counted but cost nothing: they gather here and go along with a later commit, within a second. A process
//! that is killed loses that second of counts, and nothing else.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::warn;

use crate::ledger::Event;

/// Scopes times events that wait to be written. A process counts for its run, its day and a few tags.
const WAITING_MAX: usize = 4_096;

/// Counts by scope and event.
pub(super) type Counts = HashMap<(String, Event), u64>;

/// What waits to be written.
#[derive(Default)]
pub(super) struct Events {
    waiting: Mutex<Counts>,
}

impl Events {
    pub(super) fn add(&self, scope: &str, event: Event, count: u64) {
        let mut waiting = self.lock();
        // Only a file that has not been writable for long fills this up.
        if waiting.len() >= WAITING_MAX && !waiting.contains_key(&(scope.to_owned(), event)) {
            warn!(
                scope,
                event = event.as_str(),
                "too many counts wait to be written; this one is not counted"
            );
            return;
        }
        *waiting.entry((scope.to_owned(), event)).or_default() += count;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// What waits. It stays until it is written.
    pub(super) fn waiting(&self) -> Counts {
        self.lock().clone()
    }

    /// These are in the file.
    pub(super) fn written(&self, counts: Counts) {
        let mut waiting = self.lock();
        for (key, written) in counts {
            if let Entry::Occupied(mut count) = waiting.entry(key) {
                *count.get_mut() -= written;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
