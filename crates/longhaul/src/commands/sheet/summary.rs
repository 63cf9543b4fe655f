//! What is said of a sheet: its state in a word, its end in a few lines.

use std::time::Duration;

use longhaul_llm::Totals;
use longhaul_sheets::Status;
use longhaul_sheets::settings::{Source, Target};
use longhaul_sheets::status::SheetState;
use longhaul_sheets::tables::StoredSheet;

use crate::commands::run::budget_way_out;
use crate::exit::Code;
use crate::output::{counted, duration, grouped, short_count};

/// A table by its name.
pub(super) fn source_of(sheet: &StoredSheet) -> String {
    match &sheet.settings.source {
        Source::File { path, .. } => {
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        }
        Source::Google(google) => format!("sheets://{}/{}", google.spreadsheet, google.sheet),
    }
}

pub(super) fn cost_text(spent: &Totals) -> String {
    spent.spent()
}

/// The exit code of a sheet that stands so.
pub(super) fn code_of(status: &Status) -> Code {
    match (status.state, status.held.as_deref()) {
        (SheetState::Reading | SheetState::Running | SheetState::Completed, _) => Code::Ok,
        (SheetState::PartlyFailed | SheetState::Failed | SheetState::Cancelled, _) => Code::JobsFailed,
        (SheetState::Held, Some("budget")) => Code::Budget,
        (SheetState::Held, Some("auth" | "quota")) => Code::Config,
        (SheetState::Held, Some("outage")) => Code::Unreachable,
        (SheetState::Held, _) => Code::Failure,
    }
}

/// What a person can do about a sheet that is not complete.
pub(super) fn way_out(status: &Status) -> Option<String> {
    let (id, message) = (&status.id, status.message.as_deref().unwrap_or_default());
    let resume = format!("longhaul sheet resume {id}");
    match (status.state, status.held.as_deref()) {
        (SheetState::Held, Some("budget")) => Some(budget_way_out(message, &resume)),
        (SheetState::Held, _) => Some(format!("go on once the cause is gone: {resume}")),
        (SheetState::Cancelled, _) => Some(format!("go on after all: longhaul sheet retry {id}")),
        _ if status.units.failed > 0 => {
            Some(format!("see why: longhaul sheet status {id}; try them again: longhaul sheet retry {id}"))
        }
        _ => None,
    }
}

/// What a sheet does. One that could go on does nothing while no worker serves it.
pub(super) fn state_word(status: &Status, served: bool) -> &'static str {
    match status.state {
        SheetState::Running if !served => "waits for a worker",
        state => state.as_str(),
    }
}

/// A sheet in a few lines.
pub(super) fn lines(sheet: &StoredSheet, status: &Status, served: bool) -> String {
    let Status { units, chunks, spent, .. } = status;
    let simulated = if status.simulated { " (simulated)" } else { "" };
    let mut lines = vec![
        format!("{}  {}", status.id, state_word(status, served)),
        format!("table     {}", source_of(sheet)),
        format!(
            "model     {}{simulated} by profile {}{}",
            sheet.settings.model.model,
            sheet.settings.model.profile,
            fallback_text(status)
        ),
        format!(
            "units     {} of {} answered, {} of {} through: {} written, {} blank, {} left alone because somebody changed the row",
            grouped(units.answered()),
            grouped(units.total),
            grouped(units.processed_rows),
            counted(units.rows, "row"),
            grouped(units.written),
            grouped(units.failed),
            grouped(units.edited),
        ),
        format!(
            "chunks    {} of {} completed, {} running, {} failed",
            chunks.completed, chunks.total, chunks.running, chunks.failed
        ),
        format!(
            "asked     {}, {} from the cache, {} of another shape asked again, 429s {}",
            counted(spent.calls, "call"),
            grouped(units.cached),
            grouped(spent.repaired),
            grouped(spent.throttled)
        ),
        format!(
            "tokens    {} in, {} out",
            short_count(spent.usage.total() - spent.usage.out),
            short_count(spent.usage.out)
        ),
        format!("cost      {}{}", cost_text(spent), estimated(status)),
    ];
    if let Some(seconds) = status.eta_seconds {
        lines.push(format!("ETA       {}", duration(Duration::from_secs(seconds))));
    }
    if spent.unknown_calls > 0 {
        lines.push(format!(
            "unknown   {} never came to an end that we saw, and may have been billed: up to {}",
            counted(spent.unknown_calls, "call"),
            spent.unknown_ceiling.short()
        ));
    }
    if let Some(lost) = status.lost_calls.filter(|lost| *lost > 0) {
        lines.push(format!(
            "lost      {} answered and paid for just before a crash, not stored yet, and asked again",
            counted(lost, "call")
        ));
    }
    lines.extend(file_lines(sheet, status));
    if let Some(message) = &status.message {
        let why = status.held.as_ref().map_or_else(|| "why".to_owned(), |held| format!("held: {held}"));
        lines.push(format!("{why:<9} {message}"));
    }
    lines.join("\n")
}

/// The file that was written, if it was.
fn file_lines(sheet: &StoredSheet, status: &Status) -> Vec<String> {
    let (Some(exported), Target::File { path, .. }) = (&status.exported, &sheet.settings.target) else {
        return Vec::new();
    };
    let (rows, cells) = (counted(exported.rows, "row"), counted(exported.cells, "cell"));
    let mut lines = vec![format!("file      {} ({rows}, {cells} filled)", path.display())];
    if exported.changed > 0 {
        let changed = counted(exported.changed, "row");
        lines.push(format!("changed   {changed} changed since the table was read: left alone"));
    }
    lines
}

/// What the fallback answered, where there is one.
fn fallback_text(status: &Status) -> String {
    let fallback = status.answered_by.get(1);
    fallback.map_or_else(String::new, |by| {
        format!("; {} by {} of profile {}", counted(by.units, "unit"), by.model, by.profile)
    })
}

fn estimated(status: &Status) -> String {
    status.estimated().map_or_else(String::new, |cost| format!(" (estimated {cost})"))
}
