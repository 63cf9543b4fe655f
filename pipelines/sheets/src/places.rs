//! The seams to the outside: how tables are read, how whole files are written, how cells reach a sheet while it is
//! scored. Files and Google stand behind them.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::Result;
use super::layout::Row;

/// Reads a table from its first row on, heads included. Blocking where it reads files: call it off the runtime.
pub trait Rows: Send {
    /// The next row; empty ones are read too, so that numbers are right.
    fn next(&mut self) -> Result<Option<Row>>;
}

/// Reads a sheet that is not on this machine.
#[async_trait]
pub trait Pages: Send + Sync {
    /// Rows from a number on, at most so many; fewer only at the end of the sheet.
    async fn rows(&self, first: u64, count: u64) -> Result<Vec<Row>>;
}

/// What was found out about the rows of a table, in their order.
pub trait Filled {
    /// The scores of a row, if it was scored. Asked with rising numbers.
    fn row(&mut self, number: u64) -> Result<Option<FilledRow>>;
}

/// The scores of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct FilledRow {
    /// The text that they are of.
    pub text: String,
    /// By target of the plan; blank where there is none.
    pub cells: Vec<Option<Value>>,
    /// The models that gave them, as `PROFILE/MODEL`, each once.
    pub answered_by: Vec<String>,
}

/// What was written to a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exported {
    /// Rows, heads left out.
    pub rows: u64,
    /// Cells that were filled.
    pub cells: u64,
    /// Rows whose text is not what was scored: the file was changed meanwhile. Their cells are left as they are.
    pub changed: u64,
}

/// Takes scores as they come.
#[async_trait]
pub trait Sink: Send + Sync {
    /// Writes cells, and says what became of each row, in their order. Repeatable: after an error the same is written again.
    async fn write(&self, rows: &[SinkRow]) -> Result<Vec<Fate>, SinkError>;

    /// How many units are best written at once when so many wait. A sink that allows few writes takes more with each.
    fn units_at_once(&self, waiting: usize) -> usize;
}

/// Cells of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkRow {
    /// The row, from 0.
    pub number: u64,
    /// The text that was scored: a row that says something else now is left alone.
    pub text: String,
    /// Target of the plan and value. Blanks are not among them.
    pub cells: Vec<(usize, Value)>,
}

/// What became of a row's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They are there.
    Written,
    /// Somebody has changed the row since it was read: nothing was written.
    Edited,
}

/// Why cells were not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SinkError {
    /// Time may heal it.
    #[error("{message}")]
    Outage {
        /// What happened.
        message: String,
        /// How long to wait at least.
        retry_after: Option<Duration>,
    },
    /// It will not get better by itself: access, a sheet or a column that is gone.
    #[error("{0}")]
    Refused(String),
}
