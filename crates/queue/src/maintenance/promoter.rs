//! Moves what has become due: scheduled jobs to ready, parked ones as their park says, expired ones to cancelled.

use async_trait::async_trait;

use crate::client::Queue;
use crate::engine::Engine;
use crate::error::Result;
use crate::store::Swept;

use super::{Duty, Pace};

/// Moves what has become due: scheduled jobs to ready, parked ones as their park says, expired ones to cancelled.
pub struct Promoter {
    engine: Engine,
    pace: Pace,
}

impl Promoter {
    /// The duty on an engine.
    pub fn new(engine: Engine, pace: Pace) -> Self {
        Self { engine, pace }
    }
}

#[async_trait]
impl Duty for Promoter {
    fn name(&self) -> &'static str {
        "promoter"
    }

    fn queue(&self) -> &Queue {
        &self.engine
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    async fn run_once(&self) -> Result<Swept> {
        self.engine.store().promote_due(self.engine.clock().now(), self.pace.batch_max).await
    }
}
