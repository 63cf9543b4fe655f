//! Which column is which, by what its head says now. People move columns while a sheet is scored.

use super::super::layout::{Layout, Plan, Row};
use super::super::places::SinkError;

/// Where the columns are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    /// Of the text.
    pub(super) text: usize,
    /// By target of the plan; one that is not there yet has none.
    pub(super) targets: Vec<Option<usize>>,
}

impl Columns {
    /// As they were when the sheet was first read.
    pub(super) fn planned(plan: &Plan) -> Self {
        Self { text: plan.text_column, targets: plan.targets.iter().map(|target| target.column).collect() }
    }

    /// As the head says. A column that was seen before is looked for where it was first.
    pub(super) fn found(layout: &Layout, plan: &Plan, head: &Row, before: &Self) -> Result<Self, SinkError> {
        let text = match layout {
            Layout::Columns { text } => {
                column(head, text, Some(before.text))?.ok_or_else(|| gone(text, head))?
            }
            // The plan has no name for it: whoever reads its rows sees whether it is still the one.
            Layout::Sheet { .. } => before.text,
        };
        let mut targets = Vec::with_capacity(plan.targets.len());
        for (target, before) in plan.targets.iter().zip(&before.targets) {
            let found = column(head, &target.name, *before)?;
            // One that was never there is added; one that was there is missed by somebody.
            if found.is_none() && target.column.is_some() {
                return Err(gone(&target.name, head));
            }
            targets.push(found);
        }
        Ok(Self { text, targets })
    }
}

/// The row whose cells are the heads.
pub(super) fn head_row(layout: &Layout) -> u64 {
    match layout {
        Layout::Columns { .. } => 0,
        Layout::Sheet { name_row, .. } => name_row.saturating_sub(1),
    }
}

fn column(head: &Row, name: &str, before: Option<usize>) -> Result<Option<usize>, SinkError> {
    let is_it = |column: &usize| head.cell(*column) == name.trim();
    if let Some(before) = before.filter(is_it) {
        return Ok(Some(before));
    }
    let mut found = (0..head.cells.len()).filter(is_it);
    match (found.next(), found.next()) {
        (Some(_), Some(_)) if before.is_some() => Err(SinkError::Refused(format!(
            "the sheet has two columns {name:?} now, and neither is where it was: rename one of them"
        ))),
        (first, _) => Ok(first),
    }
}

fn gone(name: &str, head: &Row) -> SinkError {
    let heads: Vec<&str> =
        (0..head.cells.len()).map(|column| head.cell(column)).filter(|name| !name.is_empty()).collect();
    SinkError::Refused(format!(
        "the sheet no longer has a column {name:?}; the columns are: {}. Give it its name back, and go on",
        heads.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::PlanTarget;
    use super::*;

    fn plan(targets: &[(&str, Option<usize>)]) -> Plan {
        let target =
            |(name, column): &(&str, Option<usize>)| PlanTarget { name: (*name).to_owned(), column: *column };
        Plan {
            text_column: 0,
            first_row: 1,
            categories: Vec::new(),
            targets: targets.iter().map(target).collect(),
        }
    }

    fn found(heads: &[&str]) -> Result<Columns, String> {
        let head = Row { number: 0, cells: heads.iter().map(|head| (*head).to_owned()).collect() };
        let plan = plan(&[("Joy", Some(1)), ("Fear", None)]);
        let layout = Layout::Columns { text: "Text".to_owned() };
        let columns = Columns::found(&layout, &plan, &head, &Columns::planned(&plan));
        columns.map_err(|error| error.to_string())
    }

    #[test]
    fn columns_are_found_where_their_heads_are() {
        for (heads, text, targets) in [
            (&["Text", "Joy"][..], 0, [Some(1), None]),
            (&["Text", "Joy", "Fear"], 0, [Some(1), Some(2)]),
            (&["", "Text", " Joy "], 1, [Some(2), None]),
            (&["Joy", "Note", "Text", "Fear"], 2, [Some(0), Some(3)]),
            // One that stands where it was is meant, whatever else has its name.
            (&["Text", "Joy", "Joy"], 0, [Some(1), None]),
        ] {
            assert_eq!(found(heads), Ok(Columns { text, targets: targets.to_vec() }), "{heads:?}");
        }
    }

    #[test]
    fn a_head_that_is_gone_is_named() {
        for (heads, want) in [
            (&["Text", "Glee"][..], "\"Joy\"; the columns are: Text, Glee"),
            (&["Note", "Joy"], "\"Text\""),
            (&[], "\"Text\""),
            (&["Text", "", "Joy", "Joy"], "two columns \"Joy\""),
        ] {
            let text = found(heads).expect_err("refused");
            assert!(text.contains(want), "{text}");
        }
    }
}
