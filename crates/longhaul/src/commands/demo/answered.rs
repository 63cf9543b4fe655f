//! What became of the demo's prompts: the file of answers held against the simulator's answer key, and the ledger held
//! against the simulator's books. Nothing is assumed.

use anyhow::{Context as _, Result};
use longhaul_llm::NanoUsd;
use longhaul_llm::types::Dialect;
use longhaul_pipeline::Status;
use longhaul_prompts::{Run, request};
use longhaul_sim::{self, Stats};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::tally::Kill;
use crate::output::{Cell, Table};

/// The counts of the run.
#[derive(Debug, Serialize)]
pub(super) struct Answered {
    prompts: u64,
    answered: u64,
    failed: u64,
    /// Answers that are those of the answer key, at the place of their prompt.
    right: u64,
    /// Prompts with more than one line in the file.
    answered_twice: u64,
    throttled: u64,
    retried: u64,
    repaired: u64,
    cost_usd: NanoUsd,
    /// Calls that the ledger booked with their cost.
    calls: u64,
    /// Calls whose end nobody saw.
    unknown_calls: u64,
    unknown_ceiling_usd: NanoUsd,
    /// Calls that the simulator executed.
    executed: u64,
    /// Requests that the simulator executed more than once.
    paid_twice: u64,
    kill: Option<Kill>,
    ended: bool,
}

#[derive(Deserialize)]
struct Line {
    id: Option<String>,
    index: u64,
    answer: Option<Value>,
}

impl Answered {
    /// Counts.
    pub(super) fn count(
        run: &Run,
        answers: &str,
        seed: u64,
        status: &Status,
        books: &Stats,
        kill: Option<Kill>,
        ended: bool,
    ) -> Result<Self> {
        let fault = |name: &str| books.faults.get(name).copied().unwrap_or(0);
        let mut counted = Self {
            prompts: run.settings.source.requests,
            answered: 0,
            failed: status.standing.units.failed + status.standing.units.cancelled,
            right: 0,
            answered_twice: 0,
            throttled: fault("throttled") + books.throttled,
            retried: fault("status_5xx"),
            repaired: status.spent.repaired,
            cost_usd: status.spent.cost,
            calls: status.spent.calls,
            unknown_calls: status.spent.unknown_calls,
            unknown_ceiling_usd: status.spent.unknown_ceiling,
            executed: books.executed,
            paid_twice: books.paid_twice,
            kill,
            ended,
        };
        let mut seen = std::collections::HashSet::new();
        for (place, text) in answers.lines().enumerate() {
            let line: Line = serde_json::from_str(text).context("reading an answer")?;
            counted.answered_twice += u64::from(!seen.insert(line.id.clone()));
            counted.answered += u64::from(line.answer.is_some());
            let in_place = line.index == place as u64 && line.id == Some(format!("t{place}"));
            counted.right += u64::from(in_place && line.answer == expected(run, seed, place)?);
        }
        Ok(counted)
    }

    /// Whether the run showed what it is to show. A kill may let calls be paid twice, but none that is not booked.
    pub(super) fn is_right(&self) -> bool {
        self.ended
            && self.right == self.prompts
            && self.answered == self.prompts
            && self.answered_twice == 0
            && self.executed <= self.calls + self.unknown_calls
            && (self.kill.is_some() || self.paid_twice == 0)
    }

    /// As a table.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(&["PROMPTS", "COUNT", "NOTE"]);
        let mut row = |name: &str, count: String, note: &str| {
            table.row(vec![Cell::new(name), Cell::quantity(count), Cell::new(note)]);
        };
        let right = match self.right == self.prompts {
            true => "each the one of the answer key, and in order".to_owned(),
            false => format!("only {} are those of the answer key, at their place", self.right),
        };
        row("prompts", self.prompts.to_string(), "");
        row("answered", self.answered.to_string(), &right);
        row("failed", self.failed.to_string(), "");
        row("answered twice", self.answered_twice.to_string(), "");
        row("throttled", self.throttled.to_string(), "429: waited as told");
        row("tried again", self.retried.to_string(), "5xx");
        row("repaired", self.repaired.to_string(), "not the JSON that was asked for: asked again");
        row("spent", self.cost_usd.short(), &format!("simulated, {} calls", self.calls));
        let booked = match self.kill {
            Some(_) => "what the kill cut off was asked again; each executed call is booked",
            None => "by the simulator's books",
        };
        row("paid twice", self.paid_twice.to_string(), booked);
        if self.unknown_calls > 0 {
            let ceiling = self.unknown_ceiling_usd.short();
            let text = format!("calls whose end the kill hid, booked at the most they can cost: {ceiling}");
            row("unknown", self.unknown_calls.to_string(), &text);
        }
        table
    }
}

/// What the answer key says about a prompt.
fn expected(run: &Run, seed: u64, place: usize) -> Result<Option<Value>> {
    let text = super::prompts::text_of(place);
    let body = json!({ "messages": [{ "role": "user", "content": text }] });
    let request = request::compose(body, Dialect::OpenAi, &run.settings)?;
    let key = request.as_chat().map(|request| longhaul_sim::answer_key(seed, request));
    Ok(key.and_then(|key| serde_json::from_str(&key).ok()))
}
