//! What Longhaul is used for. A slice registers its kinds and handlers on a worker; slices never know each other.

pub mod addresses;
pub mod bulk;
mod data;
mod expected;
mod numbered;
pub mod scoring;
pub mod serve;
pub mod table_files;

/// The programs in the documents compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library-prompts.md")]
struct Documents;
