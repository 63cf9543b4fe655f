//! How a running worker or duty is asked to end. Knows no signals: the program maps those to [`Shutdown`].

use std::sync::Arc;

use tokio::sync::watch;

/// How urgent the wish is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Run,
    Drain,
    Stop,
}

/// A handle that asks workers and maintenance to end. Clones are one handle.
#[derive(Debug, Clone)]
pub struct Shutdown {
    level: Arc<watch::Sender<Level>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// A handle that asks for nothing yet.
    pub fn new() -> Self {
        Self { level: Arc::new(watch::Sender::new(Level::Run)) }
    }

    /// Start no more jobs, tell running handlers and let them end within the grace time, then give the rest back. The
    /// first SIGTERM.
    pub fn drain(&self) {
        self.raise(Level::Drain);
    }

    /// Give running jobs back at once. The second SIGTERM.
    pub fn stop(&self) {
        self.raise(Level::Stop);
    }

    /// Whether the end was asked for.
    pub fn is_requested(&self) -> bool {
        self.level() > Level::Run
    }

    /// Returns once the end was asked for.
    pub async fn requested(&self) {
        self.reached(Level::Drain).await;
    }

    pub(crate) fn level(&self) -> Level {
        *self.level.borrow()
    }

    /// Returns once the wish is at least as urgent as `level`.
    pub(crate) async fn reached(&self, level: Level) {
        // The sender lives in self, so waiting can only end by a raise.
        let _ = self.level.subscribe().wait_for(|now| *now >= level).await;
    }

    fn raise(&self, to: Level) {
        self.level.send_if_modified(|level| {
            let raised = *level < to;
            *level = (*level).max(to);
            raised
        });
    }
}
