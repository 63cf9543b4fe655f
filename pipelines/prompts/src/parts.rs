//! The provider batches of a run, as they are shown.

use longhaul_pipeline::pipeline::Part;
use longhaul_pipeline::run::status::fields;
use longhaul_queue::{Job, JobId, State};
use serde::Serialize;

use super::batch::{Refused, Step};
use super::{Prompts, Result, RunId, manage};

/// What is told of a batch beside its state.
#[derive(Debug, Serialize)]
struct Details<'a> {
    /// Its job.
    job_id: JobId,
    /// Which part of the run.
    chunk: u64,
    /// Which try.
    round: u64,
    /// How far it is.
    at: &'a Step,
    /// How often the provider refused it.
    refusals: u32,
}

/// Batches under way, and those that the provider did not take.
pub(super) async fn parts(prompts: &Prompts, run: &RunId) -> Result<Vec<Part>> {
    let mut batches = manage::batches(prompts, run).await?;
    batches.extend(manage::refused_batches(prompts, run).await?);
    let part = |(detail, payload): (longhaul_queue::JobDetail, super::batch::BatchPayload)| {
        let step: Step = detail.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default();
        let refused: Refused = detail.data.and_then(|data| data.to().ok()).unwrap_or_default();
        let (chunk, round) = (payload.chunk, payload.round.into());
        let details = Details { job_id: detail.job.id, chunk, round, at: &step, refusals: refused.refusals };
        Part {
            name: format!("batch-{:04}", chunk + 1),
            state: detail.job.state,
            units: payload.len(),
            note: Some(note(&detail.job, &step, &refused)),
            details: fields(&details),
        }
    };
    Ok(batches.into_iter().map(part).collect())
}

/// Where a batch stands, and why it is not further.
fn note(job: &Job, step: &Step, refused: &Refused) -> String {
    match &job.error {
        Some(error) if job.state == State::Failed => return error.text.clone(),
        _ => {}
    }
    match (&refused.refused, step) {
        (Some(reason), Step::Prepare) => {
            format!("refused {}, to be sent again: {reason}", times(refused.refusals))
        }
        _ => step_text(step, job),
    }
}

fn step_text(step: &Step, job: &Job) -> String {
    match step {
        Step::Prepare => format!("not sent yet ({})", job.state),
        Step::Uploaded { .. } => "uploaded".to_owned(),
        Step::Submitting { candidates, .. } if candidates.is_empty() => "asked for, not confirmed".to_owned(),
        Step::Submitting { candidates, .. } => format!("ambiguous: may be {}", candidates.join(" or ")),
        Step::Submitted { id, missing: Some(missing), .. } => {
            format!("{id}: the provider no longer knows it (asked {})", times(missing.looks))
        }
        Step::Ended { id, missing: Some(missing), .. } => {
            format!("{id}: the provider no longer has its results (asked {})", times(missing.looks))
        }
        Step::Submitted { id, completed, .. } => {
            let done = completed.map_or_else(String::new, |count| format!(", {count} answered"));
            format!("{id} at the provider{done}")
        }
        Step::Ended { id, .. } => format!("{id} has ended, results are read"),
        Step::Over { .. } => "given up, its requests are told".to_owned(),
    }
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}
