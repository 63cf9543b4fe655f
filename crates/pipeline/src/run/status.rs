//! Where a run stands: one form for bars, pages, logs, events and webhooks, whatever its pipeline. Read from the store and the
//! ledger, so every process tells the same.

use std::borrow::Cow;
use std::fmt;

use longhaul_llm::{CostRange, NanoUsd, Scope, Totals};
use longhaul_queue::{Queue, State, Timestamp};
use serde::{Deserialize, Serialize};

use super::hold::{self, Hold};
use super::{Run, RunId};
use crate::Result;
use crate::pipeline::Pipeline;

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The run.
    pub id: String,
    /// Its pipeline.
    pub pipeline: Cow<'static, str>,
    /// What one of its units is called.
    pub unit: Cow<'static, str>,
    /// What it is about, for people: mostly the name of a file.
    pub title: String,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// What was spent, and what may have been.
    pub spent: Totals,
    /// What its pipeline knows.
    #[serde(flatten)]
    pub standing: Standing,
}

/// What a pipeline knows of one of its runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// What it does.
    pub state: RunState,
    /// Why it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// For people: why it is held, what it waits for, or what is missing at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What became of its units.
    pub units: Units,
    /// Units end one by one, so that each end is told alone.
    #[serde(skip)]
    pub unit_by_unit: bool,
    /// The model that it asks, and the profile of its provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelName>,
    /// What was expected to be spent: the lower end; absent without a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_usd: Option<NanoUsd>,
    /// The upper end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_max_usd: Option<NanoUsd>,
    /// Answers and prices are made up.
    pub simulated: bool,
    /// Seconds until it has ended at its present pace; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<u64>,
    /// What only this pipeline knows.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub details: serde_json::Map<String, serde_json::Value>,
}

/// A model behind a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelName {
    /// The profile.
    pub profile: String,
    /// The model.
    pub name: String,
}

/// Units of a run by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Units {
    /// All; 0 while the input is being read and their number is not known.
    pub total: u64,
    /// Done.
    pub done: u64,
    /// Failed.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Being worked on right now, as far as the pipeline knows.
    pub running: u64,
}

impl Units {
    /// Those that have ended, one way or the other.
    pub fn ended(&self) -> u64 {
        self.done + self.failed + self.cancelled
    }
}

/// What a run does. The same words in output, events, documents and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Units are being worked on, or can be once a worker runs.
    #[default]
    Running,
    /// Somebody paused it.
    Paused,
    /// Nothing can go on; the hold says why, and [`Hold::ends_by_itself`] whether a person has to act.
    Held,
    /// All units are done.
    Completed,
    /// It has ended, with some units undone.
    PartlyFailed,
    /// It has ended, with no unit done.
    Failed,
    /// It was cancelled; what was done is kept.
    Cancelled,
}

impl RunState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Paused,
        Self::Held,
        Self::Completed,
        Self::PartlyFailed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Its name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Held => "held",
            Self::Completed => "completed",
            Self::PartlyFailed => "partly_failed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether all units have ended.
    pub const fn is_end(self) -> bool {
        match self {
            Self::Completed | Self::PartlyFailed | Self::Failed | Self::Cancelled => true,
            Self::Running | Self::Paused | Self::Held => false,
        }
    }

    /// How a run has ended whose units came to this.
    pub const fn of_end(units: &Units) -> Self {
        match (units.done, units.failed, units.cancelled) {
            (_, 0, 0) => Self::Completed,
            (_, _, 1..) => Self::Cancelled,
            (0, _, 0) => Self::Failed,
            (_, _, 0) => Self::PartlyFailed,
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Status {
    /// Where a run of a pipeline stands now.
    pub async fn of(pipeline: &dyn Pipeline, run: &Run) -> Result<Self> {
        let mut spent = spent_by(pipeline, run).await?;
        let standing = pipeline.standing(run).await?;
        if standing.state.is_end() {
            // What was read before it may lack the last call.
            spent = spent_by(pipeline, run).await?;
        }
        Ok(Self {
            id: run.id.as_str().to_owned(),
            pipeline: pipeline.about().name.into(),
            unit: pipeline.about().unit.into(),
            title: run.job.options.title.clone().unwrap_or_default(),
            created_at: run.job.created_at,
            ended_at: run.job.finished_at.filter(|_| standing.state.is_end()),
            spent,
            standing,
        })
    }

    /// The same at its end: its manifest, which tells it, is about to end. `why` is what went wrong, if anything.
    pub fn ended(mut self, why: Option<&str>) -> Self {
        let Standing { state, units, message, .. } = &mut self.standing;
        *state = match (why, units.done) {
            (None, _) => RunState::Completed,
            (Some(_), 0) => RunState::Failed,
            (Some(_), _) => RunState::PartlyFailed,
        };
        *message = why.map(str::to_owned);
        self
    }

    /// Whether nothing more happens by itself: it has ended, or a person has to act.
    pub fn is_over(&self) -> bool {
        let waits = |hold: Hold| !hold.ends_by_itself();
        let Standing { state, hold, .. } = &self.standing;
        state.is_end() || (*state == RunState::Held && hold.is_none_or(waits))
    }

    /// What it was expected to cost.
    pub fn estimated(&self) -> Option<CostRange> {
        Some(CostRange { low: self.standing.estimated_usd?, high: self.standing.estimated_max_usd? })
    }

    /// What the whole run will cost if it goes on as so far.
    pub fn projected(&self) -> Option<NanoUsd> {
        let Units { total, done, .. } = self.standing.units;
        if done == 0 || self.spent.unpriced_calls > 0 {
            return None;
        }
        Some(self.spent.cost.scaled(total as f64 / done as f64))
    }
}

async fn spent_by(pipeline: &dyn Pipeline, run: &Run) -> Result<Totals> {
    let Some(llm) = pipeline.llm() else { return Ok(Totals::default()) };
    let totals = llm.ledger().totals(&Scope::run(run.id.as_str())).await;
    Ok(totals.map_err(longhaul_llm::Error::from)?)
}

impl Standing {
    /// Where a run stands by its jobs alone: each is a unit.
    pub async fn of_jobs(queue: &Queue, run: &RunId) -> Result<Self> {
        let info = queue.process(&run.process()).await?;
        let count = |state: State| info.counts[state as usize];
        let units = Units {
            total: info.total(),
            done: count(State::Succeeded),
            failed: count(State::Failed),
            cancelled: count(State::Cancelled),
            running: count(State::Running),
        };
        let held = if count(State::Parked) > 0 { hold::why(queue, run).await? } else { None };
        let moves = count(State::Ready) + count(State::Scheduled) + count(State::Running) > 0;
        let state = match held {
            _ if info.sealed && info.unfinished() == 0 => RunState::of_end(&units),
            _ if is_paused(queue, run).await? => RunState::Paused,
            Some((Hold::Outage, _)) => RunState::Held,
            Some(_) if !moves => RunState::Held,
            _ => RunState::Running,
        };
        let (hold, message) = held.filter(|_| !state.is_end()).unzip();
        Ok(Self { state, hold, message, units, ..Self::default() })
    }
}

/// Whether somebody paused a run.
pub async fn is_paused(queue: &Queue, run: &RunId) -> Result<bool> {
    let queues = queue.store().queues().await?;
    Ok(queues.iter().any(|queue| queue.name == run.as_str() && queue.settings.paused))
}

/// The fields of what only one pipeline knows.
pub fn fields(details: &impl Serialize) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::to_value(details) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    }
}
