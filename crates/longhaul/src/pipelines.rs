//! The pipelines of this program: the one list. A built-in one is added here, with its commands; a program of somebody else's adds its
//! own by [`crate::Program`].

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use longhaul_llm::Llm;
use longhaul_pipeline::pipeline::List;
use longhaul_pipeline::{About, FollowedRun as _, Found, Listener, OwnNames, Run, Runs, Status};
use longhaul_prompts::Prompts;
use longhaul_queue::{Engine, Queue};
use longhaul_sheets::google::{Google, GoogleOptions, ServiceKey};
use longhaul_sheets::tables::Tables;
use longhaul_sheets::{Places, Sheets};
use longhaul_stores::sqlite::Db;

use crate::app::App;
use crate::commands::run::{self, Access};
use crate::commands::run_lines::{self, ResultsSource as _};
use crate::commands::score;
use crate::exit::{Code, Failure};
use crate::program::{Additions, PipelineParts};
use crate::progress::Fact;
use crate::remote::{self, RemoteRun};

/// A built-in pipeline, with what the command line shows of its runs beside what all runs have.
struct BuiltIn {
    about: &'static About,
    detail_lines: fn(&Status) -> Vec<String>,
    facts: fn(&Status) -> Vec<Fact>,
}

const BUILT_IN: [BuiltIn; 2] = [
    BuiltIn { about: &longhaul_prompts::ABOUT, detail_lines: run::detail_lines, facts: run::facts },
    BuiltIn { about: &longhaul_sheets::ABOUT, detail_lines: score::detail_lines, facts: score::facts },
];

/// Set once, before any command runs: what a program consists of does not change while it runs, as its grammar does not.
static ADDED: OnceLock<Additions> = OnceLock::new();

/// Adds pipelines to the list. Refused where one of them has a name that another has.
pub(crate) fn add(additions: Additions) -> Result<()> {
    let names: Vec<&About> =
        BUILT_IN.iter().map(|built_in| built_in.about).chain(additions.abouts()).collect();
    for (index, about) in names.iter().enumerate() {
        if let Some(other) = names[..index].iter().find(|other| about.clashes_with(other)) {
            let text =
                format!("the pipelines {} and {} have a name or prefix in common", other.name, about.name);
            return Err(Failure::new(Code::Failure, text).into());
        }
    }
    let set = ADDED.set(additions);
    set.map_err(|_| Failure::new(Code::Failure, "a process runs one program").into())
}

/// What this program has beside what is built in.
pub(crate) fn added() -> &'static Additions {
    ADDED.get_or_init(Additions::default)
}

/// The names of all of them.
pub(crate) fn abouts() -> impl Iterator<Item = &'static About> {
    BUILT_IN.iter().map(|built_in| built_in.about).chain(added().abouts())
}

/// Names that belong to the program.
pub(crate) fn own_names() -> OwnNames {
    OwnNames::new(abouts().collect())
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
        let parts = PipelineParts { queue: queue.clone(), llm: llm.clone(), data, listener };
        let prompts = Prompts::new(queue.clone(), llm.clone()).with_listener(Arc::clone(&parts.listener));
        let sheets = open_sheets(app, parts.clone()).await?;
        let mut list: List = vec![Arc::new(prompts.clone())];
        if let Some(sheets) = &sheets {
            list.push(Arc::new(sheets.clone()));
        }
        for added in &added().pipelines {
            list.push((added.open)(parts.clone()).await?);
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
            run_lines::write(app, Some(&self.engine), found, place).await
        }
    }
}

/// Writes the results of a run of a server as its pipeline delivers them.
pub(crate) async fn write_remote_results(app: &App, run: &RemoteRun, place: &Place<'_>) -> Result<Code> {
    let name = run.pipeline();
    if name == longhaul_prompts::ABOUT.name {
        let access = Access { queue: run.queue(), engine: None };
        let stored = Run::get(run.queue(), run.id()).await?;
        run::write_results(app, access, stored, place).await
    } else if name == longhaul_sheets::ABOUT.name {
        remote::sheets::write_results(app, run, place).await
    } else {
        run_lines::write(app, None, run, place).await
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

/// Lines of a run that only its pipeline has; of one that is not built in, its details as they are.
pub(crate) fn detail_lines(status: &Status) -> Vec<String> {
    match built_in(status) {
        Some(built_in) => (built_in.detail_lines)(status),
        None => status.standing.details.iter().map(|(name, value)| format!("{name:<12} {value}")).collect(),
    }
}

/// What only its pipeline tells beside the bar of a run.
pub(crate) fn facts(status: &Status) -> Vec<Fact> {
    built_in(status).map_or_else(Vec::new, |built_in| (built_in.facts)(status))
}

fn built_in(status: &Status) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|built_in| built_in.about.name == status.pipeline)
}

async fn open_sheets(app: &App, parts: PipelineParts) -> Result<Option<Sheets>> {
    let PipelineParts { queue, llm, data, listener } = parts;
    let Some(data) = data else { return Ok(None) };
    let places: Arc<dyn Places> = match google(app, &queue, &data).await? {
        Some(google) => Arc::new(google),
        None => Arc::new(()),
    };
    let parts = longhaul_sheets::Parts { places, listener };
    Ok(Some(Sheets::open(queue, llm, data, parts).await?))
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
