//! Why a store refuses a call: the same words on every store.

use crate::error::Error;
use crate::job::{JobId, ProcessId};
use crate::state::State;

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

/// A job comes without an id.
pub fn no_id(kind: &str) -> Error {
    Error::invalid(format!("a job of kind {kind} has no id"))
}

/// There is no job of this id.
pub fn no_job(id: JobId) -> Error {
    Error::not_found(format!("there is no job {id}"))
}

/// A job that no failed parent holds is to be released.
pub fn not_held(id: JobId) -> Error {
    Error::invalid(format!("job {id} is blocked, but no failed parent holds it"))
}

/// A job that holds a child is to be deleted.
pub fn holds_child(id: JobId, state: State, child: JobId) -> Error {
    Error::invalid(format!(
        "job {id} is {state} and cannot be deleted: it holds job {child}; retry it, or unhold or cancel {child}"
    ))
}

/// A job is to be retried whose unique key is another's now.
pub fn key_taken(id: JobId, other: JobId, key: &str) -> Error {
    Error::invalid(format!("job {id} cannot be retried: unfinished job {other} has its unique key {key:?}"))
}

/// An imported job has the place of another.
pub fn place_taken(id: JobId, seq: i64) -> Error {
    Error::invalid(format!("job {id}: its place {seq} is taken"))
}

/// An export is to go on from somewhere else than one has ended.
pub fn no_export_cursor() -> Error {
    Error::invalid("this is not a cursor of an export; begin without one")
}
