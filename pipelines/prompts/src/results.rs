//! The answers of a run, in the order of its requests.

use longhaul_llm::types::vector_from_base64;
use longhaul_pipeline::numbered;
use longhaul_pipeline::pipeline::Results;
use longhaul_queue::state::JobError;
use longhaul_queue::{JobId, Json, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::request::RequestPayload;
use super::{Prompts, Result, RunId};

/// What became of a request.
#[derive(Debug, Serialize)]
struct Answered {
    /// Which request, counted from 0.
    index: u64,
    /// The caller's name for it.
    custom_id: Option<String>,
    /// The job that asked.
    job_id: JobId,
    /// `succeeded`, `failed` or `cancelled`.
    state: State,
    /// What the model said, with usage and cost; `vectors` where texts were embedded.
    result: Option<Json>,
    /// `reason` and `text`: why there is no answer.
    error: Option<JobError>,
}

/// The name of a request stands in its answer; only one without must be read for it.
#[derive(Debug, Default, Deserialize)]
struct Named {
    custom_id: Option<String>,
}

/// Answers after a place, at most so many.
pub(super) async fn page(prompts: &Prompts, run: &RunId, after: i64, limit: usize) -> Result<Results> {
    let queue = prompts.queue();
    let page = queue.results(&run.process(), after, limit).await?;
    let nameless = page.items.iter().filter(|item| item.result.is_none()).map(|item| item.id).collect();
    let mut details = queue.store().get(nameless).await?.into_iter().peekable();
    let mut items = Vec::with_capacity(page.items.len());
    for item in page.items {
        let custom_id = match &item.result {
            Some(result) => result.to::<Named>().unwrap_or_default().custom_id,
            None => {
                let detail = details.next_if(|detail| detail.job.id == item.id);
                let payload = detail.map(|detail| detail.payload.to::<RequestPayload>()).transpose()?;
                payload.and_then(|payload| payload.custom_id)
            }
        };
        items.push(Json::of(&Answered {
            index: numbered::number(item.id),
            custom_id,
            job_id: item.id,
            state: item.state,
            result: item.result.map(with_vectors).transpose()?,
            error: item.error,
        })?);
    }
    Ok(Results { items, next: page.next })
}

/// An answer with its vectors as numbers, which are stored in their compact form, unless the request asked for that one.
fn with_vectors(result: Json) -> Result<Json> {
    if !result.as_str().contains("\"vectors\"") {
        return Ok(result);
    }
    let mut value: Value = result.to()?;
    if value["encoding_format"] == "base64" {
        return Ok(result);
    }
    for vector in value["vectors"].as_array_mut().into_iter().flatten() {
        if let Some(numbers) = vector.as_str().and_then(vector_from_base64) {
            *vector = json!(numbers);
        }
    }
    Ok(Json::of(&value)?)
}
