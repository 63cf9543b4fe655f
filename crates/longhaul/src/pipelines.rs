//! The pipelines of this program: the one list. A pipeline is added here, with its commands.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use longhaul_llm::Llm;
use longhaul_pipeline::pipeline::List;
use longhaul_pipeline::{About, Found, Listener, OwnNames, Runs, Status};
use longhaul_prompts::Prompts;
use longhaul_queue::{Engine, Queue};
use longhaul_sheets::google::{Google, GoogleOptions, ServiceKey};
use longhaul_sheets::tables::Tables;
use longhaul_sheets::{Places, Sheets};
use longhaul_stores::sqlite::Db;

use crate::app::App;
use crate::commands::run::{self, Access};
use crate::commands::score;
use crate::exit::{Code, Failure};
use crate::progress::Fact;

/// Their names.
pub(crate) const ABOUTS: [&About; 2] = [&longhaul_prompts::ABOUT, &longhaul_sheets::ABOUT];

/// Names that belong to the program.
pub(crate) fn own_names() -> OwnNames {
    OwnNames::new(ABOUTS.to_vec())
}

/// The pipelines on an open store.
pub(crate) struct Pipelines {
    /// What their jobs run on.
    pub(crate) engine: Engine,
    /// The runs of all of them.
    pub(crate) runs: Runs,
    pub(crate) prompts: Prompts,
    /// None beside a store in memory, which has no place for tables.
    pub(crate) sheets: Option<Sheets>,
}

impl Pipelines {
    /// Opens all of them. `listener` hears of ends and holds.
    pub(crate) async fn open(
        app: &App,
        (engine, data): (&Engine, Option<Db>),
        llm: Llm,
        listener: Arc<dyn Listener>,
    ) -> Result<Self> {
        let queue = engine.queue();
        let prompts = Prompts::new(queue.clone(), llm.clone()).with_listener(Arc::clone(&listener));
        let sheets = match data {
            Some(data) => Some(open_sheets(app, queue, data, llm.clone(), listener).await?),
            None => None,
        };
        let mut list: List = vec![Arc::new(prompts.clone())];
        if let Some(sheets) = &sheets {
            list.push(Arc::new(sheets.clone()));
        }
        Ok(Self { engine: engine.clone(), runs: Runs::new(queue.clone(), llm, list), prompts, sheets })
    }

    /// The sheets, which need a store in a file.
    pub(crate) fn sheets(&self) -> Result<&Sheets> {
        self.sheets.as_ref().ok_or_else(|| {
            Failure::new(Code::Usage, "sheets need a store in a file: their texts and scores are kept there")
                .hint("name one with --store sqlite://PATH")
                .into()
        })
    }

    /// Writes the results of a run as its pipeline delivers them.
    pub(crate) async fn write_results(&self, app: &App, found: &Found, place: &Place<'_>) -> Result<Code> {
        let about = found.pipeline.about();
        if *about == longhaul_prompts::ABOUT {
            run::write_results(app, Access::here(&self.engine), found.run.clone(), place).await
        } else if *about == longhaul_sheets::ABOUT {
            score::export::run(app, (&self.engine, self.sheets()?), found, place).await
        } else {
            Err(Failure::new(Code::Usage, format!("runs of {} write no results", about.name)).into())
        }
    }
}

/// Where results go.
pub(crate) struct Place<'a> {
    /// The file; stdout by default.
    pub(crate) out: Option<&'a Path>,
    /// Where units without a result go; among the others by default.
    pub(crate) errors: Option<&'a Path>,
    /// Also over files that are not this run's own.
    pub(crate) force: bool,
}

/// Lines of a run that only its pipeline has.
pub(crate) fn detail_lines(status: &Status) -> Vec<String> {
    match &*status.pipeline {
        name if name == longhaul_prompts::ABOUT.name => run::detail_lines(status),
        name if name == longhaul_sheets::ABOUT.name => score::detail_lines(status),
        _ => Vec::new(),
    }
}

/// What only its pipeline tells beside the bar of a run.
pub(crate) fn facts(status: &Status) -> Vec<Fact> {
    match &*status.pipeline {
        name if name == longhaul_prompts::ABOUT.name => run::facts(status),
        name if name == longhaul_sheets::ABOUT.name => score::facts(status),
        _ => Vec::new(),
    }
}

async fn open_sheets(
    app: &App,
    queue: &Queue,
    data: Db,
    llm: Llm,
    listener: Arc<dyn Listener>,
) -> Result<Sheets> {
    let places: Arc<dyn Places> = match google(app, queue, &data).await? {
        Some(google) => Arc::new(google),
        None => Arc::new(()),
    };
    let parts = longhaul_sheets::Parts { places, listener };
    Ok(Sheets::open(queue.clone(), llm, data, parts).await?)
}

/// The account for Google Sheets; `None` where no key is set.
pub(crate) async fn google(app: &App, queue: &Queue, data: &Db) -> Result<Option<Google>> {
    let setting = |name| app.settings.get(name).map(|setting| setting.value.clone());
    let file = setting("google.key_file")?;
    if file.is_empty() {
        return Ok(None);
    }
    let key = ServiceKey::read(Path::new(&file))?;
    let url = |name| setting(name).map(|url| Some(url).filter(|url| !url.is_empty()));
    let options = GoogleOptions {
        base_url: url("google.base_url")?,
        token_url: url("google.token_url")?,
        ..GoogleOptions::new(key)
    };
    let tables = Tables::open(data.clone()).await?;
    Ok(Some(Google::new(&options, tables, Arc::clone(queue.clock()))?))
}
