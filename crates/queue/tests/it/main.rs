//! The integration tests of the queue, one binary.

#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod batches;
mod client;
mod cron;
mod ending;
mod faults;
mod faulty;
mod handlers;
mod idle;
mod leases;
mod logs;
mod maintenance;
mod memory;
mod stage;
