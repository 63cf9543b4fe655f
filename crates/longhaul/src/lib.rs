//! The program `longhaul`, as a library: [`Program`] is the whole command line, server and workers, with the built-in pipelines and any
//! that you add. Pipelines are written against `longhaul-pipeline`, their jobs against `longhaul-queue`; what is here only puts them
//! into a program.
//!
//! `examples/own_pipeline.rs` is a program with a pipeline of its own.

mod answers;
mod app;
mod args;
mod backend;
mod builtin;
mod commands;
mod config;
mod dispatch;
mod exec;
mod exit;
mod jobspec;
mod keys;
mod models;
mod moved;
mod nearest;
mod output;
mod outputs;
mod parse;
mod pipelines;
mod program;
mod progress;
mod prompts;
mod remote;
mod run_client;
mod server;
mod sharing;
mod small_file;
mod store;
mod telemetry;
mod texts;

pub use clap;
pub use program::{PipelineParts, Program};
