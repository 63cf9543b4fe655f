//! Which column of a file is what when it is written: columns may have moved since the sheet was made, and those that an
//! earlier export added are used again.

use super::super::layout::Plan;
use super::super::{Error, Result};
use longhaul_pipeline::table_files::{Record, harmless};

/// The columns of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// The text's.
    pub(super) text: usize,
    /// A column and the target of the plan that fills it, by column.
    pub(super) targets: Vec<(usize, usize)>,
    /// The first that was not there before; all behind it are new.
    pub(super) added_from: usize,
    /// All columns.
    pub(super) width: usize,
}

impl Columns {
    /// Finds the columns by the heads. Where one is missing, `last` says how many there are, and it is added.
    pub(super) fn find(
        plan: &Plan,
        text: Option<&String>,
        heads: &[Record],
        last: impl FnOnce() -> Result<usize>,
    ) -> Result<Self> {
        // As it is, or as an earlier export wrote it.
        let is_named = |found: &str, name: &str| found == name || found == harmless(name.into());
        let named =
            |name: &str, column: usize| heads.iter().any(|head| is_named(&head.text(column), name.trim()));
        let columns = heads.iter().map(|head| head.cells.len()).max().unwrap_or(0);
        let find = |name: &str, planned: Option<usize>| match planned {
            // Without heads there is nothing that says otherwise.
            Some(column) if heads.is_empty() || named(name, column) => Some(column),
            _ => (0..columns).find(|column| named(name, *column)),
        };
        let text = text.and_then(|name| find(name, Some(plan.text_column))).unwrap_or(plan.text_column);
        let found: Vec<Option<usize>> =
            plan.targets.iter().map(|target| find(&target.name, target.column)).collect();
        let widest = found.iter().flatten().map(|column| column + 1).max().unwrap_or(0).max(text + 1);
        let complete = found.iter().all(Option::is_some);
        let added_from = if complete { columns } else { last()?.max(columns) }.max(widest);
        let mut width = added_from;
        let mut targets = Vec::with_capacity(found.len());
        for (target, column) in found.into_iter().enumerate() {
            let column = column.unwrap_or_else(|| {
                width += 1;
                width - 1
            });
            targets.push((column, target));
        }
        targets.sort_unstable();
        let columns = Self { text, targets, added_from, width };
        columns.check(plan)?;
        Ok(columns)
    }

    fn check(&self, plan: &Plan) -> Result<()> {
        let twice = self.targets.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|pair| pair[0]);
        let over_text = self.targets.iter().find(|(column, _)| *column == self.text).copied();
        match twice.or(over_text) {
            Some((column, target)) => Err(Error::Table(format!(
                "column {} cannot take {:?}, because it has another use: put the columns back as they were",
                column + 1,
                plan.targets[target].name
            ))),
            None => Ok(()),
        }
    }

    /// Whether a column was added.
    pub(super) fn is_new(&self, column: usize) -> bool {
        column >= self.added_from
    }

    /// A name for each column, for files that have fields instead.
    pub(super) fn names(&self, plan: &Plan, heads: &[Record]) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(self.width);
        for column in 0..self.width {
            let target = self.targets.iter().find(|(found, _)| *found == column);
            let name = match target {
                Some((_, target)) => plan.targets[*target].name.clone(),
                None => heads
                    .iter()
                    .map(|head| head.text(column).into_owned())
                    .find(|name| !name.is_empty())
                    .unwrap_or_else(|| format!("column {}", column + 1)),
            };
            // A field that is there twice would be lost to whoever reads it. A target keeps its name.
            let taken = names.contains(&name)
                || target.is_none() && plan.targets.iter().any(|target| target.name == name);
            names.push(if taken { format!("{name} (column {})", column + 1) } else { name });
        }
        names
    }
}
