//! Queues, schedules and workers: small rows that people and workers write.

use longhaul_queue::Timestamp;
use longhaul_queue::store::{Firing, QueueChange, QueueSettings, Schedule, WorkerInfo};

use super::error::DbResult;
use super::insert;
use super::rows::{from_text, to_text};
use super::tx::Tx;
use crate::queue_row::QueueRow;

/// Changes a queue's settings; a queue without any needs no row, unless turns are taken there.
pub(super) async fn set_queue(tx: &mut Tx<'_>, change: &QueueChange) -> DbResult<()> {
    let old = tx.queue(&change.name).await?;
    let new = QueueRow { settings: old.settings.changed_by(change), ..old };
    if new.is_worth_a_row() {
        write_queue(tx, &change.name, &new.settings).await?;
    } else {
        tx.run("DELETE FROM lh_queues WHERE name = $1", &[&change.name]).await?;
    }
    tx.touch();
    Ok(())
}

/// Writes a queue's settings, and leaves alone whose turn it is.
pub(super) async fn write_queue(tx: &Tx<'_>, name: &str, settings: &QueueSettings) -> DbResult<()> {
    let retention =
        settings.retention.as_ref().map(|retention| to_text("a retention", retention)).transpose()?;
    let ageing = settings.ageing.map(|ageing| i64::try_from(ageing.as_millis()).unwrap_or(i64::MAX));
    tx.run(
        "INSERT INTO lh_queues (name, paused, max_running, retention, max_running_per_key, ageing)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, max_running = excluded.max_running,
             retention = excluded.retention, max_running_per_key = excluded.max_running_per_key,
             ageing = excluded.ageing",
        &[
            &name,
            &settings.paused,
            &settings.max_running.map(i64::from),
            &retention,
            &settings.max_running_per_key.map(i64::from),
            &ageing,
        ],
    )
    .await?;
    Ok(())
}

/// Notes that queues have fair keys, so that their claims take turns from now on. Those known for it are not touched: a
/// claim may be writing whose turn it was.
pub(super) async fn have_keys(tx: &Tx<'_>, mut queues: Vec<&str>) -> DbResult<()> {
    queues.sort_unstable();
    queues.dedup();
    if queues.is_empty() {
        return Ok(());
    }
    tx.run(
        "INSERT INTO lh_queues (name, paused, last_key) SELECT n_name, false, '' FROM unnest($1::text[]) AS n (n_name)
         WHERE NOT EXISTS (SELECT 1 FROM lh_queues q WHERE q.name = n_name AND q.last_key IS NOT NULL)
         ON CONFLICT (name) DO UPDATE SET last_key = coalesce(lh_queues.last_key, '')",
        &[&queues],
    )
    .await?;
    Ok(())
}

/// Adds or replaces a schedule.
pub(super) async fn put_schedule(tx: &mut Tx<'_>, schedule: &Schedule) -> DbResult<()> {
    tx.run(
        "INSERT INTO lh_schedules (name, next_at, schedule) VALUES ($1, $2, $3)
         ON CONFLICT (name) DO UPDATE SET next_at = excluded.next_at, schedule = excluded.schedule",
        &[&schedule.name, &schedule.next_at.as_millis(), &to_text("a schedule", schedule)?],
    )
    .await?;
    tx.touch();
    Ok(())
}

/// Removes a schedule.
pub(super) async fn delete_schedule(tx: &mut Tx<'_>, name: &str) -> DbResult<bool> {
    tx.touch();
    Ok(tx.run("DELETE FROM lh_schedules WHERE name = $1", &[&name]).await? > 0)
}

/// Enqueues a schedule's jobs, if nobody else has in the meantime.
pub(super) async fn fire(tx: &mut Tx<'_>, firing: &Firing, now: Timestamp) -> DbResult<bool> {
    let sql = "SELECT schedule FROM lh_schedules WHERE name = $1 AND next_at = $2";
    let found = tx.one(sql, &[&firing.name, &firing.expected_at.as_millis()]).await?;
    let text = found.map(|row| row.try_get(0)).transpose()?;
    let Some(schedule) = from_text::<Schedule>("a schedule", text)? else { return Ok(false) };
    insert::insert(tx, &firing.jobs, now).await?;
    put_schedule(tx, &Schedule { next_at: firing.next_at, last_at: Some(now), ..schedule }).await?;
    Ok(true)
}

/// A worker's sign of life.
pub(super) async fn heartbeat(tx: &Tx<'_>, worker: &WorkerInfo) -> DbResult<()> {
    if worker.gone {
        tx.run("DELETE FROM lh_workers WHERE id = $1", &[&worker.id.as_str()]).await?;
        return Ok(());
    }
    tx.run(
        "INSERT INTO lh_workers (id, seen_at, info) VALUES ($1, $2, $3)
         ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, info = excluded.info",
        &[&worker.id.as_str(), &worker.seen_at.as_millis(), &to_text("a worker", worker)?],
    )
    .await?;
    Ok(())
}
