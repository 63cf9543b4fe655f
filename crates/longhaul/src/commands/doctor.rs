//! `doctor`: is everything in order? Each check is a line; exit code 8 when one of them found a problem.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, LEASE_PREFIX, ListRequest};
use longhaul_queue::{Engine, Json, Queue, State, Timestamp};
use serde::Serialize;

mod providers;
mod server;

use super::workers::SILENT_AFTER;
use crate::app::App;
use crate::exit::{Code, hint_of, is_outage};
use crate::models;
use crate::output::{Cell, Table, counted, duration, relative, size, state_style};
use crate::store;
use longhaul_stores::StoreUrl;

/// Less free space than this is a problem: SQLite needs room for its log.
const DISK_FREE_BYTES_MIN: u64 = 200_000_000;
/// A clock before this (2026-01-01) is not set.
const CLOCK_MIN: Timestamp = Timestamp::from_millis(1_767_225_600_000);
/// A job from further in the future than this means that some clock is wrong.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Ok,
    Note,
    Problem,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    status: Status,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Check {
    fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, text: text.into(), hint: None }
    }

    fn note(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, status: Status::Note, text: text.into(), hint: Some(hint.into()) }
    }

    fn problem(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, status: Status::Problem, text: text.into(), hint: Some(hint.into()) }
    }
}

/// Runs the command.
pub(crate) async fn run(app: &App) -> Result<Code> {
    let mut checks = vec![settings(app), clock(app.now())];
    let location = store::location(&app.settings)?;
    checks.extend(disks(app, &location)?);
    let missing = matches!(&location, StoreUrl::Sqlite(path) if !path.exists());
    match app.engine().await {
        Err(_) if missing => {
            let text = format!(
                "none yet at {}: the first command that needs one creates it",
                store::shown_url(&app.settings)?
            );
            checks.push(Check::ok("store", text));
        }
        Err(error) => {
            let url = &app.settings.get("store.url")?.value;
            let away = if is_outage(&error) { server::how_to_find(&location, url) } else { None };
            let hint = away.or_else(|| hint_of(&error)).unwrap_or_default();
            checks.push(Check::problem("store", format!("{error:#}"), hint));
        }
        Ok(engine) => {
            checks.push(server::promise(&engine.store().caps()));
            checks.push(write(&engine).await);
            if matches!(location, StoreUrl::Sqlite(_)) {
                checks.push(integrity(app).await);
            }
            checks.extend(contents(&engine).await?);
        }
    }
    checks.extend(providers::checks(app).await);
    print(app, &checks)
}

fn print(app: &App, checks: &[Check]) -> Result<Code> {
    app.out.list(checks, None, || {
        let mut table = Table::new(&["", "CHECK", "FOUND"]);
        for check in checks {
            let (sign, style) = match check.status {
                Status::Ok => ("ok", state_style(State::Succeeded)),
                Status::Note => ("note", state_style(State::Parked)),
                Status::Problem => ("PROBLEM", state_style(State::Failed)),
            };
            table.row(vec![Cell::new(sign).style(style), Cell::new(check.check), Cell::new(&check.text)]);
        }
        table
    })?;
    // Below the table: beside what was found, they would make its lines longer than any terminal.
    for check in checks {
        if let Some(hint) = &check.hint {
            app.out.hint(format_args!("{}: {hint}", check.check));
        }
    }
    let problems = checks.iter().filter(|check| check.status == Status::Problem).count();
    if problems == 0 {
        let notes = checks.iter().filter(|check| check.status == Status::Note).count();
        match notes {
            0 => app.out.note("all is well"),
            notes => app.out.note(format_args!("no problems, {}", counted(notes as u64, "note"))),
        }
        return Ok(Code::Ok);
    }
    app.out.note(format_args!("{} found", counted(problems as u64, "problem")));
    Ok(Code::Problems)
}

fn settings(app: &App) -> Check {
    let set =
        app.settings.all().iter().filter(|setting| setting.origin != crate::config::Origin::Default).count();
    Check::ok("settings", format!("valid, {set} not at their default"))
}

fn clock(now: Timestamp) -> Check {
    if now < CLOCK_MIN {
        return Check::problem(
            "clock",
            format!("it is {now} on this machine"),
            "set the clock; leases and schedules go by it",
        );
    }
    Check::ok("clock", now.to_string())
}

/// Free space for the store and for what stands beside it.
fn disks(app: &App, location: &StoreUrl) -> Result<Vec<Check>> {
    let mut files: Vec<(PathBuf, &str)> = Vec::new();
    match location {
        StoreUrl::Sqlite(path) => files.push((path.clone(), "a store that cannot grow cannot take jobs")),
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
            let data = app.settings.read("store.data", store::parse_data)?;
            files.push((data, "sheets, uploaded files and llm.db are kept here, beside the server"));
        }
        StoreUrl::Memory => {}
    }
    if let Some(path) = models::file_of(app)?
        && files.iter().all(|(other, _)| other.parent() != path.parent())
    {
        files.push((path, "calls to models are booked here before they are made"));
    }
    Ok(files.iter().filter_map(|(path, why)| disk(path, why)).collect())
}

/// Free space where a file is or would be.
fn disk(path: &Path, why: &str) -> Option<Check> {
    let place = path.ancestors().skip(1).find(|place| place.exists()).unwrap_or(Path::new("."));
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    let stat = rustix::fs::statvfs(place).ok()?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = format!("{} free for {}", size(free), folder.display());
    Some(if free < DISK_FREE_BYTES_MIN {
        Check::problem("disk", text, format!("make room: {why}"))
    } else {
        Check::ok("disk", text)
    })
}

/// Writes a small record: what can be read may still be closed to writers, by another process that holds the lock, by rights or by
/// a full disk.
async fn write(engine: &Engine) -> Check {
    let started = Instant::now();
    let name = format!("{LEASE_PREFIX}doctor");
    let write = async {
        let version = engine.store().record(name.clone()).await?.map_or(0, |record| record.version);
        engine.store().put_record(name.clone(), version, Json::of(&engine.clock().now())?).await
    };
    match write.await {
        // False: another doctor was faster, and could write.
        Ok(_) => Check::ok("write", format!("a write took {}", duration(started.elapsed()))),
        Err(error) => {
            let hint =
                "a process that is stopped while it writes blocks all other writers: see docs/operations.md";
            Check::problem("write", error.to_string(), hint)
        }
    }
}

async fn integrity(app: &App) -> Check {
    let hint = "stop the workers and put a backup back: longhaul restore FILE --yes";
    let check = async { Ok::<_, anyhow::Error>(store::open_sqlite(&app.settings)?.db().check().await?) };
    let found = match check.await {
        Ok(found) => found,
        Err(error) => return Check::problem("file", format!("{error:#}"), hint),
    };
    if let Some(first) = found.problems.first() {
        return Check::problem(
            "file",
            format!("{}, the first: {first}", counted(found.problems.len() as u64, "fault")),
            hint,
        );
    }
    let bytes = size(found.bytes.unsigned_abs());
    Check::ok(
        "file",
        format!("sound, {bytes}, schema {}, journal {}", found.schema_version, found.journal_mode),
    )
}

async fn contents(queue: &Queue) -> Result<Vec<Check>> {
    let now = queue.clock().now();
    let queues = queue.store().queues().await?;
    let mut checks = Vec::new();
    let workers = queue.store().workers(now).await?;
    let live: Vec<_> = workers.iter().filter(|worker| now.since(worker.seen_at) <= SILENT_AFTER).collect();
    let ready: u64 = queues.iter().map(|info| info.counts[State::Ready as usize]).sum();
    checks.push(match (live.is_empty(), ready) {
        (true, 0) => Check::ok("workers", "none, and nothing waits for one"),
        (true, ready) => {
            Check::note("workers", format!("none, and {} ready", counted(ready, "job")), "longhaul work")
        }
        (false, _) => Check::ok("workers", format!("{} at work", live.len())),
    });
    for worker in workers.iter().filter(|worker| now.since(worker.seen_at) > SILENT_AFTER) {
        let text =
            format!("{} (pid {}) was last heard of {}", worker.id, worker.pid, relative(worker.seen_at, now));
        checks.push(Check::note("workers", text, "its jobs are taken back when their leases expire"));
    }
    for info in queues.iter().filter(|info| info.settings.paused && info.counts[State::Ready as usize] > 0) {
        let text = format!(
            "queue {} is paused with {} ready",
            info.name,
            counted(info.counts[State::Ready as usize], "job")
        );
        checks.push(Check::note("queues", text, format!("longhaul queues resume {}", info.name)));
    }
    checks.push(leases(queue, now).await?);
    checks.extend(newest(queue, now).await?);
    Ok(checks)
}

async fn leases(queue: &Queue, now: Timestamp) -> Result<Check> {
    let filter = Filter { states: vec![State::Running], ..Filter::default() };
    let page = queue.list(ListRequest { filter, newest_first: false, cursor: None, limit: PAGE_MAX }).await?;
    let overdue = page.items.iter().filter_map(|job| job.lease_until).filter(|until| *until < now);
    let (count, oldest) = overdue.fold((0_u64, now), |(count, oldest), until| (count + 1, oldest.min(until)));
    Ok(if count == 0 {
        Check::ok("leases", format!("{} running, none overdue", page.items.len()))
    } else {
        let text =
            format!("{} expired, the oldest {} ago", counted(count, "lease"), duration(now.since(oldest)));
        Check::problem("leases", text, "any running worker takes such jobs back: longhaul work")
    })
}

/// A job from the future shows that two machines disagree about the time.
async fn newest(queue: &Queue, now: Timestamp) -> Result<Option<Check>> {
    let page = queue
        .list(ListRequest { filter: Filter::default(), newest_first: true, cursor: None, limit: 1 })
        .await?;
    Ok(page.items.first().filter(|job| job.created_at > now + CLOCK_SKEW_MAX).map(|job| {
        let text = format!("job {} was enqueued {} from now", job.id, duration(job.created_at.since(now)));
        Check::problem("clock", text, "compare the clocks of the machines that use this store")
    }))
}
