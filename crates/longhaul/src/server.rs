//! From settings to a server: where files and tokens are kept, what names of models mean, who may come in.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_queue::Engine;
use longhaul_server::metrics::{MeteredStore, Meters};
use longhaul_server::{Ctx, Endpoints, Parts, ServerOptions, Shelf, Tokens, webhooks};
use longhaul_stores::StoreUrl;
use longhaul_stores::sqlite::Db;

use crate::app::App;
use crate::config::{list, truth};
use crate::pipelines::Pipelines;
use crate::{models, parse, store};

/// What a server's handlers share, and what batches need of a worker.
pub(crate) async fn context(
    app: &App,
    (engine, data): (&Engine, Option<Db>),
    options: ServerOptions,
) -> Result<Ctx> {
    let models = models::Setup::new(app, None)?;
    let meters = Arc::new(Meters::default());
    let store = MeteredStore::new(Arc::clone(engine.store()), Arc::clone(&meters));
    let engine = Engine::new(Arc::new(store)).with_limits(engine.limits());
    let endpoints = Arc::new(endpoints(app)?);
    let news = webhooks::run_news(Arc::clone(&endpoints));
    let Pipelines { engine, runs, prompts, sheets } =
        Pipelines::open(app, (&engine, data), models.llm(app)?, news).await?;
    let mut catalog = models.catalog();
    if options.test_objects {
        // Suites name models of every maker; none of them is to be asked.
        catalog.profiles.retain(|profile| profile.name == "sim");
        catalog.default_profile = Some("sim".to_owned());
    }
    Ok(Ctx::new(Parts {
        engine,
        runs,
        prompts,
        sheets,
        catalog,
        shelf: shelf(app)?,
        tokens: tokens(app)?,
        endpoints,
        meters,
        measured: measured(app)?,
        options: with_settings(app, options)?,
    }))
}

fn with_settings(app: &App, mut options: ServerOptions) -> Result<ServerOptions> {
    let settings = &app.settings;
    let names = |key| settings.read(key, |text| Ok(list(text))).map(|names| names.into_iter().collect());
    options.token_required |= settings.get("server.token")?.value == "always";
    options.hosts = names("server.hosts")?;
    options.origins = names("server.origins")?;
    options.mcp_allow_write = settings.read("server.mcp_write", truth)?;
    options.batch_strategy = settings.read("server.batches", parse::strategy)?;
    options.run_strategy = settings.read("llm.bulk_strategy", parse::strategy)?;
    Ok(options)
}

/// Uploaded files, beside the store; where the store is in memory, they go with the process.
fn shelf(app: &App) -> Result<Shelf> {
    let folder = match store::folder(&app.settings)? {
        Some(folder) => folder.join("files"),
        None => tempfile::tempdir().context("making a folder for files")?.keep(),
    };
    Shelf::open(&folder).with_context(|| format!("opening the files in {}", folder.display()))
}

/// Tokens of clients, beside the store.
pub(crate) fn tokens(app: &App) -> Result<Tokens> {
    match store::folder(&app.settings)? {
        Some(folder) => {
            let path = folder.join("tokens.json");
            Tokens::open(&path).with_context(|| format!("reading {}", path.display()))
        }
        None => Ok(Tokens::in_memory()),
    }
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

/// The files of the store.
fn measured(app: &App) -> Result<Vec<PathBuf>> {
    Ok(match store::location(&app.settings)? {
        StoreUrl::Sqlite(path) => {
            ["", "-wal"].map(|end| PathBuf::from(format!("{}{end}", path.display()))).into()
        }
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) | StoreUrl::Memory => Vec::new(),
    })
}
