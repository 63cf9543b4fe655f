//! Commands of a program that adds pipelines: each starts a run, or goes on with one that was started before.

use std::sync::Arc;

use anyhow::Result;

use super::run::detached;
use crate::app::App;
use crate::args::AddedCommand;
use crate::exit::Code;
use crate::models;
use crate::output::counted;
use crate::pipelines::Pipelines;
use crate::program::PipelineParts;
use crate::store::Missing;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &AddedCommand) -> Result<Code> {
    let (engine, data) = app.engine_with_data(Missing::Create).await?;
    let llm = models::Setup::new(app, None)?.llm(app)?;
    let pipelines = Pipelines::open(app, (&engine, data.clone()), llm.clone(), Arc::new(())).await?;
    let parts = PipelineParts { queue: engine.queue().clone(), llm, data, listener: Arc::new(()) };
    let id = (command.start)(parts, command.args.clone()).await?;
    let found = pipelines.runs.get(id.as_str()).await?;
    let again = found.go_on().await?;
    if again > 0 {
        let again = counted(again, found.pipeline.about().unit);
        app.out.note(format_args!("trying again what has no result: {again}"));
    }
    detached(app, &id)
}
