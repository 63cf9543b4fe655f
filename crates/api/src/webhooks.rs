//! Who is told of what, and what became of it.

use longhaul_queue::job::Run;
use longhaul_queue::state::JobError;
use longhaul_queue::{JobId, Json, State, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A webhook.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookOut {
    /// Its name.
    pub name: String,
    /// Where to, without a password or another secret in it.
    pub url: String,
    /// What it wants to know.
    pub events: Vec<String>,
    /// Whether it may lie on this machine or its network.
    pub allow_private: bool,
    /// Why nothing is sent to it any more.
    pub disabled: Option<String>,
    /// When it was added.
    #[schema(value_type = i64)]
    pub created_at: Timestamp,
    /// The signing secret: shown once, when the webhook is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A webhook to keep.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookIn {
    /// Where to.
    #[schema(example = "https://ops.example.org/hook")]
    pub url: String,
    /// What it wants to know, such as `batch.completed`, `run.*` or `*`; default everything.
    #[serde(default = "everything")]
    pub events: Vec<String>,
    /// Whether it may lie on this machine or its network; default false.
    #[serde(default)]
    pub allow_private: bool,
}

fn everything() -> Vec<String> {
    vec!["*".to_owned()]
}

/// A new secret.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NewSecret {
    /// The webhook.
    pub name: String,
    /// What messages are signed with from now on. The one before signs too until the next rotation.
    pub secret: String,
}

/// What became of a webhook.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct WebhookDeleted {
    /// Its name.
    pub name: String,
    /// It is gone.
    pub deleted: bool,
}

/// A message on its way.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Sent {
    /// Its delivery.
    #[schema(value_type = String, format = "uuid")]
    pub delivery: JobId,
}

/// A message and what became of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryOut {
    /// The job that delivers it.
    #[schema(value_type = String, format = "uuid")]
    pub delivery: JobId,
    /// `webhook-id`: the same for every try.
    pub message: String,
    /// Such as `batch.completed`.
    pub r#type: String,
    /// The state of its job.
    #[schema(value_type = String)]
    pub state: State,
    /// When it is tried next.
    #[schema(value_type = Option<i64>)]
    pub next_try_at: Option<Timestamp>,
    /// What the other side said, once it was heard: `status`, or why it was `skipped`.
    #[schema(value_type = Option<Object>)]
    pub answer: Option<Json>,
    /// `reason` and `text` of the last try that failed.
    #[schema(value_type = Option<Object>)]
    pub error: Option<JobError>,
    /// Tries that failed, oldest first: `started_at`, `ended_at`, `outcome`, `error`.
    #[schema(value_type = Vec<Object>)]
    pub tries: Vec<Run>,
}
