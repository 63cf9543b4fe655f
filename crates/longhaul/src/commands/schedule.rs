//! `schedule …`: jobs that recur.

use anyhow::Result;
use jiff::tz::TimeZone;
use longhaul_api::Listed;
use longhaul_api::job_out::EnqueuedOut;
use longhaul_api::schedules::{Removed, ScheduleOut};
use longhaul_queue::limits::check_name;
use longhaul_queue::maintenance::next_after;
use longhaul_queue::store::Schedule;
use longhaul_queue::{NewJob, Queue};

use crate::app::App;
use crate::args::{ScheduleAddArgs, ScheduleCommand};
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, local};
use crate::pipelines::own_names;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &ScheduleCommand) -> Result<Code> {
    // A schedule may be the first thing that a new store gets.
    let queue = if matches!(command, ScheduleCommand::Add(_)) {
        app.queue_or_new().await?
    } else {
        app.queue().await?
    };
    match command {
        ScheduleCommand::Ls => ls(app, &queue).await,
        ScheduleCommand::Add(args) => add(app, &queue, args).await,
        ScheduleCommand::Rm { name } => rm(app, &queue, name).await,
        ScheduleCommand::Run { name } => fire(app, &queue, name).await,
    }
}

async fn ls(app: &App, queue: &Queue) -> Result<Code> {
    let schedules = queue.store().schedules().await?;
    let shown = Listed::whole(schedules.iter().cloned().map(ScheduleOut::from).collect());
    app.out.listed(&shown, || table(app, &schedules))?;
    if schedules.is_empty() {
        app.out.note(
            "there are no schedules; add one: longhaul schedule add NAME --cron '0 8 * * *' --kind KIND",
        );
    }
    Ok(Code::Ok)
}

fn table(app: &App, schedules: &[Schedule]) -> Table {
    let now = app.now();
    let mut table = Table::new(&["NAME", "CRON", "ZONE", "KIND", "QUEUE", "MISSED", "NEXT", "LAST"]);
    for schedule in schedules {
        let missed = serde_json::to_value(schedule.missed).ok();
        table.row(vec![
            Cell::new(&schedule.name),
            Cell::new(&schedule.cron),
            Cell::new(&schedule.timezone),
            Cell::new(&schedule.job.kind),
            Cell::new(&schedule.job.queue),
            Cell::optional(missed.as_ref().and_then(serde_json::Value::as_str)),
            Cell::new(app.out.list_time(schedule.next_at, now)),
            Cell::optional(schedule.last_at.map(|at| app.out.list_time(at, now))),
        ]);
    }
    table
}

async fn add(app: &App, queue: &Queue, args: &ScheduleAddArgs) -> Result<Code> {
    check_name("schedule", &args.name)?;
    let own = |error: longhaul_queue::Error| Failure::new(Code::Usage, error.to_string());
    own_names().check_kind(&args.kind).map_err(own)?;
    args.queue.as_deref().map_or(Ok(()), |name| own_names().check_queue(name)).map_err(own)?;
    let timezone = args.tz.clone().unwrap_or_else(system_zone);
    let next_at = next_after(&args.cron, &timezone, app.now()).map_err(|error| {
        Failure::new(Code::Usage, error)
            .hint("minute hour day month weekday, such as --cron '0 8 * * 1-5' --tz Europe/Berlin")
    })?;
    let mut job = NewJob::new(&args.kind, app.json_argument(args.payload.as_deref())?);
    job.queue = args.queue.clone().unwrap_or(job.queue);
    job.priority = args.priority.unwrap_or(0);
    job.options.max_attempts = args.max_attempts;
    job.options.tags.clone_from(&args.tags);
    queue.limits().check_job(&job)?;
    let schedule = Schedule {
        name: args.name.clone(),
        cron: args.cron.clone(),
        timezone,
        job,
        missed: args.missed,
        next_at,
        last_at: None,
    };
    queue.store().put_schedule(schedule.clone()).await?;
    let added = ScheduleOut::from(schedule);
    app.out.one(&added, || {
        let runs: Vec<String> = added.next_runs.iter().map(|at| format!("  {}", local(*at))).collect();
        format!("schedule {} runs next at\n{}", added.name, runs.join("\n"))
    })?;
    Ok(Code::Ok)
}

fn system_zone() -> String {
    TimeZone::system().iana_name().unwrap_or("UTC").to_owned()
}

async fn rm(app: &App, queue: &Queue, name: &str) -> Result<Code> {
    if !queue.store().delete_schedule(name.to_owned()).await? {
        return Err(no_schedule(name));
    }
    app.out.one(&Removed { removed: name.to_owned() }, || format!("schedule {name} removed"))?;
    Ok(Code::Ok)
}

async fn fire(app: &App, queue: &Queue, name: &str) -> Result<Code> {
    let schedules = queue.store().schedules().await?;
    let schedule =
        schedules.into_iter().find(|schedule| schedule.name == name).ok_or_else(|| no_schedule(name))?;
    let enqueued = EnqueuedOut::from(queue.enqueue(NewJob { id: None, ..schedule.job }).await?);
    app.out.one(&enqueued, || enqueued.id.to_string())?;
    Ok(Code::Ok)
}

fn no_schedule(name: &str) -> anyhow::Error {
    Failure::new(Code::NothingMatched, format!("there is no schedule {name}"))
        .hint("list them: longhaul schedule ls")
        .into()
}
