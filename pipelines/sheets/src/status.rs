//! Where a sheet stands.

use longhaul_llm::{Error as LlmError, Scope};
use longhaul_pipeline::run::hold::{self, Hold};
use longhaul_pipeline::run::status;
use longhaul_pipeline::{Part, Run, RunId, RunState, Standing, Status, Units, numbered};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, ListRequest, ProcessInfo};
use longhaul_queue::{Job, State, Timestamp};
use serde::{Deserialize, Serialize};

use super::chunk;
use super::places::Exported;
use super::settings::{ModelName, Target};
use super::tables::{Chunk, Pace, StoredSheet};
use super::{Result, Sheets};

/// What only sheets have in their status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Details {
    /// Chunks in all, and by what became of them.
    pub chunks: ChunkCounts,
    /// The columns that are filled.
    pub columns: Vec<String>,
    /// More of the units.
    #[serde(flatten)]
    pub counts: UnitCounts,
    /// Who answered how many of them.
    pub answered_by: Vec<AnsweredUnits>,
    /// When something became of a unit last.
    pub updated_at: Timestamp,
    /// Calls that were answered and paid for, and whose answers a crash took before they were stored. Known while no
    /// chunk is at work: then every other answer is counted with its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_calls: Option<u64>,
    /// What its file came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exported: Option<Exported>,
}

impl Details {
    /// Those in a status of a sheet.
    pub fn of(status: &Status) -> Option<Self> {
        serde_json::from_value(serde_json::Value::Object(status.standing.details.clone())).ok()
    }
}

/// Chunks by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkCounts {
    /// All.
    pub total: u64,
    /// Through.
    pub completed: u64,
    /// At work.
    pub running: u64,
    /// Failed for good.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
}

/// Units by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitCounts {
    /// Rows with a text.
    pub rows: u64,
    /// Rows all of whose units have an answer or are left blank.
    pub processed_rows: u64,
    /// Answered and not written yet.
    pub scored: u64,
    /// Written.
    pub written: u64,
    /// Left alone, because the row was edited.
    pub edited: u64,
    /// Answered from the cache.
    pub cached: u64,
    /// Calls that brought an answer.
    pub asked: u64,
}

/// What one model answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredUnits {
    /// The profile of its provider.
    pub profile: String,
    /// The model.
    pub model: String,
    /// Units with an answer of it, those from the cache included.
    pub units: u64,
}

impl UnitCounts {
    /// Those of chunks.
    pub(super) fn of(totals: &Chunk) -> Self {
        Self {
            rows: totals.rows,
            processed_rows: totals.processed_rows,
            scored: totals.scored,
            written: totals.written,
            edited: totals.edited,
            cached: totals.cached,
            asked: totals.asked,
        }
    }
}

/// What is told of a chunk beside its state.
#[derive(Debug, Serialize)]
struct ChunkDetails<'a> {
    /// Its rows and units.
    #[serde(flatten)]
    chunk: &'a Chunk,
    /// How often it was run again.
    retries: u32,
    /// Why it failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    /// What its stages are doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    stages: Option<&'a str>,
}

/// Where a sheet stands now.
pub(super) async fn standing(sheets: &Sheets, run: &Run) -> Result<Standing> {
    let (id, inner) = (&run.id, &sheets.inner);
    // Its texts go before its jobs when it is removed.
    let Some(sheet) = inner.tables.find(id.as_str()).await? else { return Ok(Standing::default()) };
    // In this order: what is read later has changed since, if at all, so an end is never told with older counts.
    let manifest = inner.queue.store().get(vec![id.manifest()]).await?.pop();
    let process = inner.queue.store().process(id.process()).await?;
    let count = |state: State| process.as_ref().map_or(0, |process| process.counts[state as usize]);
    let totals = inner.tables.totals(sheet.seq).await?;
    let ended = manifest.as_ref().map_or(State::Blocked, |detail| detail.job.state);
    let held = match count(State::Parked) + u64::from(ended == State::Parked) {
        0 => None,
        _ => hold::why(&inner.queue, id).await?,
    };
    let moving = count(State::Ready) + count(State::Scheduled) + count(State::Running);
    let done = totals.scored + totals.written + totals.edited;
    let state = match ended {
        _ if !sheet.read_whole => RunState::Running,
        State::Succeeded => RunState::Completed,
        State::Cancelled => RunState::Cancelled,
        State::Failed if done > 0 => RunState::PartlyFailed,
        State::Failed => RunState::Failed,
        _ if status::is_paused(&inner.queue, id).await? => RunState::Paused,
        // In an outage other chunks wait for their turn to find out.
        _ if matches!(held, Some((Hold::Outage, _))) => RunState::Held,
        _ if held.is_some() && moving == 0 => RunState::Held,
        _ => RunState::Running,
    };
    let at_work = count(State::Running) > 0 || ended == State::Running;
    let failed = manifest.and_then(|detail| detail.job.error).map(|error| error.text);
    let (hold, message) = held.map_or((None, failed), |(hold, message)| (Some(hold), Some(message)));
    let message = match state {
        RunState::Cancelled => Some(format!("cancelled when {done} of {} units were answered", totals.units)),
        _ => message,
    };
    let settings = &sheet.settings;
    let left = totals.units.saturating_sub(done + totals.failed);
    let scope = Scope::run(id.as_str());
    let calls = inner.llm.ledger().totals(&scope).await.map_err(LlmError::from)?.calls;
    let details = Details {
        chunks: chunk_counts(sheets, &sheet, id, (&totals, process.as_ref())).await?,
        columns: sheet.plan.targets.iter().map(|target| target.name.clone()).collect(),
        counts: UnitCounts::of(&totals),
        answered_by: answered_by(&sheet, &totals),
        updated_at: totals.updated_at.max(sheet.made_at),
        lost_calls: (!at_work).then(|| calls.saturating_sub(totals.asked)),
        // One without a target writes no file, so there is nothing to tell of one.
        exported: sheet.exported.filter(|_| sheet.settings.target != Target::Kept),
    };
    Ok(Standing {
        state,
        hold,
        message,
        units: Units {
            total: totals.units,
            done,
            failed: totals.failed,
            cancelled: if state == RunState::Cancelled { left } else { 0 },
            running: 0,
        },
        model: Some(status::ModelName {
            profile: settings.model.profile.clone(),
            name: settings.model.model.clone(),
        }),
        estimated_usd: settings.estimate_usd,
        estimated_max_usd: settings.estimate_max_usd,
        simulated: inner.llm.is_simulated(&settings.model.profile, &settings.model.model),
        eta_seconds: eta_seconds(&sheet, &totals).filter(|_| state == RunState::Running),
        details: status::fields(&details),
        ..Standing::default()
    })
}

/// Chunks by what became of them.
async fn chunk_counts(
    sheets: &Sheets,
    sheet: &StoredSheet,
    id: &RunId,
    (totals, process): (&Chunk, Option<&ProcessInfo>),
) -> Result<ChunkCounts> {
    let count = |state: State| process.map_or(0, |process| process.counts[state as usize]);
    let made_up = match count(State::Failed) + count(State::Cancelled) {
        0 => (0, 0),
        _ => made_up(sheets, sheet, id).await?,
    };
    Ok(ChunkCounts {
        total: totals.chunk,
        completed: count(State::Succeeded) + made_up.0 + made_up.1,
        running: count(State::Running),
        failed: count(State::Failed).saturating_sub(made_up.0),
        cancelled: count(State::Cancelled).saturating_sub(made_up.1),
    })
}

/// Who answered how many units.
fn answered_by(sheet: &StoredSheet, totals: &Chunk) -> Vec<AnsweredUnits> {
    let answered = totals.scored + totals.written + totals.edited;
    let counts = [answered.saturating_sub(totals.by_fallback), totals.by_fallback];
    let models = std::iter::once(&sheet.settings.model).chain(&sheet.settings.fallback);
    let units = |(name, units): (&ModelName, u64)| AnsweredUnits {
        profile: name.profile.clone(),
        model: name.model.clone(),
        units,
    };
    models.zip(counts).map(units).collect()
}

fn eta_seconds(sheet: &StoredSheet, totals: &Chunk) -> Option<u64> {
    let Pace { units, worked_ms, .. } = sheet.pace;
    let answered = totals.settled() + totals.scored;
    let left = totals.units.saturating_sub(answered);
    if units == 0 || worked_ms == 0 {
        return None;
    }
    Some(left.saturating_mul(worked_ms).div_ceil(units.saturating_mul(1_000)))
}

/// The state of a chunk: that of its job, unless others have answered its units since.
pub(super) fn state_of(sheet: &StoredSheet, chunk: &Chunk, job: State) -> State {
    let whole = chunk.settled() >= chunk.units;
    match job {
        State::Failed | State::Cancelled
            if whole && !chunk.failed_more_than(sheet.settings.work.failed_share_max) =>
        {
            State::Succeeded
        }
        state => state,
    }
}

/// How many chunks failed and were cancelled whose units were answered all the same.
async fn made_up(sheets: &Sheets, sheet: &StoredSheet, id: &RunId) -> Result<(u64, u64)> {
    let mut made_up = (0, 0);
    let mut cursor = None;
    loop {
        let filter = Filter {
            kind: Some(chunk::KIND.to_owned()),
            states: vec![State::Failed, State::Cancelled],
            process_id: Some(id.process()),
            ..Filter::default()
        };
        let page = ListRequest { filter, newest_first: false, cursor, limit: PAGE_MAX };
        let page = sheets.inner.queue.list(page).await?;
        for job in &page.items {
            let chunk = sheets.chunk(sheet, numbered::number(job.id)).await?;
            match (state_of(sheet, &chunk, job.state), job.state) {
                (State::Succeeded, State::Failed) => made_up.0 += 1,
                (State::Succeeded, State::Cancelled) => made_up.1 += 1,
                _ => {}
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(made_up);
        }
    }
}

/// How often a job was run again. The failure that has not led to a run yet, or never will, is not counted.
fn re_runs(job: &Job) -> u32 {
    match job.state {
        State::Running | State::Parked | State::Succeeded => job.spent.attempt,
        State::Blocked | State::Scheduled | State::Ready | State::Failed | State::Cancelled => {
            job.spent.attempt.saturating_sub(1)
        }
    }
}

/// Chunks with their jobs, from a number on. The state is that of the chunk's units, where they were answered after it failed.
pub(super) async fn parts(
    sheets: &Sheets,
    sheet: &StoredSheet,
    first: u64,
    limit: usize,
) -> Result<Vec<Part>> {
    let id = RunId::named(&sheet.id);
    let chunks = sheets.inner.tables.chunks(sheet.seq, first, limit.min(PAGE_MAX)).await?;
    let ids = chunks.iter().map(|chunk| id.job(chunk.chunk)).collect();
    let jobs = sheets.inner.queue.store().get(ids).await?;
    let mut parts = Vec::with_capacity(chunks.len());
    for chunk in &chunks {
        let job = jobs.iter().find(|detail| detail.job.id == id.job(chunk.chunk));
        let Some(detail) = job else { continue };
        let state = state_of(sheet, chunk, detail.job.state);
        let error = detail.job.error.as_ref().filter(|_| state == detail.job.state);
        let progress = detail.progress.as_ref().filter(|_| detail.job.state == State::Running);
        let stages = progress.and_then(|progress| progress.message.as_deref());
        let last_error = error.map(|error| error.text.as_str());
        let details = ChunkDetails { chunk, retries: re_runs(&detail.job), last_error, stages };
        parts.push(Part {
            name: format!("chunk-{:04}", chunk.chunk + 1),
            state,
            units: chunk.units,
            note: last_error.or(stages).map(str::to_owned),
            details: status::fields(&details),
        });
    }
    Ok(parts)
}
