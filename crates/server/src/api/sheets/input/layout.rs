//! Where in a table what stands, and how the work is cut, as a client says it.

use std::ops::RangeInclusive;

use longhaul_sheets::Layout;
use longhaul_sheets::settings::Work;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::unfit;
use crate::problem::Problem;

/// Repetitions that may be asked for: each may cost as much as the first try.
const RETRIES: RangeInclusive<u32> = 0..=20;
const FILL_ROUNDS: RangeInclusive<u32> = 0..=10;

/// Where in the table what stands.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SheetLayout)]
pub(super) enum LayoutIn {
    /// The first row names the columns; scores go to columns named after their categories.
    Columns(ColumnsIn),
    /// Names, definitions and details of the categories stand above their own columns.
    Sheet(HeadsIn),
}

/// A table whose first row names its columns.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ColumnsIn {
    /// Name of the column with the text, or of the field in JSONL.
    #[schema(example = "review")]
    text: String,
}

/// A table with its categories in its heads. Rows and columns count from 1.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HeadsIn {
    /// Column of the text; default 3.
    text_column: Option<usize>,
    /// First column of the categories; default 4.
    first_category: Option<usize>,
    /// Row of their names; default 2.
    name_row: Option<u64>,
    /// Row of their definitions; default 3.
    definition_row: Option<u64>,
    /// Row of their details; default 4.
    detail_row: Option<u64>,
    /// First row of texts; default 5.
    first_row: Option<u64>,
}

impl LayoutIn {
    pub(super) fn layout(&self) -> Layout {
        let heads = match self {
            Self::Columns(columns) => return Layout::Columns { text: columns.text.clone() },
            Self::Sheet(heads) => heads,
        };
        let mut layout = Layout::sheet();
        if let Layout::Sheet {
            text_column,
            first_category,
            name_row,
            definition_row,
            detail_row,
            first_row,
        } = &mut layout
        {
            *text_column = heads.text_column.unwrap_or(*text_column);
            *first_category = heads.first_category.unwrap_or(*first_category);
            *name_row = heads.name_row.unwrap_or(*name_row);
            *definition_row = heads.definition_row.unwrap_or(*definition_row);
            *detail_row = heads.detail_row.unwrap_or(*detail_row);
            *first_row = heads.first_row.unwrap_or(*first_row);
        }
        layout
    }
}

/// How the work is cut and repeated. All limits count repetitions: 3 means four runs at most.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = SheetWork)]
pub(super) struct WorkIn {
    /// Rows with a text in a chunk, 50 to 5000; default 500.
    chunk_rows: Option<u64>,
    /// Chunks that run at once, 1 to 32; default 1.
    parallel_chunks: Option<u32>,
    /// Requests of a chunk under way at once, 1 to 200; default 50.
    concurrency: Option<usize>,
    /// Categories in one request, 1 to 50; default 10.
    block_categories: Option<usize>,
    /// Repetitions of a unit whose answer cannot be used, for each model, at most 20; default 3.
    unit_retries: Option<u32>,
    /// Repetitions of a chunk, at most 20; default 3.
    chunk_retries: Option<u32>,
    /// Passes over cells that are still blank, after all chunks, at most 10; default 1.
    fill_rounds: Option<u32>,
    /// Part of a chunk's units that may fail before the chunk does, 0 to 1; default 0.2.
    failed_share_max: Option<f64>,
}

impl WorkIn {
    pub(super) fn work(&self) -> Result<Work, Problem> {
        let retries = [
            ("work.unit_retries", self.unit_retries, RETRIES),
            ("work.chunk_retries", self.chunk_retries, RETRIES),
            ("work.fill_rounds", self.fill_rounds, FILL_ROUNDS),
        ];
        for (field, asked, range) in retries {
            if asked.is_some_and(|asked| !range.contains(&asked)) {
                return Err(unfit(field, format!("{field} must be at most {}", range.end())));
            }
        }
        let default = Work::default();
        Ok(Work {
            chunk_rows: self.chunk_rows.unwrap_or(default.chunk_rows),
            parallel_chunks: self.parallel_chunks.unwrap_or(default.parallel_chunks),
            concurrency: self.concurrency.unwrap_or(default.concurrency),
            block_categories: self.block_categories.unwrap_or(default.block_categories),
            unit_retries: self.unit_retries.unwrap_or(default.unit_retries),
            chunk_retries: self.chunk_retries.unwrap_or(default.chunk_retries),
            fill_rounds: self.fill_rounds.unwrap_or(default.fill_rounds),
            failed_share_max: self.failed_share_max.unwrap_or(default.failed_share_max),
        })
    }
}
