//! Deletes what retention no longer keeps.

use async_trait::async_trait;

use crate::client::Queue;
use crate::error::Result;
use crate::store::Swept;

use super::{Duty, Pace};

/// Deletes what retention no longer keeps.
pub struct Pruner {
    queue: Queue,
    pace: Pace,
}

impl Pruner {
    /// The duty on a queue.
    pub fn new(queue: Queue, pace: Pace) -> Self {
        Self { queue, pace }
    }
}

#[async_trait]
impl Duty for Pruner {
    fn name(&self) -> &'static str {
        "pruner"
    }

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    async fn run_once(&self) -> Result<Swept> {
        self.queue.store().prune(self.queue.clock().now(), self.pace.batch_max).await
    }
}
