//! How a batch comes to be, once for each wish of a client.

use std::time::Duration;

use longhaul_queue::job::Retention;
use longhaul_queue::{JobId, Json, NewJob, Timestamp, TraceContext};
use sha2::{Digest as _, Sha256};

use super::{ATTEMPTS_MAX, Batch, BatchPayload, KIND, Newer, QUEUE, SdkBatches};
use crate::Result;
use crate::run::CRASHES_MAX;

/// How long a batch is kept after its end; its results stay until they are deleted.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// A creation that is repeated within this time, among so many batches, is recognised.
const REPEATED_WITHIN: Duration = Duration::from_secs(15 * 60);
const REPEATED_LOOKED_AT_MAX: usize = 200;

/// A batch to be created.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// What it is.
    pub payload: BatchPayload,
    /// The client's own name for this creation: repeating it creates nothing.
    pub idempotency_key: Option<String>,
    /// The client says that it has sent this before, and does not know what became of it.
    pub is_repeated: bool,
    /// The span that the client asks from.
    pub trace: Option<TraceContext>,
}

impl SdkBatches {
    /// Creates a batch, or answers the one that the same call created before. No SDK makes its creation repeatable by itself, and
    /// all of them repeat it when an answer is lost. `None` if the client's name for this creation is that of another batch.
    pub async fn create(&self, new: NewBatch) -> Result<Option<Batch>> {
        let _one_at_a_time = self.inner.creating.lock().await;
        let NewBatch { payload, idempotency_key, is_repeated, trace } = new;
        let now = self.now();
        let id = match &idempotency_key {
            Some(key) => id_of_key(&payload, key),
            None => JobId::generate(now, fastrand::u128(..)),
        };
        if idempotency_key.is_some()
            && let Some(detail) = self.queue().store().get(vec![id]).await?.pop()
        {
            let batch = self.read(detail).await?;
            return Ok(Some(batch).filter(|batch| is_same(&batch.payload, &payload)));
        }
        if is_repeated && let Some(batch) = self.find_recent(&payload, now).await? {
            return Ok(Some(batch));
        }
        let mut job = NewJob::new(KIND, Json::of(&payload)?)
            .id(id)
            .queue(QUEUE)
            .max_crashes(CRASHES_MAX)
            .max_attempts(ATTEMPTS_MAX)
            .tag(payload.form.tag())
            .retention(Retention::Keep { succeeded: KEPT, failed: KEPT });
        job.options.trace = trace.map(|trace| trace.to_string());
        if let Some(owner) = &payload.owner {
            job = job.tag(payload.form.tag_of(owner));
        }
        self.queue().enqueue(job).await?;
        let detail = self.queue().get(id).await?;
        self.read(detail).await.map(Some)
    }

    /// The newest batch that the same call may have created.
    async fn find_recent(&self, payload: &BatchPayload, now: Timestamp) -> Result<Option<Batch>> {
        let owner = payload.owner.as_deref();
        let page = self.list(payload.form, owner, Newer::Older(None), REPEATED_LOOKED_AT_MAX).await?;
        let recent = |batch: &Batch| now.since(batch.created_at) <= REPEATED_WITHIN;
        Ok(page.items.into_iter().take_while(recent).find(|batch| is_same(&batch.payload, payload)))
    }
}

/// Another client may choose the same key without knowing.
fn id_of_key(payload: &BatchPayload, key: &str) -> JobId {
    let owner = payload.owner.as_deref().unwrap_or_default();
    let digest = Sha256::digest(format!("{}\n{owner}\n{key}", payload.form.tag()));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    JobId::from_bytes(bytes)
}

/// Whether two creations ask for the same; the end of the window differs between them.
fn is_same(one: &BatchPayload, other: &BatchPayload) -> bool {
    let same = |payload: &BatchPayload| BatchPayload {
        expires_at: Timestamp::default(),
        input_file: String::new(),
        ..payload.clone()
    };
    same(one) == same(other)
}
