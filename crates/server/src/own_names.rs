//! Kinds, queues, processes and ids of the program itself. Its jobs carry what only the program may write: a message that is signed with a
//! webhook's secret, a request that is paid for. So no client may enqueue or claim them, whatever its token allows. Every
//! entry point that takes such a name from outside checks it here.

use longhaul_prompts::run::RUN_PREFIX;
use longhaul_queue::{Error, Job, JobId, Result};
use longhaul_sheets::sheet::SHEET_PREFIX;

use crate::batches::access;
use crate::{batches, webhooks};

/// Hex digits in the name of a run or a sheet, after its prefix.
const DIGEST_CHARS: usize = 12;
/// The version of UUIDs whose content is their maker's business.
const DERIVED_VERSION: u8 = 8;
/// Prefixes of the kinds that the program registers for itself.
pub(crate) const KIND_PREFIXES: [&str; 6] = ["api.", "demo.", "llm.", "score.", "verify.", "webhook."];

/// Whether a kind is reserved for the program.
pub fn is_own_kind(kind: &str) -> bool {
    KIND_PREFIXES.iter().any(|prefix| kind.starts_with(prefix))
}

/// Whether a queue holds jobs of the program's own kinds.
pub fn is_own_queue(queue: &str) -> bool {
    [batches::QUEUE, webhooks::QUEUE].contains(&queue)
        || queue.starts_with(RUN_PREFIX)
        || queue.starts_with(SHEET_PREFIX)
}

/// Refuses a reserved kind.
pub fn check_kind(kind: &str) -> Result<()> {
    if !is_own_kind(kind) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the kind {kind:?} is reserved: kinds that begin with {} belong to Longhaul; choose another name",
        KIND_PREFIXES.join(", ")
    )))
}

/// Refuses a change of a job of a reserved kind: what it carries is the program's word, and a run that is submitted again
/// must find its requests as they were.
pub fn check_change(job: &Job) -> Result<()> {
    if !is_own_kind(&job.kind) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "job {} is of the kind {}, which belongs to Longhaul, and cannot be changed",
        job.id, job.kind
    )))
}

/// Refuses the process of a run, a batch's too, or of a sheet: a foreign job among theirs would keep it from ending, and stand among its answers.
pub fn check_process(process: &str) -> Result<()> {
    let rest = process.strip_prefix(RUN_PREFIX).or_else(|| process.strip_prefix(SHEET_PREFIX));
    let is_digest = |rest: &str| {
        rest.len() == DIGEST_CHARS && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !rest.is_some_and(is_digest) && !access::is_run(process) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the process {process:?} is reserved: names like this belong to runs and sheets; choose another name"
    )))
}

/// Refuses an id of the form in which the program derives its own. Anyone who knows a run's prompts could take the ids of its
/// requests before it does, and the run could never be stored.
pub fn check_id(id: JobId) -> Result<()> {
    if id.as_bytes()[6] >> 4 != DERIVED_VERSION {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the id {id} is reserved: UUIDs of version {DERIVED_VERSION} are derived by Longhaul; use version 4 or 7"
    )))
}

/// Refuses a queue of the program. A foreign job there would be run by nobody, and stand in the way of a run's pauses and limits.
pub fn check_queue(queue: &str) -> Result<()> {
    if !is_own_queue(queue) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the queue {queue:?} is reserved: names like this belong to Longhaul's own jobs, which longhaul work and longhaul up run"
    )))
}
