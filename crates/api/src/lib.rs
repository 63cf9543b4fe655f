//! Requests and responses of the HTTP API, spelled once: the server reads and writes them, `--server` and the command line's JSON use
//! the same types, and the schemas of MCP tools are derived from them. Nothing here opens a connection or knows a store.
//!
//! A file a resource. What comes in is called `…In` or `…Query`, what goes out `…Out`; the description of the API uses shorter names
//! (`#[schema(as = …)]`). Where the queue has a value with the same fields, both are converted into each other.

#[macro_use]
mod same_fields;

pub mod actions;
pub mod bills;
pub mod costs;
pub mod counts;
pub mod events;
pub mod job_in;
pub mod job_options;
pub mod job_out;
pub mod jobs;
pub mod page;
pub mod processes;
pub mod prompts;
pub mod queues;
pub mod runs;
pub mod schedules;
pub mod settle;
pub mod sheets;
pub mod verbs;
pub mod webhooks;
pub mod work;
pub mod workers;

pub use page::{Listed, PageQuery};

use longhaul_queue::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Any JSON, kept as it was written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = serde_json::Value)]
pub struct AnyJson(pub Json);

/// The default of what is on unless somebody says otherwise.
fn yes() -> bool {
    true
}
