//! Longhaul over HTTP. One router carries five families:
//!
//! - `/api/v1` ([`api`]): jobs, processes, queues, schedules, workers, runs, sheets, costs, events. Errors are problem+json.
//! - `/v1` ([`compat`]): what unmodified OpenAI and Anthropic SDKs speak: files, batches, chat, messages, embeddings, models.
//! - `/healthz`, `/readyz`, `/metrics` ([`ops`]): for whoever runs it.
//! - `/mcp` ([`mcp`]): tools for agents; the same over stdio.
//! - workers in any language: `/api/v1/work`, a part of the first.
//!
//! **The way of a request.** [`serve`] accepts connections and bounds them; [`guard`] asks whether the request may come in at all
//! (host, origin, token, scope) before anything reads its body; a handler answers, or fails with a [`Problem`], which each family
//! writes in its own form.
//!
//! **Decisions.**
//! - The server keeps no state of its own beside tokens. A table that is scored is kept among the uploads by a second name for as long as
//!   its sheet, since the output is made of it: the upload may go or expire meanwhile. A batch of an SDK is a job, its requests are a
//!   run, and both are found in the store.
//! - Nothing here runs work, and no handler of a job needs anything of this crate. Workers run them, in this process or in others.

use longhaul_pipeline::OwnNames;

pub mod guard;
pub mod mcp;
pub mod metrics;
pub mod problem;
pub mod serve;
pub mod tokens;

mod api;
mod batches;
mod body_budget;
mod body_timeout;
mod compat;
mod ctx;
mod front;
mod ops;
mod redact;
mod router;
mod sheets;
mod wait;

pub use body_budget::SMALL_BODY_BYTES;
pub use ctx::{Ctx, Parts, ServerOptions};
pub use problem::Problem;
pub use serve::{CONNECTION_BUFFER_BYTES_MAX, Server};
pub use tokens::{Scope, Tokens};

/// The description of `/api/v1` for programs: OpenAPI 3.1 as JSON.
pub fn openapi(names: &OwnNames) -> String {
    api::openapi::text(names)
}
