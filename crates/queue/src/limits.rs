//! Every bound of the engine, with its unit last.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::job::{JobChange, NewJob};
use crate::json::Json;
use crate::redact;
use crate::retry::{Backoff, RETRY_LIST_MAX, RetryPolicy};

/// Payload, data and result: largest size by default.
pub const VALUE_BYTES_DEFAULT: usize = 1_000_000;
/// Payload, data and result: largest size that a setting may allow.
pub const VALUE_BYTES_MAX: usize = 16_000_000;
/// Queue, kind, process, owner, tag, fair key, unique key and park key.
pub const NAME_BYTES_MAX: usize = 200;
/// Tags of one job.
pub const TAGS_MAX: usize = 32;
/// Parents of one job.
pub const PARENTS_MAX: usize = 10_000;
/// Jobs in one insert.
pub const INSERT_MAX: usize = 50_000;
/// Jobs that one claim may take.
pub const CLAIM_MAX: usize = 1_000;
/// Rows on one page of a list.
pub const PAGE_MAX: usize = 1_000;
/// Length of a search text.
pub const SEARCH_BYTES_MAX: usize = 2_000;
/// Words of a search text.
pub const SEARCH_WORDS_MAX: usize = 32;
/// Rows that one call of promote, rescue or prune changes.
pub const SWEEP_MAX: usize = 1_000;
/// Runs kept in a job's history; the oldest go first.
pub const RUNS_KEPT_MAX: usize = 50;
/// Log lines kept for a job; the oldest go first.
pub const LOG_LINES_MAX: usize = 1_000;
/// One log line.
pub const LOG_LINE_BYTES_MAX: usize = 4_000;
/// Text of an error.
pub const ERROR_BYTES_MAX: usize = 4_000;
/// State changes named in one event; the rest is a count.
pub const EVENT_CHANGES_MAX: usize = 16;
/// Events kept for subscribers that come late. Small, because they name jobs: who reads once a second keeps up with as many
/// commits a second, and who does not looks afresh.
pub const EVENTS_KEPT_MAX: usize = 1_000;
/// How long an unpark signal waits for its job, and how long a repeated one is recognised.
pub const SIGNAL_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Missed runs that a schedule with policy `all` catches up on at once.
pub const CRON_CATCH_UP_MAX: usize = 100;
/// A worker gives a sign of life every ten seconds; one unheard of for so long counts as dead.
pub const WORKER_SILENT_AFTER: Duration = Duration::from_secs(30);
/// Pieces on one page of an export, and in one import.
pub const PIECES_MAX: usize = 500;
/// A worker unheard of for so long is no longer listed.
pub const WORKER_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Longest worth of a level of priority, so that a job's rank stays a time.
pub const AGEING_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a store or a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Payload, data and result, each. Default 1 MB, at most 16 MB.
    pub value_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { value_bytes_max: VALUE_BYTES_DEFAULT }
    }
}

impl Limits {
    /// Refuses limits that no store keeps.
    pub fn check(&self) -> Result<()> {
        if self.value_bytes_max <= VALUE_BYTES_MAX {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "value_bytes_max is {}, at most {VALUE_BYTES_MAX} are allowed",
            self.value_bytes_max
        )))
    }

    /// Refuses a value that is too large, with its size and the limit; nothing is ever cut.
    pub fn check_value(&self, what: &str, value: &Json) -> Result<()> {
        if value.len() <= self.value_bytes_max {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{what} is {} bytes, the limit is {}; put large content into a file and pass its path",
            value.len(),
            self.value_bytes_max
        )))
    }

    /// Refuses a job that breaks a bound and names the field.
    pub fn check_job(&self, job: &NewJob) -> Result<()> {
        self.check()?;
        check_name("kind", &job.kind)?;
        check_name("queue", &job.queue)?;
        self.check_value("payload", &job.payload)?;
        if let Some(process_id) = &job.process_id {
            check_name("process_id", process_id.as_str())?;
        }
        if let Some(process_id) = &job.after_process {
            check_name("after_process", process_id.as_str())?;
        }
        check_count("depends_on", job.depends_on.len(), PARENTS_MAX)?;
        let options = &job.options;
        check_count("tags", options.tags.len(), TAGS_MAX)?;
        for tag in &options.tags {
            check_name("tags", tag)?;
        }
        for (field, value) in
            [("title", &options.title), ("owner", &options.owner), ("trace", &options.trace)]
        {
            if let Some(value) = value {
                check_name(field, value)?;
            }
        }
        if let Some(key) = &options.fair_key {
            check_name("fair_key", key)?;
        }
        if let Some(unique) = &options.unique {
            check_name("unique.key", &unique.key)?;
        }
        if options.max_attempts == Some(0) {
            return Err(Error::invalid("max_attempts is 0; a job needs at least 1"));
        }
        if let Some(RetryPolicy { backoff: Backoff::List { delays_ms }, .. }) = &options.retry {
            check_count("retry.delays_ms", delays_ms.len(), RETRY_LIST_MAX)?;
        }
        Ok(())
    }

    /// Refuses a change that breaks a bound or changes nothing.
    pub fn check_change(&self, change: &JobChange) -> Result<()> {
        if change.is_empty() {
            return Err(Error::invalid("nothing to change: give a priority, a title or a payload"));
        }
        if let Some(title) = change.title.as_deref().filter(|title| !title.is_empty()) {
            check_name("title", title)?;
        }
        let Some(payload) = &change.payload else { return Ok(()) };
        if redact::is_redacted(payload) {
            return Err(Error::invalid(format!(
                "payload has {:?} in place of a secret, which would be lost: put the secret itself there",
                redact::REDACTED
            )));
        }
        self.check_value("payload", payload)
    }
}

/// Refuses an empty name, an overlong one, and control characters.
pub fn check_name(field: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(format!("{field} is empty")));
    }
    check_count(field, name.len(), NAME_BYTES_MAX)?;
    if name.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{field} has a control character: {name:?}")));
    }
    Ok(())
}

fn check_count(field: &str, count: usize, max: usize) -> Result<()> {
    if count <= max {
        return Ok(());
    }
    Err(Error::invalid(format!("{field} has {count}, at most {max} are allowed")))
}

/// Shortens text for people to `bytes_max` and says how much is missing.
pub fn shorten(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max);
    format!("{} … ({} bytes more)", &text[..end], text.len() - end)
}
