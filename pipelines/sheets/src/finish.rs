//! The end of a sheet: another try for what is still blank, then the file, whole and at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use longhaul_pipeline::{Run, RunId, Status};
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::{JobContext, Json, KindOptions, Outcome};
use longhaul_stores::sqlite::DbError;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::pipeline::{self, Stop};
use super::places::{Exported, Filled, FilledRow};
use super::producer::Wanted;
use super::settings::Target;
use super::tables::{AnsweredUnit, StoredSheet, Tables};
use super::{Error, Result, Sheets, chunk, files};

/// The kind.
pub const KIND: &str = "score.sheet";

/// Hard time for one run.
const RUN_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Wait for chunks that somebody put back.
const CHUNKS_WAIT: Duration = Duration::from_secs(1);
/// Rows whose scores are read at once.
const PAGE_ROWS: u64 = 1_000;

/// What the job is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishPayload {
    /// The sheet.
    pub sheet: String,
}

/// What it has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Done {
    /// Passes over blanks.
    rounds: u32,
}

/// Limits of the kind.
pub(super) fn options() -> KindOptions {
    KindOptions { run_limit: RUN_LIMIT, ..KindOptions::default() }
}

/// Ends a sheet. Its last word is what became of it; one with blanks fails, so that it can be tried again.
pub(super) async fn run(sheets: Sheets, context: JobContext, payload: FinishPayload) -> Result<Outcome> {
    let id = RunId::named(&payload.sheet);
    let process = sheets.inner.queue.process(&id.process()).await?;
    if process.unfinished() > 0 {
        return Ok(Outcome::Continue { after: Some(CHUNKS_WAIT), data: None });
    }
    // Where the scores go, and how often blanks are gone over, may have been said anew since somebody read it.
    sheets.forget(&id);
    let sheet = sheets.live(&payload.sheet).await?;
    let mut done: Done = context.data()?.unwrap_or_default();
    loop {
        let totals = sheets.inner.tables.totals(sheet.stored.seq).await?;
        let fill_chunk = sheet.stored.fill_chunk;
        let failed = match fill_chunk {
            Some(chunk) => sheets.chunk(&sheet.stored, chunk).await?.failed,
            None => totals.failed,
        };
        let blanks = failed > 0 && done.rounds < sheet.stored.settings.work.fill_rounds;
        if !blanks && totals.scored == 0 {
            break;
        }
        let wanted = if blanks { Wanted::Failed { chunk: fill_chunk } } else { Wanted::Nothing };
        let (ended, stop) = pipeline::run(&sheets, &context, Arc::clone(&sheet), wanted).await?;
        if blanks && matches!(stop, None | Some(Stop::Sink(_))) {
            info!(sheet = %id, round = done.rounds + 1, ?ended, "went over blanks");
            done.rounds += 1;
            context.save(&done).await?;
        }
        if let Some(stop) = stop {
            return chunk::stopped(
                (&sheets, &context),
                &sheet,
                chunk::unanswered_since(&context, ended),
                stop,
            );
        }
        let left = sheets.inner.tables.totals(sheet.stored.seq).await?.scored;
        if !blanks && left >= totals.scored {
            return Err(Error::Table(format!("{left} answers wait to be written, and none of them can be")));
        }
    }
    let exported = export(&sheets, &sheet.stored).await?;
    sheets.inner.tables.set_exported(sheet.stored.seq, Some(exported)).await?;
    sheets.forget(&id);
    let totals = sheets.inner.tables.totals(sheet.stored.seq).await?;
    let open = totals.units - totals.settled().min(totals.units);
    let blank = totals.failed + open;
    let ended = match blank {
        0 => None,
        _ => Some(format!(
            "{blank} of {} units are blank: {} failed, {open} are of chunks that failed",
            totals.units, totals.failed
        )),
    };
    let status = Status::of(&sheets, &Run::get(&sheets.inner.queue, &id).await?).await?;
    let status = status.ended(ended.as_deref());
    sheets.inner.listener.ended(&context, &status, sheets.inner.queue.clock().now());
    Ok(match ended {
        Some(why) => Outcome::Fail(JobError::new(Reason::Failure, why)),
        None => Outcome::Done(Json::of(&status)?),
    })
}

/// Writes the file of a sheet with all that is known so far; nothing for one whose scores go elsewhere.
pub(super) async fn export(sheets: &Sheets, sheet: &StoredSheet) -> Result<Exported> {
    let Target::File { path, format } = sheet.settings.target.clone() else { return Ok(Exported::default()) };
    let sheet = sheet.clone();
    let read = sheets.inner.tables.db().read(move |connection| {
        let mut filled = StoredCells::new(connection, &sheet);
        let settings = &sheet.settings;
        let job = files::Export {
            source: &settings.source,
            wanted: &settings.layout.wanted(&settings.categories, &settings.mode),
            target: (&path, format),
            plan: &sheet.plan,
            existing: settings.existing,
        };
        // What goes wrong with the file is no error of the database.
        Ok(files::export(&job, &mut filled))
    });
    read.await?
}

/// Rows with their scores, from a row on.
pub(super) async fn rows(
    sheets: &Sheets,
    sheet: &StoredSheet,
    first: u64,
    limit: u64,
) -> Result<Vec<(u64, FilledRow)>> {
    let sheet = sheet.clone();
    let read = sheets.inner.tables.db().read(move |connection| {
        let texts = Tables::texts_from(connection, sheet.seq, first, limit)?;
        let mut filled = StoredCells::new(connection, &sheet);
        let rows = texts.into_iter().filter_map(|row| Some((row, filled.row(row).transpose()?)));
        Ok(rows.map(|(row, filled)| Ok((row, filled?))).collect::<Result<Vec<_>>>())
    });
    read.await?
}

/// Scores of a sheet in the order of its rows, a page at a time.
struct StoredCells<'a> {
    connection: &'a Connection,
    sheet: &'a StoredSheet,
    page: VecDeque<(u64, FilledRow)>,
    /// First row that was not read.
    next: u64,
}

impl<'a> StoredCells<'a> {
    fn new(connection: &'a Connection, sheet: &'a StoredSheet) -> Self {
        Self { connection, sheet, page: VecDeque::new(), next: 0 }
    }

    fn read_page(&mut self, first: u64) -> Result<(), DbError> {
        let (seq, last) = (self.sheet.seq, first + PAGE_ROWS - 1);
        let blank = || vec![None; self.sheet.plan.targets.len()];
        let texts = Tables::texts(self.connection, seq, (first, last))?;
        let row = |text| FilledRow { text, cells: blank(), answered_by: Vec::new() };
        self.page = texts.into_iter().map(|(number, text)| (number, row(text))).collect();
        let mut at = 0;
        for AnsweredUnit { row, block, cells, by } in Tables::answered(self.connection, seq, (first, last))? {
            while self.page.get(at).is_some_and(|(number, _)| *number < row) {
                at += 1;
            }
            let Some((_, filled)) = self.page.get_mut(at).filter(|(number, _)| *number == row) else {
                continue;
            };
            for (target, value) in self.sheet.targets(block).zip(cells) {
                filled.cells[target] = Some(value).filter(|value| !value.is_null());
            }
            filled.answered_by.extend(by.filter(|by| !filled.answered_by.contains(by)));
        }
        self.next = last + 1;
        Ok(())
    }
}

impl Filled for StoredCells<'_> {
    fn row(&mut self, number: u64) -> Result<Option<FilledRow>> {
        if number >= self.next {
            self.read_page(number).map_err(|error| Error::Queue(error.into()))?;
        }
        while self.page.front().is_some_and(|(row, _)| *row < number) {
            self.page.pop_front();
        }
        Ok(match self.page.front() {
            Some((row, _)) if *row == number => self.page.pop_front().map(|(_, filled)| filled),
            _ => None,
        })
    }
}
