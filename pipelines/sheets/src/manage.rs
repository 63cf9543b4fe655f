//! What people do with sheets: cancel, resume, try again, export, remove.

use std::sync::atomic::Ordering;

use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, ListRequest, Signal};
use longhaul_queue::{Error as QueueError, Json, State};
use tracing::warn;

use super::live::LiveSheet;
use super::places::{Exported, FilledRow};
use super::sheet::{HOLDS, OUTAGE, SheetId};
use super::tables::StoredSheet;
use super::{Error, Result, Scoring, chunk, finish, status};

/// Cancels what is left of a sheet. What was written stays, and the file is written with what is known.
pub async fn cancel(scoring: &Scoring, id: &SheetId) -> Result<u64> {
    scoring.inner.tables.get(id.as_str()).await?;
    let cancelled = scoring.inner.queue.cancel_process(id.process()).await?;
    if cancelled > 0 {
        export_all(scoring, id).await?;
    }
    Ok(cancelled)
}

/// Writes the file of a sheet where its scores go, with all that is known, and notes what it came to.
pub async fn export_all(scoring: &Scoring, id: &SheetId) -> Result<()> {
    let sheet = scoring.inner.tables.get(id.as_str()).await?;
    let exported = finish::export(scoring, &sheet).await?;
    scoring.inner.tables.set_exported(sheet.seq, Some(exported)).await
}

/// Lets the held jobs of a sheet go on, and says how many.
pub async fn resume(scoring: &Scoring, id: &SheetId) -> Result<u64> {
    let sheet = scoring.live(id.as_str()).await?;
    sheet.route.reopen();
    if let Some(fallback) = &sheet.fallback {
        fallback.reopen();
    }
    open(scoring, id, &HOLDS).await
}

/// Lets the jobs go on that an outage holds. Called with each answer, since that is what shows that it is over; unless it was
/// on its way before the provider went away.
pub(super) async fn outage_ended(scoring: &Scoring, sheet: &LiveSheet) {
    if sheet.is_out() || !sheet.in_outage.swap(false, Ordering::AcqRel) {
        return;
    }
    // They look for themselves in a minute; that is soon enough where the store does not answer.
    if let Err(error) = open(scoring, &SheetId::named(&sheet.stored.id), &[OUTAGE]).await {
        warn!(%error, sheet = sheet.stored.id, "an outage is over, but not all chunks could be resumed");
    }
}

/// Lets the jobs go on that are held for these reasons, and says how many.
async fn open(scoring: &Scoring, id: &SheetId, reasons: &[&str]) -> Result<u64> {
    let mut opened = 0;
    loop {
        let filter =
            Filter { states: vec![State::Parked], process_id: Some(id.process()), ..Filter::default() };
        let parked = ListRequest { filter, newest_first: false, cursor: None, limit: PAGE_MAX };
        let parked = scoring.inner.queue.list(parked).await?.items;
        let held = |job: &longhaul_queue::Job| {
            let key = job.park.as_ref().map(|park| park.key.as_str());
            reasons.iter().any(|reason| key == Some(id.hold_key(reason).as_str()))
        };
        let ids: Vec<_> = parked.iter().filter(|job| held(job)).map(|job| job.id).collect();
        if ids.is_empty() {
            return Ok(opened);
        }
        opened += scoring.inner.queue.unpark_jobs(ids, Signal::Resume(Json::null())).await?.jobs.len() as u64;
    }
}

/// What is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Exactly the units that failed, and chunks that failed.
    Failed,
    /// What failed in one chunk, by its number from 0, and nothing of the others.
    Chunk(u64),
}

/// What is on its way again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Retried {
    /// Units that failed.
    pub units: u64,
    /// Chunks.
    pub chunks: u64,
}

/// Tries again what failed. Nothing else is asked for again.
pub async fn retry(scoring: &Scoring, id: &SheetId, again: Again) -> Result<Retried> {
    let sheet = scoring.inner.tables.get(id.as_str()).await?;
    let queue = &scoring.inner.queue;
    let totals = scoring.inner.tables.totals(sheet.seq).await?;
    let mut retried = Retried::default();
    match again {
        Again::Failed => {
            retried.units = totals.failed;
            fill(scoring, &sheet, None).await?;
            let filter = Filter {
                kind: Some(chunk::KIND.to_owned()),
                process_id: Some(id.process()),
                states: vec![State::Failed, State::Cancelled],
                ..Filter::default()
            };
            retried.chunks = queue.retry_where(filter, false).await?;
        }
        Again::Chunk(number) => {
            let job = queue.get(id.chunk(number)).await.map_err(|error| match error {
                QueueError::NotFound(_) => Error::Invalid(format!("{id} has no chunk {}", number + 1)),
                error => error.into(),
            })?;
            let chunk = scoring.chunk(&sheet, number).await?;
            let state = status::state_of(&sheet, &chunk, job.job.state);
            let runs = matches!(state, State::Failed | State::Cancelled);
            if !state.is_terminal() || !runs && chunk.failed == 0 {
                return Err(Error::Invalid(format!(
                    "chunk {} is {state}: only a chunk that failed, was cancelled or has blanks is tried again",
                    number + 1
                )));
            }
            fill(scoring, &sheet, Some(number)).await?;
            retried.units = chunk.failed;
            if runs {
                queue.retry(id.chunk(number), false).await?;
                retried.chunks = 1;
            }
        }
    }
    if retried.units + retried.chunks > 0 {
        let manifest = queue.get(id.manifest()).await?;
        // One that has not ended waits for the chunks anyway, and one that succeeded meanwhile has met them.
        if matches!(manifest.job.state, State::Failed | State::Cancelled) {
            scoring.inner.tables.set_exported(sheet.seq, None).await?;
            queue.retry(id.manifest(), false).await?;
        }
    }
    Ok(retried)
}

/// The pass over blanks is what asks for them, also where none was wanted before.
async fn fill(scoring: &Scoring, sheet: &StoredSheet, chunk: Option<u64>) -> Result<()> {
    let rounds = sheet.settings.work.fill_rounds.max(1);
    scoring.inner.tables.set_fill(sheet.seq, rounds, chunk).await?;
    scoring.forget(&SheetId::named(&sheet.id));
    Ok(())
}

/// Writes the file of a sheet now, with what is known so far.
pub async fn export(scoring: &Scoring, sheet: &StoredSheet) -> Result<Exported> {
    finish::export(scoring, sheet).await
}

/// Rows of a sheet with their scores, from a row on, at most so many.
pub async fn rows(
    scoring: &Scoring,
    sheet: &StoredSheet,
    first: u64,
    limit: u64,
) -> Result<Vec<(u64, FilledRow)>> {
    finish::rows(scoring, sheet, first, limit).await
}

/// Deletes a sheet for good: jobs, texts, scores and its part of the ledger. Refused while it is at work. Repeatable: what was
/// cut off goes on.
pub async fn remove(scoring: &Scoring, id: &SheetId) -> Result<()> {
    let sheet = scoring.inner.tables.get(id.as_str()).await?;
    let queue = &scoring.inner.queue;
    let process = queue.store().process(id.process()).await?;
    let unfinished = process.map_or(0, |process| process.unfinished());
    if unfinished > 0 {
        return Err(Error::Invalid(format!("{id} has {unfinished} unfinished chunks; cancel it first")));
    }
    if sheet.read_whole {
        let manifest = queue.store().get(vec![id.manifest()]).await?.pop();
        if manifest.is_some_and(|manifest| !manifest.job.state.is_terminal()) {
            return Err(Error::Invalid(format!("{id} has not ended; wait for it, or cancel it first")));
        }
    } else {
        // Its reading broke off: it is open for more chunks, and its end still waits for them.
        queue.cancel_process(id.process()).await?;
        queue.seal(id.process()).await?;
    }
    scoring.inner.queue.consume_process(&id.process()).await?;
    scoring.forget(id);
    scoring.inner.tables.remove(sheet.seq).await?;
    let scope = longhaul_llm::Scope::run(id.as_str());
    scoring.inner.llm.ledger().forget(&scope).await.map_err(longhaul_llm::Error::from)?;
    Ok(())
}

impl Scoring {
    /// Takes back a sheet that turned out to have nothing to score.
    pub(super) async fn forget_unmade(&self, id: &SheetId, seq: i64) -> Result<()> {
        self.inner.queue.cancel_process(id.process()).await?;
        // An open process might get more jobs, and is not consumed.
        self.inner.queue.seal(id.process()).await?;
        self.inner.queue.consume_process(&id.process()).await?;
        self.inner.tables.remove(seq).await
    }
}
