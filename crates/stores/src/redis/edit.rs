//! Changes a job. It is read, changed here, and written if it is as it was read.

use longhaul_queue::job::{Dependency, JobChange, JobDetail, JobId};
use longhaul_queue::store::refusals;
use longhaul_queue::{NewJob, Result, State, Timestamp};
use redis::Value;

use super::RedisStore;
use super::encode::{Args, digest, options_text};
use super::read::Stored;
use super::reply;
use super::scripts::Function;

/// Goes on until it has the last word: who came in between has changed the job, or begun to run it.
pub(super) async fn edit(store: &RedisStore, id: JobId, change: &JobChange, now: Timestamp) -> Result<State> {
    loop {
        let found = store.link.run(Function::Get, now, vec![id.as_bytes().to_vec()]).await?;
        let Some(found) = reply::list(found)?.pop() else {
            return Err(refusals::no_job(id));
        };
        let Stored { detail, digest, .. } = Stored::read(found)?;
        let (state, has_run) = (detail.job.state, detail.job.started_at.is_some());
        change.check(id, state, has_run)?;
        let written = store.link.run(Function::Edit, now, arguments(detail, digest, change)?).await?;
        if matches!(written, Value::Int(1)) {
            return Ok(state);
        }
    }
}

/// The job as it was read: id, state, fence, digest. Then what it gets: digest, priority, options, and the payload if it is new.
fn arguments(detail: JobDetail, seen: u64, change: &JobChange) -> Result<Args> {
    let JobDetail { job, payload, depends_on, after_process, .. } = detail;
    let depends_on = depends_on
        .iter()
        .map(|parent| Dependency { job_id: parent.job_id, on_failure: parent.on_failure })
        .collect();
    let before = job.submitted(payload, depends_on, after_process);
    let priority = change.priority.unwrap_or(before.priority);
    let options = change.of_options(before.options.clone());
    let options_text = options_text(&options)?;
    let after = NewJob { priority, options, ..before };
    let digest = digest(&after, options_text.as_ref())?;
    let number = |number: &dyn ToString| number.to_string().into_bytes();
    let mut args = vec![
        job.id.as_bytes().to_vec(),
        number(&(job.state as u8)),
        number(&job.fence),
        seen.to_be_bytes().to_vec(),
        digest.to_be_bytes().to_vec(),
        number(&priority),
        options_text.map_or_else(Vec::new, |text| text.as_str().as_bytes().to_vec()),
    ];
    args.extend(change.payload.as_ref().map(|payload| payload.as_str().as_bytes().to_vec()));
    Ok(args)
}
