//! The real binary in temporary directories. Nothing sleeps to wait: `jobs wait` and `work --drain` do.

mod bulk;
mod enqueue;
mod exec;
mod grammar;
mod place;
mod results;
mod settings;
mod tidy;
mod transfer;
mod wait;
