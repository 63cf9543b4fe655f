//! Who may see what stands behind a batch. It belongs to the token that created it, and so do its job, its run, the run's jobs and
//! their results, whichever API asks for them. To everybody else but an admin they are not there.

use std::collections::{HashMap, HashSet};

use longhaul_pipeline::RunId;
use longhaul_pipeline::job_name::DIGITS;
use longhaul_prompts::ABOUT;
use longhaul_prompts::sdk_batches::{BatchPayload, KIND, QUEUE, WAKE_KIND};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{NameForm, refusals};
use longhaul_queue::{JobDetail, JobId, NewJob};

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::tokens::Scope;

/// The queues that lists and events leave out for a caller: those of batches, unless it may see everything or asks for the run of a
/// batch of its own. Whose a job is stands in the batch, not in the job's row, so a list cannot tell its own from others'.
pub(crate) async fn hidden_queues(
    ctx: &Ctx,
    caller: &Caller,
    process: Option<&str>,
) -> Result<Vec<NameForm>, Problem> {
    let asks_for_its_own = match process {
        Some(process) if is_run(process) => may_see_process(ctx, caller, process).await?,
        _ => false,
    };
    if asks_for_its_own || caller.may(Scope::Admin) {
        return Ok(Vec::new());
    }
    let runs = RunId::job_prefix(&ABOUT);
    Ok(vec![
        NameForm { prefix: QUEUE.to_owned(), bytes: QUEUE.len() },
        NameForm { bytes: runs.len() + DIGITS, prefix: runs },
    ])
}

/// Whether lists of runs and processes leave one out for a caller, by the same rule.
pub(crate) fn is_unlisted(caller: &Caller, process: &str) -> bool {
    is_run(process) && !caller.may(Scope::Admin)
}

/// Refuses a job behind somebody else's batch, as if it were not there.
pub(crate) async fn check_job(ctx: &Ctx, caller: &Caller, detail: &JobDetail) -> Result<(), Problem> {
    match may_see_job(ctx, caller, detail).await? {
        true => Ok(()),
        false => Err(Problem::not_found(format!("there is no job {}", detail.job.id))),
    }
}

/// The same for a job that has not been read.
pub(crate) async fn check_id(ctx: &Ctx, caller: &Caller, id: JobId) -> Result<(), Problem> {
    if caller.may(Scope::Admin) {
        return Ok(());
    }
    match ctx.queue().store().get(vec![id]).await?.pop() {
        Some(detail) => check_job(ctx, caller, &detail).await,
        None => Ok(()),
    }
}

/// Refuses jobs that wait for somebody else's batch or for a job behind it, as if these were not there: who runs them is given
/// the answer.
pub(crate) async fn check_awaited(ctx: &Ctx, caller: &Caller, jobs: &[NewJob]) -> Result<(), Problem> {
    if caller.may(Scope::Admin) {
        return Ok(());
    }
    let id_of = |job: &NewJob| {
        job.id.unwrap_or_else(|| JobId::generate(ctx.queue().clock().now(), fastrand::u128(..)))
    };
    for job in jobs {
        if let Some(process) = &job.after_process
            && !may_see_process(ctx, caller, process.as_str()).await?
        {
            return Err(Problem::unfit(refusals::no_process(id_of(job), process)));
        }
    }
    let own: HashSet<JobId> = jobs.iter().filter_map(|job| job.id).collect();
    let waits = jobs.iter().flat_map(|job| job.depends_on.iter().map(move |parent| (parent.job_id, job)));
    let waits: HashMap<JobId, &NewJob> = waits.filter(|(parent, _)| !own.contains(parent)).collect();
    let parents: Vec<JobId> = waits.keys().copied().collect();
    for page in parents.chunks(PAGE_MAX) {
        for detail in ctx.queue().store().get(page.to_vec()).await? {
            if !may_see_job(ctx, caller, &detail).await? {
                let parent = detail.job.id;
                return Err(Problem::unfit(refusals::no_parent(id_of(waits[&parent]), parent)));
            }
        }
    }
    Ok(())
}

/// Refuses the process of somebody else's batch, as if it were not there.
pub(crate) async fn check_process(ctx: &Ctx, caller: &Caller, process: &str) -> Result<(), Problem> {
    match may_see_process(ctx, caller, process).await? {
        true => Ok(()),
        false => Err(Problem::not_found(format!(
            "there is no process {process}: it has no jobs, or all are consumed"
        ))),
    }
}

/// Whether a caller may see a job.
pub(crate) async fn may_see_job(ctx: &Ctx, caller: &Caller, detail: &JobDetail) -> Result<bool, Problem> {
    let batch = match detail.job.kind.as_str() {
        KIND => return Ok(caller.owns(detail.payload.to::<BatchPayload>()?.owner.as_deref())),
        WAKE_KIND => Some(detail.payload.to()?),
        _ => batch_of_run(&detail.job.queue),
    };
    may_see(ctx, caller, batch).await
}

/// Whether a caller may see a process, which may be the run of a batch.
pub(crate) async fn may_see_process(ctx: &Ctx, caller: &Caller, process: &str) -> Result<bool, Problem> {
    may_see(ctx, caller, batch_of_run(process)).await
}

/// Whether a caller may see what stands behind a batch. Of one that is gone nobody knows whose it was.
async fn may_see(ctx: &Ctx, caller: &Caller, batch: Option<JobId>) -> Result<bool, Problem> {
    let Some(batch) = batch.filter(|_| !caller.may(Scope::Admin)) else { return Ok(true) };
    let Some(detail) = ctx.queue().store().get(vec![batch]).await?.pop() else { return Ok(false) };
    if detail.job.kind != KIND {
        return Ok(false);
    }
    Ok(caller.owns(detail.payload.to::<BatchPayload>()?.owner.as_deref()))
}

/// Whether the run of a batch is called so.
pub(crate) fn is_run(process: &str) -> bool {
    batch_of_run(process).is_some()
}

/// The batch whose run is called so.
fn batch_of_run(run: &str) -> Option<JobId> {
    RunId::job_behind(&ABOUT, run)
}
