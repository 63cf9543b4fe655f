//! Commands of a program that adds pipelines: each starts a run.

use std::sync::Arc;

use anyhow::Result;

use super::run::detached;
use crate::app::App;
use crate::args::AddedCommand;
use crate::exit::Code;
use crate::models;
use crate::program::PipelineParts;
use crate::store::Missing;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &AddedCommand) -> Result<Code> {
    let (engine, data) = app.engine_with_data(Missing::Create).await?;
    let llm = models::Setup::new(app, None)?.llm(app)?;
    let parts = PipelineParts { queue: engine.queue().clone(), llm, data, listener: Arc::new(()) };
    let id = (command.start)(parts, command.args.clone()).await?;
    detached(app, &id)
}
