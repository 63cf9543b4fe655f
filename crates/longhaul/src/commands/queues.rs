//! `queues …`.

use anyhow::Result;
use longhaul_api::Listed;
use longhaul_api::queues::QueueOut;
use longhaul_queue::job::DEFAULT_QUEUE;
use longhaul_queue::store::{QueueChange, QueueInfo};
use longhaul_queue::{Queue, State};

use crate::app::App;
use crate::args::{QueueSetArgs, QueuesCommand};
use crate::exit::{Code, Failure};
use crate::nearest::nearest;
use crate::output::{Cell, Table, duration, state_style};
use crate::parse::retention_text;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &QueuesCommand) -> Result<Code> {
    // Limits are best set before the first job comes.
    let queue = match command {
        QueuesCommand::Pause { create: true, .. } | QueuesCommand::Set(_) => app.queue_or_new().await?,
        QueuesCommand::Ls | QueuesCommand::Pause { .. } | QueuesCommand::Resume { .. } => app.queue().await?,
    };
    match command {
        QueuesCommand::Ls => return ls(app, &queue.store().queues().await?),
        QueuesCommand::Pause { name, create } => {
            if !create {
                check_known(&queue, name, "; for one that is to come, add --create").await?;
            }
            queue.pause(name).await?;
        }
        QueuesCommand::Resume { name } => {
            check_known(&queue, name, "").await?;
            queue.resume(name).await?;
        }
        QueuesCommand::Set(args) => queue.set_queue(change(args)).await?,
    }
    let (QueuesCommand::Pause { name, .. }
    | QueuesCommand::Resume { name }
    | QueuesCommand::Set(QueueSetArgs { name, .. })) = command
    else {
        return Ok(Code::Ok);
    };
    let queues = queue.store().queues().await?;
    let changed: Vec<QueueInfo> = queues.into_iter().filter(|info| info.name == *name).collect();
    if changed.is_empty() {
        app.out.note(format_args!("queue {name} has no jobs and no settings any more"));
        return Ok(Code::Ok);
    }
    ls(app, &changed)
}

/// Refuses a queue without jobs and settings, which is mostly a misspelt one: nobody would notice that the right one goes on.
async fn check_known(queue: &Queue, name: &str, else_do: &str) -> Result<()> {
    let queues = queue.store().queues().await?;
    if name == DEFAULT_QUEUE || queues.iter().any(|info| info.name == name) {
        return Ok(());
    }
    let meant = nearest(name, queues.iter().map(|info| info.name.as_str()));
    let see = meant.map_or_else(
        || "list what there is: longhaul queues ls".to_owned(),
        |meant| format!("did you mean {meant}?"),
    );
    let text = format!("there is no queue {name}: it has no jobs and no settings");
    Err(Failure::new(Code::NothingMatched, text).hint(format_args!("{see}{else_do}")).into())
}

fn change(args: &QueueSetArgs) -> QueueChange {
    QueueChange {
        name: args.name.clone(),
        paused: None,
        max_running: args.max_running.map(|change| change.0),
        max_running_per_key: args.max_running_per_key.map(|change| change.0),
        ageing: args.ageing.map(|change| change.0),
        retention: args.retention.map(|change| change.0),
    }
}

fn ls(app: &App, queues: &[QueueInfo]) -> Result<Code> {
    let shown = Listed::whole(queues.iter().cloned().map(QueueOut::from).collect());
    app.out.listed(&shown, || table(queues))?;
    if queues.is_empty() {
        app.out.note("there are no queues; the first job of a queue makes it");
    }
    Ok(Code::Ok)
}

fn table(queues: &[QueueInfo]) -> Table {
    const SHOWN: [State; 8] = State::ALL;
    let mut table = Table::new(&[
        "QUEUE",
        "STATUS",
        "BLOCKED",
        "SCHEDULED",
        "READY",
        "RUNNING",
        "PARKED",
        "SUCCEEDED",
        "FAILED",
        "CANCELLED",
        "LIMIT",
        "AGEING",
        "RETENTION",
    ]);
    for info in queues {
        let status = if info.settings.paused {
            Cell::new("paused").style(state_style(State::Parked))
        } else {
            Cell::new("open")
        };
        let mut row = vec![Cell::new(&info.name), status];
        row.extend(SHOWN.iter().zip(info.counts).map(|(state, count)| {
            let style = if count > 0 { state_style(*state) } else { anstyle::Style::new().dimmed() };
            Cell::number(count).style(style)
        }));
        let limits = [
            info.settings.max_running.map(|limit| limit.to_string()),
            info.settings.max_running_per_key.map(a_key),
        ];
        let limits = limits.into_iter().flatten().collect::<Vec<_>>().join(", ");
        row.push(Cell::optional(Some(limits).filter(|limits| !limits.is_empty())));
        row.push(Cell::optional(info.settings.ageing.map(duration)));
        row.push(Cell::optional(info.settings.retention.map(retention_text)));
        table.row(row);
    }
    table
}

fn a_key(limit: u32) -> String {
    format!("{limit} a key")
}
