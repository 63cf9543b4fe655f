//! What every pipeline shares. A pipeline is a crate of its own that knows no other.

pub mod addresses;
pub mod data;
pub mod expected;
pub mod numbered;
pub mod serve;
pub mod table_files;
#[cfg(feature = "testing")]
pub mod testing;
