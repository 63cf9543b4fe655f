//! Deletes what retention no longer keeps.

use async_trait::async_trait;

use crate::client::Queue;
use crate::engine::Engine;
use crate::error::Result;
use crate::store::Swept;

use super::{Duty, Pace};

/// Deletes what retention no longer keeps.
pub struct Pruner {
    engine: Engine,
    pace: Pace,
}

impl Pruner {
    /// The duty on an engine.
    pub fn new(engine: Engine, pace: Pace) -> Self {
        Self { engine, pace }
    }
}

#[async_trait]
impl Duty for Pruner {
    fn name(&self) -> &'static str {
        "pruner"
    }

    fn queue(&self) -> &Queue {
        &self.engine
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    async fn run_once(&self) -> Result<Swept> {
        self.engine.store().prune(self.engine.clock().now(), self.pace.batch_max).await
    }
}
