//! The store's part in every transaction of its file: bookkeeping of jobs, and events on their way to the table.

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::{Clock, Error};
use longhaul_sqlite::Session;
use rusqlite::Connection;

use super::error::{DbError, DbResult};
use super::event_buffer::{EventRow, News, WRITTEN_EVERY};
use super::tx::Tx;
use super::workers::Workers;

/// What belongs to the writing connection of a store.
pub(super) struct JobSession {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) workers: Arc<Workers>,
    pub(super) news: News,
}

/// What a commit did.
pub(super) struct Committed {
    /// Others should look.
    changed: bool,
    story: Option<EventRow>,
    /// The events that waited went with it.
    with_news: bool,
}

impl Session for JobSession {
    type Error = DbError;
    type Reply = Error;
    type Tx<'c> = Tx<'c>;
    type Committed = Committed;
    const DEFERRED_EVERY: Duration = WRITTEN_EVERY;

    fn begin<'c>(&self, connection: &'c Connection) -> Tx<'c> {
        Tx::new(connection, self.clock.now())
    }

    fn connection<'t>(tx: &'t Tx<'_>) -> &'t Connection {
        tx.connection()
    }

    fn flush(tx: &mut Tx<'_>) -> DbResult<()> {
        tx.flush_counts()
    }

    fn command_ended(tx: &mut Tx<'_>, kept: bool) {
        tx.keep_changes(kept);
    }

    fn finish(&self, mut tx: Tx<'_>, deferred: bool) -> DbResult<Committed> {
        tx.finish()?;
        if deferred {
            self.news.write(tx.connection())?;
        }
        let (changed, story) = tx.outcome();
        Ok(Committed { changed, story, with_news: deferred })
    }

    fn committed(&mut self, committed: Committed) -> bool {
        if committed.with_news {
            self.news.written();
        }
        if let Some(story) = committed.story {
            self.news.add(story);
        }
        committed.changed
    }

    fn has_deferred(&self) -> bool {
        !self.news.is_empty()
    }

    fn close(&mut self, connection: &Connection) {
        // No handle is left, so no worker can claim any more.
        self.workers.leave(connection);
    }
}
