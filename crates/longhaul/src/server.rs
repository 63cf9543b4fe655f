//! From settings to a server: where tokens are kept, what names of models mean, who may come in.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_queue::Engine;
use longhaul_server::metrics::{MeteredStore, Meters};
use longhaul_server::{Ctx, Parts, ServerOptions, Tokens};
use longhaul_stores::StoreUrl;
use longhaul_stores::sqlite::Db;

use crate::app::App;
use crate::backend::Backend;
use crate::config::{list, truth};
use crate::pipelines::Pipelines;
use crate::{models, parse, store};

/// What a server's handlers share, and what stands behind it.
pub(crate) async fn open(
    app: &App,
    (engine, data): (&Engine, Option<Db>),
    options: ServerOptions,
) -> Result<(Backend, Ctx)> {
    let models = models::Setup::new(app, None)?;
    let meters = Arc::new(Meters::default());
    let store = MeteredStore::new(Arc::clone(engine.store()), Arc::clone(&meters));
    let engine = Engine::new(Arc::new(store)).with_limits(engine.limits());
    let mut catalog = models.catalog();
    if options.test_objects {
        // Suites name models of every maker; none of them is to be asked.
        catalog.profiles.retain(|profile| profile.name == "sim");
        catalog.default_profile = Some("sim".to_owned());
    }
    let backend = Backend::open(app, (&engine, data), &models, catalog).await?;
    let Pipelines { runs, prompts, sheets, .. } = &backend.pipelines;
    let ctx = Ctx::new(Parts {
        engine,
        runs: runs.clone(),
        prompts: prompts.clone(),
        sheets: sheets.clone(),
        catalog: backend.catalog.clone(),
        uploads: backend.uploads.clone(),
        batches: backend.batches.clone(),
        tokens: tokens(app)?,
        endpoints: Arc::clone(&backend.endpoints),
        meters,
        measured: measured(app)?,
        options: with_settings(app, options)?,
    });
    Ok((backend, ctx))
}

fn with_settings(app: &App, mut options: ServerOptions) -> Result<ServerOptions> {
    let settings = &app.settings;
    let names = |key| settings.read(key, |text| Ok(list(text))).map(|names| names.into_iter().collect());
    options.token_required |= settings.get("server.token")?.value == "always";
    options.hosts = names("server.hosts")?;
    options.origins = names("server.origins")?;
    options.mcp_allow_write = settings.read("server.mcp_write", truth)?;
    options.run_strategy = settings.read("llm.bulk_strategy", parse::strategy)?;
    Ok(options)
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

/// The files of the store.
fn measured(app: &App) -> Result<Vec<PathBuf>> {
    Ok(match store::location(&app.settings)? {
        StoreUrl::Sqlite(path) => {
            ["", "-wal"].map(|end| PathBuf::from(format!("{}{end}", path.display()))).into()
        }
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) | StoreUrl::Memory => Vec::new(),
    })
}
