//! Simulated outages of a whole provider: what happens to connections, or to every call, until they are over.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::sim_core::SimCore;
use longhaul_llm::error::{Class, Error};

/// Longest outage, whatever is asked for.
pub const OUTAGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// What an outage does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutageKind {
    /// New connections are refused; existing ones are reset.
    Refuse,
    /// Connections are accepted, and nothing is ever answered. At the end they are reset.
    Hang,
    /// Every connection is reset, new ones as soon as they are made.
    Reset,
    /// New connections get bytes that are neither HTTP nor TLS; existing ones are reset.
    Garbage,
    /// Every call is answered with 503.
    #[serde(rename = "http_503")]
    Unavailable,
    /// Every call is answered with 429.
    #[serde(rename = "http_429")]
    Throttled,
}

/// An outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// How.
    pub kind: OutageKind,
    /// Until when.
    pub until: Instant,
}

impl Outage {
    /// Whether connections break, rather than calls.
    pub(crate) fn is_of_connections(self) -> bool {
        match self.kind {
            OutageKind::Refuse | OutageKind::Hang | OutageKind::Reset | OutageKind::Garbage => true,
            OutageKind::Unavailable | OutageKind::Throttled => false,
        }
    }

    pub(crate) fn lasts(self) -> bool {
        self.until > Instant::now()
    }
}

impl SimCore {
    /// Starts an outage of this length. It affects only the server, not the in-process provider.
    pub fn begin_outage(&self, kind: OutageKind, lasts: Duration) {
        let until = Instant::now() + lasts.min(OUTAGE_MAX);
        self.outage.send_replace(Some(Outage { kind, until }));
    }

    /// The outage of now.
    pub fn outage(&self) -> Option<Outage> {
        (*self.outage.borrow()).filter(|outage| outage.lasts())
    }

    pub(crate) fn outages(&self) -> watch::Receiver<Option<Outage>> {
        self.outage.subscribe()
    }

    /// What every call is answered with, in an outage that answers.
    pub(crate) fn outage_error(&self) -> Option<Error> {
        match self.outage()?.kind {
            OutageKind::Refuse | OutageKind::Hang | OutageKind::Reset | OutageKind::Garbage => None,
            OutageKind::Unavailable => {
                Some(Error::new(Class::Overloaded, "the service is unavailable").with_status(503))
            }
            OutageKind::Throttled => {
                let wait = Duration::from_millis(self.faults().retry_after_ms);
                let error = Error::new(Class::Throttled, "too many requests").with_status(429);
                Some(Error { retry_after: Some(wait), ..error })
            }
        }
    }
}
