//! A file that cannot be written. Each call of each request notices; this tells of it once for all of them, and now and
//! then while it lasts.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::{FileError, FileResult};

/// Least time between two lines of the log about it.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Whether the file can be written.
pub(super) struct Outage {
    /// The last error while it lasts.
    error: watch::Sender<Option<String>>,
    told: Mutex<Option<Instant>>,
}

impl Default for Outage {
    fn default() -> Self {
        Self { error: watch::Sender::new(None), told: Mutex::default() }
    }
}

impl Outage {
    pub(super) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.error.subscribe()
    }

    /// Learns from how a write went.
    pub(super) fn learn<T>(&self, written: &FileResult<T>) {
        match written {
            Ok(_) if self.error.borrow().is_none() => {}
            Ok(_) => {
                self.error.send_replace(None);
                info!("what is spent can be written down again");
            }
            Err(error) if error.is_transient() => self.failed(error),
            Err(_) => {}
        }
    }

    fn failed(&self, error: &FileError) {
        self.error.send_replace(Some(error.to_string()));
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        // Who watches tells people of it.
        if is_news && self.error.receiver_count() == 0 {
            *told = Some(Instant::now());
            warn!(%error, "what is spent cannot be written down, so nothing is asked until it can");
        }
    }
}
