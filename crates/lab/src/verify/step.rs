//! What a job of a crash verification does, as a handler and as a command: it writes down each event, adds up its parents'
//! values, and comes to its end in the way that the plan says.

use std::io::{Read as _, Write as _, stdout};
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_queue::{Failure, JobContext, Json, Outcome, Worker};
use serde::Deserialize;

use super::journal::{Pen, What};
use super::plan::{Answer, Payload, STEP, Way, add_up};

/// Registers the kind.
pub(super) fn register(worker: &mut Worker) {
    worker.handle(STEP, run);
}

async fn run(context: JobContext, payload: Payload) -> Result<Outcome, Failure> {
    let Payload { journal, number, own, way, ms } = payload;
    let fence = context.fence();
    let opening = tokio::task::spawn_blocking(move || Pen::open(&journal, number, fence));
    let mut pen = opening.await.map_err(Failure::retry)??;
    let seen = context.data::<u64>()?.unwrap_or(0);
    pen.write(What::Start, seen)?;
    tokio::time::sleep(Duration::from_millis(ms)).await;
    match way {
        Way::Continue if seen < Way::CONTINUES => {
            pen.write(What::Continue, seen + 1)?;
            return Ok(Outcome::Continue { after: None, data: Some(Json::of(&(seen + 1))?) });
        }
        Way::Retry if context.attempt() == 0 => {
            pen.write(What::Retry, 0)?;
            return Err(Failure::retry("fails once, as planned"));
        }
        Way::Save => {
            for step in seen + 1..=Way::SAVES {
                context.save(&step).await?;
                // Acknowledged: no later run may find an older checkpoint.
                pen.write(What::Saved, step)?;
            }
        }
        Way::Plain | Way::Continue | Way::Retry => {}
    }
    let mut values = Vec::with_capacity(context.parents().len());
    for parent in context.parents() {
        let result = parent.result.as_ref().ok_or_else(|| Failure::fatal("a parent has no result"))?;
        values.push(result.to::<Answer>()?.value);
    }
    let answer = Answer { value: add_up(own, values), fence };
    pen.write(What::End, answer.value)?;
    Ok(Outcome::Done(Json::of(&answer)?))
}

/// The same as a command under `work --exec`.
pub(super) fn run_as_command() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("reading the payload")?;
    let Payload { journal, number, own, way, ms } = serde_json::from_str(&text).context("the payload")?;
    let fence = variable("LONGHAUL_FENCE")?.context("LONGHAUL_FENCE is missing")?.parse()?;
    let attempt: u32 = variable("LONGHAUL_ATTEMPT")?.context("LONGHAUL_ATTEMPT is missing")?.parse()?;
    let seen: u64 = variable("LONGHAUL_DATA")?.map_or(Ok(0), |text| text.parse())?;
    let mut pen = Pen::open(&journal, number, fence)?;
    pen.write(What::Start, seen)?;
    std::thread::sleep(Duration::from_millis(ms));
    match way {
        Way::Continue if seen < Way::CONTINUES => {
            pen.write(What::Continue, seen + 1)?;
            say(&format!("{{\"longhaul\":\"continue\",\"data\":{}}}", seen + 1))?;
            return Ok(());
        }
        Way::Retry if attempt == 0 => {
            pen.write(What::Retry, 0)?;
            return Err(anyhow::anyhow!("fails once, as planned"));
        }
        Way::Save => {
            // A command is not told when its checkpoint is stored, so it cannot write that down.
            for step in seen + 1..=Way::SAVES {
                say(&format!("{{\"longhaul\":\"save\",\"data\":{step}}}"))?;
            }
        }
        Way::Plain | Way::Continue | Way::Retry => {}
    }
    let answer = Answer { value: add_up(own, parents()?), fence };
    pen.write(What::End, answer.value)?;
    say(&serde_json::to_string(&answer)?)?;
    Ok(())
}

/// Writes a line at once; the worker reads it while this goes on.
fn say(line: &str) -> Result<()> {
    let mut stdout = stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).context("writing to stdout")
}

fn parents() -> Result<Vec<u64>> {
    #[derive(Deserialize)]
    struct Parent {
        result: Answer,
    }
    let text = match variable("LONGHAUL_PARENTS_FILE")? {
        Some(path) => Some(std::fs::read_to_string(path).context("reading the parents")?),
        None => variable("LONGHAUL_PARENTS")?,
    };
    let Some(text) = text else { return Ok(Vec::new()) };
    let parents: Vec<Parent> = serde_json::from_str(&text).context("the parents")?;
    Ok(parents.into_iter().map(|parent| parent.result.value).collect())
}

fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).with_context(|| name.to_owned()),
    }
}
