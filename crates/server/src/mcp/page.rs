//! Pages of lists, with cursors as the HTTP API writes them.

use longhaul_api::page;
use serde_json::{Value, json};

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
            let text = format!("{cursor:?} is not a cursor: send next_cursor of the page before");
            Err(Problem::invalid(text).at("cursor"))
        }
    }
}

/// A page under the name of what it lists, with the call that gives the next one, if there is one.
pub(super) fn listed(name: &str, items: &[Value], next: Option<i64>) -> Value {
    let mut shown = json!({ name: items });
    if let Some(next) = next.map(page::cursor_of) {
        shown["more"] = format!("there are more: the same call with cursor {next}").into();
        shown["next_cursor"] = next.into();
    }
    shown
}
