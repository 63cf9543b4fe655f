//! What every worker for runs is made of: the pipelines, batches of SDKs and webhooks on an open store. `work` has nothing more;
//! `up` and `mcp` put a server before it.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_llm::{Catalog, Llm};
use longhaul_pipeline::Uploads;
use longhaul_pipeline::serve::{self, Served};
use longhaul_pipeline::webhooks::{self, Endpoints};
use longhaul_prompts::{SdkBatches, sdk_batches};
use longhaul_queue::{Engine, QueueShare, Worker, WorkerOptions};
use longhaul_stores::sqlite::Db;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::pipelines::Pipelines;
use crate::sharing::Sharing;
use crate::{models, parse, store};

/// See the module.
pub(crate) struct Backend {
    pub(crate) pipelines: Pipelines,
    pub(crate) batches: SdkBatches,
    /// What names of models mean.
    pub(crate) catalog: Catalog,
    /// Uploaded files.
    pub(crate) uploads: Uploads,
    /// Who is told of what.
    pub(crate) endpoints: Arc<Endpoints>,
}

impl Backend {
    /// Opens all of it. The catalog is that of the models, or a part of it.
    pub(crate) async fn open(
        app: &App,
        store: (&Engine, Option<Db>),
        models: &models::Setup,
        catalog: Catalog,
    ) -> Result<Self> {
        let endpoints = Arc::new(endpoints(app)?);
        let listener = webhooks::listener(Arc::clone(&endpoints));
        let pipelines = Pipelines::open(app, store, models.llm(app)?, listener).await?;
        let uploads = uploads(app)?;
        let batches = SdkBatches::new(sdk_batches::Parts {
            prompts: pipelines.prompts.clone(),
            uploads: uploads.clone(),
            catalog: catalog.clone(),
            endpoints: Arc::clone(&endpoints),
            strategy: app.settings.read("server.batches", parse::strategy)?,
        });
        Ok(Self { pipelines, batches, catalog, uploads, endpoints })
    }

    /// Registers the handlers of all of it, and has a worker serve the queues of every run.
    pub(crate) async fn serve(
        &self,
        app: &App,
        worker: &mut Worker,
        options: &WorkerOptions,
    ) -> Result<Serving> {
        let Pipelines { engine, runs, .. } = &self.pipelines;
        for pipeline in runs.pipelines() {
            pipeline.register(worker);
        }
        self.batches.register(worker);
        webhooks::register(&self.endpoints, engine.queue().clock(), worker);
        let sharing = models::open_books(app, engine, runs.llm()).await?;
        let names = runs.own_names();
        let mut always = options.queues.clone();
        always.extend(names.queues().into_iter().map(QueueShare::from));
        let served = Served { always, prefixes: names.run_prefixes() };
        serve::look(runs.queue(), &worker.control(), &served).await;
        let looking = tokio::spawn(serve::all(runs.queue().clone(), worker.control(), served));
        Ok(Serving { llm: runs.llm().clone(), looking, sharing })
    }
}

/// What goes on beside a worker that serves every run.
pub(crate) struct Serving {
    llm: Llm,
    looking: JoinHandle<()>,
    sharing: Sharing,
}

impl Serving {
    /// Ends it, after the worker.
    pub(crate) async fn stop(self) {
        self.looking.abort();
        self.llm.save_learnt().await;
        self.sharing.end().await;
    }
}

/// Uploaded files, beside the store; where the store is in memory, they go with the process.
fn uploads(app: &App) -> Result<Uploads> {
    let folder = match store::folder(&app.settings)? {
        Some(folder) => folder.join("files"),
        None => tempfile::tempdir().context("making a folder for files")?.keep(),
    };
    Uploads::open(&folder, app.now()).with_context(|| format!("opening the files in {}", folder.display()))
}

/// Who is told of what, beside the store.
fn endpoints(app: &App) -> Result<Endpoints> {
    match store::folder(&app.settings)? {
        Some(folder) => {
            let path = folder.join("webhooks.json");
            Endpoints::open(&path).with_context(|| format!("reading {}", path.display()))
        }
        None => Ok(Endpoints::in_memory()),
    }
}
