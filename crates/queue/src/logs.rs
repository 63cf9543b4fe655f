//! What every line of the log carries.

use tracing::field::{DisplayValue, display};

use crate::job::JobId;

/// The field `slice` of this crate's lines: who speaks. Pipelines use their own names.
pub(crate) const SLICE: &str = "queue";

/// The field `job_id` of a call that may concern many jobs: there when it concerns one. It is formatted only when the
/// line is written.
pub(crate) fn only<T>(items: &[T], id: impl FnOnce(&T) -> Option<JobId>) -> Option<DisplayValue<JobId>> {
    if let [item] = items { id(item).map(display) } else { None }
}

/// What all items have in common, such as their process.
pub(crate) fn common<'i, T, V: PartialEq>(
    items: &'i [T],
    of: impl Fn(&'i T) -> Option<&'i V>,
) -> Option<&'i V> {
    let first = of(items.first()?)?;
    items.iter().all(|item| of(item) == Some(first)).then_some(first)
}
