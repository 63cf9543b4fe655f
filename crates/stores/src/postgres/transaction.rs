//! A caller's own transaction: jobs enqueued together with its rows, and rows written only while a lease holds.

use std::pin::pin;
use std::task::{Context, Waker};

use longhaul_queue::store::Enqueued;
use longhaul_queue::{Error, Lease, NewJob, Queue, Result, Timestamp};
use tokio_postgres::{Client, Transaction};

use super::PostgresStore;
use super::db::Db;
use super::error::{DbResult, corrupt, from_sql};
use super::insert;
use super::rows::{stored_fence, uuid};
use super::tx::Tx;
use crate::insert_batcher::reaches_out;

impl PostgresStore {
    /// Enqueues jobs in a caller's transaction on the same database: both are stored with its commit, or neither.
    /// Workers are woken by the commit. After a refusal, or when this is dropped midway, nothing of the submission remains, and the transaction may go
    /// on.
    ///
    /// The transaction must be `READ COMMITTED`, which is Postgres's default. From here until it ends nobody else can
    /// enqueue, and with dependencies or unique keys nobody else can work at all: enqueue last, then commit.
    ///
    /// ```no_run
    /// # use longhaul_stores::postgres::PostgresStore;
    /// # use longhaul_queue::{Clock, Json, NewJob, SystemClock};
    /// # async fn example(client: &mut tokio_postgres::Client, store: &PostgresStore) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// transaction.execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
    /// let job = NewJob::new("ship", Json::of(&7)?);
    /// store.insert_with(&transaction, vec![job], SystemClock.now()).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn insert_with(
        &self,
        transaction: &Transaction<'_>,
        jobs: Vec<NewJob>,
        now: Timestamp,
    ) -> Result<Vec<Enqueued>> {
        let jobs = Queue::prepare_jobs(jobs, &self.db.limits, now)?;
        let client = transaction.client();
        let sql = |error: tokio_postgres::Error| from_sql(&error);
        let path = search_path(client).await?;
        let mut undo = Undo { client, wanted: true };
        client.batch_execute("SAVEPOINT longhaul_insert").await.map_err(sql)?;
        let inserted = insert_in(&self.db, client, &jobs, now, &path).await;
        undo.wanted = false;
        match inserted {
            Ok(enqueued) => {
                client.batch_execute("RELEASE longhaul_insert").await.map_err(sql)?;
                Ok(enqueued)
            }
            Err(error) => {
                client.batch_execute(UNDO).await.map_err(sql)?;
                Err(error.into())
            }
        }
    }

    /// Refuses with [`Error::LostLease`] unless the lease still holds, so that a caller's transaction stores nothing for a handler
    /// that was taken for dead, cancelled or out of time. The job's row is locked until the transaction ends: its lease cannot be
    /// renewed or taken away meanwhile, so keep the rest short.
    pub async fn hold_with(&self, transaction: &Transaction<'_>, lease: &Lease) -> Result<()> {
        // By primary key. FOR UPDATE: a settlement or a rescue of the job waits for the caller's commit.
        let sql = format!(
            "SELECT 1 FROM {}.lh_jobs WHERE seq = $1 AND id = $2 AND fence = $3 AND worker = $4 AND state = 3 FOR UPDATE",
            self.db.pool.url().quoted_schema()
        );
        let (id, fence, worker) = (uuid(lease.job_id), stored_fence(lease.fence), lease.worker.as_str());
        let held = transaction.client().query_opt(&sql, &[&lease.seq, &id, &fence, &worker]).await;
        match held.map_err(|error| from_sql(&error))? {
            Some(_) => Ok(()),
            None => Err(Error::LostLease(lease.job_id)),
        }
    }
}

/// Takes the changed search path back as well.
const UNDO: &str = "ROLLBACK TO longhaul_insert; RELEASE longhaul_insert";

/// Sends the undo when the enqueue is dropped midway: whatever the caller does next comes behind it.
struct Undo<'a> {
    client: &'a Client,
    wanted: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.wanted {
            // The first poll sends it; nobody waits for the answer.
            let undo = pin!(self.client.batch_execute(UNDO));
            let _ = undo.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// The caller's search path, of a transaction that sees what others commit while it runs: dependencies and processes
/// are judged by how they stand now, not by how they stood when it began.
async fn search_path(client: &Client) -> Result<String> {
    let sql = "SELECT current_setting('transaction_isolation'), current_setting('search_path')";
    let row = client.query_one(sql, &[]).await.map_err(|error| from_sql(&error))?;
    let isolation: String = row.get(0);
    if isolation != "read committed" {
        return Err(Error::invalid(format!(
            "jobs cannot be enqueued in a transaction that is {isolation}; begin it as READ COMMITTED"
        )));
    }
    Ok(row.get(1))
}

async fn insert_in(
    db: &Db,
    client: &Client,
    jobs: &[NewJob],
    now: Timestamp,
    path: &str,
) -> DbResult<Vec<Enqueued>> {
    let alone = jobs.iter().any(reaches_out);
    let set_path = "SELECT set_config('search_path', $1, true)";
    client.query_one(set_path, &[&db.pool.url().quoted_schema()]).await?;
    let lock = if alone { "pg_advisory_xact_lock" } else { "pg_advisory_xact_lock_shared" };
    client.batch_execute(&format!("SELECT {lock}({})", db.keys.rows())).await?;
    let mut tx = Tx::of_caller(client, db.keys, now, alone);
    let enqueued = insert::insert(&mut tx, jobs, now).await?;
    if tx.write_bookkeeping().await?.changed {
        client.batch_execute(&format!("NOTIFY {}", db.keys.channel())).await?;
    }
    let row = client.query_one(set_path, &[&path]).await?;
    row.try_get::<_, String>(0).map_err(|error| corrupt("the search path", error))?;
    Ok(enqueued)
}
