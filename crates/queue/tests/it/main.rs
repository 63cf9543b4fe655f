//! The integration tests of the queue, one binary.

mod batches;
mod cron;
mod ending;
mod faults;
mod faulty;
mod handlers;
mod leases;
mod maintenance;
mod memory;
mod stage;
