//! What a command prints. Result data goes to stdout and nothing else does; notes, hints and warnings go to stderr.
//! In `json` a list is `{"items": […], "next": cursor}` as in the HTTP API, in `jsonl` it is one object a line.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::ValueEnum;
use jiff::tz::TimeZone;
use longhaul_api::Listed;
use longhaul_api::page::cursor_of;
use longhaul_queue::{State, Timestamp};
use serde::Serialize;

use crate::exit::PipeClosed;
use crate::progress;

mod table;

pub(crate) use table::{Cell, Table};

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One document.
    Json,
    /// One object a line.
    Jsonl,
    /// Nothing; the exit code speaks.
    None,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How times are written in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeStyle {
    /// Lists say how long ago, details give the local time.
    Auto,
    /// How long ago, or until then.
    Relative,
    /// RFC 3339 in UTC.
    Iso,
    /// Milliseconds since 1970.
    Unix,
}

/// Where and how a command prints.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// How results are printed.
    pub(crate) format: Format,
    /// How times are written.
    pub(crate) times: TimeStyle,
    /// No notes on stderr.
    pub(crate) quiet: bool,
    stdout_color: bool,
    stderr_color: bool,
}

impl Output {
    /// Decides on colours for both streams.
    pub(crate) fn new(format: Format, color: Color, times: TimeStyle, quiet: bool) -> Self {
        let wanted = |auto: anstream::ColorChoice| match color {
            Color::Auto => auto != anstream::ColorChoice::Never,
            Color::Always => true,
            Color::Never => false,
        };
        // anstream knows NO_COLOR, CLICOLOR, CLICOLOR_FORCE, TERM=dumb and terminals.
        let stdout_color = wanted(anstream::AutoStream::choice(&io::stdout()));
        let stderr_color = wanted(anstream::AutoStream::choice(&io::stderr()));
        Self { format, times, quiet, stdout_color, stderr_color }
    }

    /// A list whose next page begins after a place in submission order.
    pub(crate) fn list<T: Serialize>(
        &self,
        items: &[T],
        next: Option<i64>,
        table: impl FnOnce() -> Table,
    ) -> Result<()> {
        self.listed(&listed(items, next.map(cursor_of)), table)
    }

    /// A list: a table, a document, or a line each.
    pub(crate) fn listed<T: Serialize>(&self, list: &Listed<T>, table: impl FnOnce() -> Table) -> Result<()> {
        self.report(list, &list.items, table)
    }

    /// A document that has a list, and more beside it.
    pub(crate) fn report<T: Serialize>(
        &self,
        document: &impl Serialize,
        items: &[T],
        table: impl FnOnce() -> Table,
    ) -> Result<()> {
        match self.format {
            Format::Text => write_stdout(&table().render(self.stdout_color)),
            Format::Json => self.json(document),
            Format::Jsonl => {
                items.iter().try_for_each(|item| write_stdout(&(serde_json::to_string(item)? + "\n")))
            }
            Format::None => Ok(()),
        }
    }

    /// A list that people get line by line, as a document.
    pub(crate) fn items<T: Serialize>(&self, items: &[T]) -> Result<()> {
        self.json(&listed(items, None))
    }

    /// One thing: text of its own, or the object.
    pub(crate) fn one<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> Result<()> {
        match self.format {
            Format::Text => write_stdout(&ended_by_newline(text())),
            Format::Json => self.json(value),
            Format::Jsonl => write_stdout(&(serde_json::to_string(value)? + "\n")),
            Format::None => Ok(()),
        }
    }

    /// One line of a stream: text, or the object on one line.
    pub(crate) fn stream<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> Result<()> {
        match self.format {
            Format::Text => write_stdout(&ended_by_newline(text())),
            Format::Json | Format::Jsonl => write_stdout(&(serde_json::to_string(value)? + "\n")),
            Format::None => Ok(()),
        }
    }

    fn json<T: Serialize>(&self, value: &T) -> Result<()> {
        let pretty = io::stdout().is_terminal();
        let text = if pretty { serde_json::to_string_pretty(value)? } else { serde_json::to_string(value)? };
        write_stdout(&(text + "\n"))
    }

    /// A remark for people; silent with `-q`.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            write_stderr(&format!("{text}\n"));
        }
    }

    /// What to do next; silent with `-q`.
    pub(crate) fn hint(&self, text: impl Display) {
        self.note(format_args!("{} {text}", self.accent("hint:", AnsiColor::Cyan)));
    }

    /// Something that people should see also with `-q`.
    pub(crate) fn warn(&self, text: impl Display) {
        write_stderr(&format!("{} {text}\n", self.accent("warning:", AnsiColor::Yellow)));
    }

    /// The last word of a command that failed.
    pub(crate) fn error(&self, text: impl Display) {
        write_stderr(&format!("{} {text}\n", self.accent("error:", AnsiColor::Red)));
    }

    fn accent(&self, text: &str, color: AnsiColor) -> String {
        paint(text, Style::new().fg_color(Some(color.into())).bold(), self.stderr_color)
    }

    /// A state in its colour, for text on stdout.
    pub(crate) fn state(&self, state: State) -> String {
        paint(state.as_str(), state_style(state), self.stdout_color)
    }

    /// A label, for text on stdout.
    pub(crate) fn label(&self, text: &str) -> String {
        paint(text, Style::new().dimmed(), self.stdout_color)
    }

    /// A time in a list.
    pub(crate) fn list_time(&self, at: Timestamp, now: Timestamp) -> String {
        match self.times {
            TimeStyle::Auto | TimeStyle::Relative => relative(at, now),
            TimeStyle::Iso => at.to_string(),
            TimeStyle::Unix => at.as_millis().to_string(),
        }
    }

    /// A time in a detail view.
    pub(crate) fn detail_time(&self, at: Timestamp, now: Timestamp) -> String {
        match self.times {
            TimeStyle::Auto => format!("{} ({})", local(at), relative(at, now)),
            TimeStyle::Relative | TimeStyle::Iso | TimeStyle::Unix => self.list_time(at, now),
        }
    }
}

fn listed<T>(items: &[T], next: Option<String>) -> Listed<&T> {
    Listed { items: items.iter().collect(), next, partial: false }
}

/// A number of things: `1 request`, `2,000 requests`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `812`, `41.2k`, `3.1M`.
pub(crate) fn short_count(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{:.1}k", number as f64 / 1e3),
        _ => format!("{:.1}M", number as f64 / 1e6),
    }
}

/// Writes to stdout at once. A reader that went away ends the command quietly.
pub(crate) fn write_stdout(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(PipeClosed.into()),
        Err(error) => Err(anyhow::Error::new(error).context("writing to stdout")),
        Ok(()) => Ok(()),
    }
}

/// Writes to stderr. There is nobody left to tell when that fails.
pub(crate) fn write_stderr(text: &str) {
    progress::beside_the_bar(|| {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    });
}

fn ended_by_newline(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn paint(text: &str, style: Style, color: bool) -> String {
    if color { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// The colour of a state; never the only sign of it.
pub(crate) fn state_style(state: State) -> Style {
    let color = match state {
        State::Blocked | State::Scheduled | State::Parked => AnsiColor::Yellow,
        State::Ready => AnsiColor::Cyan,
        State::Running => AnsiColor::Blue,
        State::Succeeded => AnsiColor::Green,
        State::Failed => AnsiColor::Red,
        State::Cancelled => AnsiColor::Magenta,
    };
    Style::new().fg_color(Some(color.into()))
}

/// Stored text as one line that cannot move the cursor or change colours: control characters are spelt out.
pub(crate) fn plain(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

/// Text of several lines, otherwise like [`plain`].
pub(crate) fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// At most two units: `1h 5m`, `250ms`, `3d`.
pub(crate) fn duration(duration: Duration) -> String {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let Some(first) = UNITS.iter().position(|(unit, _)| millis >= *unit) else { return "0s".to_owned() };
    let (unit, name) = UNITS[first];
    let mut text = format!("{}{name}", millis / unit);
    // Below a minute the rest says nothing to people; 1.2 s is "1s".
    if let Some((next_unit, next_name)) = UNITS.get(first + 1).filter(|(next_unit, _)| *next_unit >= 1_000) {
        let rest = millis % unit / next_unit;
        if rest > 0 {
            text += &format!(" {rest}{next_name}");
        }
    }
    text
}

/// `3m ago`, `in 2h`, `now`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("in {}", duration(at.since(now)))
    } else if now.since(at) < Duration::from_secs(1) {
        "now".to_owned()
    } else {
        format!("{} ago", duration(now.since(at)))
    }
}

/// Local date and time with its zone.
pub(crate) fn local(at: Timestamp) -> String {
    let zoned =
        jiff::Timestamp::from_millisecond(at.as_millis()).map(|instant| instant.to_zoned(TimeZone::system()));
    zoned.map_or_else(|_| at.to_string(), |zoned| zoned.strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}

/// `12 B`, `64.0 KB`, `1.5 GB`.
pub(crate) fn size(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let in_units = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", in_units(1_000)),
        1_000_000..1_000_000_000 => format!("{:.1} MB", in_units(1_000_000)),
        _ => format!("{:.1} GB", in_units(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests;
