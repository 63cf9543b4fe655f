//! Moves what has become due: scheduled jobs to ready, parked ones as their park says, expired ones to cancelled.

use async_trait::async_trait;

use crate::client::Queue;
use crate::error::Result;
use crate::store::Swept;

use super::{Duty, Pace};

/// Moves what has become due: scheduled jobs to ready, parked ones as their park says, expired ones to cancelled.
pub struct Promoter {
    queue: Queue,
    pace: Pace,
}

impl Promoter {
    /// The duty on a queue.
    pub fn new(queue: Queue, pace: Pace) -> Self {
        Self { queue, pace }
    }
}

#[async_trait]
impl Duty for Promoter {
    fn name(&self) -> &'static str {
        "promoter"
    }

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    async fn run_once(&self) -> Result<Swept> {
        self.queue.store().promote_due(self.queue.clock().now(), self.pace.batch_max).await
    }
}
