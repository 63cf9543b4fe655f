//! From a request of a client to a call of a model: who asks, which model is meant, and how the answer is waited for. Calls are made
//! by tasks of their own: a client that hangs up ends the wait for a turn, but a call that was sent is always booked.

use std::time::Duration;

use axum::http::StatusCode;
use futures_util::StreamExt as _;
use longhaul_llm::cache::CacheMode;
use longhaul_llm::rate::Urgency;
use longhaul_llm::types::{Delta, Request};
use longhaul_llm::{Answer, Ask, Call, Class, Error, Llm, Route, Scope};
use longhaul_pipeline::json_check;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument as _;

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::router::RequestId;

/// Chooses the use of the response cache: `auto`, `only` or `off`.
const CACHE_HEADER: &str = "x-longhaul-cache";
/// Under this tag all calls of clients are counted.
const SPENDING_TAG: &str = "http";
/// How long a call may wait for its turn before its client is told to come back.
const TURN_WAIT_MAX: Duration = Duration::from_secs(120);
/// When to come back then.
const TURN_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Pieces of an answer that are read ahead of a slow client.
const PIECES_AHEAD: usize = 256;

/// Pieces of an answer that has begun.
pub(super) type Pieces = mpsc::Receiver<longhaul_llm::Result<Delta>>;

/// Who sent a request, and how it wants to be answered.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    /// Names the request, and its call in the ledger.
    id: String,
    /// The name of its token.
    caller: Option<String>,
    cache: CacheMode,
}

impl Sender {
    /// Names what is made of the request, behind a prefix of its API.
    pub(super) fn name(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.id.trim_start_matches("req_"))
    }
}

/// Reads a request: who sent it, and its JSON.
pub(super) async fn read(ctx: &Ctx, request: axum::extract::Request) -> Result<(Sender, Value), Problem> {
    let (head, body) = request.into_parts();
    let cache = match head.headers.get(CACHE_HEADER).map(|value| value.to_str().unwrap_or_default()) {
        Some(mode) => mode.parse().map_err(|error| Problem::invalid(error).at(CACHE_HEADER))?,
        // A person who asks again wants another answer.
        None => CacheMode::Off,
    };
    let id = head.extensions.get::<RequestId>().map(ToString::to_string).unwrap_or_default();
    let caller = head.extensions.get::<Caller>().and_then(|caller| caller.name.clone());
    let bytes_max = ctx.options.json_bytes_max;
    let bytes = ctx.bodies.read(body, bytes_max).await.map_err(|unread| unread.problem(bytes_max))?;
    let body = json_check::check(&bytes)
        .and_then(|()| serde_json::from_slice(&bytes))
        .map_err(|error| Problem::invalid(format!("the body is no JSON: {error}")))?;
    Ok((Sender { id, caller, cache }, body))
}

/// A call of the model that a request names.
pub(super) async fn prepare(ctx: &Ctx, sender: &Sender, request: impl Into<Request>) -> Result<Ask, Problem> {
    let request = request.into();
    let chosen = ctx.catalog.resolve(request.model())?;
    let route = ctx.llm().route(&chosen.profile, &chosen.model).await?;
    let mut request = request.with_model(chosen.model);
    if let Request::Chat(chat) = &mut request {
        // Said by the call, not by the request.
        chat.extra.retain(|name, _| name != "stream" && name != "stream_options");
    }
    route.caps().check(&request, false)?;
    if sender.cache == CacheMode::Off {
        check_pause(&route)?;
    }
    let run = match &sender.caller {
        Some(name) => format!("{SPENDING_TAG}:{name}"),
        None => SPENDING_TAG.to_owned(),
    };
    Ok(Ask {
        route,
        fallback: None,
        request,
        // The client asked for a form and gets what the model said: it checks for itself.
        schema: None,
        cache: sender.cache,
        call: Call { job: format!("{SPENDING_TAG}-{}", sender.id), fence: 0 },
        scopes: vec![Scope::tag(SPENDING_TAG)],
        run: run.into(),
        urgency: Urgency::Interactive,
    })
}

/// A provider that wants to be left alone for longer than a client would wait: better told now than then.
fn check_pause(route: &Route) -> Result<(), Problem> {
    match route.controller().stats().paused_for.filter(|pause| *pause > TURN_WAIT_MAX) {
        Some(pause) => {
            let text = format!("the provider said 429 and asks for a pause of {} s", pause.as_secs());
            Err(Problem {
                retry_after: Some(pause),
                ..Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", text)
            })
        }
        None => Ok(()),
    }
}

/// The whole answer. What the model declined is an answer too.
pub(super) async fn whole(ctx: &Ctx, ask: Ask) -> Result<Answer, Problem> {
    let (_here, gone) = oneshot::channel();
    let llm = ctx.llm().clone();
    let asking = async move { llm.ask(ask, given_up(gone)).await };
    match tokio::spawn(asking.in_current_span()).await.map_err(Problem::internal)? {
        Ok(answered) => Ok(answered.answer),
        Err(Error { class: Class::Refused, answer: Some(answer), .. }) => Ok(*answer),
        Err(error) => Err(problem_of(error)),
    }
}

/// The answer piece by piece, once it has begun: until then a problem is still an answer of its own.
pub(super) async fn pieces(ctx: &Ctx, ask: Ask) -> Result<Pieces, Problem> {
    let (_here, gone) = oneshot::channel();
    let (begun, beginning) = oneshot::channel();
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let telling = tell(ctx.llm().clone(), ask, gone, begun, sender);
    tokio::spawn(telling.in_current_span());
    beginning.await.map_err(Problem::internal)?.map_err(problem_of)?;
    Ok(pieces)
}

async fn tell(
    llm: Llm,
    ask: Ask,
    gone: oneshot::Receiver<()>,
    begun: oneshot::Sender<longhaul_llm::Result<()>>,
    sender: mpsc::Sender<longhaul_llm::Result<Delta>>,
) {
    let (mut pieces, begin) = match llm.stream(ask, given_up(gone)).await {
        Ok(pieces) => (pieces, Ok(())),
        Err(error) => return drop(begun.send(Err(error))),
    };
    if begun.send(begin).is_err() {
        return;
    }
    // Dropping the pieces books them as they stand.
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            () = sender.closed() => return,
        };
        let Some(piece) = piece else { return };
        if sender.send(piece).await.is_err() {
            return;
        }
    }
}

/// Comes true when the client is gone, or has waited for too long.
async fn given_up(gone: oneshot::Receiver<()>) {
    let _ = tokio::time::timeout(TURN_WAIT_MAX, gone).await;
}

/// What a client is told of a call that failed.
pub(super) fn problem_of(error: Error) -> Problem {
    if error.class == Class::Stopped {
        let text = format!(
            "the model had no free turn within {} s: its rate limit is used up",
            TURN_WAIT_MAX.as_secs()
        );
        return Problem {
            retry_after: Some(TURN_AGAIN_AFTER),
            ..Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", text)
        };
    }
    error.into()
}

/// The time that answers are dated with, in seconds since the epoch.
pub(super) fn now_s(ctx: &Ctx) -> i64 {
    ctx.queue().clock().now().as_millis() / 1000
}
