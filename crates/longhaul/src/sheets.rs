//! From settings to the slice that scores sheets: its tables beside the store, and the way to Google.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use longhaul_llm::Llm;
use longhaul_pipelines::scoring::google::{Google, GoogleOptions, ServiceKey};
use longhaul_pipelines::scoring::tables::Tables;
use longhaul_pipelines::scoring::{Places, Scoring};
use longhaul_queue::{Engine, Queue};
use longhaul_stores::sqlite::Db;

use crate::app::App;
use crate::exit::{Code, Failure};

/// The slice on an open store.
pub(crate) async fn open(app: &App, engine: &Engine, data: Option<Db>, llm: Llm) -> Result<Scoring> {
    let Some(data) = data else {
        return Err(Failure::new(
            Code::Usage,
            "sheets need a store in a file: their texts and scores are kept there",
        )
        .hint("name one with --store sqlite://PATH")
        .into());
    };
    let places: Arc<dyn Places> = match google(app, engine, &data).await? {
        Some(google) => Arc::new(google),
        None => Arc::new(()),
    };
    Ok(Scoring::open(engine.clone(), llm, data, places).await?)
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
