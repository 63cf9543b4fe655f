//! The ledger's part in every transaction of the file: sums, written once for a group of commands, and counted events.

use std::sync::Arc;
use std::time::Duration;

use longhaul_sqlite::Session;
use rusqlite::Connection;

use super::events::{Counts, Events};
use super::{FileError, FileResult};
use crate::ledger::Sheet;

/// What belongs to the writing connection.
pub(super) struct LedgerSession {
    events: Arc<Events>,
}

impl LedgerSession {
    pub(super) fn new(events: &Arc<Events>) -> Self {
        Self { events: Arc::clone(events) }
    }
}

/// A transaction under way.
pub(crate) struct Tx<'c> {
    pub(crate) connection: &'c Connection,
    /// Changes of the ledger's sums, written once for the whole group. A command adds to it last of all, when nothing of
    /// its own can fail any more: a rollback to its savepoint does not reach it.
    pub(crate) sheet: Sheet,
}

impl Session for LedgerSession {
    type Error = FileError;
    type Reply = FileError;
    type Tx<'c> = Tx<'c>;
    /// The events that went with it.
    type Committed = Counts;
    /// The thread looks as often, so an event is written within a second.
    const DEFERRED_EVERY: Duration = Duration::from_millis(500);

    fn begin<'c>(&self, connection: &'c Connection) -> Tx<'c> {
        Tx { connection, sheet: Sheet::default() }
    }

    fn connection<'t>(tx: &'t Tx<'_>) -> &'t Connection {
        tx.connection
    }

    fn command_ended(tx: &mut Tx<'_>, kept: bool) {
        if !kept {
            tx.sheet.distrust_names();
        }
    }

    fn finish(&self, mut tx: Tx<'_>, deferred: bool) -> FileResult<Counts> {
        let counts = if deferred { self.events.waiting() } else { Counts::default() };
        for ((scope, event), count) in &counts {
            tx.sheet.count(tx.connection, scope, *event, *count)?;
        }
        tx.sheet.write(tx.connection)?;
        Ok(counts)
    }

    fn committed(&mut self, counts: Counts) -> bool {
        self.events.written(counts);
        // Nobody watches this file.
        false
    }

    fn has_deferred(&self) -> bool {
        !self.events.is_empty()
    }
}
