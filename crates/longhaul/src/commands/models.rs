//! `models`: what can be asked, and which local engines answer.

use anyhow::Result;
use longhaul_llm::{Class, local};
use serde::Serialize;

use crate::app::App;
use crate::exit::{Code, Failure};
use crate::models::Setup;
use crate::output::{Cell, Table};

/// A model on offer.
#[derive(Debug, Serialize)]
struct Line {
    profile: String,
    model: String,
    input_usd_per_million: Option<f64>,
    output_usd_per_million: Option<f64>,
    batches: bool,
}

/// Runs the command.
pub(crate) async fn run(app: &App) -> Result<Code> {
    let setup = Setup::new(app, None)?;
    let profile = match setup.chosen() {
        Ok(profile) => profile,
        Err(error) => {
            engines(app).await;
            return Err(error);
        }
    };
    let llm = setup.llm_in_memory(app)?;
    let mut lines = Vec::new();
    let listed = llm.route(&profile, "").await?.provider().models().await;
    for model in listed.map_err(|error| failed(&profile, &error))? {
        let route = llm.route(&profile, &model.id).await?;
        lines.push(Line {
            profile: profile.clone(),
            input_usd_per_million: route.price().map(|price| price.rates.input.as_dollars()),
            output_usd_per_million: route.price().map(|price| price.rates.output.as_dollars()),
            batches: route.caps().batches.is_some(),
            model: model.id,
        });
    }
    app.out.list(&lines, None, || {
        let price =
            |price: Option<f64>| price.map_or_else(|| "unpriced".to_owned(), |price| format!("${price}"));
        let mut table = Table::new(&["MODEL", "PROFILE", "IN /M", "OUT /M", "BATCHES"]);
        for line in &lines {
            table.row(vec![
                Cell::new(&line.model),
                Cell::new(&line.profile),
                Cell::new(price(line.input_usd_per_million)),
                Cell::new(price(line.output_usd_per_million)),
                Cell::new(if line.batches { "yes" } else { "no" }),
            ]);
        }
        table
    })?;
    engines(app).await;
    Ok(Code::Ok)
}

/// What a provider that lists no models says, and what to do about it.
fn failed(profile: &str, error: &longhaul_llm::Error) -> Failure {
    let hint = match error.class {
        Class::Auth => "set the key; longhaul keys ls shows where it is looked for",
        _ => "is it running, and is base_url right? see longhaul config show",
    };
    let code = match error.class {
        Class::Auth | Class::Quota => Code::Config,
        _ => Code::Unreachable,
    };
    Failure::new(code, format!("profile {profile} lists no models: {error}")).hint(hint)
}

/// Says which local engines answer.
async fn engines(app: &App) {
    for engine in local::detect_all().await {
        let slots = engine.slots.map_or_else(String::new, |slots| format!(", {slots} at once"));
        let ready = if engine.ready { "" } else { ", still loading" };
        let models = engine.models.join(", ");
        app.out.note(format_args!("{} answers at {}{slots}{ready}: {models}", engine.kind, engine.base_url));
    }
}
