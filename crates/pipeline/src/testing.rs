//! For tests of pipelines.

#![expect(missing_docs, reason = "the names of helpers of tests say it")]
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod double;
mod stage;

pub use double::{Double, Halt, Point, Side};
pub use stage::{LEASE, MODEL, PROFILE, PausedClock, SEED, llm_options, options, outages};
