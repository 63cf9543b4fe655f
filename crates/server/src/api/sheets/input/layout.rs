//! Where in a table what stands, and how the work is cut, as a client says it.

use std::ops::RangeInclusive;

use longhaul_api::sheets::{LayoutIn, WorkIn};
use longhaul_sheets::Layout;
use longhaul_sheets::settings::Work;

use super::unfit;
use crate::problem::Problem;

/// Repetitions that may be asked for: each may cost as much as the first try.
const RETRIES: RangeInclusive<u32> = 0..=20;
const FILL_ROUNDS: RangeInclusive<u32> = 0..=10;

/// Where in a table what stands.
pub(super) fn layout_of(asked: &LayoutIn) -> Layout {
    let heads = match asked {
        LayoutIn::Columns(columns) => return Layout::Columns { text: columns.text.clone() },
        LayoutIn::Sheet(heads) => heads,
    };
    let mut layout = Layout::sheet();
    if let Layout::Sheet { text_column, first_category, name_row, definition_row, detail_row, first_row } =
        &mut layout
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

/// How the work is cut and repeated.
pub(super) fn work_of(asked: &WorkIn) -> Result<Work, Problem> {
    let retries = [
        ("work.unit_retries", asked.unit_retries, RETRIES),
        ("work.chunk_retries", asked.chunk_retries, RETRIES),
        ("work.fill_rounds", asked.fill_rounds, FILL_ROUNDS),
    ];
    for (field, given, range) in retries {
        if given.is_some_and(|given| !range.contains(&given)) {
            return Err(unfit(field, format!("{field} must be at most {}", range.end())));
        }
    }
    let default = Work::default();
    Ok(Work {
        chunk_rows: asked.chunk_rows.unwrap_or(default.chunk_rows),
        parallel_chunks: asked.parallel_chunks.unwrap_or(default.parallel_chunks),
        concurrency: asked.concurrency.unwrap_or(default.concurrency),
        block_categories: asked.block_categories.unwrap_or(default.block_categories),
        unit_retries: asked.unit_retries.unwrap_or(default.unit_retries),
        chunk_retries: asked.chunk_retries.unwrap_or(default.chunk_retries),
        fill_rounds: asked.fill_rounds.unwrap_or(default.fill_rounds),
        failed_share_max: asked.failed_share_max.unwrap_or(default.failed_share_max),
    })
}
