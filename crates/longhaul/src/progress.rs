//! Progress on stderr: a bar on a terminal; off it one `key=value` line every 10 seconds or 5 %.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use longhaul_llm::{CostRange, NanoUsd, Totals};
use longhaul_queue::State;
use longhaul_queue::store::ProcessInfo;

use crate::output::write_stderr;

const LINE_EVERY: Duration = Duration::from_secs(10);
const LINE_EVERY_PERCENT: u64 = 5;

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Style {
    /// A bar on a terminal, lines off it.
    Auto,
    /// A bar.
    Bar,
    /// One line every 10 s or 5 %.
    Lines,
    /// Nothing.
    None,
}

/// How far something has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Units done, failed ones included.
    pub(crate) done: u64,
    /// Units in all.
    pub(crate) total: u64,
    /// Units failed or cancelled.
    pub(crate) failed: u64,
    /// Units at work now.
    pub(crate) running: u64,
}

impl Status {
    /// How far a process is, of jobs that may not all be there yet.
    pub(crate) fn of(info: &ProcessInfo, total: u64) -> Self {
        let count = |state: State| info.counts[state as usize];
        Self {
            done: info.total() - info.unfinished(),
            total,
            failed: count(State::Failed) + count(State::Cancelled),
            running: count(State::Running),
        }
    }
}

/// Something worth showing beside the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fact {
    /// Its name in lines.
    pub(crate) name: &'static str,
    /// Its value in lines.
    pub(crate) value: String,
    /// How a bar says it.
    pub(crate) text: String,
}

impl Fact {
    pub(crate) fn new(name: &'static str, value: String, text: String) -> Self {
        Self { name, value, text }
    }

    /// Counts by name and word, without those that are nothing.
    pub(crate) fn counts(counts: &[(&'static str, u64, &str)]) -> Vec<Self> {
        let some = counts.iter().filter(|(_, count, _)| *count > 0);
        some.map(|(name, count, text)| Self::new(name, count.to_string(), format!("{text} {count}")))
            .collect()
    }

    /// What was spent, and what is expected in all: as it goes on so far, before that as it was estimated. What has no price is
    /// not nothing.
    pub(crate) fn cost(spent: &Totals, estimated: Option<CostRange>, projected: Option<NanoUsd>) -> Self {
        let name = "cost_usd";
        if spent.unpriced_calls > 0 || (estimated.is_none() && spent.cost == NanoUsd::ZERO) {
            return Self { name, value: "unpriced".to_owned(), text: "unpriced".to_owned() };
        }
        let expected = projected.map(|cost| CostRange { low: cost, high: cost }).or(estimated);
        let expected = match expected {
            Some(cost) if cost.high == NanoUsd::ZERO => String::new(),
            Some(cost) if cost.is_exact() => format!(" of ~{cost}"),
            Some(cost) => format!(" of {cost}"),
            None => String::new(),
        };
        Self { name, value: spent.cost.plain(), text: format!("{}{expected}", spent.cost.short()) }
    }
}

/// Shows progress until it is dropped.
pub(crate) struct Progress {
    shown: Shown,
    started: Instant,
}

/// Units a second, the newest counting most.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    last: Option<(Instant, u64)>,
    per_second: f64,
}

/// Least time between two measurements of the rate, and how much a new one counts.
const RATE_EVERY: Duration = Duration::from_millis(500);
const RATE_WEIGHT: f64 = 0.3;

impl Rate {
    /// Notes how many are done, and answers the rate.
    pub(crate) fn update(&mut self, done: u64) -> f64 {
        let now = Instant::now();
        match self.last {
            None => self.last = Some((now, done)),
            Some((at, before)) if now - at >= RATE_EVERY => {
                let current = done.saturating_sub(before) as f64 / (now - at).as_secs_f64();
                self.per_second = if self.per_second == 0.0 {
                    current
                } else {
                    self.per_second * (1.0 - RATE_WEIGHT) + current * RATE_WEIGHT
                };
                self.last = Some((now, done));
            }
            Some(_) => {}
        }
        self.per_second
    }
}

enum Shown {
    Bar(ProgressBar),
    Lines { last: Option<(Instant, u64)> },
    Nothing,
}

impl Progress {
    /// Starts to show.
    pub(crate) fn new(style: Style, quiet: bool) -> Self {
        let style = match style {
            _ if quiet => Style::None,
            Style::Auto if stderr().is_terminal() => Style::Bar,
            Style::Auto => Style::Lines,
            other => other,
        };
        let shown = match style {
            Style::Bar => Shown::Bar(bar()),
            Style::Lines | Style::Auto => Shown::Lines { last: None },
            Style::None => Shown::Nothing,
        };
        Self { shown, started: Instant::now() }
    }

    /// Shows a new status.
    pub(crate) fn update(&mut self, status: Status) {
        self.update_with(status, &[]);
    }

    /// Shows a new status with further facts: a name for lines, a text for the bar.
    pub(crate) fn update_with(&mut self, status: Status, facts: &[Fact]) {
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_length(status.total);
                bar.set_position(status.done);
                bar.set_message(message(status, facts));
            }
            Shown::Lines { last } => {
                let percent = percent(status);
                let due = last.is_none_or(|(at, shown)| {
                    at.elapsed() >= LINE_EVERY || percent >= shown.saturating_add(LINE_EVERY_PERCENT)
                });
                if due {
                    *last = Some((Instant::now(), percent));
                    write_stderr(&line(status, facts, self.started.elapsed()));
                }
            }
            Shown::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
            *shown_bar() = None;
        }
    }
}

/// What a bar says, the most wanted first: a narrow terminal cuts off its end.
fn message(status: Status, facts: &[Fact]) -> String {
    let mut parts = Vec::with_capacity(facts.len() + 2);
    if status.failed > 0 {
        parts.push(format!("{} failed", status.failed));
    }
    parts.extend(facts.iter().map(|fact| fact.text.clone()));
    parts.push(format!("{} running", status.running));
    parts.join(" · ")
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    // A template that does not parse would be a typing error here; the default style is good enough then. The message takes
    // what is left of the line, so that none is wrapped, which would leave a trail of lines.
    let template = "▕{bar:12}▏ {pos}/{len} {percent} % · ETA {eta} · {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
    }
    *shown_bar() = Some(bar.clone());
    bar
}

/// The bar on the terminal, for code that writes there meanwhile.
fn shown_bar() -> MutexGuard<'static, Option<ProgressBar>> {
    static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);
    BAR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to stderr with the bar out of the way.
pub(crate) fn beside_the_bar(write: impl FnOnce()) {
    let bar = shown_bar().clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

fn percent(status: Status) -> u64 {
    (status.done * 100).checked_div(status.total).unwrap_or(100)
}

fn line(status: Status, facts: &[Fact], elapsed: Duration) -> String {
    let Status { done, total, failed, running } = status;
    let percent = percent(status);
    let facts: String = facts.iter().map(|fact| format!(" {}={}", fact.name, fact.value)).collect();
    format!(
        "progress done={done} total={total} percent={percent} running={running} failed={failed}{facts} elapsed={}s\n",
        elapsed.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_keys_and_values() {
        let status = Status { done: 3, total: 12, failed: 1, running: 2 };
        let expected = "progress done=3 total=12 percent=25 running=2 failed=1 elapsed=7s\n";
        assert_eq!(line(status, &[], Duration::from_secs(7)), expected);
        let facts = [Fact { name: "cost_usd", value: "0.37".to_owned(), text: "$0.37".to_owned() }];
        let with_cost = expected.replace(" elapsed", " cost_usd=0.37 elapsed");
        assert_eq!(line(status, &facts, Duration::from_secs(7)), with_cost);
    }

    #[test]
    fn a_bar_says_first_what_people_look_for() {
        let fact = |text: &str| Fact { name: "", value: String::new(), text: text.to_owned() };
        let facts = [fact("38 req/s"), fact("$0.37 of ~$0.91")];
        let status = Status { done: 3, total: 12, failed: 1, running: 2 };
        assert_eq!(message(status, &facts), "1 failed · 38 req/s · $0.37 of ~$0.91 · 2 running");
        assert_eq!(message(Status { failed: 0, ..status }, &[]), "2 running");
    }

    #[test]
    fn what_is_expected_is_a_range_until_something_was_paid_and_nothing_where_it_is_free() {
        let cents = |cents: u64| NanoUsd(cents * 10_000_000);
        let range = |low, high| Some(CostRange { low: cents(low), high: cents(high) });
        for (spent, estimated, projected, expected) in [
            (0, range(20, 160), None, "$0.00 of $0.20 to $1.60"),
            (0, range(50, 50), None, "$0.00 of ~$0.50"),
            (40, range(20, 160), Some(cents(80)), "$0.40 of ~$0.80"),
            (0, range(0, 0), None, "$0.00"),
            (0, range(0, 0), Some(cents(0)), "$0.00"),
            (0, None, None, "unpriced"),
        ] {
            let totals = Totals { cost: cents(spent), ..Totals::default() };
            assert_eq!(Fact::cost(&totals, estimated, projected).text, expected);
        }
    }

    #[test]
    fn nothing_to_do_is_all_done() {
        assert_eq!(percent(Status::default()), 100);
    }
}
