//! Storing a run's requests. Repeatable at any point: what is stored already is left alone.

use std::sync::Arc;

use longhaul_llm::types::Dialect;
use longhaul_llm::{Endpoint, Route};
use longhaul_queue::{Json, NewJob};
use serde_json::Value;

use super::batch::{self, BatchPayload};
use super::plan::{Chunk, Load};
use super::request::{self, RequestPayload};
use super::run::{self, Mode, Run, RunSettings};
use super::{Error, Prompts, Result};
use longhaul_pipeline::RunId;

/// Requests stored in one transaction in sync mode.
const PAGE: usize = 2_000;
/// Bytes of requests held in memory before they are stored.
const PAGE_BYTES: usize = 8_000_000;

/// One request of a run; what it lacks comes from the run's settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NewRequest {
    /// The caller's name for it.
    pub custom_id: Option<String>,
    /// The body.
    pub body: Value,
    /// In whose words.
    pub dialect: Dialect,
    /// Why it cannot be asked: it fails alone, and the others run.
    pub refused: Option<String>,
}

/// A run while its requests are stored.
pub struct Submission {
    prompts: Prompts,
    id: RunId,
    settings: Arc<RunSettings>,
    next: u64,
    batches: u64,
    page: Vec<NewJob>,
    page_bytes: usize,
    route: Route,
    /// Some requests of the chunk name another model than the run.
    mixed: bool,
    chunk: Chunk,
    resumed: bool,
    /// W3C `traceparent` of all its jobs.
    trace: Option<String>,
}

impl Submission {
    /// Begins a run, or goes on with one of the same input and settings.
    pub async fn begin(prompts: &Prompts, settings: RunSettings) -> Result<Self> {
        Self::begin_as(prompts, settings.run_id(), settings).await
    }

    /// Begins or goes on with a run under a name that the caller can find again, and that begins with
    /// the prefix of this pipeline.
    pub async fn begin_as(prompts: &Prompts, id: RunId, settings: RunSettings) -> Result<Self> {
        let route = prompts.llm().route(&settings.profile, &settings.model).await?;
        settings.check(&route)?;
        let found = Run::find(prompts.queue(), &id).await?;
        let resumed = found.is_some();
        let (settings, trace) = match found {
            // It goes on as it began: which batch a request belongs to must not change.
            Some(run) => (run.settings, run.job.options.trace),
            None => {
                let trace = Some(prompts.trace());
                let mut manifest = run::manifest(&id, &settings)?;
                manifest.options.trace.clone_from(&trace);
                prompts.queue().open_process(id.process()).await?;
                prompts.queue().enqueue(manifest).await?;
                (settings, trace)
            }
        };
        let chunk = Chunk::new(route.batch_limits(settings.endpoint));
        Ok(Self {
            prompts: prompts.clone(),
            id,
            settings: Arc::new(settings),
            next: 0,
            batches: 0,
            page: Vec::new(),
            page_bytes: 0,
            route,
            mixed: false,
            chunk,
            resumed,
            trace,
        })
    }

    /// The run.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Its settings; of a resumed run those that it began with.
    pub fn settings(&self) -> &RunSettings {
        &self.settings
    }

    /// Whether the run was there already.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Whether all requests of a resumed run are stored, so that none needs to be handed in again.
    pub async fn is_complete(&self) -> Result<bool> {
        let info = self.prompts.queue().store().process(self.id.process()).await?;
        Ok(self.resumed && info.is_some_and(|info| info.sealed))
    }

    /// Adds the next request. An error leaves what was added before as it is.
    pub async fn push(&mut self, request: NewRequest) -> Result<()> {
        let inputs = self.inputs(&request)?;
        let batch = match self.settings.mode {
            Mode::Sync => None,
            Mode::Batch => {
                // The chunk must be known before the payload, which names it, can be written.
                let load = Load { bytes: request.body.to_string().len(), inputs };
                if self.chunk.is_full_with(load) {
                    self.store().await?;
                }
                self.chunk.add(load);
                self.mixed |= names_other_model(&request.body, &self.settings);
                Some(self.batches)
            }
        };
        let payload = RequestPayload {
            run: self.id.as_str().to_owned(),
            custom_id: request.custom_id,
            body: request.body,
            dialect: request.dialect,
            refused: request.refused,
            batch,
        };
        let payload = Json::of(&payload)?;
        self.page_bytes += payload.len();
        let job = NewJob::new(request::KIND, payload)
            .id(self.id.job(self.next))
            .queue(self.id.as_str())
            .process(self.id.process())
            .max_crashes(run::CRASHES_MAX);
        self.page.push(job);
        self.next += 1;
        let full = self.page.len() >= PAGE || self.page_bytes >= PAGE_BYTES;
        if full && self.settings.mode == Mode::Sync {
            self.store().await?;
        }
        Ok(())
    }

    /// How many texts a request embeds. What a provider cannot embed is refused here: in a batch it would take the other
    /// requests down with it.
    fn inputs(&self, request: &NewRequest) -> Result<usize> {
        if self.settings.endpoint == Endpoint::Chat || request.refused.is_some() {
            return Ok(0);
        }
        let composed = request::compose(request.body.clone(), request.dialect, &self.settings)?;
        self.route.caps().check(&composed, self.settings.mode == Mode::Batch)?;
        Ok(composed.vectors())
    }

    /// Ends the submission: no more requests come.
    pub async fn finish(mut self) -> Result<RunId> {
        self.store().await?;
        if self.next == 0 {
            return Err(Error::Invalid("a run needs at least one request".to_owned()));
        }
        self.prompts.queue().seal(self.id.process()).await?;
        Ok(self.id)
    }

    /// Stores what is gathered, in batch mode together with the job that will send it.
    async fn store(&mut self) -> Result<()> {
        let mut jobs = std::mem::take(&mut self.page);
        self.page_bytes = 0;
        if jobs.is_empty() {
            return Ok(());
        }
        if self.settings.mode == Mode::Batch {
            let count = self.chunk.take();
            if self.resumed && self.is_stored(self.next - count).await? {
                // All of the chunk is. Its batch may be over and deleted: a new one would send again what was sent.
                (self.batches, self.mixed) = (self.batches + 1, false);
                return Ok(());
            }
            let payload = BatchPayload {
                run: self.id.as_str().to_owned(),
                chunk: self.batches,
                round: 0,
                part: 0,
                members: vec![(self.next - count, self.next - 1)],
                mixed: std::mem::take(&mut self.mixed),
            };
            jobs.push(batch::new_job(&payload)?);
            self.batches += 1;
        }
        for job in &mut jobs {
            job.options.trace.clone_from(&self.trace);
        }
        self.prompts.queue().enqueue_many(jobs).await?;
        Ok(())
    }

    async fn is_stored(&self, index: u64) -> Result<bool> {
        Ok(!self.prompts.queue().store().get(vec![self.id.job(index)]).await?.is_empty())
    }
}

/// Whether a request names another model than its run.
fn names_other_model(body: &Value, settings: &RunSettings) -> bool {
    body.get("model").and_then(Value::as_str).is_some_and(|model| model != settings.model)
}
