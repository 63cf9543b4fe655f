//! Raw SQLite: one connection, one table, one index.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use async_trait::async_trait;
use rusqlite::Connection;

use super::super::measure::{Measurement, Unit};
use super::super::{Bench, per_second};
use super::{BULK, Raw};

const SYNCS: usize = 200;
const INSERT: &str = "INSERT INTO jobs (queue, priority, run_at, state, payload) VALUES (?1, 0, 1, 0, ?2)";
/// Index jobs_ready holds the order, as ours does.
const CLAIM: &str = "UPDATE jobs SET state = 1 WHERE id IN (
         SELECT id FROM jobs WHERE queue = ?1 AND state = 0 ORDER BY priority, run_at, id LIMIT 100)
     RETURNING id, payload";

/// How often the disk can make 4 KB durable.
pub(in super::super) fn fdatasync(bench: &Bench<'_>) -> Result<Measurement> {
    let mut measurement = Measurement::new("fdatasync of 4 KB", "", Unit::PerSecond, None);
    let mut file = std::fs::File::create(bench.folder.path().join("sync"))?;
    let block = [7_u8; 4096];
    file.write_all(&block)?;
    for _ in 0..bench.scale.repetitions {
        let started = Instant::now();
        for _ in 0..SYNCS {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&block)?;
            file.sync_data()?;
        }
        measurement.add(per_second(SYNCS, started.elapsed().as_secs_f64()), None);
    }
    Ok(measurement)
}

/// A bare queue.
pub(in super::super) struct Sqlite {
    connection: Connection,
}

impl Sqlite {
    pub(in super::super) fn open(file: &Path, fsync: bool) -> Result<Self> {
        let connection = Connection::open(file)?;
        let synchronous = if fsync { "FULL" } else { "NORMAL" };
        connection.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA cache_size = -65536;
             CREATE TABLE jobs (id INTEGER PRIMARY KEY, queue TEXT, priority INTEGER, run_at INTEGER, state INTEGER,
                 payload TEXT);
             CREATE INDEX jobs_ready ON jobs (queue, priority, run_at, id) WHERE state = 0;"
        ))?;
        Ok(Self { connection })
    }
}

#[async_trait]
impl Raw for Sqlite {
    async fn bulk(&mut self, jobs: usize, payload: &str) -> Result<f64> {
        let started = Instant::now();
        for first in (0..jobs).step_by(BULK) {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            let mut insert = self.connection.prepare_cached(INSERT)?;
            for _ in first..jobs.min(first + BULK) {
                insert.execute(("bulk", payload))?;
            }
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(per_second(jobs, started.elapsed().as_secs_f64()))
    }

    /// A file has one writer, however many want to.
    async fn singles(&mut self, _callers: usize, jobs: usize, payload: &str) -> Result<f64> {
        let started = Instant::now();
        for _ in 0..jobs {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            self.connection.prepare_cached(INSERT)?.execute(("single", payload))?;
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(per_second(jobs, started.elapsed().as_secs_f64()))
    }

    async fn drain(&mut self, jobs: usize) -> Result<f64> {
        let started = Instant::now();
        let mut drained = 0;
        while drained < jobs {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            let claimed: Vec<i64> = {
                let mut claim = self.connection.prepare_cached(CLAIM)?;
                let rows =
                    claim.query_map(["bulk"], |row| row.get::<_, String>(1).and_then(|_| row.get(0)))?;
                rows.collect::<rusqlite::Result<_>>()?
            };
            self.connection.execute_batch("COMMIT")?;
            if claimed.is_empty() {
                break;
            }
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            let mut delete = self.connection.prepare_cached("DELETE FROM jobs WHERE id = ?1")?;
            for id in &claimed {
                delete.execute([id])?;
            }
            self.connection.execute_batch("COMMIT")?;
            drained += claimed.len();
        }
        Ok(per_second(drained, started.elapsed().as_secs_f64()))
    }

    /// A file tells nobody of a change.
    async fn pickups(&mut self, _jobs: usize) -> Result<Vec<(&'static str, Vec<f64>)>> {
        Ok(Vec::new())
    }
}
