//! Queues, records, schedules and workers: small rows that people and workers write.

use std::collections::HashSet;
use std::time::Duration;

use longhaul_queue::store::{Firing, QueueChange, QueueSettings, Record, Schedule, WorkerInfo};
use longhaul_queue::{Json, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::error::DbResult;
use super::insert;
use super::rows::{from_text, to_text};
use super::tx::Tx;
use crate::queue_row::QueueRow;

/// The columns of [`read_queue`].
macro_rules! queue_columns {
    () => {
        "paused, max_running, max_running_per_key, ageing_ms, last_key IS NOT NULL, retention"
    };
}
pub(super) use queue_columns;

/// Reads the columns of `queue_columns!` from the start of a row; the retention is text yet.
pub(super) fn read_queue(row: &Row<'_>) -> rusqlite::Result<(QueueRow, Option<String>)> {
    let settings = QueueSettings {
        paused: row.get(0)?,
        max_running: row.get(1)?,
        max_running_per_key: row.get(2)?,
        ageing: row.get::<_, Option<u64>>(3)?.map(Duration::from_millis),
        retention: None,
    };
    Ok((QueueRow { settings, keyed: row.get(4)? }, row.get(5)?))
}

/// With its retention.
pub(super) fn whole_queue((mut queue, retention): (QueueRow, Option<String>)) -> DbResult<QueueRow> {
    queue.settings.retention = from_text("a queue's retention", retention)?;
    Ok(queue)
}

/// Changes a queue's settings.
pub(super) fn set_queue(tx: &mut Tx<'_>, change: &QueueChange) -> DbResult<()> {
    let old = tx.queue(&change.name)?;
    write_queue(tx, &change.name, QueueRow { settings: old.settings.changed_by(change), ..old })?;
    tx.touch();
    Ok(())
}

/// Writes settings; a queue without any, and without fair keys, needs no row.
pub(super) fn write_queue(tx: &mut Tx<'_>, name: &str, queue: QueueRow) -> DbResult<()> {
    let settings = queue.settings;
    let retention =
        settings.retention.as_ref().map(|retention| to_text("a retention", retention)).transpose()?;
    if !queue.is_worth_a_row() {
        tx.run("DELETE FROM lh_queues WHERE name = ?1", [name])?;
    } else {
        let ageing_ms = settings.ageing.map(|ageing| i64::try_from(ageing.as_millis()).unwrap_or(i64::MAX));
        tx.run(
            "INSERT INTO lh_queues (name, paused, max_running, max_running_per_key, ageing_ms, retention)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO UPDATE SET paused = excluded.paused, max_running = excluded.max_running,
                 max_running_per_key = excluded.max_running_per_key, ageing_ms = excluded.ageing_ms,
                 retention = excluded.retention",
            (name, settings.paused, settings.max_running, settings.max_running_per_key, ageing_ms, retention),
        )?;
    }
    tx.forget_settings();
    Ok(())
}

/// A small value that processes share.
pub(super) fn record(connection: &Connection, name: &str) -> DbResult<Option<Record>> {
    let sql = "SELECT version, value FROM lh_records WHERE name = ?1";
    let read =
        |row: &Row<'_>| Ok(Record { version: row.get(0)?, value: Json::trusted(row.get::<_, String>(1)?) });
    Ok(connection.prepare_cached(sql)?.query_row([name], read).optional()?)
}

/// Writes a record if its version is still `expected`. No news for anybody.
pub(super) fn put_record(tx: &Tx<'_>, name: &str, expected: u64, value: &Json) -> DbResult<bool> {
    let sql = if expected == 0 {
        "INSERT INTO lh_records (name, version, value) VALUES (?1, ?2 + 1, ?3) ON CONFLICT DO NOTHING"
    } else {
        "UPDATE lh_records SET version = ?2 + 1, value = ?3 WHERE name = ?1 AND version = ?2"
    };
    Ok(tx.run(sql, (name, expected, value.as_str()))? > 0)
}

/// Adds or replaces a schedule.
pub(super) fn put_schedule(tx: &mut Tx<'_>, schedule: &Schedule) -> DbResult<()> {
    tx.run(
        "INSERT INTO lh_schedules (name, next_at, schedule) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET next_at = excluded.next_at, schedule = excluded.schedule",
        (&schedule.name, schedule.next_at.as_millis(), to_text("a schedule", schedule)?),
    )?;
    tx.touch();
    Ok(())
}

/// Removes a schedule.
pub(super) fn delete_schedule(tx: &mut Tx<'_>, name: &str) -> DbResult<bool> {
    Ok(tx.run("DELETE FROM lh_schedules WHERE name = ?1", [name])? > 0)
}

/// Enqueues a schedule's jobs, if nobody else has in the meantime.
pub(super) fn fire(tx: &mut Tx<'_>, firing: Firing, now: Timestamp) -> DbResult<bool> {
    let sql = "SELECT schedule FROM lh_schedules WHERE name = ?1 AND next_at = ?2";
    let text = tx.one(sql, (&firing.name, firing.expected_at.as_millis()), |row| row.get(0))?;
    let Some(schedule) = from_text::<Schedule>("a schedule", text)? else { return Ok(false) };
    insert::insert(tx, firing.jobs, now)?;
    put_schedule(tx, &Schedule { next_at: firing.next_at, last_at: Some(now), ..schedule })?;
    Ok(true)
}

/// These workers are dead.
pub(super) fn forget_workers(tx: &Tx<'_>, names: &HashSet<String>) -> DbResult<()> {
    for name in names {
        tx.run("DELETE FROM lh_workers WHERE id = ?1", [name])?;
    }
    Ok(())
}

/// A worker's sign of life.
pub(super) fn heartbeat(tx: &Tx<'_>, worker: &WorkerInfo) -> DbResult<()> {
    if worker.gone {
        tx.run("DELETE FROM lh_workers WHERE id = ?1", [worker.id.as_str()])?;
        return Ok(());
    }
    tx.run(
        "INSERT INTO lh_workers (id, seen_at, info) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET seen_at = excluded.seen_at, info = excluded.info",
        (worker.id.as_str(), worker.seen_at.as_millis(), to_text("a worker", worker)?),
    )?;
    Ok(())
}
