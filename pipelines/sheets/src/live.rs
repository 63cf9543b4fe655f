//! A sheet as its jobs need it: its settings with what they need to work.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use longhaul_llm::{Route, Scope, schema};

use super::places::Sink;
use super::prompt::Prompt;
use super::settings::{Mode, ModelName, Source, Target};
use super::tables::StoredSheet;
use super::validation::FreeSchema;
use super::{Result, Sheets};

/// A sheet at work.
pub(super) struct LiveSheet {
    pub(super) stored: StoredSheet,
    /// Its name, as often needed as there are calls.
    pub(super) name: Arc<str>,
    pub(super) route: Route,
    pub(super) fallback: Option<Route>,
    pub(super) scopes: Vec<Scope>,
    pub(super) prompt: Prompt,
    pub(super) schema: Option<schema::Compiled>,
    /// Takes cells as they come; nobody, where the data store is all there is to write to.
    pub(super) sink: Option<Arc<dyn Sink>>,
    /// Jobs wait for the end of an outage.
    pub(super) in_outage: AtomicBool,
}

impl LiveSheet {
    pub(super) async fn of(sheets: &Sheets, stored: StoredSheet) -> Result<Self> {
        let settings = &stored.settings;
        let route = async |name: &ModelName| sheets.inner.llm.route(&name.profile, &name.model).await;
        let fallback = match &settings.fallback {
            Some(name) => Some(route(name).await?),
            None => None,
        };
        let schema = match &settings.mode {
            Mode::Free { schema } => Some(schema::Compiled::new(schema)?),
            Mode::Scores | Mode::Rationale => None,
        };
        let sink = match (&settings.source, &settings.target) {
            (Source::Google(_), Target::InPlace) => Some(sheets.inner.places.sink(&stored).await?),
            _ => None,
        };
        Ok(Self {
            name: stored.id.as_str().into(),
            route: route(&settings.model).await?,
            fallback,
            scopes: scopes(&stored),
            prompt: Prompt::of(&stored),
            schema,
            sink,
            in_outage: AtomicBool::new(false),
            stored,
        })
    }

    /// Whether nobody would answer now.
    pub(super) fn is_out(&self) -> bool {
        self.route.is_out() && self.fallback.as_ref().is_none_or(Route::is_out)
    }
}

/// Where spending of a sheet is counted, and may be limited.
pub(super) fn scopes(sheet: &StoredSheet) -> Vec<Scope> {
    let tags = sheet.settings.tags.iter().map(Scope::tag);
    std::iter::once(Scope::run(&sheet.id)).chain(tags).collect()
}

impl FreeSchema for LiveSheet {
    fn free(&self) -> Option<(&schema::Compiled, Vec<&str>)> {
        let names = self.stored.plan.targets.iter().map(|target| target.name.as_str()).collect();
        self.schema.as_ref().map(|schema| (schema, names))
    }
}
