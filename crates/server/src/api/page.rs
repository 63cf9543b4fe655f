//! Bounds and cursors of pages, as a client sends them.

pub(super) use longhaul_api::page::{Listed, PageQuery, cursor_of};
use longhaul_queue::limits::PAGE_MAX;

use crate::problem::Problem;

/// Rows on a page that names no number.
const LIMIT_DEFAULT: usize = 100;

/// The number of rows that a page may have.
pub(super) fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    match asked.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        limit => {
            Err(Problem::invalid(format!("limit is {limit}: a page has 1 to {PAGE_MAX} items")).at("limit"))
        }
    }
}

/// The place that a cursor means.
pub(super) fn seq_of(cursor: Option<&str>) -> Result<Option<i64>, Problem> {
    let Some(cursor) = cursor else { return Ok(None) };
    match longhaul_api::page::seq_of(cursor) {
        Some(seq) => Ok(Some(seq)),
        None => Err(Problem::invalid(format!("{cursor:?} is not a cursor: send what a page gave as next"))
            .at("cursor")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_bounds_and_a_foreign_cursor_is_refused_by_its_field() {
        assert_eq!(seq_of(Some("12")).expect_err("not a cursor").field.as_deref(), Some("cursor"));
        assert_eq!(limit(None), Ok(LIMIT_DEFAULT));
        assert!(limit(Some(0)).is_err() && limit(Some(PAGE_MAX + 1)).is_err());
    }
}
