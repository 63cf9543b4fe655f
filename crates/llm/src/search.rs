//! What the clients share for batches: looking for a lost one, and what a failed creation means.

use serde_json::Value;

use crate::error::{Class, Error, Result};
use crate::provider::{BatchLine, BatchProbe, FoundBatch, LineOutcome};
use crate::wire::BatchObject;

/// Pages of a list that are read at most.
const PAGES_MAX: usize = 20;

/// Clocks differ: a batch may seem so much older than the call that made it.
pub(crate) const CLOCK_SLACK_MS: i64 = 10 * 60 * 1000;

/// How a service orders its list of batches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The newest first: the search ends where the list is older than the call.
    NewestFirst,
    /// Not told: all of it must be read.
    Unknown,
}

/// A walk through a list of batches.
pub(crate) struct Search {
    pub(crate) found: Vec<FoundBatch>,
    order: Order,
    oldest_ms: i64,
    pages_left: usize,
    past: bool,
}

impl Search {
    pub(crate) fn new(probe: &BatchProbe, order: Order) -> Self {
        let oldest_ms = probe.sent_at_ms.saturating_sub(CLOCK_SLACK_MS);
        Self { found: Vec::new(), order, oldest_ms, pages_left: PAGES_MAX, past: false }
    }

    /// Whether another page may hold it. A search that gives up is an error: "not found" would be taken as "not made",
    /// and the batch be bought again.
    pub(crate) fn goes_on(&mut self) -> Result<bool> {
        if self.past {
            return Ok(false);
        }
        let left = self.pages_left.checked_sub(1);
        self.pages_left = left.ok_or_else(|| {
            let message =
                format!("the service has too many batches to look for one: {PAGES_MAX} pages were read");
            Error::new(Class::BadRequest, message)
        })?;
        Ok(true)
    }

    /// Looks through a page. `fits` answers whether a batch may be the one, and if so, whether that is certain.
    pub(crate) fn add(&mut self, page: &[BatchObject], fits: impl Fn(&BatchObject) -> Option<bool>) {
        for batch in page {
            if let Some(certain) = fits(batch) {
                self.found.push(FoundBatch { status: batch.status(), certain });
            }
            // The rest of the list was there before the call.
            self.past |=
                self.order == Order::NewestFirst && batch.created_at_s.saturating_mul(1000) < self.oldest_ms;
        }
    }
}

/// After a failure of the service itself nobody knows whether the batch was made.
pub(crate) fn creation_failed(error: Error) -> Error {
    let unknown = error.status.is_some_and(|status| status >= 500 || status == 408);
    Error { maybe_billed: error.maybe_billed || unknown, ..error }
}

/// An id that may stand in an address. They come from services and from stores, and must not lead elsewhere.
pub(crate) fn id_in_path(id: &str) -> Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':');
    if !id.is_empty() && id.chars().all(plain) && !id.contains("..") {
        return Ok(id);
    }
    Err(Error::new(Class::BadRequest, format!("{id:?} cannot name a model, a batch or a file")))
}

/// Reads a line of results. One that cannot be read must not hide the others: its request is missing then, and is asked
/// for again.
pub(crate) fn line_of(text: &str, read: fn(&Value) -> Result<BatchLine>) -> BatchLine {
    let line = serde_json::from_str(text).ok().and_then(|value| read(&value).ok());
    line.unwrap_or_else(|| {
        let error = Error::new(Class::Network, "a line of the results cannot be read").maybe_billed();
        BatchLine { custom_id: None, outcome: LineOutcome::Failed(Box::new(error)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_lead_elsewhere() {
        for id in ["batch_1", "batches/abc-1", "file-1.x"] {
            assert_eq!(id_in_path(id).unwrap(), id);
        }
        for id in ["", "../x", "a?b", "a b", "a#b", "a%2e"] {
            assert!(id_in_path(id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn a_search_ends_where_the_list_is_older_than_the_call() {
        let probe = BatchProbe { tag: "t".to_owned(), file: None, sent_at_ms: 10_000_000, requests: 1 };
        for (order, ends) in [(Order::NewestFirst, true), (Order::Unknown, false)] {
            let mut search = Search::new(&probe, order);
            assert!(search.goes_on().unwrap());
            let page = [BatchObject::new("a", 10_000), BatchObject::new("b", 9_900)];
            search.add(&page, |batch| (batch.id == "b").then_some(true));
            assert!(search.goes_on().unwrap());
            search.add(&[BatchObject::new("c", 100)], |_| None);
            assert_eq!(search.goes_on().unwrap(), !ends);
            assert_eq!(search.found.len(), 1);
        }
        let mut endless = Search::new(&probe, Order::Unknown);
        assert_eq!((0..).take_while(|_| endless.goes_on().is_ok()).count(), PAGES_MAX);
    }

    #[test]
    fn only_a_refusal_proves_that_no_batch_was_made() {
        for (status, unknown) in [(500, true), (502, true), (408, true), (400, false), (429, false)] {
            let error = creation_failed(Error::new(Class::Overloaded, "x").with_status(status));
            assert_eq!(error.maybe_billed, unknown, "{status}");
        }
    }
}
