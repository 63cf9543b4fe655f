//! For whoever writes a store: the conformance suite, random runs of several stores side by side, a store that
//! fails on demand, and the whole state as text. Nothing here sleeps or reads the system clock.

pub mod bench;
pub mod conformance;
pub mod export;
pub mod faulty;
pub mod invariants;
pub mod lost_calls;
pub mod random;
pub mod snapshot;

pub use bench::Bench;
pub use faulty::{Fault, FaultyStore};
pub use snapshot::snapshot;
