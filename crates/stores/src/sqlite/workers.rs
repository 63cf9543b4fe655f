//! Which workers live in this process, and which lived in one that is dead: known at once, where a lease takes a minute.
//!
//! The first worker makes the process hold a lock beside the database, and each is noted in the lock's file before it claims. A file
//! that nobody holds is that of a dead process, and names the workers whose jobs nobody goes on with. It stays until they are rescued.
//! Where there is no such file, nothing is known, and leases decide alone: workers behind HTTP, file systems without locks.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_queue::{Timestamp, WorkerId};
use longhaul_sqlite::process_lock::{self, DeadProcess, ProcessLock};
use rusqlite::Connection;
use tracing::debug;

use super::error::DbResult;

/// Least time between two looks for dead processes. The rescuer comes after changes too, and the folder may be a large one.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Index lh_jobs_due.
pub(super) const RUNNING: &str =
    "SELECT seq, worker FROM lh_jobs WHERE due_at IS NOT NULL AND state = 3 ORDER BY due_at, seq";

/// The workers beside one database, of this opening of it and of others.
pub(super) struct Workers {
    shared: PathBuf,
    here: Mutex<Here>,
    looked_at: Mutex<Option<Timestamp>>,
}

#[derive(Default)]
struct Here {
    lock: Option<ProcessLock>,
    names: HashSet<String>,
}

/// Workers whose processes are dead.
#[derive(Default)]
pub(super) struct Dead {
    pub(super) names: Arc<HashSet<String>>,
    processes: Vec<DeadProcess>,
}

impl Workers {
    pub(super) fn beside(shared: PathBuf) -> Self {
        Self { shared, here: Mutex::default(), looked_at: Mutex::default() }
    }

    /// This worker dies with this process. It may claim when this returns.
    pub(super) async fn register_local_worker(self: &Arc<Self>, worker: WorkerId) {
        let workers = Arc::clone(self);
        let noted = tokio::task::spawn_blocking(move || workers.note(&worker));
        // A worker without a lock has its lease.
        let _ = noted.await;
    }

    fn note(&self, worker: &WorkerId) {
        let mut here = lock(&self.here);
        if here.lock.is_none() {
            here.lock = ProcessLock::claim(&self.shared);
        }
        let Some(process_lock) = &mut here.lock else {
            debug!(%worker, "no locks are to be had beside the store: only leases tell who died");
            return;
        };
        match process_lock.note(worker.as_str()) {
            Ok(()) => drop(here.names.insert(worker.as_str().to_owned())),
            Err(error) => debug!(%worker, %error, "only its leases will tell that this worker died"),
        }
    }

    /// The store is closed. Jobs that its workers have left running are as those of a killed process.
    pub(super) fn leave(&self, connection: &Connection) {
        let Here { lock: process_lock, names } = std::mem::take(&mut *lock(&self.here));
        let Some(process_lock) = process_lock else { return };
        match running_of(connection, &names, 1) {
            Ok(running) if running.is_empty() => drop(process_lock),
            Ok(_) | Err(_) => process_lock.abandon(),
        }
    }

    /// Who died, if it is time to look.
    pub(super) async fn dead(self: &Arc<Self>, now: Timestamp) -> Dead {
        {
            let mut looked_at = lock(&self.looked_at);
            // A clock that was set back must not blind this.
            if looked_at.is_some_and(|at| at <= now && now < at + LOOK_EVERY) {
                return Dead::default();
            }
            *looked_at = Some(now);
        }
        let workers = Arc::clone(self);
        tokio::task::spawn_blocking(move || workers.look()).await.unwrap_or_default()
    }

    fn look(&self) -> Dead {
        let mut names = HashSet::new();
        let mut processes = process_lock::dead_processes(&self.shared);
        processes.retain(|process| match process.notes() {
            Ok(notes) => {
                names.extend(notes);
                true
            }
            Err(_) => false,
        });
        Dead { names: Arc::new(names), processes }
    }

    /// The names of workers whose processes are dead.
    pub(super) async fn dead_names(self: &Arc<Self>) -> HashSet<String> {
        let workers = Arc::clone(self);
        let looked = tokio::task::spawn_blocking(move || workers.look());
        looked.await.map_or_else(|_| HashSet::new(), |dead| dead.names.as_ref().clone())
    }

    /// More jobs of the dead are left than one sweep may take: the next one looks again, however soon it is.
    pub(super) fn look_again(&self) {
        *lock(&self.looked_at) = None;
    }
}

impl Dead {
    /// They have no jobs left.
    pub(super) async fn forget(self) {
        if !self.processes.is_empty() {
            let remove = || self.processes.into_iter().for_each(DeadProcess::remove);
            let _ = tokio::task::spawn_blocking(remove).await;
        }
    }
}

/// The first running jobs of these workers, by the ends of their leases.
pub(super) fn running_of(
    connection: &Connection,
    names: &HashSet<String>,
    limit: usize,
) -> DbResult<Vec<i64>> {
    let mut found = Vec::new();
    if names.is_empty() {
        return Ok(found);
    }
    let mut statement = connection.prepare_cached(RUNNING)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()?
        && found.len() < limit
    {
        if row.get_ref(1)?.as_str().is_ok_and(|worker| names.contains(worker)) {
            found.push(row.get(0)?);
        }
    }
    Ok(found)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
