//! What people do with sheets: cancel, resume, try again, export, remove.

use std::sync::atomic::Ordering;

use longhaul_pipeline::run::hold::{self, Hold};
use longhaul_pipeline::{FailedUnit, Results, Retry, Run, RunId, RunState};
use longhaul_queue::store::Filter;
use longhaul_queue::{Error as QueueError, Json, State};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::warn;

use super::live::LiveSheet;
use super::places::Exported;
use super::tables::{StoredSheet, UnitState};
use super::{Error, Result, Sheets, chunk, finish, status};

/// Cancels what is left of a sheet. What was written stays, and the file is written with what is known.
pub(super) async fn cancel(sheets: &Sheets, id: &RunId) -> Result<u64> {
    let known = sheets.inner.tables.find(id.as_str()).await?;
    let cancelled = sheets.inner.queue.cancel_process(id.process()).await?;
    if cancelled > 0 && known.is_some() {
        export_all(sheets, id).await?;
    }
    Ok(cancelled)
}

/// Writes the file of a sheet where its scores go, with all that is known, and notes what it came to.
pub async fn export_all(sheets: &Sheets, id: &RunId) -> Result<()> {
    let sheet = sheets.inner.tables.get(id.as_str()).await?;
    let exported = finish::export(sheets, &sheet).await?;
    sheets.inner.tables.set_exported(sheet.seq, Some(exported)).await
}

/// Lets the held jobs of a sheet go on, and says how many.
pub(super) async fn resume(sheets: &Sheets, id: &RunId) -> Result<u64> {
    let sheet = sheets.live(id.as_str()).await?;
    sheet.route.reopen();
    if let Some(fallback) = &sheet.fallback {
        fallback.reopen();
    }
    Ok(hold::open(&sheets.inner.queue, id, &Hold::RESUMED).await?)
}

/// Lets the jobs go on that an outage holds. Called with each answer, since that is what shows that it is over; unless it was
/// on its way before the provider went away.
pub(super) async fn outage_ended(sheets: &Sheets, sheet: &LiveSheet) {
    if sheet.is_out() || !sheet.in_outage.swap(false, Ordering::AcqRel) {
        return;
    }
    // They look for themselves in a minute; that is soon enough where the store does not answer.
    if let Err(error) =
        hold::open(&sheets.inner.queue, &RunId::named(&sheet.stored.id), &[Hold::Outage]).await
    {
        warn!(%error, sheet = sheet.stored.id, "an outage is over, but not all chunks could be resumed");
    }
}

/// Tries again what failed, and says how many units that are, or else chunks. Nothing else is asked for again.
pub(super) async fn retry(sheets: &Sheets, id: &RunId, which: Retry) -> Result<u64> {
    let sheet = sheets.inner.tables.get(id.as_str()).await?;
    let queue = &sheets.inner.queue;
    let run = Run::get(queue, id).await?;
    if which == Retry::Failed && status::standing(sheets, &run).await?.state == RunState::Running {
        let text = format!("{id} is still at work: what fails meanwhile is tried again at its end anyway");
        return Err(Error::Invalid(text));
    }
    let totals = sheets.inner.tables.totals(sheet.seq).await?;
    let units;
    let mut chunks = 0;
    match which {
        Retry::Failed => {
            units = totals.failed;
            fill(sheets, &sheet, None).await?;
            let filter = Filter {
                kind: Some(chunk::KIND.to_owned()),
                process_id: Some(id.process()),
                states: vec![State::Failed, State::Cancelled],
                ..Filter::default()
            };
            chunks = queue.retry_where(filter, false).await?;
        }
        Retry::Part(number) => {
            let job = queue.get(id.job(number)).await.map_err(|error| match error {
                QueueError::NotFound(_) => Error::Invalid(format!("{id} has no chunk {}", number + 1)),
                error => error.into(),
            })?;
            let chunk = sheets.chunk(&sheet, number).await?;
            let state = status::state_of(&sheet, &chunk, job.job.state);
            let runs = matches!(state, State::Failed | State::Cancelled);
            if !state.is_terminal() || !runs && chunk.failed == 0 {
                return Err(Error::Invalid(format!(
                    "chunk {} is {state}: only a chunk that failed, was cancelled or has blanks is tried again",
                    number + 1
                )));
            }
            fill(sheets, &sheet, Some(number)).await?;
            units = chunk.failed;
            if runs {
                queue.retry(id.job(number), false).await?;
                chunks = 1;
            }
        }
    }
    if units + chunks > 0 {
        let manifest = queue.get(id.manifest()).await?;
        // One that has not ended waits for the chunks anyway, and one that succeeded meanwhile has met them.
        if matches!(manifest.job.state, State::Failed | State::Cancelled) {
            sheets.inner.tables.set_exported(sheet.seq, None).await?;
            queue.retry(id.manifest(), false).await?;
        }
    }
    Ok(if units > 0 { units } else { chunks })
}

/// The pass over blanks is what asks for them, also where none was wanted before.
async fn fill(sheets: &Sheets, sheet: &StoredSheet, chunk: Option<u64>) -> Result<()> {
    let rounds = sheet.settings.work.fill_rounds.max(1);
    sheets.inner.tables.set_fill(sheet.seq, rounds, chunk).await?;
    sheets.forget(&RunId::named(&sheet.id));
    Ok(())
}

/// Writes the file of a sheet now, with what is known so far.
pub async fn export(sheets: &Sheets, sheet: &StoredSheet) -> Result<Exported> {
    finish::export(sheets, sheet).await
}

/// A row with its scores.
#[derive(Debug, Serialize)]
struct ScoredRow {
    /// Its number in the table, from 1, heads counted. The first line of JSONL is row 2.
    row: u64,
    /// The text that was scored.
    text: String,
    /// Values by column; null where there is none yet, where it stays blank, or where the table had one that was kept.
    cells: Map<String, Value>,
    /// The models that gave them, as `PROFILE/MODEL`, each once.
    answered_by: Vec<String>,
}

/// Rows of a sheet with their scores after a row, also while it goes on. Rows without a text are left out.
pub(super) async fn results(
    sheets: &Sheets,
    sheet: &StoredSheet,
    after: i64,
    limit: usize,
) -> Result<Results> {
    // Counted from 0, the row after this one has its number.
    let first = u64::try_from(after).unwrap_or(0);
    let rows = finish::rows(sheets, sheet, first, limit as u64).await?;
    let next = rows.last().filter(|_| rows.len() == limit).map(|(last, _)| (last + 1).cast_signed());
    let names = || sheet.plan.targets.iter().map(|target| target.name.clone());
    let rows = rows.into_iter().map(|(number, row)| ScoredRow {
        row: number + 1,
        text: row.text,
        answered_by: row.answered_by,
        cells: names().zip(row.cells.into_iter().map(Option::unwrap_or_default)).collect(),
    });
    let items = rows.map(|row| Json::of(&row)).collect::<longhaul_queue::Result<_>>()?;
    Ok(Results { items, next })
}

/// The first units that failed, by their rows.
pub(super) async fn failures(sheets: &Sheets, sheet: &StoredSheet, limit: usize) -> Result<Vec<FailedUnit>> {
    let rows = (0, i64::MAX as u64);
    let units = sheets.inner.tables.open_units(sheet.seq, UnitState::Failed, rows, None, limit).await?;
    let failed = units.into_iter().map(|unit| FailedUnit {
        unit: format!("row {}, block {}", unit.row + 1, unit.block + 1),
        reason: unit.reason,
    });
    Ok(failed.collect())
}

/// Deletes a sheet for good: texts, scores, jobs and its part of the ledger, and says how many jobs it had. Refused while it is
/// at work. Repeatable: what was cut off goes on, since its manifest goes last.
pub(super) async fn remove(sheets: &Sheets, id: &RunId) -> Result<u64> {
    let sheet = sheets.inner.tables.find(id.as_str()).await?;
    let queue = &sheets.inner.queue;
    let process = queue.store().process(id.process()).await?;
    let unfinished = process.map_or(0, |process| process.unfinished());
    if unfinished > 0 {
        return Err(Error::Invalid(format!("{id} has {unfinished} unfinished chunks; cancel it first")));
    }
    if sheet.as_ref().is_some_and(|sheet| sheet.read_whole) {
        let manifest = queue.store().get(vec![id.manifest()]).await?.pop();
        if manifest.is_some_and(|manifest| !manifest.job.state.is_terminal()) {
            return Err(Error::Invalid(format!("{id} has not ended; wait for it, or cancel it first")));
        }
    } else {
        // Its reading broke off: it is open for more chunks, and its end still waits for them.
        queue.cancel_process(id.process()).await?;
        queue.seal(id.process()).await?;
    }
    sheets.forget(id);
    if let Some(sheet) = sheet {
        sheets.inner.tables.remove(sheet.seq).await?;
    }
    let scope = longhaul_llm::Scope::run(id.as_str());
    sheets.inner.llm.ledger().forget(&scope).await.map_err(longhaul_llm::Error::from)?;
    Ok(queue.consume_process(&id.process()).await?)
}

impl Sheets {
    /// Takes back a sheet that turned out to have nothing to score.
    pub(super) async fn forget_unmade(&self, id: &RunId, seq: i64) -> Result<()> {
        self.inner.queue.cancel_process(id.process()).await?;
        // An open process might get more jobs, and is not consumed.
        self.inner.queue.seal(id.process()).await?;
        self.inner.queue.consume_process(&id.process()).await?;
        self.inner.tables.remove(seq).await
    }
}
