//! The integration tests of the stores, one binary.

mod sqlite;
