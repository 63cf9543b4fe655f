//! A unit: one row and one block of categories, on its way through the stages.

use std::sync::Arc;

use longhaul_llm::{Answer, NanoUsd};
use serde_json::Value;

use super::tables::{AnsweredBy, CacheKey, ScoredUnit, UnitEnd, UnitRow};

/// A unit on its way. What it used and what went wrong goes with it.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) chunk: u64,
    pub(super) row: u64,
    pub(super) block: u32,
    pub(super) text: Arc<str>,
    /// Targets of the row that keep the value they had.
    pub(super) filled: Arc<[u32]>,
    /// Whether the other model's turn has come.
    pub(super) fallback: bool,
    /// Tries with the model whose turn it is.
    pub(super) tries: u32,
    /// Tries with both.
    pub(super) all_tries: u32,
    /// How often in a row it was refused with a 429.
    pub(super) refusals: u32,
    /// Calls that brought an answer.
    pub(super) asked: u64,
    /// What they cost; `None` once one of them has no price.
    pub(super) cost: Option<NanoUsd>,
    /// What went wrong, newest last.
    pub(super) trail: Vec<String>,
}

/// Mishaps that are kept of a unit.
const TRAIL_MAX: usize = 8;

impl Unit {
    pub(super) fn new(chunk: u64, row: u64, block: u32, (text, filled): (Arc<str>, Arc<[u32]>)) -> Self {
        Self {
            chunk,
            row,
            block,
            text,
            filled,
            fallback: false,
            tries: 0,
            all_tries: 0,
            refusals: 0,
            asked: 0,
            cost: Some(NanoUsd::ZERO),
            trail: Vec::new(),
        }
    }

    /// Its name in the ledger.
    pub(super) fn name(&self, sheet: &str, filling: bool) -> String {
        let pass = if filling { "fill/" } else { "" };
        format!("{sheet}/{pass}{}:{}", self.row, self.block)
    }

    /// Notes a call that was paid for.
    pub(super) fn paid(&mut self, cost: Option<NanoUsd>) {
        self.asked += 1;
        self.cost = self.cost.zip(cost).map(|(sum, cost)| sum.saturating_add(cost));
    }

    /// Notes a mishap.
    pub(super) fn went_wrong(&mut self, what: String) {
        if self.trail.len() == TRAIL_MAX {
            self.trail.remove(0);
        }
        self.trail.push(what);
    }

    /// Goes on after a mishap: the same model again, or the other one. `Err` is a unit for which nothing is left to try. `retries`
    /// is how often a model is asked again, so 3 means four tries.
    pub(super) fn again(mut self, retries: u32, has_fallback: bool, hopeless: bool) -> Result<Self, Self> {
        self.all_tries += 1;
        if !hopeless && self.tries < retries {
            self.tries += 1;
            return Ok(self);
        }
        if has_fallback && !self.fallback {
            self.fallback = true;
            self.tries = 0;
            return Ok(self);
        }
        Err(self)
    }
}

/// An answer on its way to be judged.
#[derive(Clone)]
pub(super) struct Answered {
    pub(super) unit: Unit,
    pub(super) answer: Box<Answer>,
}

/// A unit that is through, on its way to be written.
pub(super) struct Settled {
    pub(super) unit: Unit,
    pub(super) end: End,
}

/// How a unit got through.
pub(super) enum End {
    /// With an answer.
    Scored { cells: Vec<Value>, by: AnsweredBy, cached: bool, key: Option<CacheKey> },
    /// Without one.
    Failed,
    /// It was not asked, or not once more: the work was stopped.
    Dropped,
}

impl Settled {
    /// What is stored of it; nothing of one that was never answered. `row_units` is how many its row has.
    pub(super) fn row(self, row_units: u32, written: bool) -> Option<UnitRow> {
        let Unit { chunk, row, block, asked, cost, trail, .. } = self.unit;
        let end = match self.end {
            End::Scored { cells, by, cached, key } => {
                UnitEnd::Scored(ScoredUnit { cells, by, cost, cached, asked, key, written })
            }
            End::Failed => UnitEnd::Failed { reason: trail.join("; "), asked },
            End::Dropped if asked == 0 => return None,
            End::Dropped => UnitEnd::Dropped { asked },
        };
        Some(UnitRow { chunk, row, block, row_units, end })
    }
}
