//! Takes expired leases away, so that the jobs of a dead worker run again from their checkpoints.

use async_trait::async_trait;

use crate::client::Queue;
use crate::error::Result;
use crate::store::Swept;

use super::{Duty, Pace};

/// Takes expired leases away, so that the jobs of a dead worker run again from their checkpoints.
pub struct Rescuer {
    queue: Queue,
    pace: Pace,
}

impl Rescuer {
    /// The duty on a queue.
    pub fn new(queue: Queue, pace: Pace) -> Self {
        Self { queue, pace }
    }
}

#[async_trait]
impl Duty for Rescuer {
    fn name(&self) -> &'static str {
        "rescuer"
    }

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    async fn run_once(&self) -> Result<Swept> {
        if let Some(wait) = self.queue.outages().rescue_grace() {
            return Ok(Swept { changed: 0, next_at: Some(self.queue.clock().now() + wait) });
        }
        self.queue.store().rescue_expired(self.queue.clock().now(), self.pace.batch_max).await
    }
}
