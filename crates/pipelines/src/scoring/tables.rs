//! What the slice keeps in the data store: texts, answers, the cache, the counters of chunks.

use std::time::Duration;

use longhaul_queue::Timestamp;
use longhaul_stores::sqlite::{Db, DbError, DbResult};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension as _, Row as SqlRow, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::Plan;
use super::places::{Exported, Fate};
use super::settings::{SheetSettings, Target};
use super::{Error, Result};
use crate::data;

mod cache;

pub use cache::{CACHE_ENTRIES_MAX, CACHE_TTL, CacheKey, Cached};

const MIGRATIONS: [&str; 1] = [include_str!("tables.sql")];
/// Rows deleted in one transaction.
const REMOVE_ROWS: usize = 5_000;
/// The time over which a quota of writes counts.
const QUOTA_WINDOW: Duration = Duration::from_secs(60);

/// The tables. Cheap to clone.
#[derive(Clone)]
pub struct Tables {
    db: Db,
}

/// A sheet as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSheet {
    /// Its number in the tables.
    pub seq: i64,
    /// Its name.
    pub id: String,
    /// What was asked for.
    pub settings: SheetSettings,
    /// Where everything is in its table.
    pub plan: Plan,
    /// When it was made.
    pub made_at: Timestamp,
    /// Whether all of the table was read.
    pub read_whole: bool,
    /// What its end came to.
    pub exported: Option<Exported>,
}

impl StoredSheet {
    /// One that is not stored, to try things out.
    pub(super) fn unmade(settings: SheetSettings, plan: Plan) -> Self {
        let made_at = Timestamp::from_millis(0);
        Self { seq: 0, id: String::new(), settings, plan, made_at, read_whole: false, exported: None }
    }

    /// Requests that a row takes.
    pub fn blocks(&self) -> u32 {
        self.plan.blocks(&self.settings.mode, self.settings.work.block_categories)
    }

    /// Whether all targets of a block are among these.
    pub fn is_filled(&self, block: u32, filled: &[u32]) -> bool {
        self.targets(block).all(|target| filled.iter().any(|filled| *filled as usize == target))
    }

    /// Targets of a block.
    pub fn targets(&self, block: u32) -> std::ops::Range<usize> {
        self.plan.block_targets(block, &self.settings.mode, self.settings.work.block_categories)
    }
}

/// A chunk and what became of its units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Its number, from 0.
    pub chunk: u64,
    /// First row, from 0.
    pub first_row: u64,
    /// Last row.
    pub last_row: u64,
    /// Rows with a text.
    pub rows: u64,
    /// Requests that they take, those that had all cells before left out.
    pub units: u64,
    /// Answered and not written yet.
    pub scored: u64,
    /// Written.
    pub written: u64,
    /// Left blank, with a reason.
    pub failed: u64,
    /// Left alone, because somebody changed the row.
    pub edited: u64,
    /// Answered from the cache.
    pub cached: u64,
    /// Calls that brought an answer, usable or not.
    pub asked: u64,
}

impl Chunk {
    /// Units that need nothing more.
    pub fn settled(&self) -> u64 {
        self.written + self.failed + self.edited
    }
}

/// A text to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRow {
    /// Its row.
    pub row: u64,
    /// The text.
    pub text: String,
    /// Targets that had a value when the table was read: they keep it.
    pub filled: Vec<u32>,
}

/// What became of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitRow {
    /// Its chunk.
    pub chunk: u64,
    /// Its row.
    pub row: u64,
    /// Its block.
    pub block: u32,
    /// What it came to.
    pub end: UnitEnd,
}

/// What a unit came to.
#[derive(Debug, Clone, PartialEq)]
pub enum UnitEnd {
    /// It has an answer.
    Scored(ScoredUnit),
    /// It stays blank.
    Failed {
        /// Why.
        reason: String,
        /// Calls that brought an answer which could not be used.
        asked: u64,
    },
    /// It is still to be asked: the work was stopped.
    Dropped {
        /// Calls that brought an answer which could not be used.
        asked: u64,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredUnit {
    /// Cells by target of the block.
    pub cells: Vec<Value>,
    /// Who answered.
    pub model: String,
    /// What all calls cost; absent when the model has no price.
    pub cost_micros: Option<u64>,
    /// It came from the cache.
    pub cached: bool,
    /// Calls that brought an answer.
    pub asked: u64,
    /// The name under which the answer is kept for others.
    pub key: Option<CacheKey>,
    /// The data store is all there is to write to.
    pub written: bool,
}

/// A unit that is answered and waits to be written, or that failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenUnit {
    /// Its row.
    pub row: u64,
    /// Its block.
    pub block: u32,
    /// Cells by target of the block; empty for one that failed.
    pub cells: Vec<Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where a unit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum UnitState {
    /// Answered.
    Scored = 1,
    /// Written.
    Written = 2,
    /// Left blank.
    Failed = 3,
    /// Left alone.
    Edited = 4,
}

impl UnitState {
    fn of(number: i64) -> DbResult<Self> {
        match number {
            1 => Ok(Self::Scored),
            2 => Ok(Self::Written),
            3 => Ok(Self::Failed),
            4 => Ok(Self::Edited),
            _ => {
                Err(DbError::caller(format!("a unit of a sheet has the state {number}, which there is not")))
            }
        }
    }

    const fn column(self) -> &'static str {
        match self {
            Self::Scored => "scored",
            Self::Written => "written",
            Self::Failed => "failed",
            Self::Edited => "edited",
        }
    }
}

impl Tables {
    /// The tables in a database, made if need be.
    pub async fn open(db: Db) -> Result<Self> {
        data::migrate(&db, "scoring", &MIGRATIONS).await?;
        Ok(Self { db })
    }

    /// Stores a new sheet, unless it is there.
    pub async fn make(&self, id: &str, settings: &SheetSettings, plan: &Plan, now: Timestamp) -> Result<()> {
        let (id, settings, plan) = (id.to_owned(), json(settings)?, json(plan)?);
        let sql = "INSERT OR IGNORE INTO score_sheets (id, settings, plan, made_at) VALUES (?1, ?2, ?3, ?4)";
        self.write(move |connection| {
            Ok(connection.execute(sql, params![id, settings, plan, now.as_millis()])?)
        })
        .await?;
        Ok(())
    }

    /// A sheet by its name.
    pub async fn find(&self, id: &str) -> Result<Option<StoredSheet>> {
        let id = id.to_owned();
        let sql =
            "SELECT seq, id, settings, plan, made_at, read_whole, exported FROM score_sheets WHERE id = ?1";
        let found = self.read(move |connection| {
            connection.query_row(sql, [id], |row| Ok(sheet_of(row))).optional()?.transpose()
        });
        found.await
    }

    /// A sheet that must exist.
    pub async fn get(&self, id: &str) -> Result<StoredSheet> {
        self.find(id).await?.ok_or_else(|| Error::NoSheet(id.to_owned()))
    }

    /// Sheets, newest first.
    pub async fn list(&self, limit: usize) -> Result<Vec<StoredSheet>> {
        self.list_before(i64::MAX, limit).await
    }

    /// Sheets that were made before one, by its number, newest first.
    pub async fn list_before(&self, seq: i64, limit: usize) -> Result<Vec<StoredSheet>> {
        let sql = "SELECT seq, id, settings, plan, made_at, read_whole, exported FROM score_sheets
                   WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2";
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map(params![seq, limit], |row| Ok(sheet_of(row)))?;
            rows.map(|row| row?).collect()
        })
        .await
    }

    /// Keeps the texts of a chunk. Repeatable.
    pub async fn keep(&self, sheet: i64, chunk: Chunk, rows: Vec<KeptRow>) -> Result<()> {
        self.write(move |connection| {
            let mut insert = connection.prepare_cached(
                "INSERT OR IGNORE INTO score_rows (sheet, row, text, filled) VALUES (?1, ?2, ?3, ?4)",
            )?;
            for row in &rows {
                let filled = (!row.filled.is_empty()).then(|| list(&row.filled));
                insert.execute(params![sheet, row.row, row.text, filled])?;
            }
            let Chunk { chunk, first_row, last_row, rows, units, .. } = chunk;
            connection.execute(
                "INSERT OR IGNORE INTO score_chunks (sheet, chunk, first_row, last_row, rows, units)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![sheet, chunk, first_row, last_row, rows, units],
            )?;
            Ok(())
        })
        .await
    }

    /// Notes that the whole table was read.
    pub async fn set_read_whole(&self, sheet: i64) -> Result<()> {
        let sql = "UPDATE score_sheets SET read_whole = 1 WHERE seq = ?1";
        self.write(move |connection| Ok(connection.execute(sql, [sheet]).map(drop)?)).await
    }

    /// Says anew where the scores of a sheet go.
    pub async fn set_target(&self, sheet: i64, target: &Target) -> Result<()> {
        let target = json(target)?;
        let sql =
            "UPDATE score_sheets SET settings = json_set(settings, '$.target', json(?2)) WHERE seq = ?1";
        self.write(move |connection| Ok(connection.execute(sql, params![sheet, target]).map(drop)?)).await
    }

    /// Says anew how often blanks are gone over.
    pub async fn set_fill_rounds(&self, sheet: i64, rounds: u32) -> Result<()> {
        let sql =
            "UPDATE score_sheets SET settings = json_set(settings, '$.work.fill_rounds', ?2) WHERE seq = ?1";
        self.write(move |connection| Ok(connection.execute(sql, params![sheet, rounds]).map(drop)?)).await
    }

    /// Notes what the end of a sheet came to; `None` when it goes on.
    pub async fn set_exported(&self, sheet: i64, exported: Option<Exported>) -> Result<()> {
        let exported = exported.as_ref().map(json).transpose()?;
        let sql = "UPDATE score_sheets SET exported = ?2 WHERE seq = ?1";
        self.write(move |connection| Ok(connection.execute(sql, params![sheet, exported]).map(drop)?)).await
    }

    /// Chunks in their order, from a number on.
    pub async fn chunks(&self, sheet: i64, first: u64, limit: usize) -> Result<Vec<Chunk>> {
        let sql =
            "SELECT chunk, first_row, last_row, rows, units, scored, written, failed, edited, cached, asked
                   FROM score_chunks WHERE sheet = ?1 AND chunk >= ?2 ORDER BY chunk LIMIT ?3";
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let chunks = statement.query_map(params![sheet, first, limit], chunk_of)?;
            Ok(chunks.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Chunks that some rows belong to.
    pub async fn chunks_between(&self, sheet: i64, first: u64, last: u64) -> Result<Vec<Chunk>> {
        let sql =
            "SELECT chunk, first_row, last_row, rows, units, scored, written, failed, edited, cached, asked
                   FROM score_chunks WHERE sheet = ?1 AND first_row <= ?3 AND last_row >= ?2 ORDER BY chunk";
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let chunks = statement.query_map(params![sheet, first, last], chunk_of)?;
            Ok(chunks.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// All chunks together; `chunk` is how many there are.
    pub async fn totals(&self, sheet: i64) -> Result<Chunk> {
        let sql = "SELECT count(*), coalesce(min(first_row), 0), coalesce(max(last_row), 0), total(rows), total(units),
                          total(scored), total(written), total(failed), total(edited), total(cached), total(asked)
                   FROM score_chunks WHERE sheet = ?1";
        self.read(move |connection| Ok(connection.query_row(sql, [sheet], totals_of)?)).await
    }

    /// Texts of a chunk, from a row on.
    pub async fn rows(&self, sheet: i64, (first, last): (u64, u64), limit: usize) -> Result<Vec<KeptRow>> {
        let sql = "SELECT row, text, filled FROM score_rows
                   WHERE sheet = ?1 AND row BETWEEN ?2 AND ?3 ORDER BY row LIMIT ?4";
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map(params![sheet, first, last, limit], kept_of)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Where the units of some rows stand; those that are not among them were never answered.
    pub async fn states(&self, sheet: i64, (first, last): (u64, u64)) -> Result<Vec<(u64, u32, UnitState)>> {
        let sql = "SELECT row, block, state FROM score_units WHERE sheet = ?1 AND row BETWEEN ?2 AND ?3";
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query(params![sheet, first, last])?;
            let mut states = Vec::new();
            while let Some(row) = rows.next()? {
                states.push((row.get(0)?, row.get(1)?, UnitState::of(row.get(2)?)?));
            }
            Ok(states)
        })
        .await
    }

    /// Stores what units came to, answers with their place in the cache. One that has an answer keeps it.
    pub async fn settle(&self, sheet: i64, units: Vec<UnitRow>, now: Timestamp) -> Result<()> {
        self.write(move |connection| {
            for unit in &units {
                settle_one(connection, sheet, unit, now)?;
            }
            Ok(())
        })
        .await
    }

    /// Notes what became of answered units at the sink.
    pub async fn wrote(&self, sheet: i64, units: Vec<(u64, u64, u32, Fate)>) -> Result<()> {
        self.write(move |connection| {
            for (chunk, row, block, fate) in units {
                let state = match fate {
                    Fate::Written => UnitState::Written,
                    Fate::Edited => UnitState::Edited,
                };
                let changed = connection
                    .prepare_cached(
                        "UPDATE score_units SET state = ?4 WHERE sheet = ?1 AND row = ?2 AND block = ?3 AND state = 1",
                    )?
                    .execute(params![sheet, row, block, state as i64])?;
                if changed > 0 {
                    count(connection, (sheet, chunk), UnitState::Scored, -1)?;
                    count(connection, (sheet, chunk), state, 1)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Units in a state among some rows, in order, after a unit.
    pub async fn open_units(
        &self,
        sheet: i64,
        state: UnitState,
        (first, last): (u64, u64),
        after: Option<(u64, u32)>,
        limit: usize,
    ) -> Result<Vec<OpenUnit>> {
        let sql = "SELECT row, block, cells, reason FROM score_units
                   WHERE sheet = ?1 AND state = ?2 AND state <> 2 AND row BETWEEN ?3 AND ?4 AND (row, block) > (?5, ?6)
                   ORDER BY row, block LIMIT ?7";
        let after = after.map_or((-1, -1), |(row, block)| (row.cast_signed(), i64::from(block)));
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows =
                statement.query(params![sheet, state as i64, first, last, after.0, after.1, limit])?;
            let mut units = Vec::new();
            while let Some(row) = rows.next()? {
                let cells = cells_of(row.get(2)?)?;
                units.push(OpenUnit { row: row.get(0)?, block: row.get(1)?, cells, reason: row.get(3)? });
            }
            Ok(units)
        })
        .await
    }

    /// Rows with a text, from one on.
    pub(super) fn texts_from(
        connection: &Connection,
        sheet: i64,
        first: u64,
        limit: u64,
    ) -> DbResult<Vec<u64>> {
        let sql = "SELECT row FROM score_rows WHERE sheet = ?1 AND row >= ?2 ORDER BY row LIMIT ?3";
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement.query_map(params![sheet, first, limit], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Texts of some rows, in order.
    pub(super) fn texts(
        connection: &Connection,
        sheet: i64,
        (first, last): (u64, u64),
    ) -> DbResult<Vec<(u64, String)>> {
        let sql = "SELECT row, text FROM score_rows WHERE sheet = ?1 AND row BETWEEN ?2 AND ?3 ORDER BY row";
        let mut statement = connection.prepare_cached(sql)?;
        let texts = statement.query_map(params![sheet, first, last], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(texts.collect::<Result<_, _>>()?)
    }

    /// Answered cells of some rows, by row and block, for a reader that goes through the table once.
    pub(super) fn answered(
        connection: &Connection,
        sheet: i64,
        (first, last): (u64, u64),
    ) -> DbResult<Vec<(u64, u32, Vec<Value>)>> {
        let sql = "SELECT row, block, cells FROM score_units
                   WHERE sheet = ?1 AND row BETWEEN ?2 AND ?3 AND cells IS NOT NULL ORDER BY row, block";
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![sheet, first, last])?;
        let mut answered = Vec::new();
        while let Some(row) = rows.next()? {
            answered.push((row.get(0)?, row.get(1)?, cells_of(row.get(2)?)?));
        }
        Ok(answered)
    }

    /// Forgets that units failed, so that they are asked for again; how many.
    pub async fn forget_failed(&self, sheet: i64) -> Result<u64> {
        self.write(move |connection| {
            let forgotten =
                connection.execute("DELETE FROM score_units WHERE sheet = ?1 AND state = 3", [sheet])?;
            connection.execute("UPDATE score_chunks SET failed = 0 WHERE sheet = ?1", [sheet])?;
            Ok(forgotten as u64)
        })
        .await
    }

    /// Deletes all of a sheet, some thousand rows at a time.
    pub async fn remove(&self, sheet: i64) -> Result<()> {
        for sql in [
            "DELETE FROM score_units WHERE sheet = ?1 AND (row, block) IN
             (SELECT row, block FROM score_units WHERE sheet = ?1 LIMIT ?2)",
            "DELETE FROM score_rows WHERE sheet = ?1 AND row IN
             (SELECT row FROM score_rows WHERE sheet = ?1 LIMIT ?2)",
        ] {
            let some =
                move |connection: &Connection| Ok(connection.execute(sql, params![sheet, REMOVE_ROWS])?);
            while self.write(some).await? > 0 {}
        }
        self.write(move |connection| {
            connection.execute("DELETE FROM score_chunks WHERE sheet = ?1", [sheet])?;
            connection.execute("DELETE FROM score_sheets WHERE seq = ?1", [sheet])?;
            Ok(())
        })
        .await
    }

    /// Takes one of an account's writes of this minute. All processes that share the data store count together, also
    /// across restarts. `Err` says how long to wait.
    pub async fn take_write(
        &self,
        account: &str,
        per_minute: u32,
        now: Timestamp,
    ) -> Result<Result<(), Duration>> {
        let account = account.to_owned();
        let taken = self.write(move |connection| {
            let since = now.as_millis() - i64::try_from(QUOTA_WINDOW.as_millis()).unwrap_or(i64::MAX);
            // One of the future was counted before the clock was set back.
            let sql = "DELETE FROM score_writes WHERE at <= ?1 OR at > ?2";
            connection.execute(sql, params![since, now.as_millis()])?;
            // The oldest write that still stands in the way.
            let sql = "SELECT at FROM score_writes WHERE account = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2";
            let in_the_way: Option<i64> = connection
                .query_row(sql, params![account, per_minute.saturating_sub(1)], |row| row.get(0))
                .optional()?;
            if let Some(at) = in_the_way {
                let wait = u64::try_from(at - since).unwrap_or(0).max(1);
                return Ok(Err(Duration::from_millis(wait)));
            }
            let sql = "INSERT INTO score_writes (account, at) VALUES (?1, ?2)";
            connection.execute(sql, params![account, now.as_millis()])?;
            Ok(Ok(()))
        });
        taken.await
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        Ok(self.db.read(work).await?)
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        Ok(self.db.transaction(move |tx| work(tx.connection())).await?)
    }

    /// The database.
    pub fn db(&self) -> &Db {
        &self.db
    }
}

fn settle_one(connection: &Connection, sheet: i64, unit: &UnitRow, now: Timestamp) -> DbResult<()> {
    let UnitRow { chunk, row, block, end } = unit;
    let before: Option<i64> = connection
        .prepare_cached("SELECT state FROM score_units WHERE sheet = ?1 AND row = ?2 AND block = ?3")?
        .query_row(params![sheet, row, block], |found| found.get(0))
        .optional()?;
    let before = before.map(UnitState::of).transpose()?;
    let asked = match end {
        UnitEnd::Scored(scored) => scored.asked,
        UnitEnd::Failed { asked, .. } | UnitEnd::Dropped { asked } => *asked,
    };
    add(connection, (sheet, *chunk), "asked", asked)?;
    // A late writer does not take away an answer.
    if before.is_some_and(|state| state != UnitState::Failed) {
        return Ok(());
    }
    let (state, cells, scored, reason) = match end {
        UnitEnd::Scored(scored) => {
            let state = if scored.written { UnitState::Written } else { UnitState::Scored };
            (state, Some(text_of(&scored.cells)?), Some(scored), None)
        }
        UnitEnd::Failed { reason, .. } => (UnitState::Failed, None, None, Some(reason)),
        UnitEnd::Dropped { .. } => return Ok(()),
    };
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO score_units (sheet, row, block, state, cells, model, cost_micros, reason)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            sheet,
            row,
            block,
            state as i64,
            cells,
            scored.map(|scored| &scored.model),
            scored.and_then(|scored| scored.cost_micros),
            reason
        ])?;
    if let Some(scored) = scored {
        add(connection, (sheet, *chunk), "cached", u64::from(scored.cached))?;
        if let (Some(key), Some(cells), false) = (&scored.key, &cells, scored.cached) {
            cache::put(connection, key, cells, &scored.model, now)?;
        }
    }
    if let Some(before) = before {
        count(connection, (sheet, *chunk), before, -1)?;
    }
    count(connection, (sheet, *chunk), state, 1)
}

fn count(connection: &Connection, chunk: (i64, u64), state: UnitState, by: i64) -> DbResult<()> {
    let column = state.column();
    let sql = format!("UPDATE score_chunks SET {column} = {column} + ?3 WHERE sheet = ?1 AND chunk = ?2");
    connection.prepare_cached(&sql)?.execute(params![chunk.0, chunk.1, by])?;
    Ok(())
}

fn add(connection: &Connection, chunk: (i64, u64), column: &str, by: u64) -> DbResult<()> {
    if by > 0 {
        let sql = format!("UPDATE score_chunks SET {column} = {column} + ?3 WHERE sheet = ?1 AND chunk = ?2");
        connection.prepare_cached(&sql)?.execute(params![chunk.0, chunk.1, by])?;
    }
    Ok(())
}

fn sheet_of(row: &SqlRow<'_>) -> DbResult<StoredSheet> {
    let exported: Option<String> = row.get(6)?;
    Ok(StoredSheet {
        seq: row.get(0)?,
        id: row.get(1)?,
        settings: parsed("settings", &row.get::<_, String>(2)?)?,
        plan: parsed("plan", &row.get::<_, String>(3)?)?,
        made_at: Timestamp::from_millis(row.get(4)?),
        read_whole: row.get(5)?,
        exported: exported.map(|text| parsed("exported", &text)).transpose()?,
    })
}

fn chunk_of(row: &SqlRow<'_>) -> rusqlite::Result<Chunk> {
    Ok(Chunk {
        chunk: row.get(0)?,
        first_row: row.get(1)?,
        last_row: row.get(2)?,
        rows: row.get(3)?,
        units: row.get(4)?,
        scored: row.get(5)?,
        written: row.get(6)?,
        failed: row.get(7)?,
        edited: row.get(8)?,
        cached: row.get(9)?,
        asked: row.get(10)?,
    })
}

/// Sums are floating point in SQLite, so that they cannot overflow.
fn totals_of(row: &SqlRow<'_>) -> rusqlite::Result<Chunk> {
    let sum = |column: usize| row.get::<_, f64>(column).map(|sum| sum as u64);
    Ok(Chunk {
        chunk: row.get(0)?,
        first_row: row.get(1)?,
        last_row: row.get(2)?,
        rows: sum(3)?,
        units: sum(4)?,
        scored: sum(5)?,
        written: sum(6)?,
        failed: sum(7)?,
        edited: sum(8)?,
        cached: sum(9)?,
        asked: sum(10)?,
    })
}

fn kept_of(row: &SqlRow<'_>) -> rusqlite::Result<KeptRow> {
    let filled: Option<String> = row.get(2)?;
    let filled =
        filled.iter().flat_map(|text| text.split(',')).filter_map(|part| part.parse().ok()).collect();
    Ok(KeptRow { row: row.get(0)?, text: row.get(1)?, filled })
}

fn list(targets: &[u32]) -> String {
    targets.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn cells_of(text: Sql) -> DbResult<Vec<Value>> {
    match text {
        Sql::Text(text) => parsed("cells", &text),
        _ => Ok(Vec::new()),
    }
}

fn text_of(cells: &[Value]) -> DbResult<String> {
    serde_json::to_string(cells).map_err(|error| DbError::caller(error.to_string()))
}

fn parsed<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> DbResult<T> {
    serde_json::from_str(text).map_err(|error| DbError::caller(format!("{what} of a sheet: {error}")))
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Invalid(error.to_string()))
}
