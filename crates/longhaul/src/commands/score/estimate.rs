//! What scoring a table will cost, before anything is sent.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_api::sheets::EstimatedSheet;
use longhaul_llm::NanoUsd;
use longhaul_pipeline::RunId;
use longhaul_queue::Engine;
use longhaul_sheets::estimate::{Estimate, estimate};
use longhaul_stores::sqlite::{Db, SqliteStore};
use tempfile::TempDir;

use super::settings::Shape;
use super::{remote, unusable};
use crate::app::App;
use crate::args::EstimateArgs;
use crate::commands::run::estimate::about;
use crate::commands::run::not_through_server;
use crate::exit::Code;
use crate::models;
use crate::output::{counted, grouped};
use crate::pipelines::{self, Pipelines};
use crate::remote::RemoteRuns;
use crate::store::{self, Missing};

/// Runs `estimate` of a table. Nothing is sent, so no key is needed; what is stored is only looked at.
pub(crate) async fn run(app: &App, args: &EstimateArgs) -> Result<Code> {
    let shape = Shape::from(args);
    let base_url = args.prompts.base_url.as_deref();
    if let Some(server) = store::remote(&app.settings)? {
        if base_url.is_some() {
            return Err(not_through_server("--base-url"));
        }
        let told = remote::estimate(app, &shape, &RemoteRuns::new(server)).await?;
        return describe(app, &told, None);
    }
    let mut models = models::Setup::new(app, base_url)?;
    let profile = models.for_estimate(app, args.prompts.model.as_deref())?;
    let place = Place::open(app).await?;
    let google = pipelines::google(app, &place.engine, &place.data).await?;
    let wanted = shape.settings(&models, profile, google.as_ref()).await?;
    let parts = (&place.engine, Some(place.data.clone()));
    let pipelines = Pipelines::open(app, parts, models.llm_to_read(app)?, Arc::new(())).await?;
    let estimate = estimate(pipelines.sheets()?, &wanted).await.map_err(unusable)?;
    describe(app, &EstimatedSheet { id: wanted.run_id()?.to_string(), estimate }, None)
}

/// Where earlier sheets are, whose cost tells what this one will cost.
struct Place {
    engine: Engine,
    data: Db,
    /// Of a store that is made for the estimate alone, where there is none: there are no earlier sheets.
    _folder: Option<TempDir>,
}

impl Place {
    async fn open(app: &App) -> Result<Self> {
        if let Ok((engine, Some(data))) = app.engine_with_data(Missing::Refuse).await {
            return Ok(Self { engine, data, _folder: None });
        }
        let folder = TempDir::new().context("making a temporary folder")?;
        let store = SqliteStore::open(&folder.path().join("estimate.db"), store::options(&app.settings)?)?;
        let data = store.db().clone();
        Ok(Self { engine: Engine::new(Arc::new(store)), data, _folder: Some(folder) })
    }
}

/// Says what would be done and what it would cost.
pub(super) fn describe(
    app: &App,
    told: &EstimatedSheet<Estimate>,
    max_cost: Option<NanoUsd>,
) -> Result<Code> {
    app.out.one(told, || {
        let mut text = format!("{}: {}", told.id, words(&told.estimate));
        if let Some(max) = max_cost {
            text += &format!("\nstops before {max}");
        }
        text
    })?;
    app.out.note("nothing was sent or stored");
    Ok(Code::Ok)
}

/// What one wants to know before the first request is sent.
pub(super) fn introduce(app: &App, id: &RunId, estimate: &Estimate, max_cost: Option<NanoUsd>) {
    app.out.note(format_args!("{id}: {}", words(estimate)));
    if let Some(max) = max_cost {
        app.out.note(format_args!("stops before {max}"));
    }
}

fn words(estimate: &Estimate) -> String {
    let cost = match estimate.cost() {
        _ if estimate.free => "free on this machine".to_owned(),
        Some(cost) if estimate.measured_calls > 0 => {
            format!("about {cost}, by what {} cost before", counted(estimate.measured_calls, "call"))
        }
        Some(cost) => about(cost),
        None => "unpriced: no price is known for this model".to_owned(),
    };
    let simulated = if estimate.simulated { " (simulated)" } else { "" };
    let filled = match estimate.filled {
        0 => String::new(),
        filled => format!(", {} have all their cells already", grouped(filled)),
    };
    format!(
        "{} in {} to {}{simulated} for {}{filled}; {cost}",
        counted(estimate.cells, "cell"),
        counted(estimate.units, "request"),
        estimate.model,
        counted(estimate.rows, "row"),
    )
}
