//! `workers ls`.

use anyhow::Result;
use longhaul_queue::State;

use crate::app::App;
use crate::exit::Code;
use crate::output::{Cell, Table, duration, state_style};

pub(super) use longhaul_queue::limits::WORKER_SILENT_AFTER as SILENT_AFTER;

/// Lists workers.
pub(crate) async fn ls(app: &App) -> Result<Code> {
    let queue = app.queue().await?;
    let now = queue.clock().now();
    let workers = queue.store().workers(now).await?;
    app.out.list(&workers, None, || {
        let mut table = Table::new(&[
            "WORKER", "HOST", "PID", "VERSION", "BUSY", "SLOTS", "QUEUES", "KINDS", "UP", "SEEN",
        ]);
        for worker in &workers {
            let silent = now.since(worker.seen_at) > SILENT_AFTER;
            let style = if silent { state_style(State::Failed) } else { anstyle::Style::new() };
            table.row(vec![
                Cell::new(worker.id.as_str()),
                Cell::new(&worker.host),
                Cell::number(worker.pid),
                Cell::new(&worker.version),
                Cell::number(worker.running),
                Cell::number(worker.concurrency),
                Cell::new(worker.queues.join(",")),
                Cell::new(worker.kinds.as_ref().map_or_else(|| "any".to_owned(), |kinds| kinds.join(","))),
                Cell::new(duration(now.since(worker.started_at))),
                Cell::new(app.out.list_time(worker.seen_at, now)).style(style),
            ]);
        }
        table
    })?;
    if workers.is_empty() {
        app.out.note("no worker was heard of; start one: longhaul work");
    }
    Ok(Code::Ok)
}
