//! What else there is of a job beside its narrow row, as bits of the column `flags`: SQLite and Postgres need not look for what is
//! not there.

use longhaul_queue::job::{NewJob, Retention};
use longhaul_queue::store::JobPiece;

/// Not among its process's results.
pub(crate) const HELPER: i32 = 1;
/// Some job depends on it.
pub(crate) const CHILDREN: i32 = 1 << 1;
/// It depends on jobs.
pub(crate) const PARENTS: i32 = 1 << 2;
/// It waits, or waited, for a process.
pub(crate) const AFTER: i32 = 1 << 3;
/// It holds a unique key.
pub(crate) const UNIQUE: i32 = 1 << 4;
/// It has a checkpoint. SQLite only.
pub(crate) const DATA: i32 = 1 << 5;
/// It has a row in `lh_parks`. SQLite only.
pub(crate) const PARK: i32 = 1 << 6;
/// It has a result or an error. SQLite only.
pub(crate) const RESULT: i32 = 1 << 7;
/// It has rows in `lh_runs`.
pub(crate) const RUNS: i32 = 1 << 8;
/// It has progress or log lines.
pub(crate) const NOTES: i32 = 1 << 9;
/// It has tags.
pub(crate) const TAGS: i32 = 1 << 10;
/// It has a retention rule of its own.
pub(crate) const RETENTION: i32 = 1 << 11;
/// Its payload and options are in `lh_bodies`, not in its row. SQLite only.
pub(crate) const BODY: i32 = 1 << 12;
/// By its own rule it goes with its success.
pub(crate) const DELETE_ON_SUCCESS: i32 = 1 << 13;

/// Those of a new job.
pub(crate) fn of_new(job: &NewJob) -> i32 {
    all(&[
        (job.helper, HELPER),
        (!job.depends_on.is_empty(), PARENTS),
        (job.after_process.is_some(), AFTER),
        (job.options.unique.is_some(), UNIQUE),
        (!job.options.tags.is_empty(), TAGS),
        (job.options.retention.is_some(), RETENTION),
        (job.options.retention == Some(Retention::DeleteOnSuccess), DELETE_ON_SUCCESS),
    ])
}

/// Those of a job that comes from another store, as far as both stores keep them.
pub(crate) fn of_imported(piece: &JobPiece) -> i32 {
    let (job, options) = (&piece.job, &piece.job.options);
    all(&[
        (job.helper, HELPER),
        (!piece.edges.is_empty(), PARENTS),
        (piece.after_process.is_some(), AFTER),
        (options.unique.is_some(), UNIQUE),
        (piece.progress.is_some() || !piece.log.is_empty(), NOTES),
        (!options.tags.is_empty(), TAGS),
        (options.retention.is_some(), RETENTION),
        (options.retention == Some(Retention::DeleteOnSuccess), DELETE_ON_SUCCESS),
    ])
}

/// The flags that are set.
pub(crate) fn all(flags: &[(bool, i32)]) -> i32 {
    flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum()
}
