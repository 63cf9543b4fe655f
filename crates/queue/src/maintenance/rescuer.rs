//! Takes expired leases away, so that the jobs of a dead worker run again from their checkpoints.

use async_trait::async_trait;

use crate::client::Queue;
use crate::engine::Engine;
use crate::error::Result;
use crate::store::Swept;

use super::{Duty, Pace};

/// Takes expired leases away, so that the jobs of a dead worker run again from their checkpoints.
pub struct Rescuer {
    engine: Engine,
    pace: Pace,
}

impl Rescuer {
    /// The duty on an engine.
    pub fn new(engine: Engine, pace: Pace) -> Self {
        Self { engine, pace }
    }
}

#[async_trait]
impl Duty for Rescuer {
    fn name(&self) -> &'static str {
        "rescuer"
    }

    fn queue(&self) -> &Queue {
        &self.engine
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    async fn run_once(&self) -> Result<Swept> {
        if let Some(wait) = self.engine.outages().rescue_grace() {
            return Ok(Swept { changed: 0, next_at: Some(self.engine.clock().now() + wait) });
        }
        self.engine.store().rescue_expired(self.engine.clock().now(), self.pace.batch_max).await
    }
}
