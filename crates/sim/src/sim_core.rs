//! The simulator itself: who is admitted, what goes wrong, what is answered, how long it takes. It knows no wire; the
//! in-process provider and the server both stand on it.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::answer::{self, Made};
use super::batches::Batches;
use super::buckets::Buckets;
use super::content::{Content, counted, embed_content, model_name, tokens};
use super::draw::{Draw, Purpose};
use super::embed::embeddings;
use super::fault::Fault;
use super::files::Files;
use super::ledger::{CallKind, Count, Ledger, LogEntry, Stats, traceparent};
use super::options::{Faults, HANG_MAX, Limits, SimOptions};
use super::outage::Outage;
use longhaul_llm::clock::{SystemWallClock, WallClock};
use longhaul_llm::error::{Class, Error};
use longhaul_llm::provider::RateSignals;
use longhaul_llm::types::{Answer, ChatRequest, EmbedRequest, Embeddings, Request};
use longhaul_llm::wire::plain;

/// Most texts in one call for embeddings.
pub const EMBED_INPUTS_MAX: usize = 2048;

/// A simulator. Cheap to share; all of its methods take `&self`.
#[derive(Debug)]
pub struct SimCore {
    pub(crate) options: SimOptions,
    pub(crate) ledger: Ledger,
    pub(crate) batches: Batches,
    pub(crate) files: Files,
    pub(crate) clock: Clock,
    faults: RwLock<Arc<Faults>>,
    buckets: Buckets,
    slots: Option<Arc<Semaphore>>,
    stopping: watch::Sender<bool>,
    pub(crate) outage: watch::Sender<Option<Outage>>,
}

/// The wall clock, for what is dated.
pub(crate) struct Clock(pub(crate) Arc<dyn WallClock>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// A call that brings no answer.
#[derive(Debug)]
pub enum Trouble {
    /// An error that a server tells, with its status.
    Told(Box<Error>),
    /// 502 with a page of HTML.
    Html,
    /// Nothing came; the caller should have given up by now.
    TimedOut,
    /// The connection ends before anything is sent.
    Dropped,
    /// The connection ends in the middle of this answer.
    CutOff(Box<Run>),
}

impl Trouble {
    /// What a client makes of it.
    pub fn into_error(self) -> Error {
        match self {
            Self::Told(error) => *error,
            Self::Html => {
                Error::new(Class::Overloaded, "a page of HTML instead of an answer").with_status(502)
            }
            Self::TimedOut => Error::new(Class::Network, "timed out").maybe_billed(),
            Self::Dropped => {
                Error::new(Class::Network, "the connection was closed without an answer").maybe_billed()
            }
            Self::CutOff(_) => {
                Error::new(Class::Network, "the connection was closed in the middle of the answer")
                    .maybe_billed()
            }
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Told(Box::new(error))
    }
}

/// A call under way: executed, paid for, its first token due now.
#[derive(Debug)]
pub struct Run {
    /// What it answers.
    pub answer: Answer,
    /// What its headers tell.
    pub rate: RateSignals,
    /// How long each token of output takes.
    pub per_token: Duration,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Run {
    /// How long the rest of the answer takes.
    pub fn rest(&self) -> Duration {
        self.per_token.saturating_mul(u32::try_from(self.answer.usage.output()).unwrap_or(u32::MAX))
    }
}

/// A call that was let in.
struct Ticket {
    attempt: u32,
    fault: Option<Fault>,
    rate: RateSignals,
    slot: Option<OwnedSemaphorePermit>,
}

impl SimCore {
    /// A simulator with the system's clock; fails when the log cannot be opened.
    pub fn new(options: SimOptions) -> io::Result<Arc<Self>> {
        Self::with_clock(options, Arc::new(SystemWallClock))
    }

    /// A simulator that dates its batches by this clock.
    pub fn with_clock(options: SimOptions, clock: Arc<dyn WallClock>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            ledger: Ledger::open(options.log.as_deref())?,
            batches: Batches::default(),
            files: Files::default(),
            clock: Clock(clock),
            faults: RwLock::new(Arc::new(options.faults.clone())),
            buckets: Buckets::new(options.limits),
            slots: options
                .slots
                .map(|slots| Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS)))),
            stopping: watch::Sender::new(false),
            outage: watch::Sender::new(None),
            options,
        }))
    }

    /// How it was set up. Limits and faults may have been changed since.
    pub fn options(&self) -> &SimOptions {
        &self.options
    }

    /// The limits of now.
    pub fn limits(&self) -> Limits {
        self.buckets.limits()
    }

    /// Changes the limits; buckets keep what they hold.
    pub fn set_limits(&self, limits: Limits) {
        self.buckets.set(limits);
    }

    /// The rates of faults of now.
    pub fn faults(&self) -> Arc<Faults> {
        Arc::clone(&self.faults.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the rates of faults.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(faults);
    }

    /// Sums since the start.
    pub fn stats(&self) -> Stats {
        // Lines count when their batch has ended, also if nobody has asked for it since.
        self.settle_batches();
        self.ledger.stats()
    }

    /// The last executed calls, oldest first; [`SimOptions::log`] keeps all.
    pub fn log_tail(&self) -> Vec<LogEntry> {
        self.settle_batches();
        self.ledger.tail()
    }

    /// How often a request was executed, alone or in batches.
    pub fn times_executed(&self, request: &Request) -> u32 {
        self.settle_batches();
        self.ledger.times_executed(counted(request).0)
    }

    /// Ends all waiting: hanging calls return at once from now on.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
        if let Err(error) = self.ledger.flush() {
            tracing::warn!(%error, "the simulator cannot write its log");
        }
    }

    /// Whether a key is accepted.
    pub fn authorize(&self, key: Option<&str>) -> Result<(), Error> {
        let refused = |code: &str, message: &str| {
            let mut error = Error::new(Class::Auth, message).with_status(401);
            error.code = Some(code.to_owned());
            Err(error)
        };
        if self.options.keys_expired {
            return refused("expired_api_key", "the API key has expired");
        }
        match &self.options.require_key {
            Some(wanted) if key != Some(wanted) => refused("invalid_api_key", "incorrect API key provided"),
            _ => Ok(()),
        }
    }

    /// One answer after its whole time.
    pub async fn complete(&self, request: &ChatRequest) -> Result<Run, Trouble> {
        let run = self.begin(request).await?;
        self.wait(run.rest()).await;
        self.ledger.count(Count::Answered);
        Ok(run)
    }

    /// Executes a call and waits until its first token is due. Who streams calls [`SimCore::delivered`] at the end.
    pub async fn begin(&self, request: &ChatRequest) -> Result<Run, Trouble> {
        self.ledger.count(Count::Call);
        if request.messages.is_empty() {
            return Err(bad_request("messages must not be empty").into());
        }
        let request = &plain(request);
        let content = Content::of(request);
        if let Some(most) = self.options.context_tokens
            && content.input_tokens > most
        {
            return Err(too_long(most, content.input_tokens).into());
        }
        let made = answer::compose(self.options.seed, request, &content);
        let charge = content.input_tokens + request.max_tokens.map_or_else(|| out_tokens(&made), u64::from);
        let ticket = self.admit(model_name(&request.model), content.request, charge).await?;
        let mut answer = answer::answer(request, &content, ticket.attempt, made);
        if let Some(fault) = ticket.fault
            && fault.is_of_content()
            && fault.spoil(self.options.seed, content.request, ticket.attempt, request, &mut answer)
        {
            self.ledger.fault(fault);
        }
        self.book(content.request, &answer, &ticket);
        let (first, per_token) = self.latency(content.question);
        let run = Run { answer, rate: ticket.rate, per_token, _slot: ticket.slot };
        self.wait(first + content.orders.slow.unwrap_or_default()).await;
        match ticket.fault {
            Some(Fault::CutOff) => {
                self.ledger.fault(Fault::CutOff);
                Err(Trouble::CutOff(Box::new(run)))
            }
            Some(fault @ Fault::Hang { .. }) => {
                self.ledger.fault(fault);
                Err(self.hang().await)
            }
            _ => Ok(run),
        }
    }

    /// Counts a streamed answer as sent whole.
    pub fn delivered(&self) {
        self.ledger.count(Count::Answered);
    }

    /// Vectors of texts.
    pub async fn embed(&self, request: &EmbedRequest) -> Result<(Embeddings, RateSignals), Trouble> {
        self.ledger.count(Count::Call);
        if request.inputs.is_empty() || request.inputs.len() > EMBED_INPUTS_MAX {
            return Err(bad_request("input must have 1 to 2048 texts").into());
        }
        let (hash, input_tokens) = embed_content(request);
        let model = model_name(&request.model);
        let ticket = self.admit(model, hash, input_tokens).await?;
        let answer = embeddings(self.options.seed, request, input_tokens);
        let lost = matches!(ticket.fault, Some(Fault::CutOff | Fault::Hang { .. }));
        let entry = || LogEntry {
            id: format!("embd_{hash:016x}_{}", ticket.attempt),
            request: format!("{hash:016x}"),
            model: model.to_owned(),
            kind: CallKind::Embed,
            attempt: ticket.attempt,
            delivered: !lost,
            usage: answer.usage,
            traceparent: traceparent(),
        };
        self.ledger.executed(hash, entry, &answer.usage, CallKind::Embed);
        self.wait(self.latency(hash).0).await;
        if let Some(fault) = ticket.fault.filter(|_| lost) {
            self.ledger.fault(fault);
            return Err(if fault == Fault::CutOff { Trouble::Dropped } else { self.hang().await });
        }
        self.ledger.count(Count::Answered);
        Ok((answer, ticket.rate))
    }

    /// Limits, then the faults that keep a call from being executed, then a slot.
    async fn admit(&self, model: &str, hash: u64, charge: u64) -> Result<Ticket, Trouble> {
        // What the limits turn away is no attempt: it depends on the time, and faults must not.
        let rate = self.buckets.take(model, charge).map_err(|denied| {
            self.ledger.count(Count::Throttled);
            let what = if denied.tokens { "tokens" } else { "requests" };
            throttled(model, what, denied.wait, *denied.rate)
        })?;
        let attempt = self.ledger.attempt(hash);
        let faults = self.faults();
        let fault = Fault::draw(self.options.seed, hash, attempt, &faults);
        let trouble = match fault {
            Some(Fault::Throttled) => {
                self.buckets.give_back(model, charge);
                throttled(model, "requests", Duration::from_millis(faults.retry_after_ms), rate).into()
            }
            Some(Fault::Status(status)) => server_error(status).into(),
            Some(Fault::Html) => Trouble::Html,
            Some(Fault::Dropped) => Trouble::Dropped,
            Some(Fault::Hang { executed: false }) => self.hang().await,
            Some(
                Fault::Hang { executed: true }
                | Fault::CutOff
                | Fault::Malformed
                | Fault::Truncated
                | Fault::SchemaBreak
                | Fault::Fenced,
            )
            | None => {
                let slot = match &self.slots {
                    // The semaphore is never closed; without a slot the call would simply not wait.
                    Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
                    None => None,
                };
                return Ok(Ticket { attempt, fault, rate, slot });
            }
        };
        if let Some(fault) = fault {
            self.ledger.fault(fault);
        }
        Err(trouble)
    }

    fn book(&self, hash: u64, answer: &Answer, ticket: &Ticket) {
        let entry = || LogEntry {
            id: answer.id.clone(),
            request: format!("{hash:016x}"),
            model: answer.model.clone(),
            kind: CallKind::Sync,
            attempt: ticket.attempt,
            delivered: !matches!(ticket.fault, Some(Fault::CutOff | Fault::Hang { .. })),
            usage: answer.usage,
            traceparent: traceparent(),
        };
        self.ledger.executed(hash, entry, &answer.usage, CallKind::Sync);
    }

    /// Until the first token, and for each further one.
    fn latency(&self, question: u64) -> (Duration, Duration) {
        let latency = &self.options.latency;
        let swing = Draw::new(self.options.seed, question, Purpose::Latency).unit() * 2.0 - 1.0;
        let factor = (1.0 + latency.spread * swing).clamp(0.0, 1000.0);
        let first = Duration::from_millis(latency.base_ms).mul_f64(factor);
        (first, Duration::from_micros(latency.per_token_us).mul_f64(factor))
    }

    async fn hang(&self) -> Trouble {
        self.wait(Duration::from_millis(self.faults().hang_ms).min(HANG_MAX)).await;
        Trouble::TimedOut
    }

    /// Waits, but not beyond the end of the simulator.
    pub(crate) async fn wait(&self, time: Duration) {
        if time > Duration::ZERO {
            let mut stopping = self.stopping.subscribe();
            tokio::select! {
                () = tokio::time::sleep(time) => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        }
    }
}

fn out_tokens(made: &Made) -> u64 {
    match made {
        Made::Text(text) => tokens(text.len() as u64),
        Made::Refusal => tokens(answer::REFUSAL.len() as u64),
        Made::Call(call) => tokens((call.name.len() + call.arguments.len()) as u64),
    }
}

/// A request that is wrong.
pub(crate) fn bad_request(message: impl Into<String>) -> Error {
    let mut error = Error::new(Class::BadRequest, message).with_status(400);
    error.code = Some("invalid_request_error".to_owned());
    error
}

/// A thing that is not there.
pub(crate) fn not_found(what: &str) -> Error {
    let mut error = Error::new(Class::BadRequest, format!("no such {what}")).with_status(404);
    error.code = Some("not_found".to_owned());
    error
}

fn too_long(most: u64, given: u64) -> Error {
    let message =
        format!("this model's maximum context length is {most} tokens, but the messages have {given}");
    let mut error = Error::new(Class::ContextTooLong, message).with_status(400);
    error.code = Some("context_length_exceeded".to_owned());
    error
}

/// A 429.
pub(crate) fn throttled(model: &str, what: &str, wait: Duration, rate: RateSignals) -> Error {
    let message =
        format!("rate limit reached for {model} on {what}, please try again in {}ms", wait.as_millis());
    let mut error = Error::new(Class::Throttled, message).with_status(429);
    error.code = Some("rate_limit_exceeded".to_owned());
    error.retry_after = Some(wait);
    error.rate = Box::new(rate);
    error
}

/// An error of the server's.
pub(crate) fn server_error(status: u16) -> Error {
    let (code, message) = match status {
        529 => ("overloaded_error", "the server is overloaded"),
        503 => ("service_unavailable", "the server is not ready to handle the request"),
        502 => ("bad_gateway", "bad gateway"),
        _ => ("server_error", "the server had an error while processing the request"),
    };
    let mut error = Error::new(Class::Overloaded, message).with_status(status);
    error.code = Some(code.to_owned());
    error
}
