//! Bulk runs in process: real workers, a simulated provider, a store in memory or in a file.

#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod ambiguous;
mod answers;
mod cancel;
mod consume;
mod crash;
mod double;
mod embed;
mod gates;
mod listening;
mod outage;
mod rest;
mod scoring;
mod scoring_lessons;
mod scoring_status;
mod sheets;
mod slices;
mod stage;
mod sync;
