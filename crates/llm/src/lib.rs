//! Models behind one trait. [`provider::Provider`] is the seam; dialects speak to real ones, a simulator makes answers up.
//! In front of them stand rate control, the response cache, schema checks, and the ledger of what was spent. This crate
//! knows no queue: what is durable beyond one call is a pipeline's to arrange.

pub mod clock;
pub mod error;
pub mod provider;
pub mod types;

pub use error::{Class, Error, Result};
pub use provider::{Caps, Provider, RateSignals, Reply};
pub use types::{Answer, ChatRequest, Message, Part, Role, Stop, Usage};
