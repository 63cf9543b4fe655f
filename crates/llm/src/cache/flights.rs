//! Identical requests in flight share one call. The first caller flies, the others wait; if it fails or goes away, the
//! next in line flies in its place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Key;
use crate::error::{Class, Error, Result};

/// Who holds the lock flies; what it leaves there is for those who waited.
type Flight<T> = tokio::sync::Mutex<Option<Result<T>>>;
type Flying<T> = Mutex<HashMap<Key, Arc<Flight<T>>>>;

/// Calls under way, by key. Cheap to clone. Holds as many entries as there are callers.
pub struct Flights<T> {
    flying: Arc<Flying<T>>,
}

impl<T> Clone for Flights<T> {
    fn clone(&self) -> Self {
        Self { flying: Arc::clone(&self.flying) }
    }
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { flying: Arc::default() }
    }
}

/// What a flight brought.
#[derive(Debug, Clone, PartialEq)]
pub struct Flown<T> {
    /// The value.
    pub value: T,
    /// Whether somebody else's call brought it: it cost this caller nothing.
    pub shared: bool,
}

impl<T: Clone> Flights<T> {
    /// Runs `work`, unless the same key is under way: then waits for that and takes a copy of its value. `work` runs within
    /// the caller's own task, and an unused one is dropped without having begun.
    ///
    /// An error is the caller's own, and the next in line tries for itself; but one that every copy of the request would
    /// meet is handed to all who wait.
    pub async fn run(&self, key: Key, work: impl Future<Output = Result<T>>) -> Result<Flown<T>> {
        // Declared first, so dropped last: leaving looks whether anybody else is there.
        let seat = Seat::take(&self.flying, key);
        let mut landed = seat.flight().lock().await;
        if let Some(outcome) = landed.as_ref() {
            return outcome.clone().map(|value| Flown { value, shared: true });
        }
        let outcome = work.await;
        if outcome.as_ref().err().is_none_or(is_everybodys) {
            // Who comes later begins anew: it finds the value in the cache, or has reason not to look there.
            seat.close();
            *landed = Some(outcome.clone());
        }
        outcome.map(|value| Flown { value, shared: false })
    }

    /// Keys under way.
    pub fn len(&self) -> usize {
        lock(&self.flying).len()
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether each copy of a request would meet the same error.
fn is_everybodys(error: &Error) -> bool {
    match error.class {
        Class::BadRequest | Class::ContextTooLong | Class::Auth | Class::Quota => true,
        Class::Throttled
        | Class::Budget
        | Class::CacheMiss
        | Class::Stopped
        | Class::Overloaded
        | Class::Unreachable
        | Class::Network
        | Class::Truncated
        | Class::Refused
        | Class::BadShape => false,
    }
}

/// A caller's part in a flight; given back also when the caller is dropped.
struct Seat<'f, T> {
    flying: &'f Flying<T>,
    key: Key,
    flight: Arc<Flight<T>>,
}

impl<'f, T> Seat<'f, T> {
    fn take(flying: &'f Flying<T>, key: Key) -> Self {
        let flight = Arc::clone(lock(flying).entry(key).or_default());
        Self { flying, key, flight }
    }

    fn flight(&self) -> &Flight<T> {
        &self.flight
    }

    /// Takes the flight off the board, unless a later one has taken its place.
    fn close(&self) {
        let mut flying = lock(self.flying);
        if flying.get(&self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            flying.remove(&self.key);
        }
    }
}

impl<T> Drop for Seat<'_, T> {
    fn drop(&mut self) {
        let mut flying = lock(self.flying);
        // Given up under the lock, so that of two who leave at once the second sees that it is the last.
        let mine = std::mem::take(&mut self.flight);
        let is_last = Arc::strong_count(&mine) == 2;
        if is_last && flying.get(&self.key).is_some_and(|flight| Arc::ptr_eq(flight, &mine)) {
            flying.remove(&self.key);
        }
        drop(mine);
        drop(flying);
    }
}

fn lock<T>(flying: &Flying<T>) -> MutexGuard<'_, HashMap<Key, Arc<Flight<T>>>> {
    flying.lock().unwrap_or_else(PoisonError::into_inner)
}
