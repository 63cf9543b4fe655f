//! The integration tests of the stores, one binary.

mod child;
mod full_disk;
mod read_only;
mod sqlite;
mod stage;
