//! Google Sheets: a sheet is read page by page, and scores are written to it as they come.
//!
//! [`Google`] speaks for one service account. [`SheetPages`] reads a sheet, [`SheetsSink`] writes to it. All of a process
//! share one [`Google`]: it holds the token, and calls that share it keep to the quota together.
//!
//! **Decisions.**
//! - Cells are read unformatted, dates as they are shown. A number that is shown as `85 %` or `0,9` is still the number that
//!   was written, so an own value is known again, and a change of the format is no edit. Only a date has no
//!   other form that means anything to a reader.
//! - Cells are written raw: an answer that begins with `=` stays a text and never becomes a formula.
//! - A column is known by its head, which is looked up before each write, because people move columns.
//! - The quota is counted in the data store before a call is made, so a restart does not begin with a full purse.

mod a1;
mod address;
mod auth;
mod cells;
mod client;
mod columns;
mod errors;
#[cfg(feature = "testing")]
pub mod fake;
mod pages;
mod patches;
mod quota;
mod sink;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::places::{Pages, Sink};
use super::settings::GoogleSheet;
use super::tables::StoredSheet;
use super::{Places, Result};

pub use address::{SheetAddress, SheetChoice};
pub use auth::ServiceKey;
pub use client::{FoundSheet, Google};
pub use pages::SheetPages;
pub use patches::{REQUEST_BYTES_MAX, REQUEST_RANGES_MAX};
pub use quota::{CALLS_PER_MINUTE, CallKind};
pub use sink::{SheetsSink, SinkSetup, UNITS_AT_ONCE, UNITS_AT_ONCE_MAX};

/// Where the API is.
pub const BASE_URL: &str = "https://sheets.googleapis.com";
/// How long an answer may take. Google itself gives up after three minutes, and says to expect less.
pub const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Whose account is used, and where Google is.
#[derive(Debug, Clone)]
pub struct GoogleOptions {
    /// The service account.
    pub key: ServiceKey,
    /// Where the API is, without a path; [`BASE_URL`] by default.
    pub base_url: Option<String>,
    /// Where tokens are given out; the key file says so by default.
    pub token_url: Option<String>,
    /// How long an answer may take; [`ANSWER_WAIT`] by default.
    pub answer_wait: Duration,
}

impl GoogleOptions {
    /// Google itself, for the owner of a key.
    pub const fn new(key: ServiceKey) -> Self {
        Self { key, base_url: None, token_url: None, answer_wait: ANSWER_WAIT }
    }
}

/// An account gets in wherever its owner was let in.
#[async_trait]
impl Places for Google {
    async fn pages(&self, sheet: &GoogleSheet) -> Result<Arc<dyn Pages>> {
        Ok(Arc::new(SheetPages::new(self.clone(), sheet.clone())))
    }

    async fn sink(&self, sheet: &StoredSheet) -> Result<Arc<dyn Sink>> {
        Ok(Arc::new(SheetsSink::new(self.clone(), SinkSetup::of(sheet)?)))
    }
}
