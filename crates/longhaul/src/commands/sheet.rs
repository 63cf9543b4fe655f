//! `sheet …`: tables that are scored, by whatever process they were made.

use anyhow::Result;
use longhaul_llm::rate::AdaptiveConcurrency;
use longhaul_pipelines::scoring::status::{self, ChunkStatus, SheetState};
use longhaul_pipelines::scoring::tables::{OpenUnit, StoredSheet, UnitState};
use longhaul_pipelines::scoring::{Scoring, SheetId, Status, manage};
use serde::Serialize;

use super::runs::adaptive_text;
use super::workers::served;
use crate::app::App;
use crate::args::SheetCommand;
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, counted, grouped};
use crate::store::Missing;
use crate::{models, sheets};

mod export;
mod follow;
mod score;
mod settings;
mod summary;

/// Blank cells whose reasons are shown.
const REASONS_SHOWN: usize = 10;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &SheetCommand) -> Result<Code> {
    if let SheetCommand::Score(args) = command {
        return score::run(app, args).await;
    }
    let (engine, data) = app.engine_with_data(Missing::Refuse).await?;
    let scoring = sheets::open(app, &engine, data, models::Setup::new(app, None)?.llm(app)?).await?;
    match command {
        SheetCommand::Score(_) => Ok(Code::Ok),
        SheetCommand::Ls { limit } => ls(app, &scoring, *limit).await,
        SheetCommand::Status { id, chunks } => show(app, &scoring, id.as_deref(), *chunks).await,
        SheetCommand::Retry { id, chunk, detach, .. } => retry(app, &scoring, id, *chunk, *detach).await,
        SheetCommand::Resume { id, spending, detach, .. } => {
            let sheet = found(&scoring, id).await?;
            let id = SheetId::named(&sheet.id);
            models::set_limits(scoring.llm(), id.as_str(), spending).await?;
            let opened = manage::resume(&scoring, &id).await?;
            app.out.note(format_args!("{id} goes on (jobs that were held: {opened})"));
            score::work_on(app, &scoring, &id, score::Ending::of(*detach)).await
        }
        SheetCommand::Cancel { id } => {
            let sheet = found(&scoring, id).await?;
            app.confirm(&format!("cancel {}", sheet.id))?;
            let cancelled = manage::cancel(&scoring, &SheetId::named(&sheet.id)).await?;
            let text = format!(
                "{} of {} cancelled; what was scored is kept and written",
                counted(cancelled, "job"),
                sheet.id
            );
            said(app, &sheet.id, "cancelled", text)
        }
        SheetCommand::Export { id, out, force } => {
            export::run(app, &scoring, found(&scoring, id).await?, (out.as_deref(), *force)).await
        }
        SheetCommand::Rm { id } => {
            let sheet = found(&scoring, id).await?;
            app.confirm(&format!("delete {} with its scores", sheet.id))?;
            manage::remove(&scoring, &SheetId::named(&sheet.id)).await?;
            said(app, &sheet.id, "deleted", format!("{} is deleted; files stay", sheet.id))
        }
    }
}

fn said(app: &App, id: &str, what: &str, text: String) -> Result<Code> {
    app.out.one(&serde_json::json!({ "id": id, "done": what }), || text)?;
    Ok(Code::Ok)
}

/// The sheet of this name, with or without `sheet-`.
async fn found(scoring: &Scoring, name: &str) -> Result<StoredSheet> {
    let name = if name.starts_with("sheet-") { name.to_owned() } else { format!("sheet-{name}") };
    let none = || {
        Failure::new(Code::NothingMatched, format!("there is no sheet {name}"))
            .hint("list sheets with: longhaul sheet ls")
    };
    Ok(scoring.tables().find(&name).await?.ok_or_else(none)?)
}

/// A sheet in a list.
#[derive(Debug, Serialize)]
struct Line {
    source: String,
    model: String,
    made_at: longhaul_queue::Timestamp,
    /// Whether a worker serves it now; otherwise nothing moves.
    served: bool,
    #[serde(flatten)]
    status: Status,
}

async fn ls(app: &App, scoring: &Scoring, limit: usize) -> Result<Code> {
    let mut lines = Vec::new();
    let served = served(scoring.queue()).await?;
    for sheet in scoring.tables().list(limit).await? {
        lines.push(Line {
            source: summary::source_of(&sheet),
            model: sheet.settings.model.model.clone(),
            made_at: sheet.made_at,
            served: served.contains(&sheet.id),
            status: Status::of(scoring, &sheet).await?,
        });
    }
    app.out.list(&lines, None, || {
        let mut table = Table::new(&["SHEET", "STATE", "UNITS", "BLANK", "COST", "MODEL", "TABLE", "MADE"]);
        for line in &lines {
            let Status { units, spent, .. } = &line.status;
            table.row(vec![
                Cell::new(&line.status.id),
                Cell::new(summary::state_word(&line.status, line.served)),
                Cell::quantity(format!("{}/{}", grouped(units.answered()), grouped(units.total))),
                Cell::number(units.failed),
                Cell::quantity(summary::cost_text(spent)),
                Cell::new(&line.model),
                Cell::new(&line.source),
                Cell::new(app.out.list_time(line.made_at, app.now())),
            ]);
        }
        table
    })?;
    if lines.is_empty() {
        app.out.note("there are no sheets; make one: longhaul sheet score TABLE …");
    }
    Ok(Code::Ok)
}

/// All that is known of a sheet.
#[derive(Debug, Serialize)]
struct Shown {
    source: String,
    settings: longhaul_pipelines::scoring::SheetSettings,
    /// Whether a worker serves it now.
    served: bool,
    #[serde(flatten)]
    status: Status,
    adaptive_concurrency: Option<AdaptiveConcurrency>,
    chunk_table: Vec<ChunkStatus>,
    /// The first units that failed.
    blanks: Vec<OpenUnit>,
}

async fn show(app: &App, scoring: &Scoring, id: Option<&str>, chunks: usize) -> Result<Code> {
    let sheet = match id {
        Some(id) => found(scoring, id).await?,
        None => scoring.tables().list(1).await?.pop().ok_or_else(|| {
            Failure::new(Code::NothingMatched, "there is no sheet")
                .hint("make one with: longhaul sheet score TABLE …")
        })?,
    };
    let status = Status::of(scoring, &sheet).await?;
    let blanks =
        scoring.tables().open_units(sheet.seq, UnitState::Failed, (0, i64::MAX as u64), None, REASONS_SHOWN);
    let model = &sheet.settings.model;
    let shown = Shown {
        adaptive_concurrency: scoring.llm().adaptive_concurrency(&model.profile, &model.model).await,
        source: summary::source_of(&sheet),
        chunk_table: status::chunks(scoring, &sheet, 0, chunks).await?,
        blanks: blanks.await?,
        settings: sheet.settings.clone(),
        served: served(scoring.queue()).await?.contains(&sheet.id),
        status,
    };
    app.out.one(&shown, || text_of(app, &sheet, &shown))?;
    Ok(summary::code_of(&shown.status))
}

fn text_of(app: &App, sheet: &StoredSheet, shown: &Shown) -> String {
    let mut text = summary::lines(sheet, &shown.status, shown.served);
    if let Some(adaptive) = &shown.adaptive_concurrency {
        text += &format!("\nparallel  {}", adaptive_text(app, adaptive));
    }
    let mut table = Table::new(&[
        "CHUNK",
        "ROWS",
        "DONE",
        "STATE",
        "UNITS",
        "WRITTEN",
        "WAITING",
        "BLANK",
        "EDITED",
        "CACHED",
        "RUNS AGAIN",
    ]);
    for line in &shown.chunk_table {
        let chunk = &line.chunk;
        table.row(vec![
            Cell::new(&line.name),
            Cell::quantity(format!("{}–{}", chunk.first_row + 1, chunk.last_row + 1)),
            Cell::quantity(format!("{}/{}", chunk.processed_rows, chunk.rows)),
            Cell::new(app.out.state(line.state)),
            Cell::number(chunk.units),
            Cell::number(chunk.written),
            Cell::number(chunk.scored),
            Cell::number(chunk.failed),
            Cell::number(chunk.edited),
            Cell::number(chunk.cached),
            Cell::number(line.retries),
        ]);
    }
    text += "\n\n";
    text += &table.render(false);
    for line in shown.chunk_table.iter().filter(|line| line.last_error.is_some() || line.stages.is_some()) {
        let what = line.stages.as_ref().or(line.last_error.as_ref()).map_or("", String::as_str);
        text += &format!("\n{}: {what}", line.name);
    }
    let hidden = shown.status.chunks.total.saturating_sub(shown.chunk_table.len() as u64);
    if hidden > 0 {
        text += &format!("\n… and {}", counted(hidden, "more chunk"));
    }
    for unit in &shown.blanks {
        let reason = unit.reason.as_deref().unwrap_or("no reason is known");
        text += &format!("\nblank: row {}, block {}: {reason}", unit.row + 1, unit.block + 1);
    }
    text
}

async fn retry(app: &App, scoring: &Scoring, id: &str, chunk: Option<u64>, detach: bool) -> Result<Code> {
    let sheet = found(scoring, id).await?;
    let id = SheetId::named(&sheet.id);
    let again = match chunk {
        Some(0) => return Err(Failure::new(Code::Usage, "--chunk counts from 1, as in sheet status").into()),
        Some(number) => manage::Again::Chunk(number - 1),
        None => manage::Again::Failed,
    };
    let status = Status::of(scoring, &sheet).await?;
    if status.state == SheetState::Running {
        return Err(Failure::new(Code::Usage, format!("{id} is still at work"))
            .hint("what fails meanwhile is tried again at its end anyway")
            .into());
    }
    let retried = manage::retry(scoring, &id, again).await?;
    if retried == manage::Retried::default() {
        return Err(Failure::new(Code::NothingMatched, format!("nothing of {id} failed")).into());
    }
    app.out.note(format_args!(
        "{id}: {} and {} are tried again, and nothing else",
        counted(retried.units, "unit"),
        counted(retried.chunks, "chunk")
    ));
    score::work_on(app, scoring, &id, score::Ending::of(detach)).await
}
