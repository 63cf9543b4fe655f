//! Distinguishes the refusals of a limit from random ones. While a limit's bucket is empty, most of the next calls are refused
//! too; random refusals are independent of one another. So this counts how many consecutive calls were refused, in the order
//! in which they were sent, because answers overtake one another.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::pace::MEASURE_CALLS_MIN;

/// If this many of this many consecutive calls are refused, a limit was reached. If a tenth of all calls is refused at random, this
/// happens about once in 10,000 calls; five of ten would be eight times as often, and the runs of `tests/random.rs`
/// with a tenth refused would take up to ten times as long.
const TOGETHER: Run = Run { refused: 6.0, of: 10, per_usual: 10.0 };
/// This many of this many show that more is sent than is let through. Fewer cost refused calls but no time; ten of a hundred
/// happen at random, and a run of 400 prompts took 45 s instead of 8.
const OFTEN: Run = Run { refused: 30.0, of: 100, per_usual: 100.0 };

/// Fewer calls than this say little of the share that is refused.
const SHARE_CALLS_MIN: f64 = 100.0;

/// A limit refuses nothing at a pace below what it let through before. This many refusals at such a pace, each after enough
/// calls to measure, do not come from a limit. After fewer calls each, limits of tokens look like that too. Each call makes up for a
/// part of a refusal: limits do change now and then. Without, 10,000 answers with a fifth refused at random would take days.
const UNEXPLAINED_MAX: f64 = 4.0;
const UNEXPLAINED_PER_CALL: f64 = 0.01;

#[derive(Debug, Clone, Copy)]
struct Run {
    refused: f64,
    of: u64,
    /// Added to the threshold, times the share of calls that is refused at any pace.
    per_usual: f64,
}

/// A call that was refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    /// Number of calls sent so far, including this one.
    pub number: u64,
    /// When it was sent.
    pub at: Instant,
    /// What had been let through before it, by meter.
    pub passed: [f64; 4],
}

/// What a refusal means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Others may be let through.
    Alone,
    /// One of many since this one, between which most calls were let through.
    Often(Refused),
    /// Most calls around it were refused.
    Together,
}

/// The last calls that were refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By number.
    last: VecDeque<Refused>,
    /// How many there were in all.
    all: f64,
}

impl Refusals {
    /// A call was refused. `usual` is the share of calls that is refused at any pace.
    pub(super) fn refused(&mut self, call: Refused, usual: f64) -> Kind {
        let index = self.last.partition_point(|other| other.number < call.number);
        self.last.insert(index, call);
        self.all += 1.0;
        let kind = if self.first_of(TOGETHER, usual).is_some() {
            Kind::Together
        } else {
            self.first_of(OFTEN, usual).map_or(Kind::Alone, Kind::Often)
        };
        if !matches!(kind, Kind::Alone) {
            // They have been acted on.
            self.last.clear();
        }
        while self.last.len() as u64 > OFTEN.of {
            self.last.pop_front();
        }
        kind
    }

    /// The share of all calls so far that was refused, without the last few: those may be a limit's, and fewer calls say little.
    pub(super) fn share(&self, calls: f64) -> f64 {
        (self.all - TOGETHER.refused).max(0.0) / calls.max(SHARE_CALLS_MIN)
    }

    /// The first refusal of a run of them.
    fn first_of(&self, run: Run, usual: f64) -> Option<Refused> {
        let refused = (run.refused + run.per_usual * usual).ceil() as usize;
        let runs = self.last.iter().zip(self.last.iter().skip(refused - 1));
        runs.rev().find(|(first, last)| last.number - first.number < run.of).map(|(first, _)| *first)
    }
}

/// Refusals that a limit does not explain.
#[derive(Debug, Default)]
pub(super) struct Unexplained {
    /// How many, less what was let through since.
    weight: f64,
    refusals: f64,
    calls: f64,
}

impl Unexplained {
    /// Records a refusal that came after this number of calls. Answers the share of calls refused like that if there are too many.
    pub(super) fn refused(&mut self, calls: f64) -> Option<f64> {
        self.weight = (self.weight - UNEXPLAINED_PER_CALL * calls).max(0.0);
        // That is how a pace looks that is far too high.
        if calls < MEASURE_CALLS_MIN {
            return None;
        }
        if self.weight == 0.0 {
            *self = Self::default();
        }
        self.weight += 1.0;
        self.refusals += 1.0;
        self.calls += calls;
        if self.weight < UNEXPLAINED_MAX {
            return None;
        }
        let all = std::mem::take(self);
        Some(all.refusals / (all.calls + all.refusals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the last of these calls was refused.
    fn last(numbers: impl IntoIterator<Item = u64>, usual: f64) -> Kind {
        let (mut refusals, at) = (Refusals::default(), Instant::now());
        let kinds = numbers
            .into_iter()
            .map(|number| refusals.refused(Refused { number, at, passed: [0.0; 4] }, usual));
        kinds.last().unwrap()
    }

    #[test]
    fn most_of_a_few_calls_are_a_limits() {
        assert!(matches!(last(1..=6, 0.0), Kind::Together));
        assert!(matches!(last([1, 2, 3, 4, 5, 10], 0.0), Kind::Together));
        assert!(matches!(last([10, 9, 8, 2, 3, 1], 0.0), Kind::Together), "answers overtake one another");
        assert!(matches!(last(1..=5, 0.0), Kind::Alone));
        assert!(matches!(last([1, 2, 3, 4, 5, 11], 0.0), Kind::Alone));
        assert!(matches!(last(1..=11, 0.0), Kind::Alone), "the first six were acted on");
        assert!(matches!(last(1..=6, 0.1), Kind::Alone), "a tenth is refused anyway");
    }

    #[test]
    fn every_third_call_is_too_often() {
        let first = |kind| match kind {
            Kind::Often(first) => Some(first.number),
            Kind::Alone | Kind::Together => None,
        };
        assert_eq!(first(last((1..=30).map(|call| 3 * call), 0.0)), Some(3));
        assert_eq!(first(last((1..=30).map(|call| 4 * call), 0.0)), None);
        assert_eq!(first(last((1..=30).map(|call| 3 * call), 0.1)), None);
    }

    /// A tenth of all calls is refused at random.
    #[test]
    fn refusals_at_random_are_hardly_ever_taken_for_a_limits() {
        let mut found = 0;
        for seed in 1..=10 {
            let (mut refusals, at, mut rng) =
                (Refusals::default(), Instant::now(), fastrand::Rng::with_seed(seed));
            for number in (0..10_000).filter(|_| rng.f64() < 0.1) {
                found += u32::from(!matches!(
                    refusals.refused(Refused { number, at, passed: [0.0; 4] }, 0.0),
                    Kind::Alone
                ));
            }
        }
        println!("{found} of 100,000 calls");
        assert!(found <= 20, "{found} of 100,000 calls");
    }
}
