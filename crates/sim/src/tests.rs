//! The simulator's own promises, in process. Time is tokio's, paused.

mod answers;
mod batches;
mod calls;
mod schemas;
mod socket_batches;
mod sockets;
mod strict;

use std::sync::Arc;

use serde_json::Value;

use super::{Faults, SimCore, SimOptions, SimProvider};
use longhaul_llm::clock::WallClock;
use longhaul_llm::types::{ChatRequest, Message, OutputSchema, Role};

/// A wall clock that stands still.
struct Noon;

impl WallClock for Noon {
    fn now_ms(&self) -> i64 {
        1_800_000_000_000
    }
}

fn core(options: SimOptions) -> Arc<SimCore> {
    SimCore::with_clock(options, Arc::new(Noon)).expect("no log to open")
}

fn provider(options: SimOptions) -> SimProvider {
    SimProvider::new(core(options))
}

fn with_faults(faults: Faults) -> SimOptions {
    SimOptions { faults, ..SimOptions::default() }
}

fn ask(text: &str) -> ChatRequest {
    ChatRequest {
        model: "sim-small".to_owned(),
        messages: vec![Message::text(Role::User, text)],
        ..ChatRequest::default()
    }
}

fn ask_json(text: &str, schema: Value) -> ChatRequest {
    ChatRequest {
        schema: Some(OutputSchema { name: "answer".to_owned(), schema, strict: true }),
        ..ask(text)
    }
}
