//! A store that cannot be reached or written. Many parts of a program notice it at once and again and again; this tells
//! of it once for all of them, and now and then while it lasts.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::error::Error;

/// Least time between two lines of the log about it.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// How long expired leases are left alone after the last failure: their holders could not renew them nor settle, and
/// come back within a few seconds. In real time, as outages are.
const RESCUE_GRACE: Duration = Duration::from_secs(5);

/// What is known of the store's outages in this process.
pub(crate) struct Outages {
    seen: Mutex<Seen>,
    /// The last error while it lasts.
    error: watch::Sender<Option<String>>,
    /// Reports that what is stored looks inconsistent.
    suspicion: AtomicBool,
}

#[derive(Default)]
struct Seen {
    /// Who had no answer the last time: one who only reads may have one while nobody can write.
    failing: HashSet<&'static str>,
    last: Option<Instant>,
    told: Option<Instant>,
}

impl Default for Outages {
    fn default() -> Self {
        Self { seen: Mutex::default(), error: watch::Sender::new(None), suspicion: AtomicBool::new(false) }
    }
}

impl Outages {
    /// The store's last error for as long as it cannot be reached or written. Who watches tells people of it, and the
    /// log leaves that to them.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.error.subscribe()
    }

    /// `who` had no answer from the store, and tries again.
    pub(crate) fn failed(&self, who: &'static str, error: &Error) {
        let is_news = self.lock().failed(who, Instant::now());
        self.error.send_replace(Some(error.to_string()));
        if is_news && self.error.receiver_count() == 0 {
            warn!(who, %error, "the store cannot be reached or written, trying again until it can");
        } else {
            debug!(who, %error, "no answer from the store, trying again");
        }
    }

    /// `who` had an answer.
    pub(crate) fn answered(&self, who: &'static str) {
        if self.error.borrow().is_none() {
            return;
        }
        if self.lock().answered(who) {
            self.error.send_replace(None);
            info!("the store answers again");
        }
    }

    /// An answer of the store cannot be right, or made no sense: it is to be looked at more closely.
    pub(crate) fn suspect(&self) {
        self.suspicion.store(true, Ordering::Relaxed);
    }

    /// Whether an inconsistency was reported; each is returned once.
    pub(crate) fn take_suspicion(&self) -> bool {
        self.suspicion.swap(false, Ordering::Relaxed)
    }

    /// For how long expired leases are to be left alone.
    pub(crate) fn rescue_grace(&self) -> Option<Duration> {
        self.lock().grace(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Whether it is time to tell of it.
    fn failed(&mut self, who: &'static str, now: Instant) -> bool {
        self.failing.insert(who);
        self.last = Some(now);
        let is_news = self.told.is_none_or(|told| now - told >= TELL_EVERY);
        if is_news {
            self.told = Some(now);
        }
        is_news
    }

    /// Whether it is over.
    fn answered(&mut self, who: &'static str) -> bool {
        self.failing.remove(who) && self.failing.is_empty()
    }

    fn grace(&self, now: Instant) -> Option<Duration> {
        let last = self.last?;
        RESCUE_GRACE.checked_sub(now - last).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_at_first_and_then_now_and_then_whoever_notices() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = Seen::default();
        assert!(seen.failed("worker", at(0)));
        assert!(!seen.failed("rescuer", at(2)) && !seen.failed("worker", at(29)));
        assert!(seen.failed("rescuer", at(30)));
        assert!(!seen.answered("rescuer"), "the worker still has no answer");
        assert!(seen.answered("worker") && !seen.answered("worker"));
        assert!(!seen.failed("worker", at(35)), "a store that comes and goes is told no more often");
    }

    #[test]
    fn after_one_leases_are_left_alone_for_a_while() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = Seen::default();
        assert_eq!(seen.grace(at(0)), None);
        seen.failed("worker", at(0));
        seen.failed("worker", at(60));
        seen.answered("worker");
        assert_eq!(seen.grace(at(61)), Some(Duration::from_secs(4)));
        assert_eq!(seen.grace(at(65)), None);
    }
}
