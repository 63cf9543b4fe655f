//! Webhooks after Standard Webhooks: what happened is told to addresses that asked for it, signed, and told again for days until it
//! is heard. A delivery is a job of kind [`KIND`]; its runs are the delivery log, and sending it again is enqueueing it again.
//!
//! **What is told.** `run.completed`, `run.partly_failed`, `run.failed`, `run.cancelled`, `run.held`; `batch.completed`, `batch.failed`, `batch.expired`, `batch.cancelled`:
//! stored in one transaction with what happened to the run or batch, so that no crash comes between. `job.succeeded`, `job.failed`,
//! `job.cancelled` for jobs that were enqueued with a wish to be told of, by a job that waits for them.
//!
//! Bodies carry ids and counts, never contents: whoever is told asks the API for the rest.

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::job::{OnFailure, Retention, Unique, Window};
use longhaul_queue::retry::{Backoff, RetryPolicy};
use longhaul_queue::{JobContext, JobId, Json, NewJob, State, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::job_name::name_of;
use crate::run::hold::HeldRun;
use crate::{Listener, Standing, Status};

mod deliver;
mod endpoints;

pub use deliver::register;
pub use endpoints::{Endpoint, Endpoints, Wish};

/// The kind of a delivery.
pub const KIND: &str = "webhook.deliver";
/// The queue of deliveries.
pub const QUEUE: &str = "webhooks";

/// What is told of a run that cannot go on by itself.
const HELD: &str = "run.held";
/// A run that is held on is told again after this.
const HELD_TOLD_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Waits between tries: more than three days in all.
const WAITS_S: [u64; 9] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// How long a delivery is kept in the log.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// What is told, and to whom.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// The endpoint's name; its address and secret stay there.
    pub endpoint: String,
    /// Names the message: the same for every try.
    pub message: String,
    /// Such as `batch.completed`; that of a job follows from how it ended.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it happened; absent where the delivery waited for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The rest of the message.
    #[serde(default)]
    pub data: Value,
}

/// The deliveries of something that has happened, one for each endpoint that wants to know.
pub fn deliveries(endpoints: &Endpoints, kind: &str, at: Timestamp, data: &Value) -> Vec<NewJob> {
    let endpoints = endpoints.wanting(kind).into_iter();
    endpoints.filter_map(|endpoint| new_job(&delivery(endpoint, kind, at, data))).collect()
}

fn delivery(endpoint: Endpoint, kind: &str, at: Timestamp, data: &Value) -> Delivery {
    Delivery {
        endpoint: endpoint.name,
        message: message_id(at),
        kind: kind.to_owned(),
        at: Some(at),
        data: data.clone(),
    }
}

/// Has the ends and holds of runs told, in one transaction with each.
pub fn listener(endpoints: Arc<Endpoints>) -> Arc<dyn Listener> {
    Arc::new(RunListener(endpoints))
}

struct RunListener(Arc<Endpoints>);

impl Listener for RunListener {
    fn ended(&self, context: &JobContext, status: &Status, now: Timestamp) {
        let Standing { state, units, .. } = &status.standing;
        let data = json!({
            "id": status.id,
            "run": status.id,
            "pipeline": status.pipeline,
            "total": units.total,
            "done": units.done,
            "failed": units.failed,
            "cancelled": units.cancelled,
        });
        tell(context, deliveries(&self.0, &format!("run.{state}"), now, &data));
    }

    /// Told with the first job of a run that is held. The others tell the same, and are one message with it until the run is
    /// resumed.
    fn held(&self, context: &JobContext, held: &HeldRun<'_>, now: Timestamp) {
        let HeldRun { run, hold, opening } = *held;
        let data = json!({ "id": run.as_str(), "run": run.as_str(), "reason": hold });
        let told = self.0.wanting(HELD).into_iter().filter_map(|endpoint| {
            let key = format!("{HELD}/{run}/{hold}/{opening:x}/{}", endpoint.name);
            let window = Some(Window::Enqueue { length: HELD_TOLD_AGAIN_AFTER });
            let delivery = delivery(endpoint, HELD, now, &data);
            Some(new_job(&delivery)?.unique(Unique { window, ..Unique::key(key) }))
        });
        tell(context, told.collect());
    }
}

/// Stores deliveries with the end of the run that they tell of.
pub fn tell(context: &JobContext, deliveries: Vec<NewJob>) {
    for delivery in deliveries {
        if let Err(error) = context.enqueue(delivery) {
            tracing::warn!(%error, "a webhook cannot be told");
        }
    }
}

/// The delivery that waits for the end of a job.
pub fn after_job(job: JobId, endpoint: &str, now: Timestamp) -> Option<NewJob> {
    let delivery = Delivery {
        endpoint: endpoint.to_owned(),
        message: message_id(now),
        kind: "job.ended".to_owned(),
        at: None,
        data: Value::Null,
    };
    Some(new_job(&delivery)?.after_with(job, OnFailure::Run))
}

/// The message about a job that has ended.
pub fn job_ended(job: JobId, state: State) -> (String, Value) {
    (format!("job.{state}"), json!({ "id": job, "job_id": job, "state": state }))
}

/// A new name for a message.
pub fn message_id(now: Timestamp) -> String {
    name_of(JobId::generate(now, fastrand::u128(..)), "msg_")
}

/// The longest name of an endpoint. Its deliveries carry it in a tag and, beside the name of a run, in a unique key, which are names too.
pub const NAME_BYTES_MAX: usize = 100;

/// The label by which the deliveries of an endpoint are listed.
pub fn tag_of(endpoint: &str) -> String {
    format!("webhook.{endpoint}")
}

/// The job of a delivery. What is told is made here and always fits, so there is nothing to refuse.
pub fn new_job(delivery: &Delivery) -> Option<NewJob> {
    let delays_ms = WAITS_S.map(|seconds| seconds * 1_000).to_vec();
    let attempts = u32::try_from(delays_ms.len()).unwrap_or(u32::MAX) + 1;
    let retry =
        RetryPolicy { backoff: Backoff::List { delays_ms }, cap: Duration::from_secs(86_400), jitter: true };
    let job = NewJob::new(KIND, Json::of(delivery).ok()?)
        .queue(QUEUE)
        .tag(tag_of(&delivery.endpoint))
        .max_attempts(attempts)
        .retry(retry)
        .retention(Retention::Keep { succeeded: KEPT, failed: KEPT });
    Some(job)
}
