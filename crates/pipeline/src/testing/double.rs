//! A simulator that the test holds in its hand: it can stop at any call, refuse a key, fail as told, and keep no tags.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use longhaul_llm::provider::{
    BatchInput, BatchLine, BatchProbe, BatchStatus, FoundBatch, ModelInfo, ResultStream,
};
use longhaul_llm::types::{Answer, ChatRequest, Delta, EmbedRequest, Embeddings};
use longhaul_llm::{Caps, Error, Provider, Reply, Result};
use longhaul_queue::testing::soon;
use longhaul_sim::{Door, SimCore, SimProvider};
use tokio::sync::Notify;

/// A call of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// A chat, or texts to embed.
    Complete,
    Upload,
    Create,
    Find,
    Poll,
    Results,
    /// One line of results that is read.
    Line,
    Cancel,
    /// The page of models, which costs nothing.
    Models,
}

/// On which side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The provider has not heard of it.
    Before,
    /// It is done there, and the answer is on its way.
    After,
}

/// Where to stop: at the `nth` call of a kind, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halt {
    pub point: Point,
    pub nth: u64,
    pub side: Side,
}

#[derive(Default)]
struct Plan {
    calls: HashMap<Point, u64>,
    halt: Option<Halt>,
    errors: HashMap<Point, Error>,
    key: Option<String>,
    tagless: bool,
    requests_max: Option<usize>,
    inputs_max: Option<usize>,
    no_embeddings: bool,
}

/// The double. Clones are one.
#[derive(Clone)]
pub struct Double {
    core: Arc<SimCore>,
    plan: Arc<Mutex<Plan>>,
    halted: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl Double {
    pub fn new(core: Arc<SimCore>) -> Self {
        Self { core, plan: Arc::default(), halted: Arc::default(), go_on: Arc::default() }
    }

    /// Stops the next time that this is reached, once, until [`Double::go_on`].
    pub fn halt_at(&self, halt: Halt) {
        self.plan().halt = Some(halt);
    }

    /// Waits until it has stopped.
    pub async fn halted(&self) {
        soon(self.halted.notified()).await;
    }

    /// Lets the stopped call go on.
    pub fn go_on(&self) {
        self.go_on.notify_one();
    }

    /// All calls of a kind fail so from now on, or work again.
    pub fn fail(&self, point: Point, error: Option<Error>) {
        match error {
            Some(error) => self.plan().errors.insert(point, error),
            None => self.plan().errors.remove(&point),
        };
    }

    pub fn set_key(&self, key: &str) {
        self.plan().key = Some(key.to_owned());
    }

    /// It keeps no tags from now on: batches are found by size only.
    pub fn lose_tags(&self) {
        self.plan().tagless = true;
    }

    /// It takes no larger batches.
    pub fn limit_batches(&self, requests_max: usize) {
        self.plan().requests_max = Some(requests_max);
    }

    /// It takes no more texts to embed in a batch.
    pub fn limit_inputs(&self, inputs_max: usize) {
        self.plan().inputs_max = Some(inputs_max);
    }

    /// It embeds nothing.
    pub fn forget_embeddings(&self) {
        self.plan().no_embeddings = true;
    }

    /// How often a call was made.
    pub fn calls(&self, point: Point) -> u64 {
        self.plan().calls.get(&point).copied().unwrap_or(0)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sim(&self) -> SimProvider {
        let sim = SimProvider::new(Arc::clone(&self.core));
        match self.plan().key.clone() {
            Some(key) => sim.with_key(key),
            None => sim,
        }
    }

    async fn enter(&self, point: Point) -> Result<u64> {
        let nth = {
            let mut plan = self.plan();
            let calls = plan.calls.entry(point).or_default();
            *calls += 1;
            *calls
        };
        self.stop_at(Halt { point, nth, side: Side::Before }).await;
        match self.plan().errors.get(&point) {
            Some(error) => Err(error.clone()),
            None => Ok(nth),
        }
    }

    async fn stop_at(&self, here: Halt) {
        let stop = self.plan().halt.take_if(|halt| *halt == here).is_some();
        if stop {
            self.halted.notify_one();
            self.go_on.notified().await;
        }
    }

    /// One call, with the stops on both of its sides.
    async fn pass<T>(&self, point: Point, call: impl Future<Output = Result<T>>) -> Result<T> {
        let nth = self.enter(point).await?;
        let reply = call.await;
        self.stop_at(Halt { point, nth, side: Side::After }).await;
        reply
    }
}

#[async_trait]
impl Provider for Double {
    fn caps(&self) -> Caps {
        let mut caps = self.sim().caps();
        if let Some(batches) = &mut caps.batches {
            let plan = self.plan();
            batches.tagged = !plan.tagless;
            batches.requests_max = plan.requests_max.unwrap_or(batches.requests_max);
            if let Some(embeddings) = &mut batches.embeddings {
                embeddings.inputs_max = plan.inputs_max.unwrap_or(embeddings.inputs_max);
            }
        }
        caps.embeddings = !self.plan().no_embeddings;
        caps
    }

    async fn complete(&self, request: &ChatRequest) -> Result<Reply<Answer>> {
        self.pass(Point::Complete, self.sim().complete(request)).await
    }

    async fn stream(&self, request: &ChatRequest) -> Result<Reply<ResultStream<Delta>>> {
        self.sim().stream(request).await
    }

    async fn embed(&self, request: &EmbedRequest) -> Result<Reply<Embeddings>> {
        self.pass(Point::Complete, self.sim().embed(request)).await
    }

    async fn models(&self) -> Result<Vec<ModelInfo>> {
        self.pass(Point::Models, self.sim().models()).await
    }

    async fn upload_batch(&self, input: &BatchInput) -> Result<Option<String>> {
        self.pass(Point::Upload, self.sim().upload_batch(input)).await
    }

    async fn create_batch(&self, input: &BatchInput, file: Option<&str>) -> Result<BatchStatus> {
        self.pass(Point::Create, self.sim().create_batch(input, file)).await
    }

    async fn find_batches(&self, probe: &BatchProbe) -> Result<Vec<FoundBatch>> {
        let sim = self.sim();
        let tagless = self.plan().tagless;
        let find = async {
            if !tagless {
                return sim.find_batches(probe).await;
            }
            let mut found = Vec::new();
            for batch in self.core.list_batches(Door::Native) {
                if batch.given.items.len() == probe.requests {
                    found.push(FoundBatch { status: sim.poll_batch(&batch.id).await?, certain: false });
                }
            }
            Ok(found)
        };
        self.pass(Point::Find, find).await
    }

    async fn poll_batch(&self, id: &str) -> Result<BatchStatus> {
        self.pass(Point::Poll, self.sim().poll_batch(id)).await
    }

    async fn batch_results(&self, id: &str) -> Result<ResultStream<BatchLine>> {
        let lines = self.pass(Point::Results, self.sim().batch_results(id)).await?;
        let double = self.clone();
        Ok(Box::pin(lines.then(move |line| {
            let double = double.clone();
            async move { double.pass(Point::Line, std::future::ready(line)).await }
        })))
    }

    async fn cancel_batch(&self, id: &str) -> Result<()> {
        self.pass(Point::Cancel, self.sim().cancel_batch(id)).await
    }
}
