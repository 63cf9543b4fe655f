//! `events`: what has changed, newest last. Hints for people, never the source of truth.

use anyhow::Result;
use longhaul_api::events::{EventOut, EventsOut};
use longhaul_queue::events::{Change, Event};
use longhaul_queue::limits::PAGE_MAX;
use serde::Serialize;

use super::wait::changed;
use crate::app::App;
use crate::args::EventsArgs;
use crate::exit::Code;
use crate::output::{Format, local, plain};

/// A line of the stream.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Line {
    /// Some jobs changed.
    Change(EventOut),
    /// Events are missing: read the state afresh.
    Resync { resync: bool },
}

/// Runs the command.
pub(crate) async fn run(app: &App, args: &EventsArgs) -> Result<Code> {
    let queue = app.queue().await?;
    let mut changes = queue.store().watch();
    changes.mark_unchanged();
    let mut page = queue.store().events(None, args.limit).await?;
    // The first page is the newest part of a longer history; what lies before it is not a gap.
    page.resync = false;
    if !args.follow {
        return list(app, &page.events, args.process.as_deref());
    }
    let mut last = 0;
    loop {
        if page.resync {
            let line = Line::Resync { resync: true };
            app.out.stream(&line, || "resync: events were lost, read the state afresh".to_owned())?;
        }
        for event in &page.events {
            last = event.id;
            if let Some(event) = shown(event, args.process.as_deref()) {
                print(app, &event)?;
            }
        }
        let more = !page.events.is_empty() && last > 0;
        if !more {
            changed(&mut changes, None).await;
        }
        changes.mark_unchanged();
        page = queue.store().events(Some(last), PAGE_MAX).await?;
    }
}

/// What there is, without waiting for more.
fn list(app: &App, events: &[Event], process: Option<&str>) -> Result<Code> {
    let events: Vec<Event> = events.iter().filter_map(|event| shown(event, process)).collect();
    if events.is_empty() {
        app.out.note("there are no events");
    }
    if app.out.format == Format::Json {
        let page = EventsOut { events: events.into_iter().map(Into::into).collect(), resync: false };
        app.out.one(&page, String::new)?;
    } else {
        events.iter().try_for_each(|event| print(app, event))?;
    }
    Ok(Code::Ok)
}

fn print(app: &App, event: &Event) -> Result<()> {
    app.out.stream(&Line::Change(event.clone().into()), || text(app, event))
}

/// An event with the changes that are asked for; none without any.
fn shown(event: &Event, process: Option<&str>) -> Option<Event> {
    let belongs = |change: &Change| {
        process.is_none_or(|process| change.process_id.as_ref().is_some_and(|id| id.as_str() == process))
    };
    let changes: Vec<Change> = event.changes.iter().filter(|change| belongs(change)).cloned().collect();
    if changes.is_empty() && (process.is_some() || event.more == 0) {
        return None;
    }
    Some(Event { changes, ..event.clone() })
}

fn text(app: &App, event: &Event) -> String {
    let at = app.out.label(&local(event.at));
    let mut lines: Vec<String> =
        event.changes.iter().map(|change| format!("{at} {}", change_text(app, change))).collect();
    if event.more > 0 {
        lines.push(format!("{at} and {} more", event.more));
    }
    lines.join("\n")
}

fn change_text(app: &App, change: &Change) -> String {
    let process =
        change.process_id.as_ref().map_or_else(String::new, |id| format!(" process {}", plain(id.as_str())));
    let progress = change.progress.as_ref().map_or_else(String::new, |progress| {
        let total = progress.total.map_or_else(String::new, |total| format!("/{total}"));
        format!(" {}{total} {}", progress.done, plain(progress.message.as_deref().unwrap_or_default()))
    });
    let (queue, kind) = (plain(&change.queue), plain(&change.kind));
    format!("{} {} {queue}/{kind}{process}{progress}", change.job_id, app.out.state(change.state))
}
