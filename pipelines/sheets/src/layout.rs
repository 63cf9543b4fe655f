//! Where in a table what stands: the text, the categories, the cells of the scores. A [`Layout`] is what the user says;
//! the first rows of the table make a [`Plan`] of it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::settings::{CATEGORIES_MAX, Category, Mode};
use super::{Error, Result};
use longhaul_pipeline::table_files::harmless;

/// Most rows above the first text.
pub const HEAD_ROWS_MAX: u64 = 1_000;

/// A row as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its place in the table, from 0, heads counted.
    pub number: u64,
    /// Its cells; cells after the last filled one may be missing.
    pub cells: Vec<String>,
}

impl Row {
    /// A cell without the spaces around it; one that is missing is empty.
    pub fn cell(&self, column: usize) -> &str {
        self.cells.get(column).map_or("", |cell| cell.trim())
    }
}

/// What the user says of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// The first row names the columns; scores go to columns named after their categories.
    Columns {
        /// Name of the column with the text.
        text: String,
    },
    /// Names, definitions and details of the categories stand above their own columns. Rows and columns count from 1.
    Sheet {
        /// Column of the text.
        text_column: usize,
        /// First column of the categories.
        first_category: usize,
        /// Row of their names.
        name_row: u64,
        /// Row of their definitions.
        definition_row: u64,
        /// Row of their details.
        detail_row: u64,
        /// First row of texts.
        first_row: u64,
    },
}

impl Layout {
    /// The fixed layout: text in C, categories from D, heads in rows 2 to 4, texts from row 5.
    pub const fn sheet() -> Self {
        Self::Sheet {
            text_column: 3,
            first_category: 4,
            name_row: 2,
            definition_row: 3,
            detail_row: 4,
            first_row: 5,
        }
    }

    /// Rows above the first text.
    pub fn head_rows(&self) -> u64 {
        match self {
            Self::Columns { .. } => 1,
            Self::Sheet { first_row, .. } => first_row.saturating_sub(1),
        }
    }

    /// Names of columns that must be read from a file without an order of columns; empty for all.
    pub fn wanted(&self, categories: &[Category], mode: &Mode) -> Vec<String> {
        match self {
            Self::Columns { text } => {
                let targets = targets_of(categories, mode).into_iter().map(|target| target.name);
                std::iter::once(text.clone()).chain(targets).collect()
            }
            Self::Sheet { .. } => Vec::new(),
        }
    }

    /// Finds everything in the first rows of a table.
    pub fn plan(&self, head: &[Row], categories: &[Category], mode: &Mode) -> Result<Plan> {
        let plan = match self {
            Self::Columns { text } => by_columns(text, head, categories, mode)?,
            Self::Sheet { .. } => self.by_heads(head, mode)?,
        };
        plan.check(mode)?;
        Ok(plan)
    }

    fn by_heads(&self, head: &[Row], mode: &Mode) -> Result<Plan> {
        let &Self::Sheet { text_column, first_category, name_row, definition_row, detail_row, first_row } =
            self
        else {
            return Err(Error::Invalid("this layout has no heads".to_owned()));
        };
        let places =
            [text_column as u64, first_category as u64, name_row, definition_row, detail_row, first_row];
        if !places.iter().all(|place| (1..=HEAD_ROWS_MAX).contains(place)) {
            return Err(Error::Invalid(format!(
                "rows and columns of a layout count from 1 to {HEAD_ROWS_MAX}"
            )));
        }
        if *mode != Mode::Scores {
            return Err(Error::Invalid(
                "this layout has one column a category, for its score: for rationales or a schema use --text-column"
                    .to_owned(),
            ));
        }
        let at = |row: u64, column: usize| {
            let row = head.iter().find(|found| found.number + 1 == row);
            row.map_or("", |row| row.cell(column)).to_owned()
        };
        let mut plan = Plan {
            text_column: text_column - 1,
            first_row: first_row - 1,
            categories: Vec::new(),
            targets: Vec::new(),
        };
        // A column whose heads are all empty ends the list.
        for column in first_category - 1..first_category + CATEGORIES_MAX {
            let category = Category {
                name: at(name_row, column),
                definition: at(definition_row, column),
                detail: at(detail_row, column),
            };
            if [&category.name, &category.definition, &category.detail].iter().all(|text| text.is_empty()) {
                break;
            }
            plan.targets.push(PlanTarget { name: category.name.clone(), column: Some(column) });
            plan.categories.push(category);
        }
        Ok(plan)
    }
}

fn by_columns(text: &str, head: &[Row], categories: &[Category], mode: &Mode) -> Result<Plan> {
    let Some(names) = head.first() else {
        return Err(Error::Invalid(
            "the table is empty: it needs a first row that names its columns".to_owned(),
        ));
    };
    // As it is, or as an export wrote it so that no spreadsheet program runs it.
    let column = |name: &str| {
        let is_named = |column: &usize| [name, &*harmless(name.into())].contains(&names.cell(*column));
        (0..names.cells.len()).find(is_named)
    };
    let Some(text_column) = column(text) else {
        let known: Vec<&str> = (0..names.cells.len()).map(|column| names.cell(column)).collect();
        return Err(Error::Invalid(format!(
            "there is no column {text:?}; the columns are: {}",
            known.join(", ")
        )));
    };
    let targets = targets_of(categories, mode);
    let targets =
        targets.into_iter().map(|target| PlanTarget { column: column(&target.name), ..target }).collect();
    Ok(Plan { text_column, first_row: 1, categories: categories.to_vec(), targets })
}

/// The columns that answers fill.
fn targets_of(categories: &[Category], mode: &Mode) -> Vec<PlanTarget> {
    let target = |name: String| PlanTarget { name, column: None };
    match mode {
        Mode::Scores => categories.iter().map(|category| target(category.name.clone())).collect(),
        Mode::Rationale => categories
            .iter()
            .flat_map(|category| [category.name.clone(), format!("{} reason", category.name)])
            .map(target)
            .collect(),
        Mode::Free { schema } => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            fields.map(|(name, _)| target(name.clone())).collect()
        }
    }
}

/// Where everything is in one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Column of the text, from 0.
    pub text_column: usize,
    /// First row of texts, from 0.
    pub first_row: u64,
    /// What is asked.
    pub categories: Vec<Category>,
    /// What is filled.
    pub targets: Vec<PlanTarget>,
}

/// A column that is filled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanTarget {
    /// What its head says.
    pub name: String,
    /// Where it is, from 0; one that is not there yet is added behind the last.
    pub column: Option<usize>,
}

impl Plan {
    fn check(&self, mode: &Mode) -> Result<()> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if self.targets.is_empty() {
            return match mode {
                Mode::Free { .. } => {
                    invalid("the schema must be of an object with properties: each becomes a column".into())
                }
                Mode::Scores | Mode::Rationale => invalid(
                    "there are no categories: name them in --rubric, or above their columns in the sheet"
                        .into(),
                ),
            };
        }
        if self.categories.len() > CATEGORIES_MAX {
            return invalid(format!("{} categories; {CATEGORIES_MAX} are the most", self.categories.len()));
        }
        for (index, target) in self.targets.iter().enumerate() {
            if target.name.trim().is_empty() {
                return invalid(format!("category {} has no name", index + 1));
            }
            if self.targets[..index].iter().any(|other| other.name == target.name) {
                return invalid(format!(
                    "the category {:?} is there twice; scores go to columns by name",
                    target.name
                ));
            }
            if target.column == Some(self.text_column) {
                return invalid(format!("the category {:?} has the name of the text's column", target.name));
            }
        }
        Ok(())
    }

    /// How many requests a row takes.
    pub fn blocks(&self, mode: &Mode, block_categories: usize) -> u32 {
        match mode {
            Mode::Scores | Mode::Rationale => {
                u32::try_from(self.categories.len().div_ceil(block_categories.max(1))).unwrap_or(u32::MAX)
            }
            Mode::Free { .. } => 1,
        }
    }

    /// The categories of a block.
    pub fn block_categories(&self, block: u32, block_categories: usize) -> Range<usize> {
        let first = block as usize * block_categories;
        first.min(self.categories.len())..(first + block_categories).min(self.categories.len())
    }

    /// The targets of a block.
    pub fn block_targets(&self, block: u32, mode: &Mode, block_categories: usize) -> Range<usize> {
        let Range { start, end } = self.block_categories(block, block_categories);
        match mode {
            Mode::Scores => start..end,
            Mode::Rationale => 2 * start..2 * end,
            Mode::Free { .. } => 0..self.targets.len(),
        }
    }
}
