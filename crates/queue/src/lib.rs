//! A durable job queue. Five verbs carry the flow: **enqueue**, **claim**, **run**, **settle**, **consume**.
//!
//! Reading order: [`job`] (what is stored), [`state`] (how it moves), [`store`] (the one seam), [`client`] (the verbs
//! of a caller), [`handler`], [`worker`] and [`executor`](worker) (the life of a job), [`maintenance`] (what time
//! moves), [`memory`] (the executable specification).
//!
//! The crate knows no SQL, no HTTP, no model and no pipeline. It never learns what a payload means.

pub mod client;
pub mod clock;
mod duration;
pub mod error;
pub mod events;
pub mod graph;
pub mod job;
pub mod json;
pub mod limits;
pub mod memory;
pub mod retry;
pub mod state;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use client::Queue;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use error::{Error, Result};
pub use job::{Claimed, Job, JobDetail, JobId, Lease, NewJob, ProcessId, WorkerId};
pub use json::Json;
pub use retry::RetryPolicy;
pub use state::{Outcome, State};
pub use store::Store;
