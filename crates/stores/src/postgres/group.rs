//! Group commit of enqueues: places are given to one transaction at a time anyway, so nothing is lost by waiting, and one commit
//! serves all.

use async_trait::async_trait;
use longhaul_queue::store::Enqueued;
use longhaul_queue::{Error, NewJob, Result, Timestamp};

use super::db::{Db, Mode, transact};
use super::error::{DbError, DbResult};
use super::tx::Tx;
use super::{insert, insert_fast};
use crate::insert_batcher::{Gather, Inserts, Part};

#[async_trait]
impl Inserts for Db {
    fn gather(&self) -> &Gather {
        &self.gather
    }

    async fn together(&self, parts: &[&Part]) -> Result<Vec<Vec<Enqueued>>> {
        let now = parts.iter().map(|part| part.now).min().unwrap_or_default();
        transact!(self, Mode::Shared, now, |tx| insert_all(tx, parts))
    }

    async fn alone(&self, part: &Part) -> Result<Vec<Enqueued>> {
        transact!(self, Mode::Shared, part.now, |tx| insert::insert(tx, &part.jobs, part.now))
    }
}

async fn insert_all(tx: &mut Tx<'_>, parts: &[&Part]) -> DbResult<Vec<Vec<Enqueued>>> {
    if tx.is_alone() {
        return Err(DbError::Queue(Error::invalid("one of these enqueues must be looked at by itself")));
    }
    let parts: Vec<(&[NewJob], Timestamp)> =
        parts.iter().map(|part| (part.jobs.as_slice(), part.now)).collect();
    insert_fast::insert(tx, &parts).await
}
