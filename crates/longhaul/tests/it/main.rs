//! The real binary in temporary directories. Nothing sleeps to wait: `jobs wait` and `work --drain` do.

mod bulk;
mod crash;
mod demo;
mod ending;
mod enqueue;
mod exec;
mod grammar;
mod http_worker;
mod killed_call;
mod llm;
mod mcp;
mod place;
mod poison;
mod remote;
mod results;
mod served;
mod settings;
mod sharing;
mod sheet;
mod slow_clients;
mod telemetry;
mod tidy;
mod tls;
mod transfer;
mod wait;
mod workers;
