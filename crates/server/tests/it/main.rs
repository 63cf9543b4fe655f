//! The server over real sockets, with a store on disk and the simulator for a model.

mod api_description;
mod api_groups;
mod api_jobs;
mod api_runs;
mod api_work;
mod batches;
mod compat_anthropic;
mod compat_calls;
mod compat_openai;
mod compat_own;
mod dialects;
mod events;
mod front;
mod fuzz;
mod guarded;
mod hostile;
mod mcp;
mod metrics;
mod own_kinds;
mod owners;
mod raw;
mod secrets;
mod sheets;
mod slow;
mod stage;
mod webhooks;
