//! `score --server`: the table is uploaded and scored at the server, and downloaded with its scores. Keys, profiles and budgets are the
//! server's, and it goes on when this command ends.

use std::path::{Path, PathBuf};

use anyhow::Result;
use longhaul_api::Listed;
use longhaul_api::sheets::{
    CategoryIn, ColumnsIn, EstimatedSheet, ExistingIn, GoogleIn, HeadsIn, LayoutIn, ModeIn, SheetIn,
    SubmittedSheet, WorkIn,
};
use longhaul_llm::NanoUsd;
use longhaul_pipeline::{RunId, Status};
use longhaul_sheets::estimate::Estimate;
use longhaul_sheets::files;
use longhaul_sheets::google::{SheetAddress, SheetChoice};
use longhaul_sheets::settings::{Category, Format, Mode};
use serde::de::DeserializeOwned;

use super::estimate::describe;
use super::settings::{self, Shape};
use super::{SampleRow, tell};
use crate::app::App;
use crate::args::ScoreArgs;
use crate::commands::follow;
use crate::commands::interrupts::Interrupts;
use crate::commands::run::{detached, named_profile, not_through_server, tell_asked_again};
use crate::exit::{Code, Failure};
use crate::output::counted;
use crate::remote::sheets::write_table;
use crate::remote::{RemoteRuns, refused};
use crate::run_client::{RunClient, RunsClient as _};
use crate::{outputs, texts};

/// Runs the command.
pub(super) async fn run(app: &App, args: &ScoreArgs, server: RemoteRuns) -> Result<Code> {
    let given = [("--base-url", args.base_url.is_some()), ("--google-key", args.google_key.is_some())];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        return Err(not_through_server(option));
    }
    let target = target(args)?;
    if let Some(Target { path, force: false, .. }) = &target {
        outputs::refuse_foreign(None, "this run", &[("--out", Some(path))]).await?;
    }
    let asked = asked(app, args)?;
    if args.dry_run {
        let told = estimated(&server, &args.table, &asked).await?;
        return describe(app, &told, args.spending.max_cost);
    }
    let mut interrupts = Interrupts::new()?;
    let submitted: SubmittedSheet = tokio::select! {
        submitted = hand_in(&server, &["sheets"], &args.table, &asked) => submitted?,
        () = interrupts.next() => {
            app.out.note("interrupted while the table was handed in");
            return Err(Failure::new(Code::Interrupted, "interrupted").hint("go on with the same command").into());
        }
    };
    introduce(app, &submitted, args.spending.max_cost);
    let run = server.get(&submitted.id).await?;
    if args.detach {
        return detached(app, run.id());
    }
    let status = tokio::select! {
        status = follow::show(app, &*run, None) => status?,
        () = interrupts.next() => {
            app.out.one(&run.status().await?, String::new)?;
            return Ok(follow::stopped(app, run.id()));
        }
    };
    end(app, args, &*run, (&server, &status, target)).await
}

/// `estimate --server` of a table.
pub(super) async fn estimate(
    app: &App,
    shape: &Shape<'_>,
    server: &RemoteRuns,
) -> Result<EstimatedSheet<Estimate>> {
    estimated(server, &shape.table, &shaped(app, shape)?).await
}

async fn estimated(server: &RemoteRuns, table: &str, asked: &SheetIn) -> Result<EstimatedSheet<Estimate>> {
    hand_in(server, &["sheets", "estimate"], table, asked).await
}

/// Downloads the table, or shows the rows of a sample.
async fn end(
    app: &App,
    args: &ScoreArgs,
    run: &dyn RunClient,
    (server, status, target): (&RemoteRuns, &Status, Option<Target>),
) -> Result<Code> {
    if let Some(rows) = args.sample {
        let query = [("limit", rows.min(1_000).to_string())];
        let path = ["runs", run.id().as_str(), "results"];
        let rows: Listed<SampleRow> = server.api().get(&path, &query).await?;
        let code = tell(app, status, None, Some(&rows.items))?;
        app.out.hint("answers are kept: score the whole table with --out FILE instead of --sample");
        return Ok(code);
    }
    let mut file = None;
    if let Some(target) = target.filter(|_| status.standing.state.is_end()) {
        target.check_unchanged(run.id())?;
        write_table(server.api(), run.id(), &target.path).await?;
        file = Some(format!("file         {}", target.path.display()));
    }
    tell(app, status, file, None)
}

/// Where the table goes with its scores.
struct Target {
    path: PathBuf,
    /// Whatever is there may be replaced.
    force: bool,
    /// The digest of the table itself, where it is the target.
    table: Option<String>,
}

impl Target {
    /// Somebody may have changed the table while it was scored, and the server knows only what was uploaded.
    fn check_unchanged(&self, run: &RunId) -> Result<()> {
        let Some(uploaded) = &self.table else { return Ok(()) };
        if files::sha256(&self.path)? == *uploaded {
            return Ok(());
        }
        let text =
            format!("{} has changed since it was uploaded, and was left as it is", self.path.display());
        Err(Failure::new(Code::Failure, text)
            .hint(format_args!("the scores are kept: longhaul runs results {run} --out FILE"))
            .into())
    }
}

/// A Google sheet is written by the server, and a sample by nobody.
fn target(args: &ScoreArgs) -> Result<Option<Target>> {
    let is_google = SheetAddress::is_meant_by(&args.table);
    if args.sample.is_some() || args.dry_run || args.detach || (is_google && args.out.is_none()) {
        return Ok(None);
    }
    match &args.out {
        Some(_) if is_google => Err(settings::in_place_only()),
        Some(out) => {
            Format::of_path(out)?;
            Ok(Some(Target { path: out.clone(), force: args.force, table: None }))
        }
        None if args.in_place => {
            let path = PathBuf::from(&args.table);
            if Format::of_path(&path)? == Format::Xlsx {
                return Err(Failure::new(Code::Usage, "--in-place: a workbook is not written over")
                    .hint("name another file with --out")
                    .into());
            }
            let table = Some(files::sha256(&path).map_err(|_| missing(&args.table))?);
            Ok(Some(Target { path, force: true, table }))
        }
        None => Err(settings::no_target()),
    }
}

/// What `score` and an estimate of it have in common.
fn shaped(app: &App, shape: &Shape<'_>) -> Result<SheetIn> {
    let scoring = shape.scoring;
    let (categories, instructions) = settings::rubric(scoring)?;
    let category = |Category { name, definition, detail }| CategoryIn { name, definition, detail };
    let (mode, schema) = match shape.mode()? {
        Mode::Scores => (None, None),
        Mode::Rationale => (Some(ModeIn::Rationale), None),
        Mode::Free { schema } => (None, Some(schema)),
    };
    Ok(SheetIn {
        sheet: shape.sheet.cloned(),
        google: google(&shape.table)?,
        layout: Some(match (&scoring.text_column, scoring.layout) {
            (Some(text), None) => LayoutIn::Columns(ColumnsIn { text: text.clone() }),
            _ => LayoutIn::Sheet(HeadsIn::default()),
        }),
        categories: categories.into_iter().map(category).collect(),
        mode,
        schema,
        instructions,
        range: Some(settings::range(&scoring.range)?),
        model: shape.model.cloned(),
        profile: named_profile(app)?,
        existing: if scoring.overwrite { ExistingIn::Overwrite } else { ExistingIn::Keep },
        max_tokens: shape.max_tokens,
        limit: shape.limit,
        work: WorkIn { block_categories: Some(scoring.batch_size), ..WorkIn::default() },
        ..SheetIn::default()
    })
}

fn asked(app: &App, args: &ScoreArgs) -> Result<SheetIn> {
    Ok(SheetIn {
        fallback_model: args.fallback_model.clone(),
        fallback_profile: args.fallback_profile.clone(),
        max_cost_usd: args.spending.max_cost.map(NanoUsd::as_dollars),
        allow_unpriced: args.spending.allow_unpriced,
        cache: args.cache.into(),
        work: work(args),
        ask_again: true,
        tags: args.tags.clone(),
        ..shaped(app, &args.into())?
    })
}

fn work(args: &ScoreArgs) -> WorkIn {
    WorkIn {
        chunk_rows: Some(args.chunk_rows),
        parallel_chunks: Some(args.parallel_chunks),
        concurrency: Some(args.concurrency),
        block_categories: Some(args.scoring.batch_size),
        unit_retries: Some(args.unit_retries),
        chunk_retries: Some(args.chunk_retries),
        fill_rounds: Some(args.fill_rounds),
        failed_share_max: Some(args.failed_share),
    }
}

/// The server finds a sheet by its title; which one an address of a browser means, only the owner of a key can ask.
fn google(table: &str) -> Result<Option<GoogleIn>> {
    if !SheetAddress::is_meant_by(table) {
        return Ok(None);
    }
    let SheetAddress { spreadsheet, sheet } = table.parse()?;
    match sheet {
        SheetChoice::Title(sheet) => Ok(Some(GoogleIn { spreadsheet, sheet })),
        SheetChoice::First | SheetChoice::Gid(_) => {
            Err(Failure::new(Code::Usage, "with --server, a Google sheet is named by its title")
                .hint(format_args!("write sheets://{spreadsheet}/TITLE"))
                .into())
        }
    }
}

/// A Google sheet is read by the server itself; any other table is uploaded.
async fn hand_in<T: DeserializeOwned>(
    server: &RemoteRuns,
    path: &[&str],
    table: &str,
    asked: &SheetIn,
) -> Result<T> {
    if asked.google.is_some() {
        return server.api().hand_in(path, asked).await.map_err(refused);
    }
    let file = Path::new(table);
    Format::of_path(file)?;
    let content = std::fs::File::open(file).map_err(|_| missing(table))?;
    let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    server.hand_in_file(path, (&name, content), ("file_id", asked)).await
}

/// That the table cannot be read.
fn missing(table: &str) -> Failure {
    let error = std::fs::File::open(table).err().unwrap_or_else(|| std::io::ErrorKind::Other.into());
    texts::unreadable(table, &error)
}

fn introduce(app: &App, submitted: &SubmittedSheet, max_cost: Option<NanoUsd>) {
    let SubmittedSheet { id, resumed, rows, units, estimate_usd, .. } = submitted;
    let verb = if *resumed { "going on with" } else { "handed in" };
    let cost = estimate_usd.map_or_else(|| "unpriced".to_owned(), |cost| format!("from {}", cost.short()));
    let (rows, units) = (counted(*rows, "row"), counted(*units, "request"));
    app.out.note(format_args!("{verb} {id}: {rows}, {units}; {cost}"));
    if let Some(max) = max_cost {
        app.out.note(format_args!("stops before {max}"));
    }
    tell_asked_again(app, submitted.asked_again);
}
