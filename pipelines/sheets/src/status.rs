//! Where a sheet stands: units, money, what holds it. One event for bars, pages and logs, read from the store and the
//! ledger, so every process tells the same.

use longhaul_llm::{CostRange, Error as LlmError, NanoUsd, Scope, Totals};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Job, State, Timestamp};
use serde::Serialize;

use super::chunk::{self, HeldNote};
use super::places::Exported;
use super::settings::ModelName;
use super::sheet::{HOLDS, OUTAGE, SheetId};
use super::tables::{Chunk, Pace, StoredSheet};
use super::{Result, Scoring};
use longhaul_pipeline::numbered;

/// Where a sheet stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// The sheet.
    pub id: String,
    /// What it does.
    pub state: SheetState,
    /// Why it is held, why it failed, or what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What holds it: budget, auth, quota, outage or sink. An outage ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Chunks in all, and by what became of them.
    pub chunks: ChunkCounts,
    /// Units of all chunks together.
    pub units: UnitCounts,
    /// Who answered how many of them.
    pub answered_by: Vec<AnsweredUnits>,
    /// Seconds until all units are answered, by the pace so far without pauses; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<u64>,
    /// When something became of a unit last.
    pub updated_at: Timestamp,
    /// What was spent, and what may have been.
    pub spent: Totals,
    /// Calls that were answered and paid for, and whose answers a crash took before they were stored. Known while no
    /// chunk is at work: then every other answer is counted with its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_calls: Option<u64>,
    /// What was expected to be spent: the lower end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_usd: Option<NanoUsd>,
    /// The upper end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_max_usd: Option<NanoUsd>,
    /// Answers and prices are made up.
    pub simulated: bool,
    /// What its file came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exported: Option<Exported>,
}

/// Chunks by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UnitCounts {
    /// All that are asked for.
    pub total: u64,
    /// Rows with a text.
    pub rows: u64,
    /// Rows all of whose units have an answer or are left blank.
    pub processed_rows: u64,
    /// Answered and not written yet.
    pub scored: u64,
    /// Written.
    pub written: u64,
    /// Left blank.
    pub failed: u64,
    /// Left alone, because the row was edited.
    pub edited: u64,
    /// Answered from the cache.
    pub cached: u64,
    /// Calls that brought an answer.
    pub asked: u64,
}

/// What one model answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
            total: totals.units,
            rows: totals.rows,
            processed_rows: totals.processed_rows,
            scored: totals.scored,
            written: totals.written,
            failed: totals.failed,
            edited: totals.edited,
            cached: totals.cached,
            asked: totals.asked,
        }
    }

    /// Units with an answer, written or not.
    pub fn answered(&self) -> u64 {
        self.scored + self.written + self.edited
    }

    /// Units that need no model any more: with an answer, or left blank.
    pub fn ended(&self) -> u64 {
        self.answered() + self.failed
    }
}

/// What a sheet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SheetState {
    /// Its table is being read.
    Reading,
    /// Units are being answered, or can be once a worker runs.
    Running,
    /// Nothing can be asked or written; `held` and `message` say why.
    Held,
    /// All units are where they belong.
    Completed,
    /// It has ended with blanks.
    PartlyFailed,
    /// It has ended, and nothing was scored.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl SheetState {
    /// Its name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Running => "running",
            Self::Held => "held",
            Self::Completed => "completed",
            Self::PartlyFailed => "partly_failed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A chunk with what its job says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChunkStatus {
    /// `chunk-0001`.
    pub name: String,
    /// Its units.
    #[serde(flatten)]
    pub chunk: Chunk,
    /// The state of its job; that of its units, where they were answered after it failed.
    pub state: State,
    /// How often it was run again.
    pub retries: u32,
    /// Why it failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// What its stages are doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<String>,
}

impl Status {
    /// Where a sheet stands now.
    pub async fn of(scoring: &Scoring, sheet: &StoredSheet) -> Result<Self> {
        let id = SheetId::named(&sheet.id);
        let inner = &scoring.inner;
        // In this order: what is read later has changed since, if at all, so an end is never told with older counts.
        let manifest = inner.queue.store().get(vec![id.manifest()]).await?.pop();
        // There is none for a moment while a sheet is made, and while it is deleted.
        let process = inner.queue.store().process(id.process()).await?;
        let count = |state: State| process.as_ref().map_or(0, |process| process.counts[state as usize]);
        let totals = inner.tables.totals(sheet.seq).await?;
        let spent = inner.llm.ledger().totals(&Scope::run(id.as_str())).await.map_err(LlmError::from)?;
        let ended = manifest.as_ref().map_or(State::Blocked, |detail| detail.job.state);
        let held = match count(State::Parked) + u64::from(ended == State::Parked) {
            0 => None,
            _ => held(scoring, &id).await?,
        };
        let moving = count(State::Ready) + count(State::Scheduled) + count(State::Running);
        let state = match ended {
            _ if !sheet.read_whole => SheetState::Reading,
            State::Succeeded => SheetState::Completed,
            State::Cancelled => SheetState::Cancelled,
            // In an outage other chunks wait for their turn to find out.
            _ if held.as_ref().is_some_and(|(held, _)| held == OUTAGE) => SheetState::Held,
            _ if held.is_some() && moving == 0 => SheetState::Held,
            State::Failed if totals.written + totals.scored + totals.edited > 0 => SheetState::PartlyFailed,
            State::Failed => SheetState::Failed,
            _ => SheetState::Running,
        };
        let made_up = match count(State::Failed) + count(State::Cancelled) {
            0 => (0, 0),
            _ => made_up(scoring, sheet, &id).await?,
        };
        let at_work = count(State::Running) > 0 || ended == State::Running;
        let failed = manifest.and_then(|detail| detail.job.error).map(|error| error.text);
        let (held, message) = held.map_or((None, failed), |(held, message)| (Some(held), Some(message)));
        let message = match state {
            SheetState::Cancelled => {
                let done = totals.written + totals.scored + totals.edited;
                Some(format!("cancelled when {done} of {} units were answered", totals.units))
            }
            _ => message,
        };
        Ok(Self {
            id: sheet.id.clone(),
            state,
            message,
            held,
            chunks: ChunkCounts {
                total: totals.chunk,
                completed: count(State::Succeeded) + made_up.0 + made_up.1,
                running: count(State::Running),
                failed: count(State::Failed).saturating_sub(made_up.0),
                cancelled: count(State::Cancelled).saturating_sub(made_up.1),
            },
            units: UnitCounts::of(&totals),
            answered_by: answered_by(sheet, &totals),
            eta_seconds: eta_seconds(sheet, &totals).filter(|_| state == SheetState::Running),
            updated_at: totals.updated_at.max(sheet.made_at),
            lost_calls: (!at_work).then(|| spent.calls.saturating_sub(totals.asked)),
            spent,
            estimated_usd: sheet.settings.estimate_usd,
            // One that was made before there were ranges has one amount.
            estimated_max_usd: sheet.settings.estimate_max_usd.or(sheet.settings.estimate_usd),
            simulated: inner.llm.is_simulated(&sheet.settings.model.profile, &sheet.settings.model.model),
            exported: sheet.exported,
        })
    }

    /// What was expected to be spent.
    pub fn estimated(&self) -> Option<CostRange> {
        Some(CostRange { low: self.estimated_usd?, high: self.estimated_max_usd? })
    }

    /// Whether nothing more happens by itself: it has ended, or a person has to act.
    pub fn is_over(&self) -> bool {
        match self.state {
            SheetState::Reading | SheetState::Running => false,
            SheetState::Held => self.held.as_deref() != Some(OUTAGE),
            SheetState::Completed | SheetState::PartlyFailed | SheetState::Failed | SheetState::Cancelled => {
                true
            }
        }
    }

    /// What the whole sheet will cost if it goes on as so far.
    pub fn projected(&self) -> Option<NanoUsd> {
        let ended = self.units.ended();
        if ended == 0 || self.spent.unpriced_calls > 0 {
            return None;
        }
        Some(self.spent.cost.scaled(self.units.total as f64 / ended as f64))
    }
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
async fn made_up(scoring: &Scoring, sheet: &StoredSheet, id: &SheetId) -> Result<(u64, u64)> {
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
        let page = scoring.inner.queue.list(page).await?;
        for job in &page.items {
            let chunk = scoring.chunk(sheet, numbered::number(job.id)).await?;
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

/// What holds a sheet, with the message of one of its jobs.
async fn held(scoring: &Scoring, id: &SheetId) -> Result<Option<(String, String)>> {
    let filter = Filter { states: vec![State::Parked], process_id: Some(id.process()), ..Filter::default() };
    let parked = ListRequest { filter, newest_first: false, cursor: None, limit: 1 };
    let Some(job) = scoring.inner.queue.list(parked).await?.items.pop() else { return Ok(None) };
    let key = job.park.as_ref().map_or("", |park| park.key.as_str());
    let reason = HOLDS.iter().find(|reason| id.hold_key(reason) == key);
    let Some(reason) = reason else { return Ok(None) };
    let note = scoring.inner.queue.get(job.id).await?.data.and_then(|data| data.to::<HeldNote>().ok());
    Ok(Some(((*reason).to_owned(), note.map_or_else(String::new, |note| note.held))))
}

/// Chunks with their jobs, from a number on.
pub async fn chunks(
    scoring: &Scoring,
    sheet: &StoredSheet,
    first: u64,
    limit: usize,
) -> Result<Vec<ChunkStatus>> {
    let id = SheetId::named(&sheet.id);
    let chunks = scoring.inner.tables.chunks(sheet.seq, first, limit.min(PAGE_MAX)).await?;
    let ids = chunks.iter().map(|chunk| id.chunk(chunk.chunk)).collect();
    let jobs = scoring.inner.queue.store().get(ids).await?;
    let mut found = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let job = jobs.iter().find(|detail| detail.job.id == id.chunk(chunk.chunk));
        let Some(detail) = job else { continue };
        let running = detail.job.state == State::Running;
        let state = state_of(sheet, &chunk, detail.job.state);
        let is_made_up = state != detail.job.state;
        found.push(ChunkStatus {
            name: format!("chunk-{:04}", chunk.chunk + 1),
            chunk,
            state,
            retries: re_runs(&detail.job),
            last_error: detail.job.error.as_ref().filter(|_| !is_made_up).map(|error| error.text.clone()),
            stages: detail
                .progress
                .as_ref()
                .filter(|_| running)
                .and_then(|progress| progress.message.clone()),
        });
    }
    Ok(found)
}
