//! Durations, sizes, times and small policies as people write them. Every error says what was expected.

use std::str::FromStr;
use std::time::Duration;

use jiff::civil;
use jiff::tz::TimeZone;
use longhaul_llm::NanoUsd;
use longhaul_prompts::plan::Strategy;
use longhaul_queue::job::{OnFailure, Retention};
use longhaul_queue::limits::check_name;
use longhaul_queue::{RetryPolicy, Timestamp};

/// Longest duration that is taken: a hundred years, so that adding it to a date cannot overflow.
const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// `250ms`, `5s`, `1h30m`, `1.5d`, `0`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 250ms, 5s, 10m, 2h, 1d or 1h30m");
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = trimmed;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(number_len);
        let unit_len = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 7.0 * 86_400.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).filter(|total| *total <= DURATION_MAX).ok_or_else(wrong)?;
        rest = tail.trim_start();
    }
    Ok(total)
}

/// A name of a queue, a kind, a process, a tag and the like.
pub(crate) fn name(text: &str) -> Result<String, String> {
    check_name("the name", text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// A place in a list, as `-o json` gives it.
pub(crate) fn cursor(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text:?} is not a cursor; give the `next` of the page before");
    longhaul_api::page::seq_of(text).ok_or_else(wrong)
}

/// A number of things, of which at least one is needed.
pub(crate) fn positive<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    text.parse()
        .ok()
        .filter(|number| *number >= T::from(1))
        .ok_or_else(|| "expected a whole number, 1 or more".to_owned())
}

/// A number that is neither negative nor infinite.
pub(crate) fn not_negative(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| "expected a number, 0 or more".to_owned())
}

/// A size in bytes: `64KB` and `10MB` are decimal, `64KiB` is binary, a bare number is bytes.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is not a size; write 500, 64KB, 10MB or 16MiB");
    let trimmed = text.trim();
    let number_len = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let factor: usize = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: usize = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Dollars: `5`, `0.25` or `$1.50`.
pub(crate) fn money(text: &str) -> Result<NanoUsd, String> {
    text.parse().map_err(|_| format!("{text:?} is not an amount of dollars; write 5, 0.25 or $1.50"))
}

/// The address of a server: `http://127.0.0.1:8080/v1`.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let text = text.trim();
    let host = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    match host {
        Some(host) if !host.is_empty() && !host.starts_with('/') => Ok(text.to_owned()),
        None if !text.is_empty() && !text.contains("//") => {
            Err(format!("an address begins with http:// or https://; write http://{text}"))
        }
        _ => Err(format!("{text:?} is not an address; write it like http://127.0.0.1:8080/v1")),
    }
}

/// RFC 3339, a local date and time, `HH:MM` for the next such local time, or a duration from now.
pub(crate) fn time(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    time_in(text, now, &TimeZone::system())
}

fn time_in(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Ok(Timestamp::from_millis(instant.as_millisecond()));
    }
    if let Ok(wait) = duration(text) {
        return Ok(now + wait);
    }
    if let Some(at) = clock_time(text) {
        return next_local(at, now, zone)
            .map_err(|error| format!("{text:?} has no next local time: {error}"));
    }
    if let Ok(local) = text.parse::<civil::DateTime>() {
        let zoned =
            local.to_zoned(zone.clone()).map_err(|error| format!("{text:?} is no local time: {error}"))?;
        return Ok(Timestamp::from_millis(zoned.timestamp().as_millisecond()));
    }
    Err(format!(
        "{text:?} is not a time; write 2026-11-30T08:00:00Z, 2026-11-30 08:00, 08:00 (next, local) or 2h (from now)"
    ))
}

fn clock_time(text: &str) -> Option<civil::Time> {
    let (hour, minute) = text.split_once(':')?;
    civil::Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

fn next_local(at: civil::Time, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, jiff::Error> {
    let local_now = jiff::Timestamp::from_millisecond(now.as_millis())?.to_zoned(zone.clone());
    let mut date = local_now.date();
    if at <= local_now.time() {
        date = date.tomorrow()?;
    }
    let zoned = date.to_datetime(at).to_zoned(zone.clone())?;
    Ok(Timestamp::from_millis(zoned.timestamp().as_millisecond()))
}

/// `until-consumed`, `until-consumed:30d`, `keep:24h`, `keep:24h,7d` or `delete-on-success`.
pub(crate) fn retention(text: &str) -> Result<Retention, String> {
    let (name, detail) = text.split_once(':').map_or((text, None), |(name, detail)| (name, Some(detail)));
    match (name, detail) {
        ("until-consumed", ttl) => Ok(Retention::UntilConsumed { ttl: ttl.map(duration).transpose()? }),
        ("keep", Some(times)) => {
            let (succeeded, failed) = times.split_once(',').unwrap_or((times, times));
            Ok(Retention::Keep { succeeded: duration(succeeded)?, failed: duration(failed)? })
        }
        ("delete-on-success", None) => Ok(Retention::DeleteOnSuccess),
        _ => Err(format!(
            "{text:?} is not a retention; write until-consumed, until-consumed:30d, keep:24h,7d (succeeded, failed) or delete-on-success"
        )),
    }
}

/// The inverse of [`retention`], for tables.
pub(crate) fn retention_text(retention: Retention) -> String {
    use crate::output::duration as text;
    match retention {
        Retention::UntilConsumed { ttl: None } => "until-consumed".to_owned(),
        Retention::UntilConsumed { ttl: Some(ttl) } => format!("until-consumed:{}", text(ttl)),
        Retention::Keep { succeeded, failed } => format!("keep:{},{}", text(succeeded), text(failed)),
        Retention::DeleteOnSuccess => "delete-on-success".to_owned(),
    }
}

/// `exponential:1s`, `quadratic:2s`, `fixed:5s` or `list:1s,5s,30s`; `,no-jitter` and `,cap=10m` may follow a formula.
pub(crate) fn retry(text: &str) -> Result<RetryPolicy, String> {
    let wrong = || {
        format!(
            "{text:?} is not a retry policy; write exponential:1s, quadratic:2s, fixed:5s or list:1s,5s,30s (then cap=10m, no-jitter)"
        )
    };
    let (name, detail) = text.split_once(':').ok_or_else(wrong)?;
    let (mut delays, mut cap, mut jitter) = (Vec::new(), None, true);
    for part in detail.split(',') {
        match part.trim() {
            "no-jitter" => jitter = false,
            part => match part.strip_prefix("cap=") {
                Some(value) => cap = Some(duration(value)?),
                None => delays.push(duration(part)?),
            },
        }
    }
    let first = *delays.first().ok_or_else(wrong)?;
    let policy = match (name, delays.len()) {
        ("exponential", 1) => RetryPolicy::exponential(first),
        ("quadratic", 1) => RetryPolicy::quadratic(first),
        ("fixed", 1) => RetryPolicy::fixed(first),
        ("list", 1..=longhaul_queue::retry::RETRY_LIST_MAX) => RetryPolicy::list(delays),
        _ => return Err(wrong()),
    };
    let policy = if let Some(cap) = cap { policy.cap(cap) } else { policy };
    Ok(if jitter { policy } else { policy.without_jitter() })
}

/// `cancel`, `run` or `hold`.
pub(crate) fn on_failure(text: &str) -> Result<OnFailure, String> {
    match text {
        "cancel" => Ok(OnFailure::Cancel),
        "run" => Ok(OnFailure::Run),
        "hold" => Ok(OnFailure::Hold),
        _ => Err(format!("{text:?} is not what a failed parent may do; write cancel, run or hold")),
    }
}

/// How requests are sent: `sync`, `batch` or `auto`.
pub(crate) fn strategy(text: &str) -> Result<Strategy, String> {
    match text {
        "sync" => Ok(Strategy::Sync),
        "batch" => Ok(Strategy::Batch),
        "auto" => Ok(Strategy::Auto),
        _ => Err("expected sync, batch or auto".to_owned()),
    }
}

/// A share of a whole: 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is no share; write 0.2 for a fifth, 0 to 1"))
}

#[cfg(test)]
mod tests;
