//! Scoring: a table of texts and a list of categories go in, every cell gets its score.
//!
//! **Kinds.** `score.chunk` scores some hundred rows; its result says how it went. `score.sheet` holds the sheet's settings, waits for
//! all chunks, fills what is still blank and writes the file.
//!
//! **Flow.** A sheet is a process with a queue of its own. The [`scheduler`] reads the table, keeps its texts in the data
//! store and enqueues a chunk for each 500 of them. A chunk is a [`pipeline`]: the [`producer`] makes units (a row and a
//! block of categories), the [`invoker`] asks the model, the [`validation`] judges the answer, the [`writer`] stores it
//! and hands it to the sink. [`finish`] ends the sheet.
//!
//! **Decisions.**
//! - Texts are copied when the sheet is made. So a chunk needs no file, every format has the same way, and an edit
//!   during the run is seen: a row that says something else by the time of writing is left alone.
//! - An answer is durable in the data store as soon as it is valid, and is never asked for again. Done means written: for
//!   a file that is the data store, from which the file is exported whole; for a Google sheet it is the acknowledged write.
//! - Stages end by counting: a chunk is over when each of its units is settled. What has to be asked again goes through
//!   a lane of its own, so nothing is lost behind an end mark and no stage waits for itself.
//! - The rate of calls is the rate control's business. The number of invokers is a cap on top of it.

pub mod google;
pub mod layout;
pub mod places;
pub mod settings;
pub mod tables;

pub use layout::{Layout, Plan};
pub use settings::SheetSettings;

/// What can go wrong before a job can say so itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The queue or the data store refused.
    #[error(transparent)]
    Queue(#[from] longhaul_queue::Error),
    /// The models' side refused.
    #[error(transparent)]
    Llm(#[from] longhaul_llm::Error),
    /// There is no sheet of this name.
    #[error("there is no sheet {0}: it was never made, or was removed")]
    NoSheet(String),
    /// The caller's mistake.
    #[error("{0}")]
    Invalid(String),
    /// A table that cannot be read or written.
    #[error("{0}")]
    Table(String),
    /// A sheet elsewhere that cannot be reached or written.
    #[error(transparent)]
    Sink(#[from] places::SinkError),
}

/// A result of this slice.
pub type Result<T, E = Error> = std::result::Result<T, E>;
