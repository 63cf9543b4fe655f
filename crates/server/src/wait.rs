//! Long polls: look, and look again when something may have changed, until there is an answer, the time has passed or the server
//! ends.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::ctx::Ctx;
use crate::problem::Problem;

/// Longest wait that a request may ask for. Proxies end what is silent for longer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(300);
/// Least time between two looks, twice as long after each up to the greatest: most answers come soon, and a busy store has news
/// all the time.
const LOOK_GAP_MIN: Duration = Duration::from_millis(1);
const LOOK_GAP_MAX: Duration = Duration::from_millis(20);
/// Longest time between two: what another process does may come without a hint.
const LOOK_AT_LEAST: Duration = Duration::from_secs(1);

/// One wait.
pub(crate) struct Wait {
    until: Instant,
    looked_at: Instant,
    gap: Duration,
    changes: watch::Receiver<u64>,
    draining: watch::Receiver<bool>,
}

impl Wait {
    /// Begins now; `None` does not wait at all. Make it before the first look, so that no change falls in between.
    pub(crate) fn new(ctx: &Ctx, wait: Option<Duration>) -> Self {
        let mut changes = ctx.queue().changes();
        changes.mark_unchanged();
        Self {
            until: Instant::now() + wait.unwrap_or_default().min(WAIT_MAX),
            looked_at: Instant::now(),
            gap: LOOK_GAP_MIN,
            changes,
            draining: ctx.draining.subscribe(),
        }
    }

    /// Returns when it is worth to look again; false when there is no time left.
    pub(crate) async fn again(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() || *self.draining.borrow() {
            return false;
        }
        let news = async {
            let _ = tokio::time::timeout(LOOK_AT_LEAST, self.changes.changed()).await;
            tokio::time::sleep_until(self.looked_at + self.gap).await;
        };
        tokio::select! {
            () = news => {}
            () = tokio::time::sleep(left) => {}
            _ = self.draining.wait_for(|draining| *draining) => return false,
        }
        let quiet = self.looked_at.elapsed() > LOOK_GAP_MAX * 2;
        self.gap = if quiet { LOOK_GAP_MIN } else { (self.gap * 2).min(LOOK_GAP_MAX) };
        self.looked_at = Instant::now();
        // Seen are those until now; the look that follows finds them.
        self.changes.mark_unchanged();
        true
    }
}

/// `30s`, `500ms`, `2m`, or a number of seconds.
pub(crate) fn duration(field: &str, text: Option<&str>) -> Result<Option<Duration>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        _ => 0.0,
    };
    let length = digits.parse::<f64>().ok().filter(|_| seconds > 0.0).map(|number| number * seconds);
    let length = length.and_then(|length| Duration::try_from_secs_f64(length).ok());
    match length {
        Some(length) if length <= WAIT_MAX => Ok(Some(length)),
        Some(_) => Err(Problem::invalid(format!("{field} is at most {} s", WAIT_MAX.as_secs())).at(field)),
        None => Err(Problem::invalid(format!("{field} is {text:?}: write 30s, 500ms or 2m")).at(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_as_people_write_them() {
        let rows = [
            ("30s", Some(30_000)),
            ("30", Some(30_000)),
            ("0.5", Some(500)),
            ("500ms", Some(500)),
            ("2m", Some(120_000)),
            ("6m", None),
            ("1h", None),
            ("-1s", None),
            ("soon", None),
            ("", None),
        ];
        for (text, expected) in rows {
            let read = duration("wait", Some(text)).ok().flatten().map(|wait| wait.as_millis());
            assert_eq!(read, expected, "{text}");
        }
    }
}
