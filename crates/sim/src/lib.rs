//! An honest simulator of a model provider: for tests, for demos without a key, for trying out what a bad day does.
//!
//! Answers depend on the seed and the request, faults on the seed, the request and the attempt, where the attempt is how
//! often this very request has been let in. Neither depends on the order of calls or on time, so a run that was killed and
//! resumed can be compared with one that was not. [`answer_key`] tells what the right answer to a request is. The books
//! ([`Stats`]) tell what was executed and would have to be paid, and whether anything was paid twice.
//!
//! [`SimCore`] is the simulator. [`SimProvider`] is a [`longhaul_llm::provider::Provider`] on it in process, where tokio's paused
//! time works; [`SimServer`] serves it over HTTP in the wire forms of OpenAI, Anthropic and Gemini.
//!
//! A request counts as the same when model, conversation, schema and tools are the same; sampling settings, `max_tokens`
//! and ids of tool calls do not matter. When JSON of a schema is asked for, a turn that complains about an answer of the
//! wrong shape is a new request but the same question: it has the right answer of the first.
//!
//! A prompt can give orders, in any user or system text:
//!
//! | Order | What it does |
//! |---|---|
//! | `[[sim:refuse]]` | the model declines |
//! | `[[sim:truncate]]` | the answer ends half-way |
//! | `[[sim:slow 2s]]` | the answer takes so much longer |
//! | `[[sim:words 200]]` | a text of about so many words |
//! | `[[sim:say TEXT]]` | exactly this text |
//! | `[[sim:call NAME]]` | calls this tool, though it need not, until a tool's result is the last message |

mod answer;
mod batches;
mod buckets;
mod content;
mod draw;
mod embed;
mod fault;
mod files;
mod ledger;
mod options;
mod outage;
mod pattern;
mod provider;
mod schema;
mod server;
mod sim_core;
mod words;

#[cfg(test)]
mod tests;

pub use answer::{REFUSAL, answer_key, request_key};
pub use batches::{
    ANTHROPIC_BYTES_MAX, ANTHROPIC_REQUESTS_MAX, BATCHES_MAX, Batch, BatchView, CUSTOM_ID_MAX, Door,
    GEMINI_INLINE_BYTES_MAX, Lines, NewBatch, OPENAI_BYTES_MAX, OPENAI_INPUTS_MAX, OPENAI_REQUESTS_MAX,
};
pub use content::{BYTES_PER_TOKEN, SLOW_MAX, WORDS_MAX};
pub use embed::{EMBED_DIMENSIONS, EMBED_DIMENSIONS_MAX, embedding};
pub use fault::Fault;
pub use files::{FILES_BYTES_MAX, FILES_MAX, StoredFile};
pub use ledger::{CallKind, LOG_TAIL_MAX, LogEntry, REQUESTS_MAX, Stats};
pub use options::{BATCH_WINDOW, BatchOptions, Faults, HANG_MAX, Latency, Limits, SimOptions};
pub use outage::{OUTAGE_MAX, Outage, OutageKind};
pub use provider::SimProvider;
pub use server::{BODY_BYTES_MAX, SimServer};
pub use sim_core::{EMBED_INPUTS_MAX, Run, SimCore, Trouble};
