//! Models behind one trait. [`provider::Provider`] is the seam; dialects speak to real ones, a simulator makes answers up.
//! In front of them stand rate control, the response cache, schema checks, and the ledger of what was spent. This crate
//! knows no queue: what is durable beyond one call is a pipeline's to arrange.

pub mod anthropic;
pub mod cache;
pub mod catalog;
pub mod client;
pub mod clock;
pub mod error;
pub mod file;
pub mod gemini;
pub mod genai;
mod http;
pub mod ledger;
pub mod lines;
pub mod local;
pub mod money;
pub mod openai;
pub mod price;
pub mod profile;
pub mod provider;
pub mod rate;
pub mod repair;
pub mod route;
pub mod schema;
mod search;
pub mod sse;
pub mod tokens;
pub mod trace;
pub mod types;
pub mod wire;

pub use catalog::Catalog;
pub use client::{Answered, Ask, Call, Llm, LlmOptions, ProfileSetup, Room};
pub use error::{Class, Error, Result};
pub use file::LlmFile;
pub use http::{pinned_client, plain_client};
pub use ledger::{Ledger, PartSpent, Scope, Spent, Totals};
pub use money::{CostRange, NanoUsd};
pub use profile::{Profile, ProviderKind, Secret, connect};
pub use provider::{Caps, Provider, RateSignals, Reply};
pub use reqwest::Client as HttpClient;
pub use route::{Billing, Route, SIM_MODEL_PREFIX};
pub use types::{Answer, ChatRequest, EmbedRequest, Endpoint, Message, Part, Request, Role, Stop, Usage};
