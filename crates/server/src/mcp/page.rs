//! Pages of lists, with cursors as the HTTP API writes them.

use longhaul_api::page;
use serde_json::Value;

use crate::problem::Problem;

/// Items on one page.
pub(super) const PAGE_MAX: usize = 100;
pub(super) const PAGE_DEFAULT: usize = 20;

/// The number of items that a page may have.
pub(super) fn limit(asked: Option<usize>) -> usize {
    asked.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)
}

/// The place that a cursor means.
pub(super) fn seq_of(cursor: Option<&str>) -> Result<Option<i64>, Problem> {
    let Some(cursor) = cursor else { return Ok(None) };
    match page::seq_of(cursor) {
        Some(seq) => Ok(Some(seq)),
        None => {
            let text = format!("{cursor:?} is not a cursor: send next of the page before");
            Err(Problem::invalid(text).at("cursor"))
        }
    }
}

/// Says which call gives the next page, if there is one.
pub(super) fn add_more(shown: &mut Value) {
    if let Some(next) = shown["next"].as_str() {
        shown["more"] = format!("there are more: the same call with cursor {next}").into();
    }
}
