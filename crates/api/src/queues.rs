//! Queues: counts, pauses, limits.

use std::time::Duration;

use longhaul_queue::job::Retention;
use longhaul_queue::store::{QueueChange, QueueInfo, QueueSettings};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::counts::Counts;
use crate::job_options::millis;

/// A queue.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Queue)]
pub struct QueueOut {
    /// Its name.
    pub name: String,
    /// Nothing is claimed from it.
    pub paused: bool,
    /// At most this many of its jobs run at once, over all workers.
    pub max_running: Option<u32>,
    /// At most this many jobs of one fair key run at once, over all workers.
    pub max_running_per_key: Option<u32>,
    /// The time of waiting that makes up for one level of priority.
    pub ageing_ms: Option<u64>,
    /// For jobs that name none.
    #[schema(value_type = Option<Object>)]
    pub retention: Option<Retention>,
    /// Its jobs by state.
    pub counts: Counts,
}

impl From<QueueInfo> for QueueOut {
    fn from(info: QueueInfo) -> Self {
        let QueueInfo { name, settings, counts } = info;
        let QueueSettings { paused, max_running, max_running_per_key, ageing, retention } = settings;
        let (ageing_ms, counts) = (ageing.map(millis), counts.into());
        Self { name, paused, max_running, max_running_per_key, ageing_ms, retention, counts }
    }
}

impl From<QueueOut> for QueueInfo {
    fn from(queue: QueueOut) -> Self {
        let QueueOut { name, paused, max_running, max_running_per_key, ageing_ms, retention, counts } = queue;
        let ageing = ageing_ms.map(Duration::from_millis);
        let settings = QueueSettings { paused, max_running, max_running_per_key, ageing, retention };
        Self { name, settings, counts: counts.into() }
    }
}

/// Settings to change; those left out stay, and `null` lifts one.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueIn {
    /// Pause or resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Set or lift the limit.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub max_running: Option<Option<u32>>,
    /// Set or lift the limit for each fair key.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub max_running_per_key: Option<Option<u32>>,
    /// Set or lift the time of waiting that makes up for one level of priority.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub ageing_ms: Option<Option<u64>>,
    /// Set or lift the rule.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"retention": "keep", "succeeded_ms": 3_600_000, "failed_ms": 86_400_000}))]
    pub retention: Option<Option<Retention>>,
}

/// A change of a setting that may also be lifted: left out, `null`, or a value.
fn change<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

impl QueueIn {
    /// The change of the queue with this name.
    pub fn of(self, name: String) -> QueueChange {
        let Self { paused, max_running, max_running_per_key, ageing_ms, retention } = self;
        let ageing = ageing_ms.map(|ageing_ms| ageing_ms.map(Duration::from_millis));
        QueueChange { name, paused, max_running, max_running_per_key, ageing, retention }
    }
}

impl From<QueueChange> for QueueIn {
    fn from(change: QueueChange) -> Self {
        let QueueChange { name: _, paused, max_running, max_running_per_key, ageing, retention } = change;
        let ageing_ms = ageing.map(|ageing| ageing.map(millis));
        Self { paused, max_running, max_running_per_key, ageing_ms, retention }
    }
}
