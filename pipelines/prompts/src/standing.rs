//! How far a run of prompts is.

use longhaul_pipeline::run::status::{self, ModelName, RunState, Standing, Units};
use longhaul_pipeline::{Hold, Status};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{State, Timestamp};
use serde::{Deserialize, Serialize};

use super::eta::eta_seconds;
use super::hold::{self, Holds};
use super::run::{Mode, Run};
use super::{Prompts, Result, RunId, batch, request};

/// States of a batch that has not ended. The run's own job, a helper too, is blocked until the end.
const BATCH_STATES: [State; 4] = [State::Scheduled, State::Ready, State::Running, State::Parked];

/// What only runs of prompts have in their status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Details {
    /// How requests are sent.
    pub mode: Mode,
    /// Requests that wait for a provider batch, or are held.
    pub parked: u64,
    /// What the provider said of the batches that are waited for, once one was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_provider: Option<AtProvider>,
}

/// Batches of a run at their provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtProvider {
    /// Answered there and not yet here.
    pub answered: u64,
    /// When the last of them was looked at.
    pub looked_at: Timestamp,
}

impl Details {
    /// Those in a status of a run of prompts.
    pub fn of(status: &Status) -> Option<Self> {
        serde_json::from_value(serde_json::Value::Object(status.standing.details.clone())).ok()
    }
}

/// Where a run stands now.
pub(super) async fn standing(prompts: &Prompts, run: &Run) -> Result<Standing> {
    let (id, settings, queue) = (&run.id, &run.settings, prompts.queue());
    let info = queue.process(&id.process()).await?;
    let count = |state: State| info.counts[state as usize];
    let helpers = |state: State| info.helpers[state as usize];
    let total = info.total();
    let units = Units {
        total: if info.sealed { total } else { settings.source.requests.max(total) },
        done: count(State::Succeeded),
        failed: count(State::Failed),
        cancelled: count(State::Cancelled),
        running: count(State::Running),
    };
    let parked = count(State::Parked);
    let holds = match parked + helpers(State::Parked) {
        0 => Holds::default(),
        _ => hold::holds(prompts, id).await?,
    };
    // Batches that are under way and not held.
    let batches = BATCH_STATES.map(helpers);
    let moving = batches.iter().sum::<u64>() - holds.batches.min(batches[3]);
    let waiting = count(State::Ready) + count(State::Scheduled) + units.running;
    let state = match &holds.why {
        _ if info.sealed && info.unfinished() == 0 => RunState::of_end(&units),
        _ if status::is_paused(queue, id).await? => RunState::Paused,
        // In an outage others wait for their turn to find out.
        Some((Hold::Outage, _)) => RunState::Held,
        Some(_) if waiting + moving == 0 => RunState::Held,
        _ => RunState::Running,
    };
    let (hold, message) = holds.why.unzip();
    let message = if state.is_end() { last_word(prompts, id, &units).await? } else { message };
    let at_provider = if moving > 0 { AtProvider::of(prompts, id).await? } else { None };
    let details = Details { mode: settings.mode, parked, at_provider };
    Ok(Standing {
        state,
        hold,
        message: message.or_else(|| settings.mode_note.clone()),
        units,
        unit_by_unit: settings.mode == Mode::Sync,
        model: Some(ModelName { profile: settings.profile.clone(), name: settings.model.clone() }),
        estimated_usd: settings.expected.and_then(|expected| expected.cost_usd),
        estimated_max_usd: settings.expected.and_then(|expected| expected.cost_max_usd),
        simulated: prompts.llm().is_simulated(&settings.profile, &settings.model),
        eta_seconds: match (state, settings.mode) {
            (RunState::Running, Mode::Sync) => eta_seconds(prompts, run, &units).await?,
            _ => None,
        },
        details: status::fields(&details),
    })
}

/// What is missing at the end of a run, and why; nothing where nothing is.
async fn last_word(prompts: &Prompts, run: &RunId, units: &Units) -> Result<Option<String>> {
    let (failed, cancelled, total) = (units.failed, units.cancelled, units.ended());
    let mut parts = Vec::new();
    if failed > 0 {
        let filter = Filter {
            states: vec![State::Failed],
            kind: Some(request::KIND.to_owned()),
            process_id: Some(run.process()),
            ..Filter::default()
        };
        let first = ListRequest { filter, newest_first: false, cursor: None, limit: 1 };
        let first = prompts.queue().list(first).await?.items.pop().and_then(|job| job.error);
        let why = first.map_or_else(String::new, |error| format!(", the first with: {}", error.text));
        parts.push(format!("{failed} of {total} requests failed{why}"));
    }
    if cancelled > 0 {
        parts.push(format!("{cancelled} of {total} requests were cancelled"));
    }
    Ok((!parts.is_empty()).then(|| parts.join("; ")))
}

impl AtProvider {
    async fn of(prompts: &Prompts, run: &RunId) -> Result<Option<Self>> {
        let filter = Filter {
            states: BATCH_STATES.to_vec(),
            kind: Some(batch::KIND.to_owned()),
            process_id: Some(run.process()),
            ..Filter::default()
        };
        let batches = ListRequest { filter, newest_first: false, cursor: None, limit: PAGE_MAX };
        let batches = prompts.queue().list(batches).await?.items.iter().map(|job| job.id).collect();
        let batches = prompts.queue().store().get(batches).await?;
        let said: Vec<_> = batches.iter().filter_map(|batch| batch.progress.as_ref()).collect();
        let looked_at = said.iter().map(|said| said.at).max();
        Ok(looked_at.map(|looked_at| Self { answered: said.iter().map(|said| said.done).sum(), looked_at }))
    }
}
