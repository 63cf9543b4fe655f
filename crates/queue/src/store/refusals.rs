//! Why a store does not take a job: the same words on every store.

use crate::error::Error;
use crate::job::{JobId, ProcessId};

/// Two jobs of one call have the same id.
pub fn given_twice(id: JobId) -> Error {
    Error::invalid(format!("id {id} is given twice in one submission"))
}

/// The id is that of another job.
pub fn other_content(id: JobId) -> Error {
    Error::invalid(format!("job {id} exists with other content"))
}

/// A job depends on one that is not stored.
pub fn no_parent(id: JobId, parent: JobId) -> Error {
    Error::invalid(format!("job {id} depends on {parent}, which does not exist"))
}

/// A job waits for a process without jobs.
pub fn no_process(id: JobId, process: &ProcessId) -> Error {
    Error::invalid(format!("job {id} waits for process {process}, which does not exist"))
}

/// A job waits for the process that it belongs to.
pub fn own_process(id: JobId, process: &ProcessId) -> Error {
    Error::invalid(format!("job {id} would wait for its own process {process}; make it a helper"))
}
