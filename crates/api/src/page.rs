//! Lists, page by page. A cursor is opaque to clients: what it says may change.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Some of many.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Listed<T> {
    /// These.
    pub items: Vec<T>,
    /// Send it as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The search has a bound for one page and reached it: there may be more, also where there are no items.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl<T> Listed<T> {
    /// All there are.
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next: None, partial: false }
    }
}

/// Which page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// At most this many items, 1 to 1000; default 100.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub cursor: Option<String>,
}

/// A place in submission order as a cursor.
pub fn cursor_of(seq: i64) -> String {
    format!("s{seq:x}")
}

/// The place that a cursor means; `None` if it is not one of ours.
pub fn seq_of(cursor: &str) -> Option<i64> {
    cursor.strip_prefix('s').and_then(|digits| i64::from_str_radix(digits, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_went_and_others_are_refused() {
        for seq in [0, 1, 4_711, i64::MAX] {
            assert_eq!(seq_of(&cursor_of(seq)), Some(seq));
        }
        for wrong in ["", "12", "s", "sx", "s 1", "sfffffffffffffffff"] {
            assert_eq!(seq_of(wrong), None, "{wrong:?}");
        }
    }
}
