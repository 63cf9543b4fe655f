//! One answer, piece by piece. It is booked like any other call; what breaks off, or whose reader leaves, may have been billed and
//! stays booked at its ceiling.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, warn};

use super::call::{model_for, never, until_written};
use super::{Ask, Llm, Stop, check};
use crate::cache::CacheMode;
use crate::error::{Class, Error, Result};
use crate::genai;
use crate::ledger::{Event, Spent};
use crate::provider::{RateSignals, ResultStream};
use crate::rate::{Permit, Settled};
use crate::route::Billing;
use crate::types::{Answer, Delta, Request};

impl Llm {
    /// Asks for an answer piece by piece. Answers once it has begun; `stop` ends the wait for that. The model is asked once: what
    /// was told cannot be taken back, so a wrong answer is neither repaired nor asked of another model.
    pub async fn stream(
        &self,
        ask: Ask,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<ResultStream<Delta>> {
        let mut stop: Stop<'_> = Box::pin(stop);
        if ask.cache != CacheMode::Off {
            let key = ask.route.cache_key(&ask.request);
            let known = self.inner.options.cache.get(ask.cache, &key, self.now_ms()).await?;
            // What it says beyond our form is lost in pieces: better asked anew, unless nothing may be asked.
            let is_enough = |answer: &Answer| {
                ask.cache == CacheMode::Only || answer.own.is_none() || !wants_more(&ask.request)
            };
            let is_usable = |answer: &Answer| is_enough(answer) && check::check(&ask, answer).is_ok();
            if let Some(known) = known.filter(|known| is_usable(&known.answer)) {
                self.count(&ask.scopes, Event::Cached);
                return Ok(at_once(known.answer));
            }
        }
        let request = ask.request.with_model(model_for(&ask, &ask.route));
        let Request::Chat(chat) = &request else {
            return Err(Error::new(Class::BadRequest, "vectors do not come in pieces"));
        };
        let mut tries = 0;
        loop {
            let (permit, name) = self.admit(&ask, (&ask.route, &request), (0, tries), &mut stop).await?;
            let span = genai::call_span(ask.route.caps(), &request);
            let open =
                Open { llm: self.clone(), ask: ask.clone(), name: Some(name), permit: Some(permit), span };
            let started = Instant::now();
            let reply = ask.route.provider().stream(chat).instrument(open.span.clone()).await;
            match reply {
                Ok(reply) => {
                    let told = Told { open, deltas: reply.value, rate: reply.rate, started };
                    return Ok(told.into_stream());
                }
                Err(error) => {
                    let alone = open.fail(&error, started.elapsed()).await?;
                    self.goes_on(&ask, &ask.route, error, (tries, alone))?;
                    tries += 1;
                }
            }
        }
    }
}

/// Whether an answer says more than is put together from its pieces: kept without it, it would answer another call wrongly.
fn wants_more(request: &Request) -> bool {
    let Request::Chat(chat) = request else { return false };
    request.choices() > 1
        || ["logprobs", "thinking", "modalities"].iter().any(|name| chat.extra.contains_key(*name))
}

/// An answer that is known already.
fn at_once(answer: Answer) -> ResultStream<Delta> {
    let text = (!answer.text.is_empty()).then(|| Delta::Text(answer.text.clone()));
    let deltas: VecDeque<_> = text.into_iter().chain([Delta::End(answer)]).map(Ok).collect();
    stream::iter(deltas).boxed()
}

/// A call that was booked and may have been sent.
struct Open {
    llm: Llm,
    ask: Ask,
    /// Its name in the ledger, until it is settled there.
    name: Option<String>,
    permit: Option<Permit>,
    span: Span,
}

impl Open {
    /// The whole answer came.
    async fn end(mut self, answer: &Answer, rate: RateSignals, latency: Duration) -> Result<()> {
        let cost = self.ask.route.cost(&answer.usage, Billing::Sync);
        if let Some(permit) = self.permit.take() {
            permit.settle(&Settled::Answered { usage: answer.usage, rate, latency });
        }
        genai::record_answer(&self.span, answer, cost);
        // From here on it is not to be marked as unknown, even if the ledger cannot be written.
        if let Some(name) = self.name.take() {
            let spent = Spent { usage: answer.usage, cost, answers: 1 };
            until_written(&mut never(), || self.llm.ledger().settle(&name, spent)).await?;
        }
        let is_known_whole = !wants_more(&self.ask.request);
        if self.ask.cache != CacheMode::Off && is_known_whole && check::check(&self.ask, answer).is_ok() {
            let key = self.ask.route.cache_key(&self.ask.request);
            let cache = &self.llm.inner.options.cache;
            cache.put(self.ask.cache, &key, answer, self.llm.now_ms()).await;
        }
        Ok(())
    }

    /// It failed, before the first piece or after it. How long it is to wait alone before it is made again.
    async fn fail(mut self, error: &Error, latency: Duration) -> Result<Duration> {
        genai::record_error(&self.span, error);
        let permit = self.permit.take();
        let wait = permit.map(|permit| permit.settle(&Settled::of_error(error, latency)));
        if let Some(name) = self.name.take() {
            self.llm.unbook(&name, &self.ask.route, error).await?;
        }
        Ok(wait.unwrap_or_default())
    }
}

impl Drop for Open {
    /// Nobody waits for it any more: the permit settles itself as sent, the money stays booked.
    fn drop(&mut self) {
        let (Some(name), Ok(runtime)) = (self.name.take(), Handle::try_current()) else { return };
        let llm = self.llm.clone();
        runtime.spawn(async move {
            if let Err(error) = llm.ledger().mark_unknown(&name, llm.now_ms()).await {
                warn!(%error, call = name, "a call that was given up stays open in the ledger");
            }
        });
    }
}

/// An answer that is being told.
struct Told {
    open: Open,
    deltas: ResultStream<Delta>,
    rate: RateSignals,
    started: Instant,
}

impl Told {
    /// Ends after the whole answer or the first error. Each is booked before it is passed on.
    fn into_stream(self) -> ResultStream<Delta> {
        stream::unfold(Some(self), |told| async {
            let mut told: Self = told?;
            let error = match told.deltas.next().await {
                Some(Ok(piece @ (Delta::Text(_) | Delta::Own { .. }))) => {
                    return Some((Ok(piece), Some(told)));
                }
                Some(Ok(Delta::End(answer))) => {
                    let ended = told.open.end(&answer, told.rate, told.started.elapsed()).await;
                    return Some((ended.map(|()| Delta::End(answer)), None));
                }
                Some(Err(error)) => error.maybe_billed(),
                None => broken_off(),
            };
            let booked = told.open.fail(&error, told.started.elapsed()).await;
            Some((Err(booked.err().unwrap_or(error)), None))
        })
        .boxed()
    }
}

fn broken_off() -> Error {
    Error::new(Class::Network, "the stream ended before the answer was whole").maybe_billed()
}
