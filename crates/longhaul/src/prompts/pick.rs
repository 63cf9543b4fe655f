//! A part of the prompts: the first ones, or a sample that is spread over the file.

use anyhow::Result;

use super::{Lines, PromptLine};

/// Which prompts of a file are asked; all by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pick {
    /// Prompts in the file.
    pub(crate) prompts: u64,
    /// Only this many, the first ones.
    pub(crate) limit: Option<u64>,
    /// Of those only this many, evenly spread: the first ones of a file are often alike.
    pub(crate) sample: Option<u64>,
}

impl Pick {
    /// How many there are of them.
    pub(crate) fn count(self) -> u64 {
        let all = self.limit.map_or(self.prompts, |limit| limit.min(self.prompts));
        self.sample.map_or(all, |sample| sample.min(all))
    }

    fn takes(self, place: u64) -> bool {
        let all = self.limit.map_or(self.prompts, |limit| limit.min(self.prompts));
        let Some(sample) = self.sample.filter(|sample| *sample < all) else {
            return self.limit.is_none_or(|limit| place < limit);
        };
        let taken = |places: u64| u128::from(places) * u128::from(sample) / u128::from(all);
        place < all && taken(place + 1) > taken(place)
    }
}

/// The prompts that are picked, in the order of the file.
pub(crate) struct Picked<'a> {
    lines: Lines<'a>,
    pick: Pick,
    place: u64,
}

impl<'a> Picked<'a> {
    pub(super) fn new(lines: Lines<'a>, pick: Pick) -> Self {
        Self { lines, pick, place: 0 }
    }
}

impl Iterator for Picked<'_> {
    type Item = Result<PromptLine>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.pick.limit.is_some_and(|limit| self.place >= limit) {
                return None;
            }
            let prompt = self.lines.next()?;
            let place = self.place;
            self.place += 1;
            if prompt.is_err() || self.pick.takes(place) {
                return Some(prompt);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_the_file() {
        let taken = |pick: Pick| (0..pick.prompts).filter(|place| pick.takes(*place)).collect::<Vec<_>>();
        assert_eq!(taken(Pick { prompts: 10, limit: None, sample: Some(3) }), [3, 6, 9]);
        assert_eq!(taken(Pick { prompts: 10, limit: Some(4), sample: Some(2) }), [1, 3]);
        assert_eq!(taken(Pick { prompts: 3, limit: None, sample: Some(5) }), [0, 1, 2]);
        assert_eq!(taken(Pick { prompts: 3, limit: Some(2), sample: None }), [0, 1]);
        for (prompts, sample) in [(7, 1), (100, 20), (101, 100), (1_000, 7)] {
            let pick = Pick { prompts, limit: None, sample: Some(sample) };
            assert_eq!((taken(pick).len() as u64, pick.count()), (sample, sample));
        }
    }
}
