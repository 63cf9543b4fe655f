//! What every line of the log carries.

/// The field `slice` of this crate's lines: who speaks. Pipelines use their own names.
pub(crate) const SLICE: &str = "queue";
