//! Where spending counts: a run, a day, a tag, everything.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Serialize;

/// A name under which spending is summed and capped: `run:ID`, `day:2026-11-15`, `tag:NAME` or `all`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Scope(String);

impl Scope {
    /// One run.
    pub fn run(id: impl fmt::Display) -> Self {
        Self(format!("run:{id}"))
    }

    /// The day of an instant, in UTC.
    pub fn day(now_ms: i64) -> Self {
        Self(format!("day:{}", day_of(now_ms)))
    }

    /// Whatever carries a tag.
    pub fn tag(name: impl fmt::Display) -> Self {
        Self(format!("tag:{name}"))
    }

    /// Everything.
    pub fn all() -> Self {
        Self("all".to_owned())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name out of the file.
    pub(super) fn stored(name: String) -> Self {
        Self(name)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sound = match text.split_once(':') {
            None => text == "all",
            Some(("day", day)) => day.parse::<Date>().is_ok_and(|date| date.to_string() == day),
            Some((kind, name)) => matches!(kind, "run" | "tag") && !name.is_empty(),
        };
        if sound {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{text:?} is not a scope; write run:ID, day:2026-11-15, tag:NAME or all"))
    }
}

/// The day of an instant, in UTC, as `2026-11-15`.
pub fn day_of(now_ms: i64) -> String {
    let instant = Timestamp::from_millisecond(now_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    TimeZone::UTC.to_datetime(instant).date().to_string()
}

/// Whether a text is a day, such as `2026-11-15`.
pub fn is_day(text: &str) -> bool {
    text.parse::<Date>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written() {
        for scope in [Scope::run("7"), Scope::day(1_763_190_000_000), Scope::tag("a:b"), Scope::all()] {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        assert_eq!(Scope::day(1_763_251_199_999).as_str(), "day:2025-11-15");
        assert_eq!(Scope::day(1_763_251_200_000).as_str(), "day:2025-11-16");
        assert_eq!(Scope::day(i64::MAX).as_str(), "day:1970-01-01");
        for text in ["", "run", "run:", "tag:", "day:", "day:today", "day:2026-1-1", "everything", "job:1"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
    }
}
