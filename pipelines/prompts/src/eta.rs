//! When a run will end at its current pace. Requests are answered roughly in the order of their numbers. So if n have ended, the
//! requests around number n have the newest answers, and the times of a few of them give the pace. This needs the store
//! alone, so every process computes the same.

use std::time::Duration;

use longhaul_pipeline::Units;
use longhaul_queue::Timestamp;

use super::run::Run;
use super::{Prompts, Result};

/// Requests that are read: before the number of the ended ones, and after it.
const LOOK_BACK: u64 = 48;
const LOOK_AHEAD: u64 = 16;
/// Answers that are needed for a pace.
const ANSWERS_MIN: usize = 4;
/// A longer time between two answers is a pause: what came before it says nothing about the current pace.
const PAUSE: Duration = Duration::from_secs(60);

/// Seconds until a run has ended whose requests are sent one by one; `None` before it has a pace.
pub(super) async fn eta_seconds(prompts: &Prompts, run: &Run, units: &Units) -> Result<Option<u64>> {
    let ended = units.ended();
    let left = units.total.saturating_sub(ended);
    if left == 0 {
        return Ok(None);
    }
    let ids = ended.saturating_sub(LOOK_BACK)..(ended + LOOK_AHEAD).min(units.total);
    let ids = ids.map(|index| run.id.job(index)).collect();
    let jobs = prompts.queue().store().get(ids).await?;
    let times = jobs.iter().filter_map(|detail| detail.job.finished_at).collect();
    Ok(seconds_left(times, left))
}

/// By the newest answers up to the last pause.
fn seconds_left(mut times: Vec<Timestamp>, left: u64) -> Option<u64> {
    times.sort_unstable_by(|one, other| other.cmp(one));
    let pause = i64::try_from(PAUSE.as_millis()).unwrap_or(i64::MAX);
    let gap = |pair: &[Timestamp]| pair[0].as_millis() - pair[1].as_millis();
    let steady = times.windows(2).take_while(|pair| gap(pair) < pause).count();
    let (first, last) = (times.first()?, times.get(steady)?);
    if steady + 1 < ANSWERS_MIN {
        return None;
    }
    let took = u64::try_from(first.as_millis() - last.as_millis()).ok()?;
    Some(left.saturating_mul(took).div_ceil(steady as u64 * 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_answers_tell_the_pace() {
        let at =
            |seconds: &[i64]| seconds.iter().map(|second| Timestamp::from_millis(second * 1_000)).collect();
        // One every two seconds, in whatever order they are read.
        assert_eq!(seconds_left(at(&[8, 2, 6, 4, 0]), 10), Some(20));
        // What came before a pause does not count.
        assert_eq!(seconds_left(at(&[0, 1, 2, 100_000, 100_001, 100_002, 100_003]), 10), Some(10));
        assert_eq!(seconds_left(at(&[0, 1, 2, 100_000]), 10), None, "too few to speak of a pace");
        assert_eq!(seconds_left(at(&[]), 10), None);
        assert_eq!(seconds_left(at(&[5, 5, 5, 5]), 10), Some(0));
    }
}
