//! The crate's integration tests: one binary, one module a concern.

mod batches;
mod cron;
mod ending;
mod handlers;
mod leases;
mod maintenance;
mod stage;
