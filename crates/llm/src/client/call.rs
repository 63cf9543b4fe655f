//! One conversation with a model: calls until an answer is usable. Money is booked before each call, and a call whose
//! end is unknown stays booked.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::{Answered, Ask, Llm, Stop, check};
use crate::error::{Class, Error, Result};
use crate::file::FileResult;
use crate::genai;
use crate::ledger::{Event, LedgerError, OverBudget, Reservation, Reserved, Scope, Spent};
use crate::money::NanoUsd;
use crate::rate::{self, Permit, Settled, Urgency};
use crate::repair;
use crate::route::{Billing, Route};
use crate::tokens;
use crate::types::{Answer, Request, Usage};

/// Times that a model is asked again because its answer had the wrong shape.
const REASKS_MAX: u32 = 2;
/// 429s that are waited out here, in the model's own queue; more of them are the caller's to wait for.
const THROTTLES_MAX: u32 = 20;
/// A longer wait is not spent here either.
const THROTTLE_WAIT_MAX: Duration = Duration::from_secs(60);
/// How often to look whether calls under way have left room in a budget.
const BUDGET_WAIT: Duration = Duration::from_millis(100);
/// How often to try a file that cannot be written.
const FILE_WAIT: Duration = Duration::from_millis(500);
/// How often to look before the wait is left to the caller.
const BUDGET_LOOKS_MAX: u32 = 300;

/// An answer and what it cost.
type Paid = (Answer, Option<NanoUsd>);

/// What a conversation has used so far.
#[derive(Default)]
struct Bill {
    usage: Usage,
    cost: Option<NanoUsd>,
    calls: u32,
}

impl Bill {
    fn add(&mut self, answer: &Answer, cost: Option<NanoUsd>) {
        self.usage += answer.usage;
        // One call without a price leaves the whole without one.
        self.cost = match (self.calls, self.cost, cost) {
            (0, _, cost) => cost,
            (_, Some(sum), Some(cost)) => Some(sum.saturating_add(cost)),
            _ => None,
        };
        self.calls += 1;
    }
}

impl Llm {
    /// Asks, asks again with what was wrong, then asks the other model, if there is one.
    pub(super) async fn converse(
        &self,
        ask: &Ask,
        first: Option<Paid>,
        stop: &mut Stop<'_>,
    ) -> Result<Answered> {
        let mut bill = Bill::default();
        let mut first = first;
        let mut last = None;
        for route in std::iter::once(&ask.route).chain(&ask.fallback) {
            let mut request = ask.request.with_model(model_for(ask, route));
            for _ in 0..=REASKS_MAX {
                let (answer, cost) = match first.take() {
                    Some(paid) => paid,
                    None => match self.call(ask, route, &request, bill.calls, stop).await {
                        Ok(paid) => paid,
                        Err(error) if error.class == Class::ContextTooLong => {
                            last = Some(error);
                            break;
                        }
                        Err(mut error) => {
                            // What was paid for and can be repaired is not to be asked for again.
                            error.answer = error.answer.or_else(|| last.take().and_then(wrong_shape));
                            return Err(error);
                        }
                    },
                };
                bill.add(&answer, cost);
                match check::check(ask, &answer) {
                    Ok(json) => {
                        let answer = Answer { usage: bill.usage, ..answer };
                        return Ok(Answered {
                            answer,
                            json,
                            cost: bill.cost,
                            cached: false,
                            calls: bill.calls,
                        });
                    }
                    Err(error) if error.class == Class::BadShape => {
                        self.count(&ask.scopes, Event::Repaired);
                        if let Request::Chat(chat) = &request {
                            request = repair::reask(chat, &answer.text, &error.message).into();
                        }
                        last = Some(error.with_answer(answer));
                    }
                    Err(error) => {
                        last = Some(error.with_answer(answer));
                        break;
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::new(Class::BadShape, "no model was asked")))
    }

    /// One paid call, with the waits for its turn.
    async fn call(
        &self,
        ask: &Ask,
        route: &Route,
        request: &Request,
        number: u32,
        stop: &mut Stop<'_>,
    ) -> Result<Paid> {
        let mut tries = 0;
        loop {
            let (permit, name) = self.admit(ask, (route, request), (number, tries), stop).await?;
            let span = genai::call_span(route.caps(), request);
            let started = Instant::now();
            let reply = route.call(request).instrument(span.clone()).await;
            let error = match reply {
                Ok(reply) => {
                    let (answer, latency) = (reply.value, started.elapsed());
                    let cost = route.cost(&answer.usage, Billing::Sync);
                    permit.settle(&Settled::Answered { usage: answer.usage, rate: reply.rate, latency });
                    genai::record_answer(&span, &answer, cost);
                    drop(span); // The call is over; booking it is no part of it.
                    let spent = Spent { usage: answer.usage, cost, answers: 1 };
                    until_written(&mut never(), || self.ledger().settle(&name, spent)).await?;
                    self.save_learnt_sometimes().await;
                    return Ok((answer, cost));
                }
                Err(error) => error,
            };
            genai::record_error(&span, &error);
            drop(span);
            let wait = permit.settle(&Settled::of_error(&error, started.elapsed()));
            let error = in_outage(error, route);
            self.unbook(&name, route, &error).await?;
            self.goes_on(ask, route, error, (tries, wait))?;
            tries += 1;
        }
    }

    /// Waits for a call's turn and books it: leave to send it, and its name in the ledger.
    pub(super) async fn admit(
        &self,
        ask: &Ask,
        (route, request): (&Route, &Request),
        (number, tries): (u32, u32),
        stop: &mut Stop<'_>,
    ) -> Result<(Permit, String)> {
        if ask.urgency == Urgency::Interactive {
            route.reopen();
            not_in_outage(route)?;
        }
        let turn = rate::Ask {
            max_tokens: request
                .max_tokens()
                .map(|most| most.saturating_mul(u32::try_from(request.choices()).unwrap_or(u32::MAX))),
            refusals: tries,
            urgency: ask.urgency,
            ..rate::Ask::new(ask.run.clone(), tokens::estimate(request, 1.0))
        };
        let permit = until_stopped(stop, route.controller().acquire(turn)).await??;
        let permit = self.find_out(route, permit, stop).await?;
        let name = format!("{}.{tries}", ask.call.name(number));
        if let Err(error) = self.reserve(ask, route, request, &name, stop).await {
            permit.settle(&Settled::Failed { sent: false });
            return Err(error);
        }
        Ok((permit, name))
    }

    /// In an outage, asks for the models first: that is free and answered at once, so that the call that finds out whether the
    /// outage is over is not one that hangs for ten minutes and may have been billed.
    async fn find_out(&self, route: &Route, permit: Permit, stop: &mut Stop<'_>) -> Result<Permit> {
        if !permit.is_probe() {
            return Ok(permit);
        }
        let started = Instant::now();
        match until_stopped(stop, route.ping()).await? {
            Err(error) if error.class.is_no_answer() => {
                permit.settle(&Settled::of_error(&error, started.elapsed()));
                Err(in_outage(error, route))
            }
            // Any other error is an answer: the provider is up.
            Ok(()) | Err(_) => Ok(permit),
        }
    }

    /// Whether a call that failed is made again here: only one that was refused with a 429, and only where its whole route
    /// waits. One that is to wait alone goes back to its caller, so that another job can use its place meanwhile; and so
    /// does one for which a person waits.
    pub(super) fn goes_on(
        &self,
        ask: &Ask,
        route: &Route,
        error: Error,
        (tries, alone): (u32, Duration),
    ) -> Result<()> {
        match error.class {
            Class::Throttled => {
                self.count(&ask.scopes, Event::Throttled);
                let short = error.retry_after.is_none_or(|wait| wait <= THROTTLE_WAIT_MAX);
                let watched = ask.urgency == Urgency::Interactive;
                if alone.is_zero() && short && !watched && tries < THROTTLES_MAX {
                    Ok(())
                } else {
                    Err(error)
                }
            }
            Class::Auth | Class::Quota => {
                route.controller().close(&error);
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// Books a call at its ceiling. Where only calls under way stand in the way, waits for them; and for a file that
    /// cannot be written, since what is not booked is not sent.
    async fn reserve(
        &self,
        ask: &Ask,
        route: &Route,
        request: &Request,
        name: &str,
        stop: &mut Stop<'_>,
    ) -> Result<()> {
        let reservation = Reservation {
            call: name.to_owned(),
            job: ask.call.job.clone(),
            fence: Some(ask.call.fence),
            scopes: ask.scopes.clone(),
            ceiling: route.ceiling(request, Billing::Sync),
            requests: 1,
            profile: route.profile().to_owned(),
            model: route.model().to_owned(),
        };
        for _ in 0..BUDGET_LOOKS_MAX {
            if until_written(stop, || self.book(reservation.clone())).await? {
                return Ok(());
            }
            tokio::time::sleep(BUDGET_WAIT).await;
        }
        // A batch under way may hold the rest for a day: that is not waited for here.
        let text = "calls and batches under way have reserved the rest of the budget";
        Err(Error::new(Class::Throttled, text))
    }

    /// Books a whole batch, by its name, at the ceilings of its requests; or says how many of them fit.
    pub async fn reserve_batch(
        &self,
        name: &str,
        scopes: Vec<Scope>,
        ceilings: &[Option<NanoUsd>],
        route: &Route,
    ) -> Result<Room> {
        let reservation = Reservation {
            call: name.to_owned(),
            job: name.to_owned(),
            fence: None,
            scopes,
            ceiling: ceilings.iter().copied().sum(),
            requests: ceilings.len() as u64,
            profile: route.profile().to_owned(),
            model: route.model().to_owned(),
        };
        match self.reserve_once(reservation).await {
            Ok(_) => Ok(Room::All),
            Err(LedgerError::OverBudget(over)) => Ok(Room::under(*over, ceilings)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Books once. False where only calls under way stand in the way.
    async fn book(&self, reservation: Reservation) -> Result<bool, LedgerError> {
        match self.reserve_once(reservation).await {
            Ok(_) => Ok(true),
            Err(LedgerError::OverBudget(over)) if over.may_fit_later() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn reserve_once(&self, mut reservation: Reservation) -> Result<Reserved, LedgerError> {
        let now_ms = self.now_ms();
        self.cap_day(now_ms).await?;
        reservation.scopes.extend([Scope::day(now_ms), Scope::all()]);
        self.ledger().reserve(reservation, now_ms).await
    }

    /// Each day has a cap of its own.
    async fn cap_day(&self, now_ms: i64) -> FileResult<()> {
        let Some(cap) = self.inner.options.day_cap else { return Ok(()) };
        let day = Scope::day(now_ms);
        let known = self.inner.capped.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(&day);
        if !known {
            self.ledger().set_cap(&day, Some(cap)).await?;
            *self.inner.capped.lock().unwrap_or_else(PoisonError::into_inner) = Some(day);
        }
        Ok(())
    }

    /// Takes back what was booked for a call that failed, unless it may have been billed.
    pub(super) async fn unbook(&self, name: &str, route: &Route, error: &Error) -> Result<()> {
        if let Some(answer) = &error.answer {
            let cost = route.cost(&answer.usage, Billing::Sync);
            let spent = Spent { usage: answer.usage, cost, answers: 0 };
            until_written(&mut never(), || self.ledger().settle(name, spent)).await?;
        } else if error.maybe_billed {
            let unknown = || async { Ok(self.ledger().mark_unknown(name, self.now_ms()).await?) };
            until_written(&mut never(), unknown).await?;
        } else {
            let release = || async { Ok(self.ledger().release(name, self.now_ms()).await?) };
            until_written(&mut never(), release).await?;
        }
        Ok(())
    }
}

/// How much of a batch fits under the caps that it counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// All of it, and it is booked.
    All,
    /// Only this number of its first requests. Nothing is booked.
    First(usize),
    /// Nothing, or little; much more once calls and batches under way have settled.
    Later,
}

impl Room {
    /// Below a cap that has no room for all. An error where it will not even have room for the first request.
    fn under(over: OverBudget, ceilings: &[Option<NanoUsd>]) -> Result<Self, LedgerError> {
        let later = over.cap.saturating_sub(over.spent).saturating_sub(over.unknown);
        let fits = |room: NanoUsd| {
            let sums = ceilings.iter().scan(NanoUsd::ZERO, |sum, ceiling| {
                *sum = sum.saturating_add(ceiling.unwrap_or(NanoUsd::ZERO));
                Some(*sum)
            });
            sums.take_while(|sum| *sum <= room).count()
        };
        let (first_now, first_later) = (fits(later.saturating_sub(over.open)), fits(later));
        if first_later == 0 {
            let ceiling = ceilings.first().copied().flatten().unwrap_or(over.ceiling);
            return Err(LedgerError::OverBudget(Box::new(OverBudget { ceiling, ..over })));
        }
        // Most calls cost far less than their ceiling, so that waiting for those under way makes few large batches of many small
        // ones.
        Ok(if first_now == 0 || first_now * 2 <= first_later { Self::Later } else { Self::First(first_now) })
    }
}

/// Writes to the ledger, again and again while its file cannot be written, until `stop`. What a call brought is in memory
/// only until it is booked: giving up would mean to pay for it twice. Whose patience ends drops the future.
pub(super) async fn until_written<T, F>(stop: &mut Stop<'_>, write: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T, LedgerError>>,
{
    loop {
        match write().await {
            Err(LedgerError::File(error)) if error.is_transient() => {}
            written => return Ok(written?),
        }
        until_stopped(stop, tokio::time::sleep(FILE_WAIT)).await?;
    }
}

/// Waits for something, unless the call is given up before.
pub(super) async fn until_stopped<T>(stop: &mut Stop<'_>, wait: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        done = wait => Ok(done),
        () = &mut *stop => Err(Error::new(Class::Stopped, "given up before it was sent")),
    }
}

/// For what was sent: there is no way back.
pub(super) fn never() -> Stop<'static> {
    Box::pin(std::future::pending())
}

/// An error that says so, if it is one of an outage.
pub(super) fn in_outage(mut error: Error, route: &Route) -> Error {
    if error.class.is_no_answer() {
        error.outage = route.controller().outage();
    }
    error
}

/// A person does not wait for the end of an outage.
fn not_in_outage(route: &Route) -> Result<()> {
    let probe_in = route.controller().outage().unwrap_or_default();
    if probe_in.is_zero() {
        return Ok(());
    }
    let text = format!("the provider does not answer; it is asked again in {} s", probe_in.as_secs() + 1);
    Err(Error { retry_after: Some(probe_in), outage: Some(probe_in), ..Error::new(Class::Overloaded, text) })
}

/// The answer of an error that says that its shape is wrong.
fn wrong_shape(error: Error) -> Option<Box<Answer>> {
    if error.class == Class::BadShape { error.answer } else { None }
}

/// Requests may name a model of their own; the other model is asked under its own name.
pub(super) fn model_for(ask: &Ask, route: &Route) -> String {
    let own = route.model() == ask.route.model();
    let named = ask.request.model();
    if own && !named.is_empty() { named.to_owned() } else { route.model().to_owned() }
}
