//! Sheets in process: real workers, a simulated provider, a store in a file, Google's API in the test's hand.

#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod scoring;
mod scoring_lessons;
mod scoring_status;
mod sheets;
