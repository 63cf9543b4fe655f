//! A batch that its provider has forgotten, does not take, or does not answer about: waited for, but not for ever without a
//! person's knowledge.

use std::time::Duration;

use longhaul_llm::{Class, Error as LlmError};
use longhaul_pipeline::Hold;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{OnTimeout, Park};
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Json, State, Timestamp};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::super::Result;
use super::{BatchTold, Ending, KIND, Kept, LastWord, Life, Next, Step, sending, unsent};

/// How long, and how often at least, a provider must have said that there is no such batch before that is believed. A
/// list or a cache of its own may lag behind.
const MISSING_AFTER: Duration = Duration::from_secs(10 * 60);
const MISSING_LOOKS_MIN: u32 = 5;
/// Waits before a batch is sent again that did not fit into the provider's queue: the first, doubled up to the last.
const REFUSED_WAIT_FIRST: Duration = Duration::from_secs(60);
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(30 * 60);
/// Refusals in a row before the run is held, where no batch of ours is in that queue: about an hour and a half.
pub const REFUSALS_MAX: u32 = 8;
/// Waits between calls that are not answered: the first, doubled up to the last.
const UNANSWERED_WAIT_FIRST: Duration = Duration::from_secs(5);
const UNANSWERED_WAIT_MAX: Duration = Duration::from_secs(60);
/// A single call may fail by chance: this many in a row are an outage. Without a connection one is enough.
const UNANSWERED_MIN: u32 = 2;

/// A batch that the provider does not know any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// When it said so first.
    pub since: Timestamp,
    /// How often it said so.
    pub looks: u32,
}

/// What a batch job remembers beside its step: that the provider did not take it, or does not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// How often in a row.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refusals: u32,
    /// How often in a row while no other batch of ours took up room there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub alone: u32,
    /// What the provider said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Calls in a row that were not answered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unanswered: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What is stored of a batch job.
#[derive(Serialize)]
pub(super) struct Stored<'a> {
    #[serde(flatten)]
    pub(super) step: &'a Step,
    #[serde(flatten)]
    pub(super) refused: &'a Refused,
    #[serde(flatten)]
    pub(super) kept: Kept,
}

impl Life<'_> {
    /// The provider says that there is no such batch, or no results of it.
    pub(super) fn missing(&self, step: &Step) -> Result<Next> {
        let mut step = step.clone();
        let (ending, missing) = match &mut step {
            Step::Submitted { ending, missing, .. } | Step::Ended { ending, missing, .. } => {
                (*ending, missing)
            }
            _ => return Ok(Next::Step(step)),
        };
        let (since, looks) = missing.map_or((self.now(), 1), |missing| (missing.since, missing.looks + 1));
        *missing = Some(Missing { since, looks });
        let long = MISSING_AFTER.mul_f64(self.prompts.llm().poll_scale());
        if looks < MISSING_LOOKS_MIN || self.now().since(since) < long {
            return self.wait(&step, self.poll_wait(looks));
        }
        match (ending, &step) {
            // Nobody waits for it; that it may have run is in the ledger.
            (Some(Ending::Cancel), _) => {
                Ok(Next::Step(Step::Over { word: LastWord::Cancelled, maybe_billed: true }))
            }
            (_, Step::Ended { .. }) => self.ambiguous(
                &step,
                "the provider no longer has the results of this batch, which it has run and may have billed",
            ),
            (Some(Ending::Deadline) | None, _) => self.ambiguous(
                &step,
                "the provider no longer knows this batch, which may have been run and billed",
            ),
        }
    }

    /// What a person decided about a batch that the provider has forgotten, or says nothing of.
    pub(super) fn decided(&self, step: &Step, told: Option<BatchTold>) -> Option<Next> {
        let mut again = step.clone();
        let (Step::Submitted { missing, .. } | Step::Ended { missing, .. }) = &mut again else { return None };
        let forgotten = missing.take().is_some();
        match told? {
            BatchTold::Resubmit => Some(Next::Step(Step::Prepare)),
            BatchTold::Alone => Some(Next::Step(Step::Over { word: LastWord::Alone, maybe_billed: true })),
            BatchTold::Drop => Some(sending::given_up("the provider no longer knows it")),
            BatchTold::Wait if forgotten => Some(Next::Step(again)),
            BatchTold::Wait | BatchTold::Cancel => None,
        }
    }

    /// The provider does not answer: looked at again and again, and an outage when it goes on.
    pub(super) fn not_answered(&self, step: &Step, error: &LlmError) -> Result<Next> {
        self.context.log(error.to_string());
        let unanswered = self.unanswered + 1;
        let wait =
            UNANSWERED_WAIT_FIRST.saturating_mul(1 << self.unanswered.min(16)).min(UNANSWERED_WAIT_MAX);
        let wait = error.retry_after.unwrap_or(wait.mul_f64(self.prompts.llm().poll_scale()));
        let refused = Refused { unanswered, ..self.refused.clone() };
        let stored = Stored { step, refused: &refused, kept: self.kept };
        if unanswered < UNANSWERED_MIN && error.class != Class::Unreachable {
            return Ok(Next::Wait(self.park(Json::of(&stored)?, wait)));
        }
        Ok(Next::Wait(self.holding().hold_in_outage(wait, &error.to_string(), &stored)?))
    }

    /// The end of a batch whose requests are to be sent one by one, since the provider does not take it.
    pub(super) fn one_by_one(&self) -> Next {
        let why = self.refused.refused.clone().unwrap_or_else(|| "a user decided so".to_owned());
        Next::Step(Step::Over { word: LastWord::Refused { why }, maybe_billed: false })
    }

    /// The end of a batch that was never taken and is given up.
    pub(super) fn given_back(&self) -> Next {
        let why = self.refused.refused.as_deref().unwrap_or("the provider refused it");
        let message = format!("its batch was given up: {why}");
        let word = LastWord::Failed { class: Class::BadRequest, message };
        Next::Step(Step::Over { word, maybe_billed: false })
    }

    /// A batch that the provider refused for its size, or for all that waits there: nothing was run. Sent again later, as
    /// long as batches of ours under way may make room; then a person decides, since one by one costs twice as much.
    pub(super) async fn too_large(&self, why: &str, ending: Option<Ending>) -> Result<Next> {
        if ending.is_some() {
            return Ok(unsent(ending));
        }
        let refusals = self.refused.refusals + 1;
        let alone = if self.others_under_way().await? { 0 } else { self.refused.alone + 1 };
        let refused = Refused { refusals, alone, refused: Some(why.to_owned()), unanswered: 0 };
        if alone >= REFUSALS_MAX {
            warn!(why, refusals, "the provider refuses a batch, the run is held");
            // A resume means sending it again, with a fresh count of refusals.
            let anew = Refused { refusals: 0, alone: 0, ..refused };
            let stored = Stored { step: &Step::Prepare, refused: &anew, kept: self.kept };
            let text = format!(
                "the provider refused a batch of {} requests {refusals} times: {why}",
                self.payload.len()
            );
            // A deadline still takes its requests out.
            let key = Hold::BatchLimit.key(&self.live.id);
            let until = self.live.settings.switch_at;
            let park = Park { key, until, on_timeout: OnTimeout::Resume };
            return Ok(Next::Wait(self.holding().hold_at(Hold::BatchLimit, park, &text, &stored)?));
        }
        let wait = REFUSED_WAIT_FIRST.saturating_mul(1 << (refusals - 1).min(16)).min(REFUSED_WAIT_MAX);
        let data = Json::of(&Stored { step: &Step::Prepare, refused: &refused, kept: self.kept })?;
        Ok(Next::Wait(self.park(data, wait.mul_f64(self.prompts.llm().poll_scale()))))
    }

    /// Whether other batches of this store are at a provider.
    async fn others_under_way(&self) -> Result<bool> {
        let states = State::ALL.into_iter().filter(|state| !state.is_terminal()).collect();
        let filter = Filter { states, kind: Some(KIND.to_owned()), ..Filter::default() };
        let newest = ListRequest { filter, newest_first: true, cursor: None, limit: PAGE_MAX };
        let jobs = self.prompts.queue().list(newest).await?.items;
        let others = jobs.iter().map(|job| job.id).filter(|id| *id != self.context.id()).collect();
        let details = self.prompts.queue().store().get(others).await?;
        let is_there = |step: Step| match step {
            // One that was not looked at yet may be refused as well: many that are each too large must not wait for each
            // other.
            // One that the provider has forgotten takes up no room.
            Step::Submitted { polls, missing, .. } => polls > 0 && missing.is_none(),
            Step::Ended { .. } => true,
            Step::Prepare | Step::Uploaded { .. } | Step::Submitting { .. } | Step::Over { .. } => false,
        };
        Ok(details.iter().filter_map(|detail| detail.data.as_ref()?.to().ok()).any(is_there))
    }
}
