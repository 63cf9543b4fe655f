//! Commands of a program that adds pipelines: each starts a run, or goes on with one that was started before.

use std::sync::Arc;

use anyhow::Result;
use longhaul_pipeline::{Found, Retry, RunState};

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
    go_on(app, &pipelines.runs.get(id.as_str()).await?).await?;
    detached(app, &id)
}

/// Whatever held a run may be gone, and what has no result is tried again.
async fn go_on(app: &App, found: &Found) -> Result<()> {
    match found.status().await?.standing.state {
        RunState::Held => drop(found.resume().await?),
        RunState::PartlyFailed | RunState::Failed | RunState::Cancelled => {
            let again = counted(found.retry(Retry::Failed).await?, found.pipeline.about().unit);
            app.out.note(format_args!("trying again what has no result: {again}"));
        }
        RunState::Running | RunState::Paused | RunState::Completed => {}
    }
    Ok(())
}
