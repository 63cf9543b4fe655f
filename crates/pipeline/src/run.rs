//! A run: a named, durable piece of work of any pipeline. It is a process with a queue of its own and a manifest, the job that
//! holds its settings, waits for all others and ends it. Its name follows from its input and settings, so whoever starts the same
//! work again finds the run instead of paying twice. There is no other state: whoever opens the store knows all runs.

use longhaul_queue::{Job, JobId, Json, NewJob, ProcessId, Queue};
use sha2::{Digest as _, Sha256};
use std::fmt;

pub mod hold;
pub mod status;

use crate::pipeline::About;
use crate::{Error, Result, job_name, numbered};

/// Tag of all manifests, by which runs are listed.
pub const TAG: &str = "longhaul.run";

/// Bytes of the digest in a run's name.
const DIGEST_BYTES: usize = 6;
/// Stands before the digits in the name of a run that a job stands for.
const JOB_MARK: char = 'b';
/// The number of the manifest among the jobs of a run; a pipeline gives its own jobs lower ones.
const MANIFEST: u64 = (1 << 48) - 1;

/// Name of a run: of its process and of its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunId(String);

impl RunId {
    /// The run of a pipeline whose input and settings have this shape, which any text may tell.
    pub fn derived(about: &About, shape: &str) -> Self {
        let digest = Sha256::digest(shape);
        Self(format!("{}{}", about.prefix, hex(&digest[..DIGEST_BYTES])))
    }

    /// From its name.
    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The run that a job stands for, and that is named after it.
    pub fn of_job(about: &About, id: JobId) -> Self {
        Self(job_name::name_of(id, &Self::job_prefix(about)))
    }

    /// The job that stands for a run of this name.
    pub fn job_behind(about: &About, name: &str) -> Option<JobId> {
        job_name::id_of(name, &Self::job_prefix(about))
    }

    /// How the names of runs begin that a job stands for.
    pub fn job_prefix(about: &About) -> String {
        format!("{}{JOB_MARK}", about.prefix)
    }

    /// Whether a name has the form of those of a pipeline's runs.
    pub fn is_own(about: &About, name: &str) -> bool {
        let is_digest = |rest: &str| {
            rest.len() == 2 * DIGEST_BYTES
                && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        name.strip_prefix(about.prefix).is_some_and(is_digest) || Self::job_behind(about, name).is_some()
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its process.
    pub fn process(&self) -> ProcessId {
        ProcessId::new(self.0.clone())
    }

    /// Its `number`th job. One that is enqueued again after a crash has the same id, and so is stored once.
    pub fn job(&self, number: u64) -> JobId {
        numbered::job(&self.0, number)
    }

    /// The job that holds its settings and ends it.
    pub fn manifest(&self) -> JobId {
        self.job(MANIFEST)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A run that is stored.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its name.
    pub id: RunId,
    /// Its manifest.
    pub job: Job,
    /// The manifest's payload: its settings, as its pipeline wrote them.
    pub settings: Json,
}

impl Run {
    /// The run of this name.
    pub async fn find(queue: &Queue, id: &RunId) -> Result<Option<Self>> {
        let found = queue.store().get(vec![id.manifest()]).await?.pop();
        Ok(found.map(|detail| Self { id: id.clone(), job: detail.job, settings: detail.payload }))
    }

    /// The run of this name, which must exist.
    pub async fn get(queue: &Queue, id: &RunId) -> Result<Self> {
        Self::find(queue, id).await?.ok_or_else(|| Error::NoRun(id.to_string()))
    }
}

/// The manifest of a run: it waits until all other jobs of the run have ended. `title` is for people.
pub fn manifest(about: &About, id: &RunId, settings: Json, title: impl Into<String>) -> NewJob {
    let mut job = NewJob::new(about.manifest, settings)
        .id(id.manifest())
        .queue(id.as_str())
        .process(id.process())
        .after_process(id.process())
        .tag(TAG);
    job.helper = true;
    job.options.title = Some(title.into());
    job
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
