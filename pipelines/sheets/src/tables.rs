//! What the pipeline keeps in the data store: texts, answers, the cache, the counters of chunks.

use longhaul_queue::Timestamp;
use longhaul_stores::sqlite::{Db, DbError, DbResult};
use rusqlite::{Connection, OptionalExtension as _, Row as SqlRow, params};
use serde::{Serialize, Serializer};

use super::layout::Plan;
use super::places::Exported;
use super::settings::{SheetSettings, Target};
use super::{Error, Result};
use longhaul_pipeline::data;

mod cache;
mod quota;
mod units;

pub use cache::{CACHE_ENTRIES_MAX, CACHE_TTL, CacheKey, Found};
pub(super) use units::AnsweredUnit;
pub use units::{AnsweredBy, OpenUnit, ScoredUnit, UnitEnd, UnitRow, UnitState};

const MIGRATIONS: [&str; 3] =
    [include_str!("tables.sql"), include_str!("tables_2.sql"), include_str!("tables_3.sql")];
/// Rows deleted in one transaction.
const REMOVE_ROWS: usize = 5_000;

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
    /// How fast units came in.
    pub pace: Pace,
    /// The only chunk whose blanks are gone over at the end, from 0; all of them by default.
    pub fill_chunk: Option<u64>,
}

/// How fast units of a sheet came in, pauses left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    /// Units that came in.
    pub units: u64,
    /// The time that they took, in milliseconds.
    pub worked_ms: u64,
    /// When the last ones came.
    pub settled_at: Option<Timestamp>,
}

impl StoredSheet {
    /// One that is not stored, to try things out.
    pub(super) fn unmade(settings: SheetSettings, plan: Plan) -> Self {
        let made_at = Timestamp::from_millis(0);
        let (seq, id, pace) = (0, String::new(), Pace::default());
        Self { seq, id, settings, plan, made_at, read_whole: false, exported: None, pace, fill_chunk: None }
    }

    /// Requests that a row takes.
    pub fn blocks(&self) -> u32 {
        self.plan.blocks(&self.settings.mode, self.settings.work.block_categories)
    }

    /// Whether all targets of a block are among these.
    pub fn is_filled(&self, block: u32, filled: &[u32]) -> bool {
        self.targets(block).all(|target| filled.iter().any(|filled| *filled as usize == target))
    }

    /// Requests that a row takes whose targets among these have a value.
    pub fn row_units(&self, filled: &[u32]) -> u32 {
        (0..self.blocks()).map(|block| u32::from(!self.is_filled(block, filled))).sum()
    }

    /// Targets of a block.
    pub fn targets(&self, block: u32) -> std::ops::Range<usize> {
        self.plan.block_targets(block, &self.settings.mode, self.settings.work.block_categories)
    }
}

/// A chunk and what became of its units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Chunk {
    /// Its number, from 0; people are told it from 1, and so are rows.
    #[serde(serialize_with = "from_one")]
    pub chunk: u64,
    /// First row, from 0.
    #[serde(serialize_with = "from_one")]
    pub first_row: u64,
    /// Last row.
    #[serde(serialize_with = "from_one")]
    pub last_row: u64,
    /// Rows with a text.
    pub rows: u64,
    /// Rows all of whose units have an answer or are left blank.
    pub processed_rows: u64,
    /// Requests that they take, those that had all cells before left out.
    pub units: u64,
    /// Answered and not written yet.
    pub scored: u64,
    /// Written.
    pub written: u64,
    /// Left blank, with a reason.
    pub failed: u64,
    /// Left alone, because the row was edited.
    pub edited: u64,
    /// Answered from the cache.
    pub cached: u64,
    /// Calls that brought an answer, usable or not.
    pub asked: u64,
    /// Answered by the fallback.
    pub by_fallback: u64,
    /// When something became of a unit last.
    pub updated_at: Timestamp,
}

impl Chunk {
    /// Units that need nothing more.
    pub fn settled(&self) -> u64 {
        self.written + self.failed + self.edited
    }

    /// Whether more units failed than this part of them.
    pub fn failed_more_than(&self, share: f64) -> bool {
        self.failed as f64 > share * self.units as f64
    }
}

/// What is counted from 0 here, and from 1 wherever people and programs see it.
pub(super) fn from_one<S: Serializer, N: Copy + Into<u64>>(
    number: &N,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64((*number).into() + 1)
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

impl Tables {
    /// The tables in a database, made if need be.
    pub async fn open(db: Db) -> Result<Self> {
        data::migrate(&db, "sheets", &MIGRATIONS).await?;
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
            "SELECT seq, id, settings, plan, made_at, read_whole, exported, settled_units, worked_ms, settled_at,
                    fill_chunk
             FROM score_sheets WHERE id = ?1";
        let found = self.read(move |connection| {
            connection.query_row(sql, [id], |row| Ok(sheet_of(row))).optional()?.transpose()
        });
        found.await
    }

    /// A sheet that must exist.
    pub async fn get(&self, id: &str) -> Result<StoredSheet> {
        self.find(id).await?.ok_or_else(|| Error::NoRun(id.to_owned()))
    }

    /// Sheets, newest first.
    pub async fn list(&self, limit: usize) -> Result<Vec<StoredSheet>> {
        self.list_before(i64::MAX, limit).await
    }

    /// Sheets that were made before one, by its number, newest first.
    pub async fn list_before(&self, seq: i64, limit: usize) -> Result<Vec<StoredSheet>> {
        let sql = "SELECT seq, id, settings, plan, made_at, read_whole, exported, settled_units, worked_ms, settled_at,
                          fill_chunk
                   FROM score_sheets WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2";
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
            let Chunk { chunk, first_row, last_row, rows, processed_rows, units, updated_at, .. } = chunk;
            let updated_at = updated_at.as_millis();
            connection.execute(
                "INSERT OR IGNORE INTO score_chunks
                 (sheet, chunk, first_row, last_row, rows, processed_rows, units, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![sheet, chunk, first_row, last_row, rows, processed_rows, units, updated_at],
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

    /// Says anew how often blanks are gone over, and of which chunk; `None` for all.
    pub async fn set_fill(&self, sheet: i64, rounds: u32, chunk: Option<u64>) -> Result<()> {
        let sql = "UPDATE score_sheets
                   SET settings = json_set(settings, '$.work.fill_rounds', ?2), fill_chunk = ?3 WHERE seq = ?1";
        self.write(move |connection| Ok(connection.execute(sql, params![sheet, rounds, chunk]).map(drop)?))
            .await
    }

    /// Notes what the end of a sheet came to; `None` when it goes on.
    pub async fn set_exported(&self, sheet: i64, exported: Option<Exported>) -> Result<()> {
        let exported = exported.as_ref().map(json).transpose()?;
        let sql = "UPDATE score_sheets SET exported = ?2 WHERE seq = ?1";
        self.write(move |connection| Ok(connection.execute(sql, params![sheet, exported]).map(drop)?)).await
    }

    /// Texts of these rows.
    pub async fn rows_of(&self, sheet: i64, mut rows: Vec<u64>) -> Result<Vec<KeptRow>> {
        rows.dedup();
        let sql = "SELECT row, text, filled FROM score_rows WHERE sheet = ?1 AND row = ?2";
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let mut found = Vec::with_capacity(rows.len());
            for row in rows {
                found.extend(statement.query_row(params![sheet, row], kept_of).optional()?);
            }
            Ok(found)
        })
        .await
    }

    /// Chunks in their order, from a number on.
    pub async fn chunks(&self, sheet: i64, first: u64, limit: usize) -> Result<Vec<Chunk>> {
        let sql =
            "SELECT chunk, first_row, last_row, rows, units, scored, written, failed, edited, cached, asked,
                          processed_rows, by_fallback, updated_at
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
            "SELECT chunk, first_row, last_row, rows, units, scored, written, failed, edited, cached, asked,
                          processed_rows, by_fallback, updated_at
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
                          total(scored), total(written), total(failed), total(edited), total(cached), total(asked),
                          total(processed_rows), total(by_fallback), coalesce(max(updated_at), 0)
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
        pace: Pace {
            units: row.get(7)?,
            worked_ms: row.get(8)?,
            settled_at: row.get::<_, Option<i64>>(9)?.map(Timestamp::from_millis),
        },
        fill_chunk: row.get(10)?,
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
        processed_rows: row.get(11)?,
        by_fallback: row.get(12)?,
        updated_at: Timestamp::from_millis(row.get(13)?),
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
        processed_rows: sum(11)?,
        by_fallback: sum(12)?,
        updated_at: Timestamp::from_millis(row.get(13)?),
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

fn parsed<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> DbResult<T> {
    serde_json::from_str(text).map_err(|error| DbError::caller(format!("{what} of a sheet: {error}")))
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Invalid(error.to_string()))
}
