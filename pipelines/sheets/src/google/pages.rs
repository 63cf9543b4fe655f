//! A sheet read page by page.

use async_trait::async_trait;

use super::super::Result;
use super::super::layout::Row;
use super::super::places::Pages;
use super::super::settings::GoogleSheet;
use super::a1::Area;
use super::cells;
use super::client::{Block, Google, Patience};

/// Rows asked for with one call. Few calls, because they are counted; not too many rows, because Google gives up on
/// answers that take it minutes.
const CALL_ROWS_MAX: u64 = 5_000;

/// The rows of a Google sheet.
pub struct SheetPages {
    google: Google,
    sheet: GoogleSheet,
}

impl SheetPages {
    /// Of a sheet that was found.
    pub const fn new(google: Google, sheet: GoogleSheet) -> Self {
        Self { google, sheet }
    }
}

#[async_trait]
impl Pages for SheetPages {
    async fn rows(&self, first: u64, count: u64) -> Result<Vec<Row>> {
        let end = first.saturating_add(count);
        let mut rows = Vec::new();
        let mut from = first;
        while from < end {
            let to = end.min(from.saturating_add(CALL_ROWS_MAX));
            let mut patience = Patience::default();
            let blocks = loop {
                match self.google.read(&self.sheet, &[Area::Rows(from..to)]).await {
                    Err(error) => patience.wait_after(error).await?,
                    Ok(blocks) => break blocks,
                }
            };
            let mut page = blocks.first().map(|block| rows_of(block, from)).unwrap_or_default();
            let read = page.len() as u64;
            if read < to - from {
                // Google leaves out empty rows at the end of an area. Only the size of the sheet tells whether more follow.
                let last = self.google.size(&self.sheet).await?.rows.min(to);
                page.extend((from + read..last).map(|number| Row { number, cells: Vec::new() }));
            }
            let is_end = (page.len() as u64) < to - from;
            rows.append(&mut page);
            if is_end {
                break;
            }
            from = to;
        }
        Ok(rows)
    }
}

fn rows_of(block: &Block, first: u64) -> Vec<Row> {
    let texts =
        |row: &Vec<serde_json::Value>| row.iter().map(|cell| cells::text(cell).into_owned()).collect();
    (first..).zip(&block.values).map(|(number, row)| Row { number, cells: texts(row) }).collect()
}
