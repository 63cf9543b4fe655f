//! `runs results` of a pipeline that has no files of its own: a line of JSON for each result, in order.

use std::path::Path;

use anyhow::Result;
use async_trait::async_trait;
use longhaul_pipeline::{FollowedRun, Found, Results};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::{Engine, Json};
use serde_json::json;

use super::follow::code_of;
use crate::answers::{self, Sink};
use crate::app::App;
use crate::exit::{Code, Failure};
use crate::outputs;
use crate::pipelines::Place;

/// A run whose results can be read, here or at a server.
#[async_trait]
pub(crate) trait ResultsSource: FollowedRun {
    /// Its pipeline.
    fn pipeline(&self) -> &str;

    /// At most `limit` results, starting after a place.
    async fn results(&self, after: i64, limit: usize) -> Result<Results>;
}

#[async_trait]
impl ResultsSource for Found {
    fn pipeline(&self) -> &str {
        self.pipeline.about().name
    }

    async fn results(&self, after: i64, limit: usize) -> Result<Results> {
        Ok(self.pipeline.results(&self.run, after, limit).await?)
    }
}

/// Writes the results of a run. `engine` remembers the file, where there is one.
pub(crate) async fn write(
    app: &App,
    engine: Option<&Engine>,
    run: &dyn ResultsSource,
    place: &Place<'_>,
) -> Result<Code> {
    let Place { out, errors, force } = *place;
    let id = run.id().as_str();
    if errors.is_some() {
        let text = format!("--errors: runs of {} write no file of errors", run.pipeline());
        let hint = format!("see what failed with longhaul runs show {id}");
        return Err(Failure::new(Code::Usage, text).hint(hint).into());
    }
    let places = [("--out", out)];
    answers::check_places(&places)?;
    if !force {
        outputs::refuse_foreign(engine, id, &places).await?;
    }
    let results = write_lines(run, answers::place_of(app.out.format, out)).await?;
    outputs::remember(engine, id, &places).await;
    if let Some(out) = out {
        app.out.note(format_args!("results are in {}", out.display()));
        app.out.one(&json!({ "id": id, "file": out, "results": results }), String::new)?;
    }
    let status = run.status().await?;
    // What there is so far is all that was asked for.
    Ok(if status.standing.state.is_end() { code_of(&status) } else { Code::Ok })
}

/// Says how many there are.
async fn write_lines(run: &dyn ResultsSource, out: &Path) -> Result<u64> {
    let (mut sink, mut results, mut after) = (Sink::open(out)?, 0, Some(0));
    while let Some(place) = after {
        let page = run.results(place, PAGE_MAX).await?;
        let text: String = page.items.iter().flat_map(|item: &Json| [item.as_str(), "\n"]).collect();
        sink.write(&text)?;
        results += page.items.len() as u64;
        after = page.next;
    }
    sink.finish()?;
    Ok(results)
}
