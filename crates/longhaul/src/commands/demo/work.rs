//! What the demo's jobs do: wait a little as if for somebody's answer, and add up.

use std::time::Duration;

use longhaul_queue::{Failure, JobContext, Json, Worker};
use serde::{Deserialize, Serialize};

/// Steps of one job.
const STEPS: u64 = 4;

/// Payload of `demo.work`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Work {
    /// What it contributes.
    pub(super) value: u64,
    /// How long it takes.
    pub(super) ms: u64,
}

/// What every job of the demo answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Its own value, or the sum of its parents'.
    pub(super) value: u64,
}

/// Registers the demo's kinds, in workers that it starts.
pub(crate) fn register(worker: &mut Worker) {
    worker.handle("demo.work", work);
    worker.handle("demo.join", |context: JobContext, _: Json| async move { sum(&context) });
    worker.handle("demo.report", |context: JobContext, _: Json| async move { sum(&context) });
}

async fn work(context: JobContext, work: Work) -> Result<Answer, Failure> {
    for step in 0..STEPS {
        context.progress(step, STEPS);
        tokio::time::sleep(Duration::from_millis(work.ms / STEPS)).await;
    }
    context.log(format!("answered {}", work.value));
    Ok(Answer { value: work.value })
}

fn sum(context: &JobContext) -> Result<Answer, Failure> {
    let mut value = 0;
    for parent in context.parents() {
        let Some(result) = &parent.result else {
            return Err(Failure::fatal(format!("parent {} has no result", parent.job_id)));
        };
        value += result.to::<Answer>()?.value;
    }
    context.log(format!("{} results add up to {value}", context.parents().len()));
    Ok(Answer { value })
}
