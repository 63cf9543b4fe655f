//! `Idempotency-Key`: a call that is sent again stores nothing again. The ids of its jobs follow from the key, so the store itself
//! knows the repetition, for as long as the jobs are there.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use longhaul_queue::{JobId, NewJob, Queue};
use sha2::{Digest as _, Sha256};

use super::ApiError;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// The header.
const HEADER: &str = "idempotency-key";
/// Longest key.
const KEY_BYTES_MAX: usize = 255;

/// The key of a call. Another client may choose the same without knowing, so it counts beside the name of the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    owner: Option<String>,
    text: String,
}

/// The key that a call carries, if it carries one.
pub(super) struct Keyed(pub(super) Option<Key>);

impl FromRequestParts<Ctx> for Keyed {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Ctx) -> Result<Self, ApiError> {
        let owner = parts.extensions.get::<Caller>().and_then(|caller| caller.name.clone());
        Ok(Self(Key::of(&parts.headers, owner)?))
    }
}

impl Key {
    /// What the call carries, if it carries one.
    fn of(headers: &HeaderMap, owner: Option<String>) -> Result<Option<Self>, Problem> {
        let Some(value) = headers.get(HEADER) else { return Ok(None) };
        let fits = |key: &&str| (1..=KEY_BYTES_MAX).contains(&key.len());
        match value.to_str().ok().filter(fits) {
            Some(key) => Ok(Some(Self { owner, text: key.to_owned() })),
            None => {
                let text = format!("the key has 1 to {KEY_BYTES_MAX} visible ASCII characters");
                Err(Problem::invalid(text).at("Idempotency-Key"))
            }
        }
    }

    /// The id of the call's nth job.
    pub(super) fn job(&self, index: usize) -> JobId {
        let mut digest = Sha256::new();
        digest.update(self.owner.as_deref().unwrap_or_default());
        digest.update([0]);
        digest.update(&self.text);
        // A byte that no key has: the key "a" with 11 jobs is not the key "a1" with one.
        digest.update([0]);
        digest.update(index.to_string());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest.finalize()[..16]);
        // The form of a UUID whose content is its maker's business.
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        JobId::from_bytes(bytes)
    }

    /// Refuses a call whose key was used for another number of jobs.
    pub(super) async fn check(&self, queue: &Queue, jobs: &[NewJob]) -> Result<(), Problem> {
        let Some(last) = jobs.len().checked_sub(1) else { return Ok(()) };
        // Jobs are stored all or none, so the ends tell. The one after the last is there when more were sent before.
        let ids = vec![self.job(0), self.job(last), self.job(last + 1)];
        let stored: Vec<JobId> =
            queue.store().get(ids.clone()).await?.iter().map(|detail| detail.job.id).collect();
        let there = |id: &JobId| stored.contains(id);
        if there(&ids[0]) != there(&ids[1]) || there(&ids[2]) {
            return Err(self.mismatch());
        }
        Ok(())
    }

    /// What an insert's refusal means: other content under the same key, or a fault of the content.
    pub(super) async fn explain(&self, queue: &Queue, error: longhaul_queue::Error) -> Problem {
        let known = queue.store().get(vec![self.job(0)]).await;
        match known {
            Ok(jobs) if !jobs.is_empty() && !error.is_transient() => self.mismatch(),
            _ => error.into(),
        }
    }

    fn mismatch(&self) -> Problem {
        let text = format!("the key {:?} was used for other jobs: use a new key for new jobs", self.text);
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_mismatch", text).at("Idempotency-Key")
    }
}
