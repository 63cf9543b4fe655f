//! What became of units: answers, blanks, and whether they are written. Counters of their chunks change with them.

use std::time::Duration;

use longhaul_llm::NanoUsd;
use longhaul_queue::Timestamp;
use longhaul_stores::sqlite::{DbError, DbResult};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;
use serde_json::Value;

use super::{CacheKey, Tables, cache, from_one, parsed};
use crate::Result;
use crate::places::Fate;

/// More time than this between units counts as this: it was a pause, and says nothing of the pace.
const PACE_GAP_MAX: Duration = Duration::from_secs(60);

/// What became of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitRow {
    /// Its chunk.
    pub chunk: u64,
    /// Its row.
    pub row: u64,
    /// Its block.
    pub block: u32,
    /// Units of its row: with the last of them the row is processed.
    pub row_units: u32,
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
    pub by: AnsweredBy,
    /// What all calls cost; absent when the model has no price.
    pub cost: Option<NanoUsd>,
    /// It came from the cache.
    pub cached: bool,
    /// Calls that brought an answer.
    pub asked: u64,
    /// The name under which the answer is kept for others.
    pub key: Option<CacheKey>,
    /// The data store is all there is to write to.
    pub written: bool,
}

/// Who answered a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredBy {
    /// The profile of the provider.
    pub profile: String,
    /// The model.
    pub model: String,
    /// It stood in for the model that the sheet names.
    pub fallback: bool,
}

/// A unit that is answered and waits to be written, or that failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenUnit {
    /// Its row.
    #[serde(serialize_with = "from_one")]
    pub row: u64,
    /// Its block.
    #[serde(serialize_with = "from_one")]
    pub block: u32,
    /// Cells by target of the block; empty for one that failed.
    pub cells: Vec<Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A unit that has an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnsweredUnit {
    pub(crate) row: u64,
    pub(crate) block: u32,
    pub(crate) cells: Vec<Value>,
    /// Who gave it, as `PROFILE/MODEL`.
    pub(crate) by: Option<String>,
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
            let mut settled = 0;
            for unit in &units {
                settled += u64::from(settle_one(connection, sheet, unit, now)?);
            }
            note_pace(connection, sheet, settled, now)
        })
        .await
    }

    /// Notes what became of answered units at the sink.
    pub async fn wrote(&self, sheet: i64, units: Vec<(u64, u64, u32, Fate)>, now: Timestamp) -> Result<()> {
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
                    count(connection, (sheet, chunk), UnitState::Scored, -1, now)?;
                    count(connection, (sheet, chunk), state, 1, now)?;
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

    /// Answered cells of some rows, by row and block, for a reader that goes through the table once.
    pub(crate) fn answered(
        connection: &Connection,
        sheet: i64,
        (first, last): (u64, u64),
    ) -> DbResult<Vec<AnsweredUnit>> {
        let sql = "SELECT row, block, cells, profile || '/' || model FROM score_units
                   WHERE sheet = ?1 AND row BETWEEN ?2 AND ?3 AND cells IS NOT NULL ORDER BY row, block";
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![sheet, first, last])?;
        let mut answered = Vec::new();
        while let Some(row) = rows.next()? {
            let cells = cells_of(row.get(2)?)?;
            answered.push(AnsweredUnit { row: row.get(0)?, block: row.get(1)?, cells, by: row.get(3)? });
        }
        Ok(answered)
    }
}

/// Stores what one unit came to, and says whether that is new.
fn settle_one(connection: &Connection, sheet: i64, unit: &UnitRow, now: Timestamp) -> DbResult<bool> {
    let UnitRow { chunk, row, block, row_units, end } = unit;
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
        return Ok(false);
    }
    let (state, cells, scored, reason) = match end {
        UnitEnd::Scored(scored) => {
            let state = if scored.written { UnitState::Written } else { UnitState::Scored };
            (state, Some(text_of(&scored.cells)?), Some(scored), None)
        }
        UnitEnd::Failed { reason, .. } => (UnitState::Failed, None, None, Some(reason)),
        UnitEnd::Dropped { .. } => return Ok(false),
    };
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO score_units (sheet, row, block, state, cells, profile, model, cost_nanos, reason)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            sheet,
            row,
            block,
            state as i64,
            cells,
            scored.map(|scored| &scored.by.profile),
            scored.map(|scored| &scored.by.model),
            scored.and_then(|scored| scored.cost).map(|cost| cost.0.cast_signed()),
            reason
        ])?;
    if let Some(scored) = scored {
        add(connection, (sheet, *chunk), "cached", u64::from(scored.cached))?;
        add(connection, (sheet, *chunk), "by_fallback", u64::from(scored.by.fallback))?;
        if let (Some(key), Some(cells), false) = (&scored.key, &cells, scored.cached) {
            cache::put(connection, key, cells, &scored.by.model, now)?;
        }
    }
    match before {
        Some(before) => count(connection, (sheet, *chunk), before, -1, now)?,
        None if row_is_through(connection, sheet, *row, *row_units)? => {
            add(connection, (sheet, *chunk), "processed_rows", 1)?;
        }
        None => {}
    }
    count(connection, (sheet, *chunk), state, 1, now)?;
    Ok(true)
}

/// Whether all units of a row have come to something. Most rows have one unit, which is stored by now.
fn row_is_through(connection: &Connection, sheet: i64, row: u64, units: u32) -> DbResult<bool> {
    if units <= 1 {
        return Ok(true);
    }
    let sql = "SELECT count(*) FROM score_units WHERE sheet = ?1 AND row = ?2";
    let stored: u32 = connection.prepare_cached(sql)?.query_row(params![sheet, row], |found| found.get(0))?;
    Ok(stored >= units)
}

/// Adds the time since units came in last, unless it was a pause.
fn note_pace(connection: &Connection, sheet: i64, units: u64, now: Timestamp) -> DbResult<()> {
    let sql = "UPDATE score_sheets SET settled_units = settled_units + ?2, settled_at = ?3,
                 worked_ms = worked_ms + min(max(?3 - coalesce(settled_at, ?3), 0), ?4)
               WHERE seq = ?1";
    let gap_max = i64::try_from(PACE_GAP_MAX.as_millis()).unwrap_or(i64::MAX);
    connection.prepare_cached(sql)?.execute(params![sheet, units, now.as_millis(), gap_max])?;
    Ok(())
}

fn count(
    connection: &Connection,
    chunk: (i64, u64),
    state: UnitState,
    by: i64,
    now: Timestamp,
) -> DbResult<()> {
    let column = state.column();
    let sql = format!(
        "UPDATE score_chunks SET {column} = {column} + ?3, updated_at = max(updated_at, ?4)
         WHERE sheet = ?1 AND chunk = ?2"
    );
    connection.prepare_cached(&sql)?.execute(params![chunk.0, chunk.1, by, now.as_millis()])?;
    Ok(())
}

fn add(connection: &Connection, chunk: (i64, u64), column: &str, by: u64) -> DbResult<()> {
    if by > 0 {
        let sql = format!("UPDATE score_chunks SET {column} = {column} + ?3 WHERE sheet = ?1 AND chunk = ?2");
        connection.prepare_cached(&sql)?.execute(params![chunk.0, chunk.1, by])?;
    }
    Ok(())
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
