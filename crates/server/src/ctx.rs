//! What every handler has at hand.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use longhaul_llm::{Catalog, Llm};
use longhaul_pipeline::webhooks::Endpoints;
use longhaul_pipeline::{OwnNames, Runs, Uploads};
use longhaul_prompts::plan::Strategy;
use longhaul_prompts::{Prompts, SdkBatches};
use longhaul_queue::{Engine, Queue};
use longhaul_sheets::Sheets;
use tokio::sync::{Semaphore, watch};

use crate::api::{Actions, RemoteWorkers, Streams};
use crate::body_budget::BodyBudget;
use crate::compat::models::Listed;
use crate::compat::test_objects::TestObjects;
use crate::metrics::Meters;
use crate::tokens::Tokens;

/// Tables of sheets that are read or written at once: a workbook is held in memory.
const TABLES_AT_ONCE: usize = 2;

/// How a server behaves. Every field has a default that is safe on this machine alone.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// A token is needed. Always so beyond loopback.
    pub token_required: bool,
    /// Names beside loopback's own under which the server is reached, without port.
    pub hosts: BTreeSet<String>,
    /// Origins of web pages that may call it, such as `https://ops.example.org`. Its own is always one.
    pub origins: BTreeSet<String>,
    /// Most connections at once; further ones wait.
    pub connections_max: usize,
    /// Time for the head of a request.
    pub head_wait: Duration,
    /// Longest silence while a body is read.
    pub body_wait: Duration,
    /// Time for requests under way when the server is asked to end.
    pub drain_wait: Duration,
    /// Largest JSON body.
    pub json_bytes_max: usize,
    /// All JSON bodies that are held at once, beside the short ones that every connection may hold.
    pub bodies_bytes_max: usize,
    /// Largest uploaded file.
    pub upload_bytes_max: u64,
    /// How runs are sent that do not say so.
    pub run_strategy: Strategy,
    /// Tools of `/mcp` may change things where no token is needed; elsewhere the token's scopes decide.
    pub mcp_allow_write: bool,
    /// It has a certificate of its own, so that its addresses begin with `https`.
    pub encrypted: bool,
    /// Objects under fixed names are answered for the test suites of SDKs.
    pub test_objects: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            token_required: false,
            hosts: BTreeSet::new(),
            origins: BTreeSet::new(),
            connections_max: 4_000,
            head_wait: Duration::from_secs(10),
            body_wait: Duration::from_secs(30),
            drain_wait: Duration::from_secs(10),
            json_bytes_max: 32_000_000,
            bodies_bytes_max: 256_000_000,
            upload_bytes_max: 512_000_000,
            run_strategy: Strategy::Sync,
            mcp_allow_write: false,
            encrypted: false,
            test_objects: false,
        }
    }
}

impl ServerOptions {
    /// A token is needed wherever others can reach the server.
    pub fn for_address(mut self, address: IpAddr) -> Self {
        self.token_required |= !address.is_loopback();
        self
    }
}

/// What handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Ctx(Arc<Inner>);

/// See [`Ctx`].
pub struct Inner {
    engine: Engine,
    /// The names of the program.
    pub names: OwnNames,
    /// Runs of every pipeline; the queue and the models with them.
    pub runs: Runs,
    /// Runs of prompts.
    pub prompts: Prompts,
    /// Sheets that are scored; none beside a store in memory.
    pub sheets: Option<Sheets>,
    /// What names of models mean.
    pub catalog: Catalog,
    /// Uploaded files.
    pub uploads: Uploads,
    /// Batches of SDKs.
    pub batches: SdkBatches,
    /// Who may come in.
    pub tokens: Tokens,
    /// How it behaves.
    pub options: ServerOptions,
    /// The models on offer, as they were told last.
    pub(crate) models: Listed,
    /// Who is told of what.
    pub endpoints: Arc<Endpoints>,
    /// What the store's calls are measured by.
    pub(crate) meters: Arc<Meters>,
    /// Files whose size is told.
    pub(crate) measured: Vec<PathBuf>,
    /// The room for bodies that are read whole.
    pub(crate) bodies: BodyBudget,
    /// Open streams of events.
    pub(crate) streams: Arc<Streams>,
    /// Turns of those who read or write whole tables.
    pub(crate) tables: Semaphore,
    /// Objects under fixed names.
    pub(crate) test_objects: OnceLock<TestObjects>,
    /// Becomes true when the server is asked to end: streams end, waits return.
    pub draining: watch::Sender<bool>,
    /// Verbs under way for many jobs.
    pub(crate) actions: Actions,
    /// Workers that call.
    pub(crate) remote_workers: RemoteWorkers,
}

/// What a server is made of.
pub struct Parts {
    /// What jobs run on.
    pub engine: Engine,
    /// Runs of every pipeline; the queue and the models with them.
    pub runs: Runs,
    /// Runs of prompts.
    pub prompts: Prompts,
    /// Sheets that are scored; none beside a store in memory.
    pub sheets: Option<Sheets>,
    /// What names of models mean.
    pub catalog: Catalog,
    /// Uploaded files.
    pub uploads: Uploads,
    /// Batches of SDKs.
    pub batches: SdkBatches,
    /// Who may come in.
    pub tokens: Tokens,
    /// Who is told of what.
    pub endpoints: Arc<Endpoints>,
    /// What the store's calls are measured by.
    pub meters: Arc<Meters>,
    /// Files whose size is told.
    pub measured: Vec<PathBuf>,
    /// How it behaves.
    pub options: ServerOptions,
}

impl Ctx {
    /// A server of these parts.
    pub fn new(parts: Parts) -> Self {
        let Parts {
            engine,
            runs,
            prompts,
            sheets,
            catalog,
            uploads,
            batches,
            tokens,
            endpoints,
            meters,
            measured,
            options,
        } = parts;
        let draining = watch::Sender::new(false);
        Self(Arc::new(Inner {
            engine,
            names: runs.own_names(),
            runs,
            prompts,
            sheets,
            catalog,
            uploads,
            batches,
            tokens,
            endpoints,
            meters,
            measured,
            bodies: BodyBudget::new(options.bodies_bytes_max),
            options,
            tables: Semaphore::new(TABLES_AT_ONCE),
            streams: Arc::default(),
            test_objects: OnceLock::new(),
            models: Listed::default(),
            draining,
            actions: Actions::default(),
            remote_workers: RemoteWorkers::default(),
        }))
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        self.runs.queue()
    }

    /// What jobs run on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The models.
    pub fn llm(&self) -> &Llm {
        self.runs.llm()
    }
}

impl Deref for Ctx {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
