//! The wall clock, for what is dated: cache entries, spending, prices. Waiting goes by tokio's clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Tells the time of day. An argument, so that tests can choose it.
pub trait WallClock: Send + Sync + 'static {
    /// Milliseconds since the epoch, UTC.
    fn now_ms(&self) -> i64;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}
