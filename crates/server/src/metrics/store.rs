//! A store whose calls are measured.

use std::sync::Arc;
use std::time::Instant;

use longhaul_queue::{EngineStore, Result};

use super::Meters;

/// Measures what passes through.
pub struct MeteredStore {
    inner: Arc<dyn EngineStore>,
    meters: Arc<Meters>,
}

impl MeteredStore {
    /// Measures a store.
    pub fn new(inner: Arc<dyn EngineStore>, meters: Arc<Meters>) -> Self {
        Self { inner, meters }
    }

    fn called<T>(&self, name: &'static str, started: Instant, reply: &Result<T>) {
        let unavailable = reply.as_ref().is_err_and(longhaul_queue::Error::is_transient);
        self.meters.called(name, started.elapsed(), unavailable);
    }
}

/// Makes a call and measures it; some tell more than how long they took.
macro_rules! measured {
    ($self:ident.insert($jobs:ident, $now:ident)) => {
        measured!(@seen $self.insert($jobs, $now), |jobs| $self.meters.enqueued(jobs))
    };
    ($self:ident.claim($request:ident)) => {{
        let now = $request.now;
        measured!(@seen $self.claim($request), |jobs| $self.meters.claimed(jobs, now))
    }};
    ($self:ident.settle($items:ident, $now:ident)) => {{
        let ends = Meters::ends(&$items);
        measured!(@seen $self.settle($items, $now), |replies| $self.meters.settled(&ends, replies, $now))
    }};
    ($self:ident.rescue_expired($now:ident, $limit:ident)) => {
        measured!(@seen $self.rescue_expired($now, $limit), |swept| $self.meters.rescued(swept.changed))
    };
    ($self:ident.$name:ident($($argument:ident),*)) => {
        measured!(@seen $self.$name($($argument),*), |_reply| ())
    };
    (@seen $self:ident.$name:ident($($argument:ident),*), |$reply:ident| $seen:expr) => {{
        let started = Instant::now();
        let answer = $self.inner.$name($($argument),*).await;
        $self.called(stringify!($name), started, &answer);
        if let Ok($reply) = &answer {
            $seen;
        }
        answer
    }};
}

longhaul_queue::forward_store!(MeteredStore, measured);
