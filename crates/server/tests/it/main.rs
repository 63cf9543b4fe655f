//! The server over real sockets, with a store on disk and the simulator for a model.

mod batches;
mod compat_anthropic;
mod compat_calls;
mod compat_openai;
mod events;
mod guarded;
mod mcp;
mod metrics;
mod stage;
mod webhooks;
