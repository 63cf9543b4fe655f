//! Rate control: how fast calls go out on a route, which is one provider, address, key and model.
//!
//! A call asks for admission and gets a [`Permit`]; when it has ended, the permit is settled with how it went. In between
//! stand the buckets of the provider's limits (`bucket`, `quota`), the pace where nobody tells any (`pace`) and what tells such a
//! limit from refusals at random (`refusals`), the limit on calls under way (`concurrency`, `latency`, `adaptive`), the pause after
//! a 429 and the breaker for outages (`breaker`). Who is next is decided in `fair`, what a call will cost
//! is guessed in `estimate`, and `route` holds it all together as plain state. Here are only the callers: tasks that wait,
//! and the one timer that wakes them.
//!
//! This knows no provider, no retry and no store: others send, repeat, and keep what [`Controller::learnt`] says.

mod adaptive;
mod breaker;
mod bucket;
mod concurrency;
mod estimate;
mod fair;
mod latency;
mod meter_detect;
mod pace;
mod quota;
mod refusals;
mod route;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

pub use adaptive::{AdaptiveConcurrency, Change};
pub use quota::Meter;
pub use settings::{Demand, Engine, Gate, Held, Learnt, OutputCharge, RouteLimits, RouteStats, Totals};

use crate::error::{Class, Error, Result};
use crate::provider::RateSignals;
use crate::types::Usage;
use route::{Call, Route, Waiter, pause_left};

/// Admits the calls of one route. Clones are the same controller.
#[derive(Clone)]
pub struct Controller {
    shared: Arc<Shared>,
}

impl Controller {
    /// A controller that knows nothing but its configuration.
    pub fn new(limits: RouteLimits) -> Self {
        Self::with_seed(limits, fastrand::u64(..))
    }

    /// As `new`, with a seed for the jitter of pauses.
    pub fn with_seed(limits: RouteLimits, seed: u64) -> Self {
        Self::start(limits, &Learnt::default(), seed, 0)
    }

    /// A controller that goes on where another one left off.
    pub fn resume(limits: RouteLimits, learnt: &Learnt, now_ms: i64) -> Self {
        Self::start(limits, learnt, fastrand::u64(..), now_ms)
    }

    fn start(limits: RouteLimits, learnt: &Learnt, seed: u64, now_ms: i64) -> Self {
        let now = Instant::now();
        let mut route = Route::new(limits, learnt, seed, now);
        if let Some(pause) = pause_left(learnt, now_ms) {
            route.pause_until(now + pause);
        }
        Self { shared: Arc::new(Shared { inner: Mutex::new(Inner { route, timer: None, runtime: None }) }) }
    }

    /// During an outage: how long until the next probe; zero while it is under way.
    pub fn outage(&self) -> Option<Duration> {
        self.shared.lock().route.outage(Instant::now())
    }

    /// Waits until the call may be sent. Fails only if the route is closed. A caller that stops waiting gives up its place.
    pub async fn acquire(&self, ask: Ask) -> Result<Permit> {
        let (granted, answer) = oneshot::channel();
        let id = {
            let mut inner = self.shared.lock();
            inner.runtime = Some(Handle::current());
            inner.route.enqueue(Waiter { ask: ask.clone(), granted })?
        };
        let mut place = Place { shared: &self.shared, ask, id: Some(id) };
        self.shared.advance();
        let answer = answer.await;
        place.id = None;
        answer.unwrap_or_else(|_| Err(Error::new(Class::Network, "the route's controller was dropped")))
    }

    /// What the route is doing.
    pub fn stats(&self) -> RouteStats {
        self.shared.lock().route.stats(Instant::now())
    }

    /// What was found out, for the next process. `now_ms` is the time of day, by which a pause is told.
    pub fn learnt(&self, now_ms: i64) -> Learnt {
        self.shared.lock().route.learnt(Instant::now(), now_ms)
    }

    /// Uses this share of the limits that the provider tells or a configuration gives, because other processes use the
    /// rest.
    pub fn set_share(&self, share: f64) {
        self.shared.lock().route.set_share(share, Instant::now());
        self.shared.advance();
    }

    /// How much of its limits the route can use; `None` on a machine of one's own, which has none.
    pub fn demand(&self) -> Option<Demand> {
        self.shared.lock().route.demand()
    }

    /// Admits nobody for so long, and no less than that.
    pub fn pause_for(&self, pause: Duration) {
        self.shared.lock().route.pause_until(Instant::now() + pause);
        self.shared.advance();
    }

    /// Ends a pause early.
    pub fn unpause(&self) {
        self.shared.lock().route.unpause();
        self.shared.advance();
    }

    /// Closes the route: whoever waits or comes gets the error, until [`Controller::reopen`]. For a key that is refused and
    /// an account without money.
    pub fn close(&self, error: &Error) {
        let waiters = self.shared.lock().route.close(error.clone());
        for waiter in waiters {
            // Nobody listens any more where the send fails.
            let _ = waiter.granted.send(Err(error.clone()));
        }
    }

    /// Opens a closed route.
    pub fn reopen(&self) {
        self.shared.lock().route.reopen();
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Controller").field(&self.stats()).finish()
    }
}

/// A call that wants to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Whose call: runs share a route fairly.
    pub run: Arc<str>,
    /// Who waits for it.
    pub urgency: Urgency,
    /// The run's share beside other runs of the same urgency.
    pub weight: u32,
    /// Input tokens by a rough measure, such as bytes / 4. How far off the measure is gets learnt.
    pub input_tokens: u64,
    /// Most tokens of output, as sent to the provider.
    pub max_tokens: Option<u32>,
    /// Most calls of the run under way at a time on this route.
    pub run_concurrency: Option<usize>,
    /// How often the call was refused with a 429 before: from then on it goes to the head of its run.
    pub refusals: u32,
}

impl Ask {
    /// A bulk call of a run.
    pub fn new(run: impl Into<Arc<str>>, input_tokens: u64) -> Self {
        Self {
            run: run.into(),
            urgency: Urgency::Bulk,
            weight: 1,
            input_tokens,
            max_tokens: None,
            run_concurrency: None,
            refusals: 0,
        }
    }
}

/// Who waits for a call. The more urgent always go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// A person.
    Interactive,
    /// A run whose deadline is near.
    Deadline,
    /// Nobody in particular.
    Bulk,
}

impl Urgency {
    /// Every urgency, most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Deadline, Self::Bulk];
}

/// Leave to send one call. Dropped without being settled, it counts as a call that failed after it was sent.
#[must_use = "a dropped permit counts as a failed call"]
pub struct Permit {
    shared: Arc<Shared>,
    call: Option<Call>,
}

impl Permit {
    /// Tells how the call went. How long the call itself is to wait before it is made again, outside of the route: zero
    /// where the whole route waits, which it does by itself.
    pub fn settle(mut self, settled: &Settled) -> Duration {
        self.end(settled)
    }

    /// Whether the call finds out for all others if an outage is over.
    pub fn is_probe(&self) -> bool {
        self.call.as_ref().is_some_and(Call::is_probe)
    }

    fn end(&mut self, settled: &Settled) -> Duration {
        let Some(call) = self.call.take() else { return Duration::ZERO };
        let wait = self.shared.lock().route.settle(&call, settled, Instant::now());
        self.shared.advance();
        wait
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end(&Settled::Failed { sent: true });
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.call).finish()
    }
}

/// How a call went.
#[derive(Debug, Clone, PartialEq)]
pub enum Settled {
    /// It was answered, usably or not.
    Answered {
        /// What it used.
        usage: Usage,
        /// What its headers told.
        rate: RateSignals,
        /// From sending to the end of the answer.
        latency: Duration,
    },
    /// It was refused with a 429.
    Throttled {
        /// How long to wait, where told.
        retry_after: Option<Duration>,
        /// What its headers told.
        rate: RateSignals,
    },
    /// The provider was overloaded: 500, 502, 503, 504, 529.
    Overloaded,
    /// No answer came: no connection, a reset, a time-out.
    Unanswered {
        /// Whether there was a connection, so that the provider may have counted it.
        sent: bool,
    },
    /// The provider answered that it does not do this: the request, the key or the account is wrong.
    Refused,
    /// Nothing is known of its end: it was given up.
    Failed {
        /// Whether the provider may have counted it.
        sent: bool,
    },
}

impl Settled {
    /// How a call went that ended with an error.
    pub fn of_error(error: &Error, latency: Duration) -> Self {
        let rate = error.rate.as_ref().clone();
        if let Some(answer) = &error.answer {
            return Self::Answered { usage: answer.usage, rate, latency };
        }
        match error.class {
            Class::Throttled => Self::Throttled { retry_after: error.retry_after, rate },
            Class::Overloaded => Self::Overloaded,
            Class::Unreachable => Self::Unanswered { sent: false },
            Class::Network => Self::Unanswered { sent: true },
            Class::ContextTooLong
            | Class::Truncated
            | Class::Refused
            | Class::BadShape
            | Class::BadRequest
            | Class::Auth
            | Class::Quota => Self::Refused,
            Class::Budget | Class::CacheMiss | Class::Stopped => Self::Failed { sent: false },
        }
    }
}

struct Shared {
    inner: Mutex<Inner>,
}

struct Inner {
    route: Route,
    timer: Option<Timer>,
    /// Where the timer runs. A permit may be dropped outside of any runtime.
    runtime: Option<Handle>,
}

/// The one timer of a route.
struct Timer {
    at: Instant,
    task: AbortHandle,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code of ours panics in between; and if it did, the next settlement would put things right.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those go who may, and sets the timer for the next. Runs whenever something has changed.
    fn advance(self: &Arc<Self>) {
        let admitted = {
            let mut inner = self.lock();
            let admitted = inner.route.admit(Instant::now());
            inner.set_timer(self);
            admitted
        };
        // Outside of the lock: a caller that has gone leaves its permit here, and that is settled with the lock held.
        for (waiter, call) in admitted {
            let permit = Permit { shared: self.clone(), call: Some(call) };
            if let Err(Ok(unwanted)) = waiter.granted.send(Ok(permit)) {
                unwanted.settle(&Settled::Failed { sent: false });
            }
        }
    }
}

impl Inner {
    fn set_timer(&mut self, shared: &Arc<Shared>) {
        let wake_at = self.route.wake_at();
        if self.timer.as_ref().is_some_and(|timer| Some(timer.at) == wake_at && !timer.task.is_finished()) {
            return;
        }
        if let Some(timer) = self.timer.take() {
            timer.task.abort();
        }
        let (Some(at), Some(runtime)) = (wake_at, &self.runtime) else { return };
        let shared = Arc::downgrade(shared);
        let task = runtime.spawn(async move {
            sleep_until(at).await;
            if let Some(shared) = shared.upgrade() {
                shared.advance();
            }
        });
        self.timer = Some(Timer { at, task: task.abort_handle() });
    }
}

/// A place in the queue, given up when the caller stops waiting.
struct Place<'a> {
    shared: &'a Arc<Shared>,
    ask: Ask,
    /// Empty once the caller was called.
    id: Option<u64>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.lock().route.leave(&self.ask, id);
            // Whoever stood behind may fit where this one did not.
            self.shared.advance();
        }
    }
}
