//! The second stage: asks the model, so many units at once. Units that have to be asked again come through a lane of
//! their own, before new ones. How fast calls may go is the rate control's to say.

use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::cache::CacheMode;
use longhaul_llm::ledger::Event;
use longhaul_llm::rate::Urgency;
use longhaul_llm::{Ask, Call, Class, Error as LlmError, Request};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::manage;
use super::pipeline::{Shared, Stop};
use super::unit::{Answered, End, Settled, Unit};

/// Waits before a unit is asked again after an error: the first, doubled up to the last.
const WAIT_FIRST: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest wait after a 429 that tells none.
const THROTTLED_WAIT_MAX: Duration = Duration::from_secs(10);
/// Units that wait to be asked again, for each that is asked: they hold their texts in memory.
const WAITING_PER_INVOKER: usize = 20;
/// Runs of a job are numbered; tries of a unit within a run get numbers of their own between them.
const TRIES_PER_RUN: u64 = 1 << 10;

/// What becomes of a unit that was asked.
enum Asked {
    Answered(Answered),
    /// To be asked again after a while, through the lane.
    Again(Unit, Duration),
    Through(Settled),
}

/// Where units come from and go.
pub(super) struct InvokerPool {
    pub(super) shared: Arc<Shared>,
    pub(super) invoke: mpsc::Receiver<Unit>,
    pub(super) lane: mpsc::UnboundedReceiver<Unit>,
    pub(super) again: mpsc::UnboundedSender<Unit>,
    pub(super) validate: mpsc::Sender<Answered>,
    pub(super) write: mpsc::Sender<Settled>,
}

impl InvokerPool {
    /// Runs until the pipeline is over and drops it. There is no end mark: a unit may come back at any time.
    pub(super) async fn run(mut self) {
        let concurrency = self.shared.sheet.stored.settings.work.concurrency;
        let (mut under_way, mut waiting) = (JoinSet::new(), JoinSet::new());
        let mut open = true;
        loop {
            let free = under_way.len() < concurrency;
            let room = waiting.len() < WAITING_PER_INVOKER * concurrency;
            self.shared.gauges.invoking.set(under_way.len() as u64);
            self.shared.gauges.invoke_queue.set(self.invoke.len() as u64);
            let unit = tokio::select! {
                biased;
                Some(asked) = under_way.join_next() => {
                    if let Some((unit, wait)) = self.pass_on(asked).await {
                        waiting.spawn(wait_for(Arc::clone(&self.shared), unit, wait));
                    }
                    continue;
                }
                Some(Ok(unit)) = waiting.join_next() => {
                    let _ = self.again.send(unit);
                    continue;
                }
                Some(unit) = self.lane.recv(), if free => unit,
                unit = self.invoke.recv(), if free && room && open => match unit {
                    Some(unit) => unit,
                    None => {
                        open = false;
                        continue;
                    }
                },
            };
            if self.shared.stop.is_set() {
                let dropped = Settled { unit, end: End::Dropped };
                let _ = self.write.send(dropped).await;
                continue;
            }
            under_way.spawn(ask(Arc::clone(&self.shared), unit));
        }
    }

    /// The next stage takes no longer than its own work, and never waits for this one: what it sends back has a lane
    /// without a bound of its own, since no more units can be in it than are under way or wait. The unit is one that has to
    /// wait, for so long.
    async fn pass_on(&self, asked: Result<Asked, tokio::task::JoinError>) -> Option<(Unit, Duration)> {
        match asked {
            Ok(Asked::Answered(answered)) => {
                let _ = self.validate.send(answered).await;
            }
            Ok(Asked::Again(unit, wait)) if wait.is_zero() => {
                let _ = self.again.send(unit);
            }
            Ok(Asked::Again(unit, wait)) => return Some((unit, wait)),
            Ok(Asked::Through(settled)) => {
                let _ = self.write.send(settled).await;
            }
            // A panic is a bug; the unit would be missing in the count for ever.
            Err(error) => self.shared.stop.set(Stop::Broken(format!("asking a model panicked: {error}"))),
        }
        None
    }
}

/// The unit after a while. It takes no invoker's place meanwhile.
async fn wait_for(shared: Arc<Shared>, unit: Unit, wait: Duration) -> Unit {
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = shared.stop.reached() => {}
    }
    unit
}

/// One call, and what its end means for the unit.
async fn ask(shared: Arc<Shared>, mut unit: Unit) -> Asked {
    let sheet = &shared.sheet;
    // The fallback's turn has just come: its cache was not looked at before.
    if unit.fallback && unit.tries == 0 && sheet.stored.settings.cache == CacheMode::Auto {
        match sheet.cached(&shared.sheets, &unit).await {
            Ok(Some(cells)) => {
                let end = End::Scored { cells, by: sheet.answered_by(&unit), cached: true, key: None };
                return Asked::Through(Settled { unit, end });
            }
            Ok(None) => {}
            Err(error) => {
                shared.stop.with_error(&error);
                return Asked::Through(Settled { unit, end: End::Dropped });
            }
        }
    }
    let route = sheet.route_for(&unit).clone();
    let request = sheet.prompt.request(&unit.text, unit.block, route.model());
    let ask = Ask {
        route,
        fallback: None,
        request: Request::Chat(request),
        // Judged by the next stage, off the runtime; and kept in a cache of our own, once it is known to be good.
        schema: None,
        cache: CacheMode::Off,
        call: Call {
            job: unit.name(&sheet.stored.id, shared.filling),
            fence: shared.fence * TRIES_PER_RUN + u64::from(unit.all_tries).min(TRIES_PER_RUN - 1),
        },
        scopes: sheet.scopes.clone(),
        run: Arc::clone(&sheet.name),
        urgency: Urgency::Bulk,
    };
    match shared.sheets.inner.llm.ask(ask, shared.stop.reached()).await {
        Ok(answered) => {
            manage::outage_ended(&shared.sheets, sheet).await;
            unit.refusals = 0;
            unit.paid(answered.cost);
            Asked::Answered(Answered { unit, answer: Box::new(answered.answer) })
        }
        Err(error) => failed(&shared, unit, error),
    }
}

/// What an error means: for the unit, or for all of them.
fn failed(shared: &Shared, mut unit: Unit, mut error: LlmError) -> Asked {
    if let Some(answer) = error.answer.take() {
        // Refused or cut off: it was an answer, and paid for.
        let cost = shared.sheet.route_for(&unit).cost(&answer.usage, longhaul_llm::Billing::Sync);
        unit.paid(cost);
    }
    let stop = match error.class {
        Class::Throttled => {
            let wait = error.retry_after.unwrap_or(doubled(unit.refusals, THROTTLED_WAIT_MAX));
            unit.refusals += 1;
            // A rate limit eats no retries.
            unit.all_tries += 1;
            return Asked::Again(unit, wait);
        }
        Class::Unreachable if error.outage.is_none() => {
            // A connection that was never made is not the unit's fault.
            unit.all_tries += 1;
            return Asked::Again(unit, WAIT_MAX);
        }
        Class::Unreachable | Class::Network | Class::Overloaded if shared.is_outage(&error) => {
            let (why, probe_in) = (error.to_string(), error.outage.unwrap_or_default());
            Some(Stop::Outage { why, probe_in })
        }
        Class::Budget => Some(Stop::Budget(error.message.clone())),
        Class::Auth => Some(Stop::Auth(error.message.clone())),
        Class::Quota => Some(Stop::Quota(error.message.clone())),
        Class::Stopped => Some(Stop::Told),
        _ => None,
    };
    if let Some(stop) = stop {
        shared.stop.set(stop);
        return Asked::Through(Settled { unit, end: End::Dropped });
    }
    let hopeless =
        !matches!(error.class, Class::Network | Class::Overloaded | Class::BadShape | Class::Truncated);
    unit.went_wrong(format!("{}: {}", shared.sheet.route_for(&unit).model(), error));
    // One that answered, if only in another shape, needs no rest.
    let rests = matches!(error.class, Class::Network | Class::Overloaded);
    for scope in &shared.sheet.scopes {
        shared.sheets.inner.llm.ledger().count(scope, Event::Retried);
    }
    match shared.try_again(unit, hopeless) {
        Ok(unit) if rests && unit.tries > 0 => {
            let wait = doubled(unit.tries - 1, WAIT_MAX);
            Asked::Again(unit, wait)
        }
        Ok(unit) => Asked::Again(unit, Duration::ZERO),
        Err(unit) => Asked::Through(Settled { unit, end: End::Failed }),
    }
}

/// The wait after an error that follows this many others.
fn doubled(others: u32, most: Duration) -> Duration {
    WAIT_FIRST.saturating_mul(1 << others.min(8)).min(most)
}
