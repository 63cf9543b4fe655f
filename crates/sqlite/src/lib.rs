//! How Longhaul writes a SQLite file.

pub mod private;
pub mod process_lock;
