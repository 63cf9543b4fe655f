//! Tables in files, for every pipeline and for the command line: cells with their types, rows of CSV, workbooks. What a pipeline
//! does with a table is not known here. Everything here blocks: call it off the runtime.
//!
//! Files are not trusted: a row has at most [`ROW_BYTES_MAX`] bytes and [`COLUMNS_MAX`] columns, and a workbook is unpacked once
//! and checked before anything of it is kept in memory (`xlsx/bounds.rs`).
//!
//! One rule for formulas: a text that a spreadsheet program would run gets a `'` before it in CSV and TSV ([`harmless`]),
//! unless it comes from a CSV or TSV file and stays as it was there. Workbooks have a type for texts and need none.

pub mod cell;
pub mod csv;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod workbook;
pub mod xlsx;

pub use cell::{Cell, Record, harmless};
pub use workbook::WorkbookWriter;
pub use xlsx::XlsxReader;

/// Most bytes of one row of a table, which is the part of a file that is in memory at once.
pub const ROW_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most columns of a table: those of a workbook. A row of separators alone would otherwise take forty times its size.
pub const COLUMNS_MAX: usize = 16_384;

/// A table that cannot be read or written: which, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TableError(pub String);
