//! Events on their way to the table. They are hints for people, so they need no commit of their own: they go with a
//! later one, at most [`WRITTEN_EVERY`] late, and a crash may lose the last of them. That spares each enqueue a page.

use std::time::Duration;

use longhaul_queue::Timestamp;
use longhaul_queue::events::Change;
use longhaul_queue::limits::EVENTS_KEPT_MAX;
use rusqlite::Connection;

use super::error::DbResult;
use super::rows::to_text;

/// How late an event may be for other processes.
pub(super) const WRITTEN_EVERY: Duration = Duration::from_millis(50);
/// Events that wait at most; in a rush the newest swallows the rest.
const PENDING_MAX: usize = 64;

/// Whether an event names a job that exists. Index lh_jobs_id.
macro_rules! names_a_job {
    () => {
        "EXISTS (SELECT 1 FROM json_each(changes) c JOIN lh_jobs j ON j.id = unhex(c.value ->> 'job_id', '-'))"
    };
}

/// Removes the events whose jobs are all gone. The newest stays, without them: its number counts on.
pub(super) fn forget(connection: &Connection) -> DbResult<()> {
    let all =
        concat!("DELETE FROM lh_events WHERE id < (SELECT max(id) FROM lh_events) AND NOT ", names_a_job!());
    connection.prepare_cached(all)?.execute([])?;
    let newest = concat!(
        "UPDATE lh_events SET changes = '[]' WHERE id = (SELECT max(id) FROM lh_events) AND NOT ",
        names_a_job!()
    );
    connection.prepare_cached(newest)?.execute([])?;
    Ok(())
}

/// What one commit changed.
#[derive(Debug, Clone)]
pub(super) struct EventRow {
    pub(super) at: Timestamp,
    pub(super) changes: Vec<Change>,
    pub(super) more: u64,
}

/// Events that wait to be written.
#[derive(Debug, Default)]
pub(super) struct News {
    pending: Vec<EventRow>,
}

impl News {
    /// Takes what a commit has changed.
    pub(super) fn add(&mut self, story: EventRow) {
        let crowded = self.pending.len() >= PENDING_MAX;
        match self.pending.last_mut().filter(|_| crowded) {
            Some(last) => {
                last.at = story.at;
                last.more += story.more + story.changes.len() as u64;
            }
            None => self.pending.push(story),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Writes what waits, inside somebody's transaction.
    pub(super) fn write(&self, connection: &Connection) -> DbResult<()> {
        let mut insert =
            connection.prepare_cached("INSERT INTO lh_events (at, changes, more) VALUES (?1, ?2, ?3)")?;
        for story in &self.pending {
            insert.execute((story.at.as_millis(), to_text("an event", &story.changes)?, story.more))?;
        }
        // Here and not only by the pruner: a command that runs and ends leaves no duty behind.
        let kept = i64::try_from(EVENTS_KEPT_MAX).unwrap_or(i64::MAX);
        connection
            .prepare_cached("DELETE FROM lh_events WHERE id <= (SELECT max(id) FROM lh_events) - ?1")?
            .execute([kept])?;
        Ok(())
    }

    /// They are in the table.
    pub(super) fn written(&mut self) {
        self.pending.clear();
    }
}
