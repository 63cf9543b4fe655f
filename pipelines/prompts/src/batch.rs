//! One provider batch, from its upload to its last answer. Each step is stored before the next begins, so that a crash
//! at any point goes on where it was, and nothing is submitted twice.

use std::time::Duration;

use longhaul_llm::provider::BatchState;
use longhaul_llm::{Class, Error as LlmError};
use longhaul_pipeline::Hold;
use longhaul_queue::job::{NewJob, Retention, Wake};
use longhaul_queue::retry::{Backoff, RetryPolicy};
use longhaul_queue::state::{OnTimeout, Park};
use longhaul_queue::{JobContext, JobId, Json, KindOptions, Outcome, Timestamp};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::hold::Holding;
use super::run::FIRST_BATCH;
use super::{LiveRun, Prompts, Result, RunId, collect};

mod lost_batch;
mod parts;
mod sending;

pub use lost_batch::{Missing, REFUSALS_MAX, Refused};
pub use parts::Kept;

use lost_batch::Stored;

/// The kind.
pub const KIND: &str = "llm.batch";

/// Times that the unfinished rest of expired batches is sent as a batch again before it goes one by one.
pub const ROUNDS_MAX: u32 = 3;
/// Waits between two looks at a batch: the first, and what it grows to.
const POLL_FIRST: Duration = Duration::from_secs(15);
const POLL_MAX: Duration = Duration::from_secs(300);
/// How a provider says that its queue has no room for a batch.
const QUEUE_FULL: &str = "token_limit_exceeded";
/// Tries for errors that time heals. A batch that gave up would leave its requests hanging.
const ATTEMPTS_MAX: u32 = 100_000;

/// What a batch job is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPayload {
    /// The run it belongs to.
    pub run: String,
    /// Which of its chunks.
    pub chunk: u64,
    /// How often the chunk was sent before.
    pub round: u32,
    /// Requests of the chunk before those of this batch: more than none where a budget had no room for all at once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u64,
    /// Requests by their number, in inclusive ranges.
    pub members: Vec<(u64, u64)>,
    /// Some of them name another model than the run, and have its price.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl BatchPayload {
    /// The run.
    pub fn run_id(&self) -> RunId {
        RunId::named(&self.run)
    }

    /// How many requests it sends.
    pub fn len(&self) -> u64 {
        self.members.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Never true of a stored one.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Its requests by number.
    pub fn indexes(&self) -> impl Iterator<Item = u64> + '_ {
        self.members.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// What the job waits for between two looks.
    pub fn poll_key(&self) -> String {
        format!("{}/poll-{}-{}-{}", self.run, self.chunk, self.round, self.part)
    }
}

/// How far a batch is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Nothing has left the house.
    #[default]
    Prepare,
    /// The input is at the provider.
    Uploaded {
        /// Its name there, if it is a file.
        file: Option<String>,
    },
    /// The batch was asked for; whether it exists is not known.
    Submitting {
        /// The input's name.
        file: Option<String>,
        /// When.
        sent_at: Timestamp,
        /// How often it was looked for.
        looks: u32,
        /// Batches that might be it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        candidates: Vec<String>,
        /// It is to end as soon as it is found, and why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ending: Option<Ending>,
    },
    /// It exists.
    Submitted {
        /// The provider's name for it.
        id: String,
        /// Since when.
        at: Timestamp,
        /// How often it was looked at.
        polls: u32,
        /// It was asked to end, and why.
        ending: Option<Ending>,
        /// Answers so far, where told.
        completed: Option<u64>,
        /// The provider does not know it any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing: Option<Missing>,
    },
    /// It has ended; its results are read.
    Ended {
        /// The provider's name for it.
        id: String,
        /// How it ended.
        state: BatchState,
        /// It was asked to end, and why.
        ending: Option<Ending>,
        /// The provider does not have its results any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing: Option<Missing>,
    },
    /// Nothing will come of it: all of its requests are told the same.
    Over {
        /// What they are told.
        word: LastWord,
        /// Whether the provider may have run it all the same.
        maybe_billed: bool,
    },
}

/// What the requests of a batch are told that brings no answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastWord {
    /// They are cancelled.
    Cancelled,
    /// Each is to ask on its own.
    Alone,
    /// The same, since the provider did not take the batch: its job fails and so tells of it.
    Refused {
        /// What the provider said.
        why: String,
    },
    /// They fail.
    Failed {
        /// By class.
        class: Class,
        /// Why.
        message: String,
    },
}

/// Why a batch was asked to end before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Somebody cancelled the run: what was not run is cancelled.
    Cancel,
    /// The deadline is near: what was not run goes one by one.
    Deadline,
}

/// What a batch job can be told while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchTold {
    /// End early.
    Cancel,
    /// Send it again: the unknown one is believed not to exist.
    Resubmit,
    /// Look for it again.
    Wait,
    /// Send its requests one by one.
    Alone,
    /// Give up on it: its requests fail.
    Drop,
}

/// A batch while its job runs.
pub(super) struct Life<'a> {
    pub(super) prompts: &'a Prompts,
    pub(super) context: &'a JobContext,
    pub(super) live: &'a LiveRun,
    pub(super) payload: &'a BatchPayload,
    /// That the provider did not take it before.
    refused: Refused,
    /// Calls in a row until now that were not answered.
    unanswered: u32,
    /// That another batch sends its last requests.
    kept: Kept,
    /// The batch's name at the provider and in the ledger.
    pub(super) tag: String,
    /// What the names of its requests there begin with.
    id_prefix: String,
}

/// What a step leads to.
pub(super) enum Next {
    /// Another step at once.
    Step(Step),
    /// This answer, with this step to go on from.
    Wait(Outcome),
}

/// Limits of the kind.
pub(super) fn options() -> KindOptions {
    KindOptions {
        max_attempts: ATTEMPTS_MAX,
        max_throttles: ATTEMPTS_MAX,
        retry: RetryPolicy {
            backoff: Backoff::Exponential { base: Duration::from_secs(2) },
            cap: POLL_MAX,
            jitter: true,
        },
        run_limit: Duration::from_secs(6 * 3600),
        ..KindOptions::default()
    }
}

/// The job of a batch.
pub(super) fn new_job(payload: &BatchPayload) -> Result<NewJob> {
    let run = payload.run_id();
    let mut job = NewJob::new(KIND, Json::of(payload)?)
        .id(job_id(&run, payload))
        .queue(run.as_str())
        .process(run.process())
        .retention(Retention::DeleteOnSuccess)
        // Before the requests that wait for it.
        .priority(-1);
    job.helper = true;
    // Its requests would wait for ever for a batch that was given up as poison.
    job.options.max_crashes = Some(ATTEMPTS_MAX);
    Ok(job)
}

/// Bits of a batch's number for its chunk and its round; the others are for its part.
const CHUNK_BITS: u32 = 24;
const ROUND_BITS: u32 = 3;

/// The job of a batch. Its number is told by what it sends, so that a batch that is enqueued again is stored once.
pub fn job_id(run: &RunId, payload: &BatchPayload) -> JobId {
    let BatchPayload { chunk, round, part, .. } = payload;
    run.job(FIRST_BATCH + chunk + (u64::from(*round) << CHUNK_BITS) + (part << (CHUNK_BITS + ROUND_BITS)))
}

/// Runs a batch's job until it has to wait for the provider.
pub(super) async fn run(prompts: Prompts, context: JobContext, payload: BatchPayload) -> Result<Outcome> {
    let live = prompts.live(&payload.run_id()).await?;
    let kept: Kept = context.data()?.unwrap_or_default();
    let payload = payload.kept(kept);
    let tag = sending::tag(&payload, context.job().created_at);
    let id_prefix = sending::id_prefix(&tag);
    let mut refused: Refused = context.data()?.unwrap_or_default();
    // Only one more call without an answer keeps the count.
    let unanswered = std::mem::take(&mut refused.unanswered);
    let life = Life {
        prompts: &prompts,
        context: &context,
        live: &live,
        payload: &payload,
        refused,
        unanswered,
        kept,
        tag,
        id_prefix,
    };
    let mut step: Step = context.data()?.unwrap_or_default();
    let mut told = life.told();
    loop {
        let next = match life.take(&step, told.take()).await {
            Ok(next) => next,
            Err(super::Error::Llm(error)) => life.failed(&step, &error)?,
            Err(error) => return Err(error),
        };
        match next {
            Next::Wait(outcome) => return Ok(outcome),
            Next::Step(next) => {
                life.save(&next).await?;
                step = next;
            }
        }
    }
}

impl Life<'_> {
    /// Takes one step. An order is stored as a step of its own before it is carried out, so that no error on the way
    /// makes it forgotten.
    async fn take(&self, step: &Step, told: Option<BatchTold>) -> Result<Next> {
        let order = self.order(told);
        if let Some(next) = self.decided(step, told) {
            return Ok(next);
        }
        match step {
            Step::Prepare if told == Some(BatchTold::Alone) => Ok(self.one_by_one()),
            Step::Prepare if told == Some(BatchTold::Drop) => Ok(self.given_back()),
            Step::Prepare | Step::Uploaded { .. } if order.is_some() => Ok(unsent(order)),
            Step::Prepare => self.prepare().await,
            Step::Uploaded { file } => self.submit(file.clone()).await,
            Step::Submitting { .. } => self.look(step, told).await,
            Step::Submitted { id, at, ending: None, completed, missing, .. } if order.is_some() => {
                let (id, completed, missing) = (id.clone(), *completed, *missing);
                Ok(Next::Step(Step::Submitted { id, at: *at, polls: 0, ending: order, completed, missing }))
            }
            Step::Submitted { id, at, polls, ending, .. } => self.poll(id, *at, *polls, *ending).await,
            Step::Ended { id, state, ending: None, missing } if told == Some(BatchTold::Cancel) => {
                let (id, state, missing) = (id.clone(), *state, *missing);
                Ok(Next::Step(Step::Ended { id, state, ending: order, missing }))
            }
            Step::Ended { id, state, ending, .. } => collect::all(self, id, *state, *ending).await,
            Step::Over { word, maybe_billed } => collect::last_word(self, word, *maybe_billed).await,
        }
    }

    /// Why the batch should end before its time.
    fn order(&self, told: Option<BatchTold>) -> Option<Ending> {
        let late = self.live.settings.switch_at.is_some_and(|at| at <= self.now());
        match told {
            Some(BatchTold::Cancel) => Some(Ending::Cancel),
            _ if late => Some(Ending::Deadline),
            _ => None,
        }
    }

    async fn poll(&self, id: &str, at: Timestamp, polls: u32, ending: Option<Ending>) -> Result<Next> {
        let status = self.live.route.poll_batch(id).await?;
        self.context.progress_with(
            status.completed.unwrap_or(0),
            self.payload.len(),
            format!("{:?}", status.state).to_lowercase(),
        );
        if status.state == BatchState::Failed {
            return self.refused(status.error.as_deref(), ending).await;
        }
        if status.state.is_terminal() {
            let (id, state) = (id.to_owned(), status.state);
            return Ok(Next::Step(Step::Ended { id, state, ending, missing: None }));
        }
        if ending.is_some() && status.state != BatchState::Cancelling {
            info!(batch = id, ?ending, "asking the provider to end a batch");
            self.live.route.cancel_batch(id).await?;
        }
        let completed = status.completed;
        let polls = polls + 1;
        let step = Step::Submitted { id: id.to_owned(), at, polls, ending, completed, missing: None };
        self.wait(&step, self.poll_wait(polls - 1))
    }

    /// A batch that the provider refused as a whole: nothing was run. A full queue there is waited for.
    async fn refused(&self, why: Option<&str>, ending: Option<Ending>) -> Result<Next> {
        let why = why.unwrap_or("the provider gave no reason");
        warn!(why, "the provider refused a batch");
        self.context.log(format!("the provider refused the batch: {why}"));
        match ending {
            _ if why.contains(QUEUE_FULL) => self.too_large(why, ending).await,
            Some(_) => Ok(unsent(ending)),
            None => Ok(fails(Class::BadRequest, why)),
        }
    }

    /// What an error of the provider leads to. What time heals is waited out as between two looks, so that the batch can
    /// be told something meanwhile; what it does not heal is for a person to decide.
    fn failed(&self, step: &Step, error: &LlmError) -> Result<Next> {
        warn!(class = %error.class, status = error.status, "a batch call failed: {error}");
        match error.class {
            _ if error.status == Some(404) && matches!(step, Step::Submitted { .. } | Step::Ended { .. }) => {
                self.missing(step)
            }
            Class::Auth => self.hold(Hold::Auth, error, step),
            Class::Quota => self.hold(Hold::Quota, error, step),
            Class::Budget => self.hold(Hold::Budget, error, step),
            Class::BadRequest | Class::ContextTooLong
                if matches!(step, Step::Prepare | Step::Uploaded { .. }) =>
            {
                Ok(fails(error.class, &error.message))
            }
            Class::Overloaded | Class::Unreachable | Class::Network => self.not_answered(step, error),
            Class::Throttled | Class::Stopped => {
                self.context.log(error.to_string());
                let wait = self.poll_wait(self.context.job().spent.parks);
                self.wait(step, error.retry_after.unwrap_or(wait))
            }
            Class::BadRequest
            | Class::ContextTooLong
            | Class::Truncated
            | Class::Refused
            | Class::BadShape
            | Class::CacheMiss => {
                self.ambiguous(step, &format!("the provider does not say what became of this batch: {error}"))
            }
        }
    }

    fn hold(&self, hold: Hold, error: &LlmError, step: &Step) -> Result<Next> {
        Ok(Next::Wait(self.holding().hold(hold, &error.message, &self.stored(step))?))
    }

    fn holding(&self) -> Holding<'_> {
        Holding { prompts: self.prompts, live: self.live, context: self.context }
    }

    /// What is kept of the job when it is at `step`.
    fn stored<'a>(&'a self, step: &'a Step) -> Stored<'a> {
        Stored { step, refused: &self.refused, kept: self.kept }
    }

    async fn save(&self, step: &Step) -> Result<()> {
        Ok(self.context.save(&self.stored(step)).await?)
    }

    /// Parks until the next look, or until somebody has something to say.
    pub(super) fn wait(&self, step: &Step, after: Duration) -> Result<Next> {
        Ok(Next::Wait(self.park(Json::of(&self.stored(step))?, after)))
    }

    fn park(&self, data: Json, after: Duration) -> Outcome {
        let due = self.now() + after;
        let until =
            self.live.settings.switch_at.map_or(due, |at| if at > self.now() { due.min(at) } else { due });
        let park = Park { key: self.payload.poll_key(), until: Some(until), on_timeout: OnTimeout::Resume };
        Outcome::Park { park, data: Some(data) }
    }

    /// What somebody told the job while it waited, or while it was about to start.
    fn told(&self) -> Option<BatchTold> {
        match self.context.wake() {
            _ if self.context.is_cancel_requested() => Some(BatchTold::Cancel),
            Some(Wake::Signal(value)) => value.to().unwrap_or(None),
            Some(Wake::TimedOut) | None => None,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.prompts.queue().clock().now()
    }

    /// Half as long again with each look, spread a little; a simulator whose day is shorter is looked at more often.
    pub(super) fn poll_wait(&self, polls: u32) -> Duration {
        let grown = POLL_FIRST.mul_f64(1.5_f64.powi(polls.min(20).cast_signed()));
        grown.min(POLL_MAX).mul_f64(self.prompts.llm().poll_scale() * (0.9 + 0.2 * fastrand::f64()))
    }
}

/// The answer of a batch job that has nothing left to do.
pub(super) fn done() -> Outcome {
    Outcome::Done(Json::null())
}

/// The end of a batch of which nothing was run.
pub(super) fn unsent(ending: Option<Ending>) -> Next {
    let word = match ending {
        Some(Ending::Cancel) => LastWord::Cancelled,
        Some(Ending::Deadline) | None => LastWord::Alone,
    };
    Next::Step(Step::Over { word, maybe_billed: false })
}

fn fails(class: Class, message: &str) -> Next {
    let word = LastWord::Failed { class, message: message.to_owned() };
    Next::Step(Step::Over { word, maybe_billed: false })
}
