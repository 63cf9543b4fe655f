//! From jobs as a client hands them in to jobs that can be stored.

use axum::http::StatusCode;
use longhaul_api::job_in::{JobIn, Misfit, Refs};
use longhaul_queue::{JobId, NewJob, Timestamp};

use crate::problem::Problem;
use longhaul_pipeline::OwnNames;

/// The jobs of one call, with ids for those that others depend on. `derived` gives the id of the nth job, if ids are to follow
/// from the call itself.
pub(super) fn new_jobs(
    names: &OwnNames,
    mut jobs: Vec<JobIn>,
    now: Timestamp,
    derived: impl Fn(usize) -> Option<JobId>,
) -> Result<Vec<NewJob>, Problem> {
    let mut refs = Refs::default();
    let mut random = fastrand::u128(..);
    for (index, job) in jobs.iter_mut().enumerate() {
        job.check_names(names).map_err(|misfit| wrong(index, misfit))?;
        job.id = job.id.or_else(|| derived(index));
        refs.add(job, || JobId::generate(now, random)).map_err(|misfit| wrong(index, misfit))?;
        random = JobId::next_random(random);
    }
    let jobs = jobs.into_iter().enumerate();
    jobs.map(|(index, job)| job.into_job(&refs, now).map_err(|misfit| wrong(index, misfit))).collect()
}

/// A job that cannot be stored, by its place in the call.
pub(super) fn wrong(index: usize, misfit: Misfit) -> Problem {
    let Misfit { field, text } = misfit;
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at(format!("jobs[{index}].{field}"))
}
