//! One prompt, from its claim to its answer. The handler judges what the model said; it never touches job state.

use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::ledger::Event;
use longhaul_llm::rate::Urgency;
use longhaul_llm::types::Dialect;
use longhaul_llm::wire::openai::{self, VectorForm};
use longhaul_llm::wire::{anthropic, gemini};
use longhaul_llm::{
    Answer, Answered, Ask, Billing, Call, ChatRequest, Class, Endpoint, Message, NanoUsd, Request, Role,
    Route, Stop,
};
use longhaul_pipeline::Hold;
use longhaul_queue::job::Wake;
use longhaul_queue::limits::Limits;
use longhaul_queue::retry::{Backoff, RetryPolicy};
use longhaul_queue::state::{JobError, Park, Reason};
use longhaul_queue::{JobContext, Json, KindOptions, Outcome, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::debug;

use super::hold::{self, Holding};
use super::{LiveRun, Prompts, Result, RunId, RunSettings};

/// The kind.
pub const KIND: &str = "llm.request";

/// Tries after an overloaded provider or a lost connection, counted apart, while others are answered. In an outage nobody is,
/// and no try is counted.
const OVERLOAD_TRIES_MAX: u32 = 8;
const NETWORK_TRIES_MAX: u32 = 6;
/// How long a request may be sent and not be answered before it is taken for the cause: the last requests of a run have nobody
/// beside them whose answer would show that the provider lives. Longer than any outage of a large provider so far.
const UNANSWERED_FOR_MAX: Duration = Duration::from_secs(24 * 3600);
/// Hard time for one run. A call has limits of its own; what can take longer is an answer in hand that waits for room on
/// a full disk, and it is worth waiting for.
const RUN_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Waits between them.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_CAP: Duration = Duration::from_secs(60);

/// What a request job is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestPayload {
    /// The run it belongs to.
    pub run: String,
    /// The caller's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_id: Option<String>,
    /// What is asked; what it lacks comes from the run.
    pub body: Value,
    /// In whose words.
    #[serde(default, skip_serializing_if = "Dialect::is_openai")]
    pub dialect: Dialect,
    /// Why it cannot be asked at all, where that was seen when it was handed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// In batch mode, the chunk it is sent with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
}

impl RequestPayload {
    /// The whole request, if it can be asked of the run's model.
    pub(super) fn request(&self, live: &LiveRun) -> longhaul_llm::Result<Request> {
        if let Some(why) = &self.refused {
            return Err(longhaul_llm::Error::new(Class::BadRequest, why.clone()).with_status(400));
        }
        let request = compose(self.body.clone(), self.dialect, &live.settings)?;
        live.route.caps().check(&request, self.batch.is_some())?;
        Ok(request)
    }
}

/// What a request job answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestResult {
    /// The caller's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_id: Option<String>,
    /// What the model said.
    #[serde(flatten)]
    pub answer: Answer,
    /// The answer as JSON, checked against the schema, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// How the caller wants vectors written.
    #[serde(default, skip_serializing_if = "is_float")]
    pub encoding_format: VectorForm,
    /// What it cost; absent when the model has no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<NanoUsd>,
    /// It came from the response cache and cost nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// Its model is a simulator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// What a batch tells a request that waits for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// The model's answer, and what it cost.
    Answer {
        /// The answer.
        answer: Box<Answer>,
        /// Its cost.
        cost_usd: Option<NanoUsd>,
    },
    /// The provider could not run it.
    Failed {
        /// By class.
        class: Class,
        /// Why.
        message: String,
    },
    /// Ask on your own.
    Sync,
}

/// Where a request stands between its runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Tries {
    overloaded: u32,
    network: u32,
    /// Connections in a row that could not be made.
    unreachable: u32,
    /// When it was first sent in an outage and not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    unanswered_since: Option<Timestamp>,
    /// The batch has let go of it.
    alone: bool,
    /// A paid answer of the wrong shape, whose repair was interrupted: it is not asked for again.
    #[serde(skip_serializing_if = "Option::is_none")]
    said: Option<Said>,
}

/// An answer and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Said {
    answer: Box<Answer>,
    cost_usd: Option<NanoUsd>,
}

/// Limits of the kind. Each class of errors has its own budget here, so the queue's own is out of the way.
pub(super) fn options() -> KindOptions {
    KindOptions {
        max_attempts: OVERLOAD_TRIES_MAX + NETWORK_TRIES_MAX + 3,
        max_throttles: 10_000,
        retry: RetryPolicy {
            backoff: Backoff::Exponential { base: RETRY_BASE },
            cap: RETRY_CAP,
            jitter: true,
        },
        run_limit: RUN_LIMIT,
        ..KindOptions::default()
    }
}

/// Runs one request.
pub(super) async fn run(prompts: Prompts, context: JobContext, payload: RequestPayload) -> Result<Outcome> {
    let mut tries: Tries = context.data()?.unwrap_or_default();
    if context.attempt() == 0 {
        // It has not failed yet, or was put back by hand since.
        (tries.overloaded, tries.network) = (0, 0);
    }
    let live = prompts.live(&RunId::named(&payload.run)).await?;
    let request = match payload.request(&live) {
        Ok(request) => request,
        Err(error) => return Ok(fail_with(&error)),
    };
    if let (Some(chunk), false) = (payload.batch, tries.alone) {
        match told(&context)? {
            // It has waited before, and was put back by hand: its batch is over.
            None if context.job().spent.parks > 0 => {}
            None => return Ok(wait_for_batch(&live.id, chunk)),
            Some(Told::Failed { class, message }) => return Ok(fail(class, &message)),
            Some(Told::Sync) => {}
            Some(Told::Answer { answer, cost_usd }) => tries.said = Some(Said { answer, cost_usd }),
        }
        tries.alone = true;
    }
    hold::passed(&context, &live);
    let route = prompts.route_of(&live, request.model()).await?;
    let ask = ask(&context, &live, (route.clone(), request));
    // It gives up only while it waits its turn: what has been sent is paid for, and its answer is kept.
    let stop = context.cancelled();
    let answered = match tries.said.take() {
        Some(Said { answer, cost_usd }) => prompts.llm().judge(ask, *answer, cost_usd, stop).await,
        None => prompts.llm().ask(ask, stop).await,
    };
    if answered.as_ref().is_ok_and(|answered| !answered.cached) {
        hold::outage_ended(&prompts, &live).await?;
    }
    outcome(&context, &payload, (&live, &prompts, &route), tries, answered)
}

fn told(context: &JobContext) -> Result<Option<Told>> {
    match context.wake() {
        Some(Wake::Signal(value)) => Ok(Some(value.to()?)),
        Some(Wake::TimedOut) | None => Ok(None),
    }
}

/// What requests of a chunk wait for.
pub(super) fn batch_key(run: &RunId, chunk: u64) -> String {
    format!("{run}/batch-{chunk}")
}

fn wait_for_batch(run: &RunId, chunk: u64) -> Outcome {
    let park = Park { key: batch_key(run, chunk), until: None, on_timeout: Default::default() };
    Outcome::Park { park, data: None }
}

/// The whole request: the body over the run's defaults.
pub fn compose(mut body: Value, dialect: Dialect, settings: &RunSettings) -> longhaul_llm::Result<Request> {
    if let Value::Object(fields) = &mut body {
        for (name, value) in settings.defaults.iter().filter(|(name, _)| *name != "system") {
            fields.entry(name.clone()).or_insert_with(|| value.clone());
        }
        fields.entry("model").or_insert_with(|| Value::from(settings.model.clone()));
    }
    match settings.endpoint {
        Endpoint::Chat => compose_chat(body, dialect, settings).map(Request::Chat),
        Endpoint::Embeddings => Ok(Request::Embed(openai::embed_request_from_json(body)?.0)),
    }
}

fn compose_chat(body: Value, dialect: Dialect, settings: &RunSettings) -> longhaul_llm::Result<ChatRequest> {
    let mut request = match dialect {
        Dialect::OpenAi => openai::request_from_json(body)?,
        Dialect::Anthropic => anthropic::request_from_json(body)?,
        Dialect::Gemini => gemini::request_from_json(&settings.model, body)?,
    };
    let has_system = request.messages.iter().any(|message| message.role == Role::System);
    if let (Some(Value::String(system)), false) = (settings.defaults.get("system"), has_system) {
        request.messages.insert(0, Message::text(Role::System, system.clone()));
    }
    if let (Some(schema), None) = (&settings.schema, &request.schema) {
        request.schema = Some(longhaul_llm::types::OutputSchema {
            name: "answer".to_owned(),
            schema: schema.clone(),
            strict: true,
        });
    }
    Ok(request)
}

fn ask(context: &JobContext, live: &Arc<LiveRun>, (route, request): (Route, Request)) -> Ask {
    Ask {
        route,
        fallback: live.fallback.clone(),
        request,
        schema: live.schema.clone(),
        cache: live.settings.cache,
        call: Call { job: context.id().to_string(), fence: context.fence() },
        scopes: hold::scopes(&live.id, &live.settings),
        run: live.id.as_str().into(),
        urgency: Urgency::Bulk,
    }
}

/// What the handler answers, by how the call went.
fn outcome(
    context: &JobContext,
    payload: &RequestPayload,
    (live, prompts, route): (&LiveRun, &Prompts, &Route),
    mut tries: Tries,
    answered: longhaul_llm::Result<Answered>,
) -> Result<Outcome> {
    let error = match answered {
        Ok(answered) => return done(context, result(payload, route, answered), prompts.queue().limits()),
        Err(error) => error,
    };
    debug!(class = %error.class, status = error.status, "request not answered");
    let cost = |answer: &Answer| route.cost(&answer.usage, Billing::Sync);
    tries.said = error.answer.clone().map(|answer| Said { cost_usd: cost(&answer), answer });
    let retry = |reason, after, tries: &Tries| {
        let error = JobError::new(reason, &error);
        Ok(Outcome::Retry { error, after, data: Some(Json::of(tries)?) })
    };
    let count_retry = || {
        for scope in hold::scopes(&live.id, &live.settings) {
            prompts.llm().ledger().count(&scope, Event::Retried);
        }
    };
    let holding = Holding { prompts, live, context };
    if let Some(probe_in) = error.outage {
        let now = prompts.queue().clock().now();
        if error.class != Class::Unreachable {
            let since = *tries.unanswered_since.get_or_insert(now);
            if now.since(since) >= UNANSWERED_FOR_MAX {
                return Ok(fail_with(&error));
            }
        }
        count_retry();
        return holding.hold_in_outage(probe_in, &error.to_string(), &tries);
    }
    tries.unanswered_since = None;
    match error.class {
        Class::Throttled => retry(Reason::Throttle, error.retry_after, &tries),
        Class::Overloaded if tries.overloaded < OVERLOAD_TRIES_MAX => {
            tries.overloaded += 1;
            count_retry();
            retry(Reason::Failure, error.retry_after, &tries)
        }
        Class::Network if tries.network < NETWORK_TRIES_MAX => {
            tries.network += 1;
            count_retry();
            retry(Reason::Failure, None, &tries)
        }
        Class::Unreachable => {
            count_retry();
            let after = RETRY_BASE.saturating_mul(1 << tries.unreachable.min(8)).min(RETRY_CAP);
            tries.unreachable += 1;
            Ok(Outcome::Continue { after: Some(after), data: Some(Json::of(&tries)?) })
        }
        Class::Stopped => Ok(Outcome::Continue { after: None, data: Some(Json::of(&tries)?) }),
        Class::Budget => holding.hold(Hold::Budget, &error.message, &tries),
        Class::Auth => holding.hold(Hold::Auth, &error.message, &tries),
        Class::Quota => holding.hold(Hold::Quota, &error.message, &tries),
        Class::Overloaded
        | Class::Network
        | Class::ContextTooLong
        | Class::Truncated
        | Class::Refused
        | Class::BadShape
        | Class::BadRequest
        | Class::CacheMiss => Ok(fail_with(&error)),
    }
}

/// The end of a request that was answered.
fn done(context: &JobContext, mut result: RequestResult, limits: Limits) -> Result<Outcome> {
    context.usage(&result.answer.usage)?;
    let mut stored = Json::of(&result)?;
    if too_large(&stored, limits).is_some() && result.answer.own.take().is_some() {
        // The answer itself is worth more than what the provider said beside it.
        context.log("kept without the provider's further fields: with them the answer is too long");
        stored = Json::of(&result)?;
    }
    Ok(match too_large(&stored, limits) {
        Some(message) => fail(Class::BadRequest, &message),
        None => Outcome::Done(stored),
    })
}

fn result(payload: &RequestPayload, route: &Route, answered: Answered) -> RequestResult {
    RequestResult {
        custom_id: payload.custom_id.clone(),
        answer: answered.answer,
        json: answered.json,
        encoding_format: encoding_format(&payload.body),
        cost_usd: answered.cost,
        cached: answered.cached,
        simulated: route.is_simulated(),
    }
}

/// Why an answer cannot be kept, if it is too large. It is paid for, so it is not asked for again.
pub(super) fn too_large(value: &Json, limits: Limits) -> Option<String> {
    let (bytes, most) = (value.len(), limits.value_bytes_max);
    (bytes > most)
        .then(|| format!("the answer has {bytes} bytes, and {most} can be kept; ask for less in one request"))
}

/// How vectors are to be written. Models are always asked for the same form, so that it is no part of a cached answer.
fn encoding_format(body: &Value) -> VectorForm {
    match body["encoding_format"].as_str() {
        Some("base64") => VectorForm::Base64,
        _ => VectorForm::Float,
    }
}

fn is_float(form: &VectorForm) -> bool {
    *form == VectorForm::Float
}

fn fail_with(error: &longhaul_llm::Error) -> Outcome {
    Outcome::Fail(JobError::new(Reason::Failure, error))
}

fn fail(class: Class, message: &str) -> Outcome {
    fail_with(&longhaul_llm::Error::new(class, message))
}

/// Whether an answer was cut off; it is kept, and counted.
pub fn is_cut_off(result: &RequestResult) -> bool {
    result.answer.stop == Stop::Length
}
