//! The order of a claim within a queue, for every store.
//!
//! - Jobs of one fair key come by priority, then `run_at`, then `seq`. In a queue with ageing, waiting makes up for
//!   priority: they come by `run_at + priority × ageing`, then as before.
//! - Keys take turns, one job a turn: the key of which the fewest jobs run comes first, and among equals the order is that
//!   of their names, beginning after the key that was served last. A job without a key counts as of the empty key. So
//!   keys have equal parts of the slots, however many jobs they have waiting and however long these take.
//! - A key of which as many jobs run as its queue allows is passed over. The empty key has no such limit.
//! - In a queue that ever had a fair key, the key of the last job of each claim is remembered as served. A queue that
//!   never had one has one line only, and remembers nothing.
//! - On its turn a key gives the first of its jobs that the claim may have. Jobs that have expired and stand before it
//!   are cancelled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::clock::Timestamp;

/// A job's place among those of its key; the lowest comes first.
pub type Rank = (i64, i32, Timestamp, i64);

/// A job's place among those of its key.
pub fn rank(priority: i32, run_at: Timestamp, seq: i64, ageing: Option<Duration>) -> Rank {
    let level = ageing.map(|ageing| i64::try_from(ageing.as_millis()).unwrap_or(i64::MAX));
    let aged =
        level.map_or(0, |level| run_at.as_millis().saturating_add(i64::from(priority).saturating_mul(level)));
    (aged, priority, run_at, seq)
}

/// Sorted keys in the order of their turns: those after `last` first.
pub fn from_next<K: AsRef<str>>(mut keys: Vec<K>, last: &str) -> Vec<K> {
    let served = keys.iter().take_while(|key| key.as_ref() <= last).count();
    keys.rotate_left(served);
    keys
}

/// Lets lines take turns until `free` jobs are given or none gives any more. Lines come in the order of their turns, each
/// with the jobs of it that run.
pub fn take_turns<L, T, E>(
    lines: Vec<(usize, L)>,
    free: usize,
    mut next: impl FnMut(&mut L) -> Result<Option<T>, E>,
) -> Result<Vec<T>, E> {
    let mut given = Vec::new();
    let mut turns: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::with_capacity(lines.len());
    turns.extend(lines.iter().enumerate().map(|(place, (running, _))| Reverse((*running, place))));
    let count = lines.len();
    let mut lines: Vec<L> = lines.into_iter().map(|(_, line)| line).collect();
    let mut places = count;
    while given.len() < free
        && let Some(Reverse((running, place))) = turns.pop()
    {
        if let Some(job) = next(&mut lines[place % count])? {
            given.push(job);
            // Behind all others of which as many run, and still the same line.
            places += count;
            turns.push(Reverse((running + 1, places + place % count)));
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use super::*;

    /// Keys, with their jobs that wait and that run.
    type Lines<'a> = &'a [(&'a str, usize, usize)];

    fn served(lines: Lines<'_>, last: &str, free: usize) -> String {
        let keys = from_next(lines.iter().map(|(key, ..)| *key).collect(), last);
        let lines = keys.into_iter().filter_map(|key| {
            let (_, ready, running) = lines.iter().find(|(name, ..)| *name == key)?;
            Some((*running, VecDeque::from(vec![key; *ready])))
        });
        let given: Result<Vec<&str>, Infallible> =
            take_turns(lines.collect(), free, |line| Ok(line.pop_front()));
        given.unwrap_or_default().concat()
    }

    #[test]
    fn keys_take_turns_from_the_one_after_the_last() {
        let lines = [("a", 5, 0), ("b", 2, 0), ("c", 1, 0)];
        let table = [
            ("", 9, "abcabaaa"),
            ("a", 9, "bcabaaaa"),
            ("c", 4, "abca"),
            ("bb", 2, "ca"),
            ("z", 1, "a"),
            ("", 0, ""),
        ];
        for (last, free, expected) in table {
            assert_eq!(served(&lines, last, free), expected, "after {last:?}, {free} free");
        }
        assert_eq!(served(&[], "", 3), "");
    }

    #[test]
    fn who_has_the_fewest_running_comes_first() {
        let table: [(Lines<'_>, &str, &str); 4] = [
            (&[("large", 9, 8), ("s", 3, 0)], "", "ssslargelarge"),
            (&[("a", 5, 1), ("b", 5, 3), ("c", 5, 0)], "", "cacac"),
            (&[("a", 5, 2), ("b", 5, 2), ("c", 5, 2)], "a", "bcabc"),
            (&[("", 5, 1), ("a", 5, 1)], "", "aaa"),
        ];
        for (lines, last, expected) in table {
            assert_eq!(served(lines, last, 5), expected, "{lines:?}");
        }
    }

    #[test]
    fn with_ageing_a_level_of_priority_is_worth_so_much_waiting() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let ageing = Some(Duration::from_secs(60));
        assert!(rank(0, at(100), 1, None) < rank(1, at(0), 2, None));
        assert!(rank(1, at(0), 2, ageing) < rank(0, at(100), 1, ageing), "waited 100 s, one level is 60 s");
        assert!(rank(0, at(59), 1, ageing) < rank(1, at(0), 2, ageing));
        assert!(rank(0, at(60), 9, ageing) < rank(1, at(0), 2, ageing), "when even, priority decides");
        assert!(rank(-1, at(5), 3, ageing) < rank(-1, at(5), 4, ageing));
        assert!(rank(i32::MIN, at(0), 1, ageing) < rank(i32::MAX, at(0), 1, ageing));
    }
}
