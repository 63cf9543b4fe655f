//! What can go wrong with a run before a job can say so itself.

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The queue or the data store refused.
    #[error(transparent)]
    Queue(#[from] longhaul_queue::Error),
    /// The models' side refused.
    #[error(transparent)]
    Llm(#[from] longhaul_llm::Error),
    /// There is no run of this name.
    #[error("there is no run {0}: it was never started, or was removed")]
    NoRun(String),
    /// The caller's mistake.
    #[error("{0}")]
    Invalid(String),
    /// A file or another place that cannot be read or written.
    #[error("{0}")]
    Place(String),
}

/// A result of a pipeline.
pub type Result<T, E = Error> = std::result::Result<T, E>;
