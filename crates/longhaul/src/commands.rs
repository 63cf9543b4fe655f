//! One file a group of commands. Each takes what it needs from the [`App`](crate::app::App) and answers an exit code.

pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod costs;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod events;
pub(crate) mod fleet;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod mcp;
pub(crate) mod models;
pub(crate) mod process;
pub(crate) mod queues;
pub(crate) mod results;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod schedule;
pub(crate) mod sim;
pub(crate) mod tokens;
pub(crate) mod transfer;
pub(crate) mod up;
pub(crate) mod verify;
pub(crate) mod wait;
pub(crate) mod work;
pub(crate) mod workers;
