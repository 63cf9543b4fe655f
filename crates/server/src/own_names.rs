//! Kinds, queues, processes and ids of the program itself. Its jobs carry what only the program may write: a message that is signed with a
//! webhook's secret, a request that is paid for. So no client may enqueue or claim them, whatever its token allows. Every
//! entry point that takes such a name from outside checks it here.

use longhaul_api::job_in::{JobIn, Misfit};
use longhaul_pipeline::{About, RunId};
use longhaul_queue::{Error, Job, JobId, Result};

use crate::batches::access;
use crate::{batches, webhooks};

/// The version of UUIDs whose content is their maker's business.
const DERIVED_VERSION: u8 = 8;
/// Prefixes of the kinds that the program registers beside those of its pipelines.
const KIND_PREFIXES: [&str; 4] = ["api.", "demo.", "verify.", "webhook."];

/// The names of a program with these pipelines.
#[derive(Debug, Clone)]
pub struct OwnNames {
    pipelines: Vec<&'static About>,
}

impl OwnNames {
    /// Those of a program with these pipelines.
    pub fn new(pipelines: Vec<&'static About>) -> Self {
        Self { pipelines }
    }

    /// Prefixes of the kinds that the program registers for itself.
    pub fn kind_prefixes(&self) -> Vec<&'static str> {
        let of_pipelines = self.pipelines.iter().map(|about| about.kind_prefix);
        let mut prefixes: Vec<&str> = of_pipelines.chain(KIND_PREFIXES).collect();
        prefixes.sort_unstable();
        prefixes
    }

    /// Prefixes of the names of runs.
    pub fn run_prefixes(&self) -> Vec<&'static str> {
        self.pipelines.iter().map(|about| about.prefix).collect()
    }

    /// Whether a kind is reserved for the program.
    pub fn is_own_kind(&self, kind: &str) -> bool {
        self.kind_prefixes().iter().any(|prefix| kind.starts_with(prefix))
    }

    /// Whether a queue holds jobs of the program's own kinds.
    pub fn is_own_queue(&self, queue: &str) -> bool {
        [batches::QUEUE, webhooks::QUEUE].contains(&queue)
            || self.pipelines.iter().any(|about| queue.starts_with(about.prefix))
    }

    /// The pipeline whose run has this queue.
    pub fn pipeline_of(&self, queue: &str) -> Option<&'static About> {
        self.pipelines.iter().find(|about| queue.starts_with(about.prefix)).copied()
    }

    /// Refuses a reserved kind.
    pub fn check_kind(&self, kind: &str) -> Result<()> {
        if !self.is_own_kind(kind) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the kind {kind:?} is reserved: kinds that begin with {} belong to Longhaul; choose another name",
            self.kind_prefixes().join(", ")
        )))
    }

    /// Refuses a job that a client hands in under a reserved name.
    pub fn check_job(&self, job: &JobIn) -> std::result::Result<(), Misfit> {
        self.check_kind(&job.kind).map_err(|error| Misfit::new("kind", error))?;
        let queue = job.queue.as_deref().map_or(Ok(()), |queue| self.check_queue(queue));
        queue.map_err(|error| Misfit::new("queue", error))?;
        let process = job.process_id.as_ref().map_or(Ok(()), |id| self.check_process(id.as_str()));
        process.map_err(|error| Misfit::new("process_id", error))?;
        job.id.map_or(Ok(()), |id| self.check_id(id)).map_err(|error| Misfit::new("id", error))
    }

    /// Refuses a change of a job of a reserved kind: what it carries is the program's word, and a run that is submitted again
    /// must find its requests as they were.
    pub fn check_change(&self, job: &Job) -> Result<()> {
        if !self.is_own_kind(&job.kind) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "job {} is of the kind {}, which belongs to Longhaul, and cannot be changed",
            job.id, job.kind
        )))
    }

    /// Refuses the process of a run, a batch's too: a foreign job among its own would keep it from ending, and stand among its
    /// answers.
    pub fn check_process(&self, process: &str) -> Result<()> {
        let is_run = self.pipelines.iter().any(|about| RunId::is_derived(about, process));
        if !is_run && !access::is_run(process) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the process {process:?} is reserved: names like this belong to runs; choose another name"
        )))
    }

    /// Refuses an id of the form in which the program derives its own. Anyone who knows a run's input could take the ids of its
    /// jobs before it does, and the run could never be stored.
    pub fn check_id(&self, id: JobId) -> Result<()> {
        if id.as_bytes()[6] >> 4 != DERIVED_VERSION {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the id {id} is reserved: UUIDs of version {DERIVED_VERSION} are derived by Longhaul; use version 4 or 7"
        )))
    }

    /// Refuses a queue of the program. A foreign job there would be run by nobody, and stand in the way of a run's pauses and
    /// limits.
    pub fn check_queue(&self, queue: &str) -> Result<()> {
        if !self.is_own_queue(queue) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the queue {queue:?} is reserved: names like this belong to Longhaul's own jobs, which longhaul work and longhaul up run"
        )))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Those of a program with every pipeline.
    pub(crate) fn names() -> OwnNames {
        OwnNames::new(vec![&longhaul_prompts::ABOUT, &longhaul_sheets::ABOUT])
    }
}
