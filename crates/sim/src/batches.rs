//! The batch API: batches that queue, run, finish or expire on tokio's clock, scaled. Where a batch stands is computed from
//! the time when somebody asks; no task runs for it. Answers are not kept either: they are made again whenever results are
//! read, since seed, request and attempt decide them.

mod create;
mod life;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::content::{Content, embed_content};
use super::draw::{Draw, Purpose, hash_of};
use super::fault::Fault;
use super::ledger::{CallKind, Count, LogEntry};
use super::options::Faults;
use super::sim_core::{SimCore, Trouble, bad_request, not_found, server_error};
use longhaul_llm::error::Error;
use longhaul_llm::provider::{BatchItem, BatchState};
use longhaul_llm::types::{Answer, Request, Stop};
use longhaul_llm::wire::plain;

pub use life::Lines;
use life::{Life, Plan};

/// Batches that are kept; the oldest that has ended makes place for a new one.
pub const BATCHES_MAX: usize = 10_000;
/// Most requests in a batch of OpenAI.
pub const OPENAI_REQUESTS_MAX: usize = 50_000;
/// Most texts to embed in a batch of OpenAI.
pub const OPENAI_INPUTS_MAX: usize = 50_000;
/// Most bytes in a batch file of OpenAI.
pub const OPENAI_BYTES_MAX: usize = 200 * 1000 * 1000;
/// Most requests in a batch of Anthropic.
pub const ANTHROPIC_REQUESTS_MAX: usize = 100_000;
/// Most bytes in a batch of Anthropic.
pub const ANTHROPIC_BYTES_MAX: usize = 256 * 1000 * 1000;
/// Most bytes in a batch of Gemini that is sent with its creation.
pub const GEMINI_INLINE_BYTES_MAX: usize = 20 * 1000 * 1000;
/// Longest name of a line.
pub const CUSTOM_ID_MAX: usize = 64;
/// Creations that are told apart; beyond that, each counts as the first.
const CREATIONS_MAX: usize = 100_000;

/// Through which door a batch came; each sees only its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// In process.
    Native,
    /// OpenAI's Files and Batches.
    OpenAi,
    /// Anthropic's Message Batches.
    Anthropic,
    /// Gemini's batch mode.
    Gemini,
}

/// The lines of a batch as they were read.
#[derive(Debug, Default)]
pub(crate) struct BatchLines {
    /// The requests; of one that is refused only its name and model are true.
    pub(crate) items: Vec<BatchItem>,
    /// Why some of them are, by their places.
    pub(crate) refused: HashMap<usize, Error>,
}

impl BatchLines {
    /// Adds a line that could be read, or the name of one that is refused.
    pub(crate) fn push(&mut self, named: BatchItem, read: Result<BatchItem, Error>) {
        let item = read.unwrap_or_else(|error| {
            self.refused.insert(self.items.len(), error);
            named
        });
        self.items.push(item);
    }
}

/// A batch to create.
#[derive(Debug)]
pub struct NewBatch {
    /// Through which door.
    pub door: Door,
    /// The requests.
    pub items: Vec<BatchItem>,
    /// Errors of those that are never asked, by their places.
    pub refused: HashMap<usize, Error>,
    /// Why the input cannot be read, as code and message: the batch is created and fails.
    pub invalid: Option<(String, String)>,
    /// The name that Gemini and the in-process provider keep.
    pub display_name: Option<String>,
    /// The pairs that OpenAI keeps.
    pub metadata: Map<String, Value>,
    /// The file of its input.
    pub input_file: Option<String>,
}

/// A batch.
#[derive(Debug)]
pub struct Batch {
    /// Its name.
    pub id: String,
    /// What it was created with.
    pub given: NewBatch,
    /// When it was created, in milliseconds since the epoch.
    pub created_ms: i64,
    created: Instant,
    sequence: u64,
    hashes: Vec<u64>,
    input_tokens: u64,
    /// The trace that its creation came with.
    traceparent: Option<String>,
    /// Places of the items, in the order in which they are run and come back.
    order: Vec<u32>,
    plan: Plan,
    /// The rates of when it was created: its results are made again at each reading and must not change.
    faults: Arc<Faults>,
    life: Mutex<Life>,
}

/// Where a batch stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchView {
    /// Its state.
    pub state: BatchState,
    /// Requests in it.
    pub total: u64,
    /// Answered so far.
    pub completed: u64,
    /// Failed so far.
    pub failed: u64,
    /// Never to be run.
    pub not_run: u64,
    /// When its window ends, in milliseconds since the epoch.
    pub expires_ms: i64,
    /// When it was asked to end.
    pub cancel_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// Why it failed as a whole: code and message.
    pub error: Option<(String, String)>,
}

/// All batches.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    next: u64,
    by_sequence: BTreeMap<u64, Arc<Batch>>,
    by_id: HashMap<String, u64>,
    creations: HashMap<u64, u32>,
}

impl SimCore {
    /// A batch by its name. Asking for it may fail as a status call can.
    pub fn poll_batch(&self, door: Door, id: &str) -> Result<Arc<Batch>, Trouble> {
        let batch = self.batch(door, id)?;
        let nth = {
            let mut life = batch.life();
            life.polls = life.polls.saturating_add(1);
            life.polls
        };
        let mut draw = Draw::of_attempt(self.options.seed, hash_of(id), nth, Purpose::Poll);
        if draw.unit() < self.options.batch.rate_poll_5xx {
            self.ledger.fault(Fault::Status(503));
            return Err(server_error(503).into());
        }
        Ok(batch)
    }

    /// A batch by its name.
    pub fn batch(&self, door: Door, id: &str) -> Result<Arc<Batch>, Error> {
        let shelf = self.batches.shelf();
        let found = shelf.by_id.get(id).and_then(|sequence| shelf.by_sequence.get(sequence));
        found
            .filter(|batch| batch.given.door == door)
            .cloned()
            .ok_or_else(|| not_found(&format!("batch: {id}")))
    }

    /// All batches of a door, newest first.
    pub fn list_batches(&self, door: Door) -> Vec<Arc<Batch>> {
        let shelf = self.batches.shelf();
        shelf.by_sequence.values().rev().filter(|batch| batch.given.door == door).cloned().collect()
    }

    /// Forgets an ended batch.
    pub fn delete_batch(&self, door: Door, id: &str) -> Result<(), Error> {
        let batch = self.batch(door, id)?;
        if !self.view_batch(&batch).state.is_terminal() {
            return Err(bad_request(format!("batch {id} has not ended")));
        }
        let mut shelf = self.batches.shelf();
        shelf.by_id.remove(id);
        shelf.by_sequence.remove(&batch.sequence);
        Ok(())
    }

    /// Asks a batch to end; one that has ended stays as it is.
    pub fn cancel_batch(&self, batch: &Batch) {
        let now = Instant::now();
        let mut life = batch.life();
        if !batch.state_at(&life, now).is_terminal() && life.cancelled.is_none() {
            life.cancelled = Some(now);
        }
    }

    /// Where a batch stands now.
    pub fn view_batch(&self, batch: &Batch) -> BatchView {
        let now = Instant::now();
        let mut life = batch.life();
        self.run_lines(batch, &mut life, now);
        batch.view_at(&life, now)
    }

    /// Books what has been run by now, also where nobody asks.
    pub(super) fn settle_batches(&self) {
        let batches: Vec<Arc<Batch>> = self.batches.shelf().by_sequence.values().cloned().collect();
        for batch in batches {
            let mut life = batch.life();
            self.run_lines(&batch, &mut life, Instant::now());
        }
    }

    /// Runs the lines that are due. Each is one attempt at its request, and is booked once.
    fn run_lines(&self, batch: &Batch, life: &mut Life, now: Instant) {
        let due = batch.lines_due(life, now);
        for place in life.attempts.len()..due {
            let index = batch.order[place] as usize;
            let (item, hash) = (&batch.given.items[index], batch.hashes[index]);
            let attempt = self.ledger.attempt(hash);
            life.attempts.push(attempt);
            match self.answer_line(batch, index, attempt) {
                Err(_) => {
                    life.failed_lines += 1;
                    self.ledger.count(Count::LineFailed);
                }
                Ok((answer, spoilt)) => {
                    if let Some(fault) = spoilt {
                        self.ledger.fault(fault);
                    }
                    let entry = || LogEntry {
                        id: item.custom_id.clone(),
                        request: format!("{hash:016x}"),
                        model: answer.model.clone(),
                        kind: CallKind::Batch,
                        attempt,
                        delivered: true,
                        usage: answer.usage,
                        traceparent: batch.traceparent.clone(),
                    };
                    self.ledger.executed(hash, entry, &answer.usage, CallKind::Batch);
                }
            }
        }
    }

    /// What a line is answered with at an attempt, and what was done to it.
    pub(super) fn answer_line(
        &self,
        batch: &Batch,
        index: usize,
        attempt: u32,
    ) -> Result<(Answer, Option<Fault>), Error> {
        let seed = self.options.seed;
        if let Some(error) = batch.given.refused.get(&index) {
            return Err(error.clone());
        }
        let (request, hash) = (&batch.given.items[index].request, batch.hashes[index]);
        let mut draw = Draw::of_attempt(seed, hash, attempt, Purpose::Line);
        if draw.unit() < self.options.batch.rate_line_failed {
            return Err(server_error(500));
        }
        let request = match request {
            Request::Chat(request) => request,
            Request::Embed(request) => {
                let tokens = embed_content(request).1;
                return Ok((super::embed::embeddings(seed, request, tokens).into(), None));
            }
        };
        let request = &plain(request);
        let content = Content::of(request);
        let made = super::answer::compose(seed, request, &content);
        let mut answer = super::answer::answer(request, &content, attempt, made);
        // What a network does to calls does not happen to lines; what a model does, does.
        let fault = Fault::draw(seed, hash, attempt, &batch.faults).filter(|fault| fault.is_of_content());
        let spoilt = fault.filter(|fault| fault.spoil(seed, hash, attempt, request, &mut answer));
        debug_assert!(answer.stop != Stop::Refused || spoilt.is_none());
        Ok((answer, spoilt))
    }
}

impl Batches {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
