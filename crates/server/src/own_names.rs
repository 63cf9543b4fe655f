//! Kinds and queues of the program itself. Its jobs carry what only the program may write: a message that is signed with a
//! webhook's secret, a request that is paid for. So no client may enqueue or claim them, whatever its token allows. Every
//! entry point that takes a kind from outside checks it here.

use longhaul_pipelines::bulk::run::RUN_PREFIX;
use longhaul_pipelines::scoring::sheet::SHEET_PREFIX;
use longhaul_queue::{Error, Result};

use crate::{batches, webhooks};

/// Prefixes of the kinds that the program registers for itself.
const KIND_PREFIXES: [&str; 6] = ["api.", "demo.", "llm.", "score.", "verify.", "webhook."];

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

/// Refuses a queue whose jobs are of reserved kinds.
pub(crate) fn check_queue(queue: &str) -> Result<()> {
    if !is_own_queue(queue) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the queue {queue:?} is reserved: its jobs are run by longhaul work and longhaul up only"
    )))
}
