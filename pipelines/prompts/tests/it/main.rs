//! Runs of prompts in process: real workers, a simulated provider, a store in memory or in a file.

#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod ambiguous;
mod answers;
mod cancel;
mod consume;
mod crash;
mod embed;
mod gates;
mod listening;
mod outage;
mod rest;
mod slices;
mod stage;
mod sync;
