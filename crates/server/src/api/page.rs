//! Lists, page by page. A cursor is text that only we read: what it says may change.

use longhaul_queue::limits::PAGE_MAX;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::Problem;

/// Rows on a page that names no number.
const LIMIT_DEFAULT: usize = 100;

/// Some of many.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Listed<T> {
    /// These.
    pub(super) items: Vec<T>,
    /// Send it as `cursor` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
    /// The search has a bound for one page and reached it: there may be more, also where there are no items.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) partial: bool,
}

impl<T> Listed<T> {
    /// All there are.
    pub(super) fn whole(items: Vec<T>) -> Self {
        Self { items, next: None, partial: false }
    }
}

/// Which page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// At most this many items, 1 to 1000; default 100.
    pub(super) limit: Option<usize>,
    /// `next` of the page before.
    pub(super) cursor: Option<String>,
}

/// The number of rows that a page may have.
pub(super) fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    match asked.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        limit => {
            Err(Problem::invalid(format!("limit is {limit}: a page has 1 to {PAGE_MAX} items")).at("limit"))
        }
    }
}

/// A place in submission order as a cursor.
pub(super) fn cursor_of(seq: i64) -> String {
    format!("s{seq:x}")
}

/// The place that a cursor means.
pub(super) fn seq_of(cursor: Option<&str>) -> Result<Option<i64>, Problem> {
    let Some(cursor) = cursor else { return Ok(None) };
    let seq = cursor.strip_prefix('s').and_then(|digits| i64::from_str_radix(digits, 16).ok());
    match seq {
        Some(seq) => Ok(Some(seq)),
        None => {
            Err(Problem::invalid(format!("{cursor:?} is no cursor: send what a page gave as next"))
                .at("cursor"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_went_and_others_are_refused() {
        for seq in [0, 1, 4_711, i64::MAX] {
            assert_eq!(seq_of(Some(&cursor_of(seq))), Ok(Some(seq)));
        }
        for wrong in ["", "12", "s", "sx", "s 1", "sfffffffffffffffff"] {
            assert_eq!(seq_of(Some(wrong)).expect_err(wrong).field.as_deref(), Some("cursor"));
        }
        assert_eq!(limit(None), Ok(LIMIT_DEFAULT));
        assert!(limit(Some(0)).is_err() && limit(Some(PAGE_MAX + 1)).is_err());
    }
}
