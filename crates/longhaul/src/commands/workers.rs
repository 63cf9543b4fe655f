//! `workers ls`.

use anyhow::Result;
use longhaul_api::Listed;
use longhaul_api::workers::WorkerOut;
use longhaul_queue::State;
use longhaul_queue::store::WorkerInfo;

use crate::app::App;
use crate::exit::Code;
use crate::output::{Cell, Table, duration, state_style};
use crate::pipelines::own_names;

pub(super) use longhaul_queue::limits::WORKER_SILENT_AFTER as SILENT_AFTER;

/// Queues or kinds of a worker that are named in the table.
const NAMES_SHOWN_MAX: usize = 3;

/// Lists workers.
pub(crate) async fn ls(app: &App) -> Result<Code> {
    let queue = app.queue().await?;
    let now = queue.clock().now();
    let workers = queue.store().workers(now).await?;
    let own = own_names();
    let (is_own_queue, is_own_kind) =
        (|name: &str| own.is_own_queue(name), |name: &str| own.is_own_kind(name));
    let shown_to_programs = workers.iter().cloned().map(|worker| WorkerOut::new(worker, now)).collect();
    app.out.listed(&Listed::whole(shown_to_programs), || {
        let mut table =
            Table::new(&["WORKER", "HOST", "PID", "VERSION", "BUSY", "QUEUES", "KINDS", "UP", "SEEN"]);
        for worker in &workers {
            let silent = now.since(worker.seen_at) > SILENT_AFTER;
            let style = if silent { state_style(State::Failed) } else { anstyle::Style::new() };
            table.row(vec![
                Cell::new(worker.id.as_str()),
                Cell::new(&worker.host),
                Cell::number(worker.pid),
                Cell::new(&worker.version),
                Cell::quantity(format!("{}/{}", worker.running, worker.concurrency)),
                Cell::new(shortened(&worker.queues, is_own_queue)),
                Cell::new(
                    worker
                        .kinds
                        .as_ref()
                        .map_or_else(|| "any".to_owned(), |kinds| shortened(kinds, is_own_kind)),
                ),
                Cell::new(duration(now.since(worker.started_at))),
                Cell::new(app.out.list_time(worker.seen_at, now)).style(style),
            ]);
        }
        table
    })?;
    let is_whole = |worker: &WorkerInfo| {
        let kinds = worker.kinds.as_deref().unwrap_or_default();
        shown(&worker.queues, is_own_queue).len() == worker.queues.len()
            && shown(kinds, is_own_kind).len() == kinds.len()
    };
    if !workers.iter().all(is_whole) {
        app.out.note("+N are names left out here; -o json has all");
    }
    if workers.is_empty() {
        app.out.note("no worker was heard of; start one: longhaul work");
    }
    Ok(Code::Ok)
}

/// The first names that somebody has given; the program's own where there are no others.
fn shown(names: &[String], is_own: impl Fn(&str) -> bool) -> Vec<&str> {
    let given: Vec<&str> = names.iter().map(String::as_str).filter(|name| !is_own(name)).collect();
    let all = if given.is_empty() { names.iter().map(String::as_str).collect() } else { given };
    all.into_iter().take(NAMES_SHOWN_MAX).collect()
}

/// Those, and how many more there are.
fn shortened(names: &[String], is_own: impl Fn(&str) -> bool) -> String {
    let shown = shown(names, is_own);
    match names.len() - shown.len() {
        0 => shown.join(","),
        rest => format!("{} +{rest}", shown.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_somebody_has_given_are_shown_first() {
        for (kinds, expected) in [
            ("", ""),
            ("mail", "mail"),
            ("llm.run,llm.batch", "llm.run,llm.batch"),
            ("llm.a,llm.b,llm.c,score.d", "llm.a,llm.b,llm.c +1"),
            ("echo,llm.run", "echo +1"),
            ("api.a,demo.b,echo,llm.c,sleep", "echo,sleep +3"),
            ("a,b,c,d,e,llm.f", "a,b,c +3"),
        ] {
            let names: Vec<String> = kinds.split_terminator(',').map(str::to_owned).collect();
            assert_eq!(shortened(&names, |kind| own_names().is_own_kind(kind)), expected, "{kinds}");
        }
    }
}
