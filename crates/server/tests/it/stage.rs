//! A server with all that belongs to it.

use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::catalog::CatalogProfile;
use longhaul_llm::clock::SystemWallClock;
use longhaul_llm::file::LlmFile;
use longhaul_llm::profile::{Profile, ProviderKind};
use longhaul_llm::rate::RouteLimits;
use longhaul_llm::{Catalog, Llm, ProfileSetup};
use longhaul_pipeline::pipeline::List;
use longhaul_pipeline::serve::{self, Served};
use longhaul_pipeline::testing::llm_options;
use longhaul_pipeline::webhooks::{self, Endpoints};
use longhaul_pipeline::{OwnNames, Pipeline, Runs, Uploads};
use longhaul_prompts::plan::Strategy;
use longhaul_prompts::{Prompts, SdkBatches, sdk_batches};
use longhaul_queue::testing::Started;
use longhaul_queue::{Clock, Engine, QueueShare, SystemClock, Worker, WorkerOptions};
use longhaul_server::metrics::{MeteredStore, Meters};
use longhaul_server::{Ctx, Parts, Server, ServerOptions, Tokens};
use longhaul_sheets::Sheets;
use longhaul_sim::{SimCore, SimOptions, SimProvider};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};
use reqwest::multipart::{Form, Part};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use tokio::task::JoinHandle;

/// A server on a free port of loopback.
pub(crate) struct Stage {
    pub(crate) ctx: Ctx,
    pub(crate) core: Arc<SimCore>,
    server: Server,
    client: Client,
    folder: tempfile::TempDir,
}

/// What a server is set up with; the simulator as it is by default.
pub(crate) struct Setup {
    pub(crate) options: ServerOptions,
    pub(crate) sim: SimOptions,
    /// Further providers beside the simulator.
    pub(crate) others: Vec<Profile>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether there is a place for sheets.
    pub(crate) sheets: bool,
    /// How batches of SDKs are sent.
    pub(crate) strategy: Strategy,
}

impl Setup {
    /// Batches go one by one: the simulator's own take their time.
    pub(crate) fn sync() -> Self {
        Self { strategy: Strategy::Sync, ..Self::default() }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            options: ServerOptions::default(),
            sim: SimOptions::default(),
            others: Vec::new(),
            clock: Arc::new(SystemClock),
            sheets: true,
            strategy: Strategy::Auto,
        }
    }
}

impl Stage {
    /// With the simulator as it is by default.
    pub(crate) async fn new() -> Self {
        Self::of(Setup::default()).await
    }

    /// With options of its own.
    pub(crate) async fn with(options: ServerOptions, sim: SimOptions) -> Self {
        Self::of(Setup { options, sim, ..Setup::default() }).await
    }

    /// With further providers beside the simulator.
    pub(crate) async fn beside(options: ServerOptions, sim: SimOptions, others: Vec<Profile>) -> Self {
        Self::of(Setup { options, sim, others, ..Setup::default() }).await
    }

    /// With all of its own.
    pub(crate) async fn of(setup: Setup) -> Self {
        let Setup { options, sim, others, clock, sheets, strategy } = setup;
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            SqliteStore::open(&folder.path().join("jobs.db"), SqliteOptions::default()).expect("a store");
        let core = SimCore::new(sim).expect("a simulator");
        let meters = Arc::new(Meters::default());
        let data = store.db().clone();
        let store = MeteredStore::new(Arc::new(store), Arc::clone(&meters));
        let engine = Engine::new(Arc::new(store)).with_clock(clock);
        let queue = engine.queue().clone();
        let models = llm(&core, folder.path(), &others);
        let endpoints = Endpoints::open(folder.path().join("webhooks.json")).expect("webhooks");
        let endpoints = Arc::new(endpoints);
        let listener = webhooks::listener(Arc::clone(&endpoints));
        let prompts = Prompts::new(queue.clone(), models.clone()).with_listener(Arc::clone(&listener));
        let parts = longhaul_sheets::Parts { listener, ..longhaul_sheets::Parts::default() };
        let scored = Sheets::open(queue.clone(), models.clone(), data, parts).await.expect("tables");
        let sheets = Some(scored).filter(|_| sheets);
        let mut list: List = vec![Arc::new(prompts.clone())];
        list.extend(sheets.iter().map(|sheets| Arc::new(sheets.clone()) as Arc<dyn Pipeline>));
        let runs = Runs::new(queue, models, list);
        let sim = Profile::new("sim", ProviderKind::Sim);
        let profiles = [&sim].into_iter().chain(&others).map(|profile| CatalogProfile {
            name: profile.name.clone(),
            dialect: profile.provider.as_str().to_owned(),
            model: profile.model.clone(),
            usable: true,
            local: false,
            slashes: !profile.is_at_the_service(),
        });
        let catalog = Catalog { profiles: profiles.collect(), default_profile: Some("sim".to_owned()) };
        let uploads = Uploads::open(folder.path().join("files"), SystemClock.now()).expect("uploads");
        let batches = SdkBatches::new(sdk_batches::Parts {
            prompts: prompts.clone(),
            uploads: uploads.clone(),
            catalog: catalog.clone(),
            endpoints: Arc::clone(&endpoints),
            strategy,
        });
        let tokens = Tokens::open(folder.path().join("tokens.json")).expect("tokens");
        let ctx = Ctx::new(Parts {
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
            measured: vec![folder.path().join("jobs.db")],
            options,
        });
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = Server::bind(ctx.clone(), address, None).await.expect("listening");
        let url = format!("http://{}", server.address());
        let client = longhaul_llm::plain_client(&url, Duration::from_secs(60)).expect("a client");
        Self { ctx, core, server, client, folder }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.server.address()
    }

    /// Where uploaded files lie.
    pub(crate) fn files(&self) -> std::path::PathBuf {
        self.folder.path().join("files")
    }

    /// Where it is reached.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    /// A request as a program of one's own sends it.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path)).header("x-longhaul", "1")
    }

    /// Sends JSON, or nothing, and reads JSON.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().await.expect("an answer");
        (response.status(), json_of(response).await)
    }

    /// What an address answers, which must be well.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let response = self.request(Method::GET, path).send().await.expect("an answer");
        assert!(response.status().is_success(), "{path}: {}", response.status());
        json_of(response).await
    }

    /// Sends JSON and answers status and body.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await.expect("an answer");
        (response.status(), json_of(response).await)
    }

    /// Asks again whenever something has changed, until the answer is as wanted.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut changes = self.ctx.queue().changes();
        loop {
            changes.mark_unchanged();
            let value = self.get(path).await;
            if wanted(&value) {
                return value;
            }
            let changed = tokio::time::timeout(Duration::from_secs(60), changes.changed()).await;
            assert!(changed.is_ok(), "nothing changes any more: {value}");
        }
    }

    /// Uploads a file as an SDK does.
    pub(crate) async fn upload(&self, content: String) -> Value {
        self.upload_as("input.jsonl", content).await
    }

    /// Uploads a file under a name.
    pub(crate) async fn upload_as(&self, name: &str, content: impl Into<Vec<u8>>) -> Value {
        let file = Part::bytes(content.into()).file_name(name.to_owned());
        let form = Form::new().text("purpose", "batch").part("file", file);
        let response =
            self.request(Method::POST, "/v1/files").multipart(form).send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        json_of(response).await
    }

    /// A worker that answers prompts and batches, in this process.
    pub(crate) async fn work(&self) -> Working {
        let queues: Vec<QueueShare> =
            ["default", sdk_batches::QUEUE, webhooks::QUEUE].map(QueueShare::from).into();
        let options = WorkerOptions { queues: queues.clone(), concurrency: 64, ..WorkerOptions::default() };
        let mut worker = Worker::new(self.ctx.engine().clone(), options);
        for pipeline in self.ctx.runs.pipelines() {
            pipeline.register(&mut worker);
        }
        self.ctx.batches.register(&mut worker);
        webhooks::register(&self.ctx.endpoints, self.ctx.queue().clock(), &mut worker);
        let served = Served { always: queues, prefixes: self.ctx.names.run_prefixes() };
        let serving = tokio::spawn(serve::all(self.ctx.queue().clone(), worker.control(), served));
        Working { serving, running: Started::new(worker) }
    }

    /// Ends the server as an operator does.
    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }
}

/// The names of a program with every pipeline.
pub(crate) fn names() -> OwnNames {
    OwnNames::new(vec![&longhaul_prompts::ABOUT, &longhaul_sheets::ABOUT])
}

/// The body of an answer as JSON.
pub(crate) async fn json_of(response: reqwest::Response) -> Value {
    let text = response.text().await.expect("a body");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A worker under way.
pub(crate) struct Working {
    serving: JoinHandle<()>,
    running: Started,
}

impl Working {
    /// Lets it end what it has begun.
    pub(crate) async fn drain(self) {
        self.serving.abort();
        self.running.drain().await;
    }
}

fn llm(core: &Arc<SimCore>, folder: &std::path::Path, others: &[Profile]) -> Llm {
    let file = LlmFile::open(&folder.join("llm.db")).expect("a file");
    let mut options = llm_options(&file, SimProvider::new(Arc::clone(core)), SystemWallClock);
    for profile in others {
        let setup = ProfileSetup { profile: profile.clone(), limits: RouteLimits::default(), free: false };
        options.profiles.insert(profile.name.clone(), setup);
    }
    Llm::new(options)
}
