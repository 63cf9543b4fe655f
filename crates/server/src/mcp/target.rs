//! What an id names: a job, a run or a process. Agents keep one kind of handle, and every tool takes it.

use longhaul_pipeline::{Error, Found};
use longhaul_queue::{JobDetail, JobId, ProcessId};

use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// Something that was stored.
pub(super) enum Target {
    /// One job.
    Job(Box<JobDetail>),
    /// A run.
    Run(Box<Found>),
    /// A group of jobs.
    Process(ProcessId),
}

impl Target {
    /// Finds what is called so, if the caller may see it.
    pub(super) async fn find(ctx: &Ctx, caller: &Caller, name: &str) -> Result<Self, Problem> {
        if let Ok(id) = name.parse::<JobId>() {
            let detail = ctx.queue().get(id).await.map_err(|error| Problem::from(error).at("id"))?;
            access::check_job(ctx, caller, &detail).await.map_err(|problem| problem.at("id"))?;
            return Self::of(ctx, detail).await;
        }
        let missing = || {
            Problem::not_found(format!(
                "there is no job, run or process {name:?}: it was never stored, or is deleted; list_jobs shows what there is"
            ))
            .at("id")
        };
        let target = match ctx.runs.get(name).await {
            Ok(found) => Self::Run(Box::new(found)),
            Err(Error::NoRun(_)) => {
                let process = ProcessId::from(name);
                if ctx.queue().store().process(process.clone()).await?.is_none() {
                    return Err(missing());
                }
                Self::Process(process)
            }
            Err(error) => return Err(error.into()),
        };
        // By the name of what was found: a run is also found without the prefix of its name.
        let found = match &target {
            Self::Run(found) => found.run.id.as_str(),
            _ => name,
        };
        match access::may_see_process(ctx, caller, found).await? {
            true => Ok(target),
            false => Err(missing()),
        }
    }

    /// The job that holds a run's settings stands for the run: it has no life of its own.
    async fn of(ctx: &Ctx, detail: JobDetail) -> Result<Self, Problem> {
        match ctx.runs.of_manifest(&detail.job).await? {
            Some(found) if found.run.job.id == detail.job.id => Ok(Self::Run(Box::new(found))),
            Some(_) | None => Ok(Self::Job(Box::new(detail))),
        }
    }
}
