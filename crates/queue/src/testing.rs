//! For whoever writes a store: the conformance suite, random runs of several stores side by side, a store that
//! fails on demand, and the whole state as text. For authors of handlers: a worker in the background.

pub mod bench;
pub mod conformance;
pub mod export;
pub mod faulty;
pub mod invariants;
pub mod lost_calls;
pub mod random;
pub mod snapshot;
mod started;

pub use bench::Bench;
pub use faulty::{Fault, FaultyStore};
pub use snapshot::snapshot;
pub use started::{Started, patient, soon};
