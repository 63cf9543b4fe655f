//! A queue as a transaction of a store with SQL knows it.

use longhaul_queue::store::QueueSettings;

/// A queue's settings, and what is known by the same look.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueRow {
    pub(crate) settings: QueueSettings,
    /// It had a job with a fair key once, so its keys take turns.
    pub(crate) keyed: bool,
}

impl QueueRow {
    /// Whether what was given before counts for the next claim.
    pub(crate) fn one_at_a_time(&self) -> bool {
        self.settings.max_running.is_some() || self.in_lines()
    }

    /// Whether its jobs stand in several lines.
    pub(crate) fn in_lines(&self) -> bool {
        self.keyed || self.settings.ageing.is_some()
    }

    /// Whether it needs a row: somebody has set something, or turns are taken.
    pub(crate) fn is_worth_a_row(&self) -> bool {
        self.keyed || !self.settings.is_default()
    }
}
