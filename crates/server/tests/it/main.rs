//! The server over real sockets, with a store on disk and the simulator for a model.

mod batches;
mod events;
mod guarded;
mod metrics;
mod stage;
mod webhooks;
