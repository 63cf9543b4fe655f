//! Folding: what transactions have added becomes part of the totals, and their news get numbers. One session at a time;
//! who finds another at it leaves it to that one.

use longhaul_queue::Result;
use longhaul_queue::limits::EVENTS_KEPT_MAX;

use super::db::{Keys, gone};
use super::error::from_sql;
use super::pool::Pool;

/// Rows that are folded at once.
const FOLD_ROWS_MAX: i64 = 20_000;

const FOLD: &str = "WITH gone AS (
         DELETE FROM lh_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM lh_deltas LIMIT $1))
         RETURNING what, name, part, state, kind, jobs)
     INSERT INTO lh_totals AS t (what, name, part, state, kind, jobs)
     SELECT what, name, part, state, kind, sum(jobs)::bigint FROM gone GROUP BY what, name, part, state, kind
     ON CONFLICT (what, name, part, state, kind) DO UPDATE SET jobs = t.jobs + excluded.jobs";

/// Under the fold lock, so that numbers follow each other without a gap and in the order of commits.
const NUMBER: &str = "WITH gone AS (
         DELETE FROM lh_news WHERE ctid = ANY (ARRAY(SELECT ctid FROM lh_news LIMIT $1))
         RETURNING id, at, changes, more),
     placed AS (SELECT row_number() OVER (ORDER BY id) AS place, at, changes, more FROM gone),
     counter AS (
         UPDATE lh_meta SET value = value + (SELECT count(*) FROM placed) WHERE key = 'event' RETURNING value)
     INSERT INTO lh_events (id, at, changes, more)
     SELECT counter.value - (SELECT count(*) FROM placed) + place, at, changes, more FROM placed, counter";

const TRIM: &str = "DELETE FROM lh_events WHERE id <= (SELECT max(id) FROM lh_events) - $1";

/// Folds counters and numbers events, unless somebody else is at it.
pub(super) async fn fold(pool: &Pool, keys: Keys) -> Result<()> {
    let mut pooled = pool.get().await?;
    let client = &pooled.session().ok_or_else(gone)?.client;
    let work = async {
        // A crash of the server may undo it: nothing is lost then, it is only done again.
        client.batch_execute("BEGIN; SET LOCAL synchronous_commit = off").await?;
        let locked = client.query_one("SELECT pg_try_advisory_xact_lock($1)", &[&keys.fold()]).await?;
        if locked.try_get(0)? {
            client.execute(FOLD, &[&FOLD_ROWS_MAX]).await?;
            number_events(client).await?;
        }
        client.batch_execute("COMMIT").await
    };
    work.await.map_err(|error| from_sql(&error))?;
    pooled.rests();
    Ok(())
}

/// Waits for whoever is at it, so that a reader sees what was committed before it asked.
pub(super) async fn flush_events(pool: &Pool, keys: Keys) -> Result<()> {
    let mut pooled = pool.get().await?;
    let client = &pooled.session().ok_or_else(gone)?.client;
    let work = async {
        let waiting = client.query_one("SELECT EXISTS (SELECT 1 FROM lh_news)", &[]).await?;
        if waiting.try_get(0)? {
            client.batch_execute("BEGIN; SET LOCAL synchronous_commit = off").await?;
            client.query_one("SELECT pg_advisory_xact_lock($1)", &[&keys.fold()]).await?;
            number_events(client).await?;
            client.batch_execute("COMMIT").await?;
        }
        Ok::<_, tokio_postgres::Error>(())
    };
    work.await.map_err(|error| from_sql(&error))?;
    pooled.rests();
    Ok(())
}

async fn number_events(client: &tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
    let kept = i64::try_from(EVENTS_KEPT_MAX).unwrap_or(i64::MAX);
    client.execute(NUMBER, &[&FOLD_ROWS_MAX]).await?;
    client.execute(TRIM, &[&kept]).await?;
    Ok(())
}
