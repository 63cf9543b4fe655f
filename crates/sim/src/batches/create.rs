//! How a batch comes to be: what is refused at once, what fails its validation later, and what gets lost on the way.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::life::{Life, Plan};
use super::{
    ANTHROPIC_REQUESTS_MAX, BATCHES_MAX, Batch, Batches, CREATIONS_MAX, CUSTOM_ID_MAX, Door, NewBatch,
};
use super::{OPENAI_INPUTS_MAX, OPENAI_REQUESTS_MAX, Shelf};
use crate::content::{counted, model_name};
use crate::draw::{ContentHash, Draw, Purpose, hash_of};
use crate::fault::Fault;
use crate::ledger::{Count, traceparent};
use crate::sim_core::{SimCore, Trouble, bad_request, not_found, server_error, throttled};
use longhaul_llm::error::Error;
use longhaul_llm::provider::{BatchItem, RateSignals};

impl SimCore {
    /// Creates a batch. [`Trouble::Dropped`] means that it exists but that its creator is not told.
    pub fn create_batch(&self, mut new: NewBatch) -> Result<Arc<Batch>, Trouble> {
        if self.options.slots.is_some() {
            return Err(not_found("batch API: this is a local engine").into());
        }
        if new.invalid.is_none()
            && let Err(error) = check(&new)
        {
            // OpenAI looks into the file only after the batch has been created.
            if new.door != Door::OpenAi {
                return Err(error.into());
            }
            new.invalid = Some(("invalid_request".to_owned(), error.message));
        }
        let (hashes, tokens): (Vec<u64>, Vec<u64>) =
            new.items.iter().map(|item| counted(&item.request)).unzip();
        let lost = self.creation_fault(&new, &hashes)?;
        let input_tokens = tokens.iter().sum();
        let now = Instant::now();
        let failed = self.validation_failure(&new, input_tokens, now);
        let mut shelf = self.batches.shelf();
        make_place(&mut shelf, now);
        shelf.next += 1;
        let sequence = shelf.next;
        let suffix = Draw::new(self.options.seed, sequence, Purpose::Id).next();
        let batch = Arc::new(Batch {
            id: new.door.id(sequence, suffix),
            created_ms: self.clock.0.now_ms(),
            created: now,
            sequence,
            input_tokens,
            traceparent: traceparent(),
            order: self.line_order(&new.items),
            plan: Plan::new(&self.options.batch),
            faults: self.faults(),
            life: Mutex::new(Life { failed, ..Life::default() }),
            given: new,
            hashes,
        });
        shelf.by_id.insert(batch.id.clone(), sequence);
        shelf.by_sequence.insert(sequence, Arc::clone(&batch));
        drop(shelf);
        self.ledger.count(Count::BatchCreated);
        if lost {
            self.ledger.fault(Fault::Dropped);
            return Err(Trouble::Dropped);
        }
        Ok(batch)
    }

    /// Whether the response of a creation is lost, or the error that it fails with.
    fn creation_fault(&self, new: &NewBatch, hashes: &[u64]) -> Result<bool, Trouble> {
        let mut hash = ContentHash::new();
        for (item, request) in new.items.iter().zip(hashes) {
            hash.field(item.custom_id.as_bytes());
            hash.field(&request.to_le_bytes());
        }
        let hash = hash.value();
        let attempt = self.batches.creation(hash);
        let faults = self.faults();
        if faults.calm_after.is_some_and(|calm_after| attempt > calm_after) {
            return Ok(false);
        }
        let mut left = Draw::of_attempt(self.options.seed, hash, attempt, Purpose::Batch).unit();
        let mut hit = |rate: f64| {
            left -= rate;
            left < 0.0
        };
        if hit(faults.rate_429) {
            self.ledger.fault(Fault::Throttled);
            let wait = Duration::from_millis(faults.retry_after_ms);
            return Err(throttled("batches", "requests", wait, RateSignals::default()).into());
        }
        if hit(faults.rate_5xx) {
            self.ledger.fault(Fault::Status(503));
            return Err(server_error(503).into());
        }
        if hit(faults.rate_html) {
            self.ledger.fault(Fault::Html);
            return Err(Trouble::Html);
        }
        Ok(hit(faults.rate_drop + self.options.batch.rate_create_lost))
    }

    fn validation_failure(
        &self,
        new: &NewBatch,
        input_tokens: u64,
        now: Instant,
    ) -> Option<(String, String)> {
        if new.invalid.is_some() {
            return new.invalid.clone();
        }
        let options = &self.options.batch;
        if let Some(code) = &options.fail_validation {
            return Some((code.clone(), "the batch did not pass validation".to_owned()));
        }
        let most = options.enqueued_tokens_max?;
        let model = model_of(&new.items);
        let shelf = self.batches.shelf();
        let unfinished = shelf.by_sequence.values().filter_map(|batch| {
            let ended = batch.state_at(&batch.life(), now).is_terminal();
            (!ended && model_of(&batch.given.items) == model).then_some(batch.input_tokens)
        });
        let enqueued: u64 = unfinished.sum();
        (enqueued + input_tokens > most).then(|| {
            let message = format!(
                "enqueued token limit reached for {model}: {most} tokens; try again when others finish"
            );
            ("token_limit_exceeded".to_owned(), message)
        })
    }

    fn line_order(&self, items: &[BatchItem]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..u32::try_from(items.len()).unwrap_or(u32::MAX)).collect();
        if !self.options.batch.in_order {
            let place =
                |custom_id: &str| Draw::new(self.options.seed, hash_of(custom_id), Purpose::LineOrder).next();
            order.sort_by_cached_key(|index| place(&items[*index as usize].custom_id));
        }
        order
    }
}

impl Batches {
    /// The next attempt at creating a batch of this content.
    fn creation(&self, hash: u64) -> u32 {
        let mut shelf = self.shelf();
        if shelf.creations.len() >= CREATIONS_MAX && !shelf.creations.contains_key(&hash) {
            return 1;
        }
        let attempts = shelf.creations.entry(hash).or_default();
        *attempts = attempts.saturating_add(1);
        *attempts
    }
}

impl Door {
    fn id(self, sequence: u64, suffix: u64) -> String {
        let suffix = suffix & 0xffff_ffff;
        match self {
            Self::Native => format!("simbatch_{sequence:06}{suffix:08x}"),
            Self::OpenAi => format!("batch_{sequence:06}{suffix:08x}"),
            Self::Anthropic => format!("msgbatch_{sequence:06}{suffix:08x}"),
            Self::Gemini => format!("batches/{sequence:06}{suffix:08x}"),
        }
    }
}

fn model_of(items: &[BatchItem]) -> &str {
    items.first().map_or("", |item| model_name(item.request.model()))
}

fn check(new: &NewBatch) -> Result<(), Error> {
    let most = match new.door {
        Door::Anthropic => ANTHROPIC_REQUESTS_MAX,
        Door::Native | Door::OpenAi | Door::Gemini => OPENAI_REQUESTS_MAX,
    };
    if new.items.is_empty() || new.items.len() > most {
        return Err(bad_request(format!("a batch has 1 to {most} requests, not {}", new.items.len())));
    }
    let endpoint = new.items[0].request.endpoint();
    if new.items.iter().any(|item| item.request.endpoint() != endpoint) {
        return Err(bad_request("all requests of a batch must have the same url"));
    }
    let inputs: usize = new.items.iter().map(|item| item.request.vectors()).sum();
    if inputs > OPENAI_INPUTS_MAX {
        return Err(bad_request(format!("a batch embeds at most {OPENAI_INPUTS_MAX} inputs, not {inputs}")));
    }
    let mut seen = HashSet::with_capacity(new.items.len());
    for item in &new.items {
        let id = item.custom_id.as_str();
        if id.is_empty() || id.len() > CUSTOM_ID_MAX {
            return Err(bad_request(format!("custom_id {id:?} must have 1 to {CUSTOM_ID_MAX} characters")));
        }
        if !seen.insert(id) {
            return Err(bad_request(format!("custom_id {id:?} occurs twice")));
        }
    }
    Ok(())
}

fn make_place(shelf: &mut Shelf, now: Instant) {
    if shelf.by_sequence.len() >= BATCHES_MAX {
        let ended = shelf
            .by_sequence
            .values()
            .find(|batch| batch.state_at(&batch.life(), now).is_terminal())
            .cloned();
        if let Some(batch) = ended {
            shelf.by_sequence.remove(&batch.sequence);
            shelf.by_id.remove(&batch.id);
        }
    }
}
