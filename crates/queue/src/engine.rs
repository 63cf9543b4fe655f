//! A queue whose store this process has open itself, so that jobs can run on it.

use std::ops::Deref;
use std::sync::Arc;

use crate::client::Queue;
use crate::clock::Clock;
use crate::limits::Limits;
use crate::store::EngineStore;

/// What workers, maintenance and transfers hold: a [`Queue`], with all its verbs, and both halves of its store. A program that
/// talks to a server has the queue alone. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    queue: Queue,
    store: Arc<dyn EngineStore>,
}

impl Engine {
    /// An engine with default limits, and the time that counts for the store: its server's, or this machine's.
    pub fn new(store: Arc<dyn EngineStore>) -> Self {
        Self { queue: Queue::new(Arc::clone(&store) as _), store }
    }

    /// Uses another clock.
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { queue: self.queue.with_clock(clock), ..self }
    }

    /// Uses other limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { queue: self.queue.with_limits(limits), ..self }
    }

    /// The queue, for those who only call.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The store, with both halves.
    pub fn store(&self) -> &Arc<dyn EngineStore> {
        &self.store
    }
}

/// An engine can do whatever a queue can.
impl Deref for Engine {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}
