//! `move`: everything that a stopped installation's store holds goes to another store, and is compared there piece by piece.
//!
//! The old store is only read, but for its schema, which is brought up to date, and for leases of dead workers, which are
//! ended first. A move that was cut off is repeated by the same command: pieces that are there already stay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use longhaul_queue::limits::{PIECES_MAX, SWEEP_MAX};
use longhaul_queue::store::{ExportRecord, Filter, ListRequest};
use longhaul_queue::{Clock as _, EngineStore, Json, State, SystemClock};
use longhaul_stores::StoreUrl;

use super::workers::SILENT_AFTER;
use crate::app::App;
use crate::args::MoveArgs;
use crate::exit::{Code, Failure};
use crate::moved::{Begun, RECORD};
use crate::output::{Cell, Table, grouped};
use crate::store::{self, Missing};

mod tally;

use tally::Tally;

/// How often a long move says how far it has come.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Runs the command.
pub(crate) async fn run(app: &App, args: &MoveArgs) -> Result<Code> {
    let (from_url, to_url) = (url("--from", &args.from)?, url("--to", &args.to)?);
    if args.from == args.to {
        return Err(Failure::new(Code::Usage, "--from and --to name the same store").into());
    }
    let from = open(app, &from_url, Missing::Refuse).await?;
    let to = open(app, &to_url, Missing::Create).await?;
    check_stopped(from.as_ref(), &args.from).await?;
    if !begin(to.as_ref(), args).await? {
        // Whoever works on half a store would have jobs come back that it has done and consumed.
        check_stopped(to.as_ref(), &args.to).await?;
    }
    let jobs: u64 = from.counts().await?.iter().map(|count| count.jobs).sum();
    let moved = copy(app, from.as_ref(), to.as_ref(), jobs).await?;
    app.out.note("comparing both stores");
    let found = Tally::of(to.as_ref()).await?;
    let still = Tally::of(from.as_ref()).await?;
    if still != moved {
        return Err(Failure::new(
            Code::Failure,
            format!("{} changed while it was moved", store::shown(&args.from)),
        )
        .hint("stop whatever enqueues there, then repeat the command: what has arrived stays")
        .into());
    }
    show(app, args, &moved, &found)?;
    if found != moved {
        let text = format!("{} does not hold what {} does", store::shown(&args.to), store::shown(&args.from));
        return Err(Failure::new(Code::Failure, text)
            .hint("the old store is still there; empty the new one and move again")
            .into());
    }
    finish(to.as_ref(), args).await?;
    advise(app, &from_url, &to_url);
    Ok(Code::Ok)
}

fn url(option: &str, text: &str) -> Result<StoreUrl> {
    let url = store::parse_url(text).map_err(|problem| {
        Failure::new(Code::Usage, format!("{option} is {:?}: {problem}", store::shown(text)))
    })?;
    if url == StoreUrl::Memory {
        let text = format!("{option}: a store in memory belongs to one process and cannot be moved");
        return Err(Failure::new(Code::Usage, text).into());
    }
    Ok(url)
}

async fn open(app: &App, url: &StoreUrl, missing: Missing) -> Result<Arc<dyn EngineStore>> {
    if let (StoreUrl::Sqlite(path), Missing::Refuse) = (url, missing) {
        if !path.exists() {
            let text = format!("there is no store at {}", path.display());
            return Err(Failure::new(Code::Unreachable, text).into());
        }
        return Ok(Arc::new(store::open_file(&app.settings, path)?));
    }
    store::connect(&app.settings, url).await
}

/// Refuses a store that is in use. What dead workers left running is put back first.
async fn check_stopped(from: &dyn EngineStore, shown: &str) -> Result<()> {
    let now = from.clock().map_or_else(|| SystemClock.now(), |clock| clock.now());
    let shown = store::shown(shown);
    let workers = from.workers(now).await?;
    if let Some(worker) = workers.iter().find(|worker| now.since(worker.seen_at) <= SILENT_AFTER) {
        let text = format!("worker {} (pid {} on {}) uses {shown}", worker.id, worker.pid, worker.host);
        return Err(Failure::new(Code::Failure, text)
            .hint("stop it first; a worker that died is forgotten after 30 s")
            .into());
    }
    while from.rescue_expired(now, SWEEP_MAX).await?.changed > 0 {}
    let filter = Filter { states: vec![State::Running], ..Filter::default() };
    let running = from.list(ListRequest { filter, limit: 1, ..ListRequest::default() }).await?;
    let Some(job) = running.items.first() else { return Ok(()) };
    let left = job.lease_until.map_or(Duration::ZERO, |until| until.since(now));
    let text = format!("job {} of {shown} runs, or its worker died a moment ago", job.id);
    let wait = crate::output::duration(left.max(Duration::from_secs(1)));
    Err(Failure::new(Code::Failure, text).hint(format_args!("its lease ends in {wait}: move then")).into())
}

/// Marks the new store, which must be empty, or hold a part of the same move. Says whether it was empty.
async fn begin(to: &dyn EngineStore, args: &MoveArgs) -> Result<bool> {
    let mark = Begun { from: store::shown(&args.from), finished: false };
    if let Some(record) = to.record(RECORD.to_owned()).await? {
        if record.value.to::<Begun>().is_ok_and(|begun| begun == mark) {
            return Ok(false);
        }
    } else if Tally::is_empty(to).await? && to.put_record(RECORD.to_owned(), 0, Json::of(&mark)?).await? {
        return Ok(true);
    }
    let text = format!("{} is not empty", store::shown(&args.to));
    Err(Failure::new(Code::Failure, text)
        .hint("name a store that does not exist yet: another file, ?name= on Redis, ?schema= on Postgres")
        .into())
}

async fn finish(to: &dyn EngineStore, args: &MoveArgs) -> Result<()> {
    let mark = Begun { from: store::shown(&args.from), finished: true };
    if let Some(record) = to.record(RECORD.to_owned()).await? {
        to.put_record(RECORD.to_owned(), record.version, Json::of(&mark)?).await?;
    }
    Ok(())
}

async fn copy(app: &App, from: &dyn EngineStore, to: &dyn EngineStore, jobs: u64) -> Result<Tally> {
    let mut told_at = Instant::now();
    let mut tally = Tally::default();
    let mut after = None;
    loop {
        let page = from.export(after, PIECES_MAX).await?;
        let pieces: Vec<ExportRecord> = page.pieces.into_iter().filter(tally::is_moved).collect();
        for piece in &pieces {
            tally.add(piece)?;
        }
        to.import(pieces).await?;
        if told_at.elapsed() >= TELL_EVERY {
            told_at = Instant::now();
            app.out.note(format_args!("{} of {} jobs", grouped(tally.jobs()), grouped(jobs)));
        }
        after = page.next;
        if after.is_none() {
            return Ok(tally);
        }
    }
}

fn show(app: &App, args: &MoveArgs, moved: &Tally, found: &Tally) -> Result<()> {
    let rows = moved.rows(found);
    app.out.list(&rows, None, || {
        let mut table = Table::new(&["PART", "OLD STORE", "NEW STORE", "SHA-256", "SAME"]);
        for row in &rows {
            table.row(vec![
                Cell::new(row.part),
                Cell::number(row.old),
                Cell::number(row.new),
                Cell::new(&row.digest[..16]),
                Cell::new(if row.same { "yes" } else { "NO" }),
            ]);
        }
        table
    })?;
    let (from, to) = (store::shown(&args.from), store::shown(&args.to));
    app.out.note(format_args!("{} pieces from {from} to {to}", grouped(moved.pieces())));
    Ok(())
}

/// What is left to do.
fn advise(app: &App, from: &StoreUrl, to: &StoreUrl) {
    app.out
        .note("the old store is still there; nothing writes to the new one until you name it with --store");
    match (from, to) {
        (StoreUrl::Sqlite(path), StoreUrl::Redis(_) | StoreUrl::Postgres(_)) => app.out.note(format_args!(
            "files, sheets and costs stay beside it: name them with --data sqlite://{}",
            path.display()
        )),
        (StoreUrl::Redis(_) | StoreUrl::Postgres(_), StoreUrl::Sqlite(_)) => {
            app.out.note("sheets, files and costs are in the folder of --data and stay there");
        }
        _ => {}
    }
}
