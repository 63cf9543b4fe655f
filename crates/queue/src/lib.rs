//! A durable job queue. Five verbs carry the flow: **enqueue**, **claim**, **run**, **settle**, **consume**.
//!
//! Reading order: [`job`] (what is stored), [`state`] (how it moves), [`store`] (the one seam), [`client`] (the verbs
//! of a caller), [`handler`], [`context`], [`worker`] and `executor` (the life of a job), [`maintenance`] (what time
//! moves), [`memory`] (the executable specification).
//!
//! The crate knows no SQL, no HTTP, no model and no pipeline. It never learns what a payload means.

mod backoff;
pub mod client;
pub mod clock;
pub mod context;
mod duration;
mod engine;
pub mod error;
pub mod events;
mod executor;
pub mod fairness;
pub mod graph;
pub mod handler;
mod heartbeat;
pub mod job;
pub mod json;
pub mod limits;
mod live_run;
mod logs;
pub mod maintenance;
pub mod memory;
mod notes;
mod outage;
pub mod redact;
pub mod remote;
pub mod retry;
pub mod shares;
pub mod shutdown;
pub mod state;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod worker;

pub use client::Queue;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use context::JobContext;
pub use engine::Engine;
pub use error::{Error, Result};
pub use handler::{BatchOptions, Failure, IntoOutcome, KindOptions};
pub use job::{Claimed, Job, JobChange, JobDetail, JobId, Lease, NewJob, ProcessId, WorkerId};
pub use json::Json;
pub use maintenance::{Maintenance, MaintenanceOptions};
pub use retry::RetryPolicy;
pub use shutdown::Shutdown;
pub use state::{Outcome, State};
pub use store::{EngineStore, Store};
pub use trace::TraceContext;
pub use worker::{QueueShare, Worker, WorkerControl, WorkerOptions, WorkerReport};

/// The programs in the documents compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/library.md")]
struct Documents;
