//! The raw limit: what a store can do without an engine. One table and one index, or one stream; nothing is kept of a job that is
//! done.

use anyhow::Result;
use async_trait::async_trait;

mod postgres;
mod redis;
mod sqlite;

pub(super) use postgres::{Postgres, come_to_rest};
pub(super) use redis::Redis;
pub(super) use sqlite::{Sqlite, fdatasync};

/// Jobs of a bulk insert.
const BULK: usize = 1_000;

/// A bare queue. Rates are jobs per second.
#[async_trait]
pub(super) trait Raw: Send {
    /// Inserts jobs, a thousand a call.
    async fn bulk(&mut self, jobs: usize, payload: &str) -> Result<f64>;

    /// Inserts jobs, one a call, by so many callers at once where the store serves more than one.
    async fn singles(&mut self, callers: usize, jobs: usize, payload: &str) -> Result<f64>;

    /// Claims some hundred, deletes them, and so on, up to `jobs` of those that came in bulk.
    async fn drain(&mut self, jobs: usize) -> Result<f64>;

    /// From just before an insert to the claim by who waits for it, on an idle queue, in milliseconds: the way that the engine
    /// takes as well, then others, by name.
    async fn pickups(&mut self, jobs: usize) -> Result<Vec<(&'static str, Vec<f64>)>>;
}
