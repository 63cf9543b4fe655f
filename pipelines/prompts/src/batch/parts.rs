//! Splits a batch that does not fit a budget: it sends its first requests, and another batch sends the rest.

use serde::{Deserialize, Serialize};

use super::BatchPayload;

/// What a batch job stores beside its step: that it sends only its first requests, and another batch the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// How many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
}

impl BatchPayload {
    /// Its first requests.
    pub fn first(&self, count: u64) -> Self {
        let (members, _) = split(&self.members, count);
        Self { members, ..self.clone() }
    }

    /// All but its first requests: the batch after it.
    pub fn after(&self, count: u64) -> Self {
        let (_, members) = split(&self.members, count);
        Self { members, part: self.part + count, ..self.clone() }
    }

    /// What the job sends now, by what it remembers.
    pub fn kept(self, kept: Kept) -> Self {
        match kept.kept {
            Some(count) => self.first(count),
            None => self,
        }
    }
}

/// The first and the last of neighbouring numbers.
type Range = (u64, u64);

/// The first numbers of ranges, and the others.
fn split(ranges: &[Range], mut count: u64) -> (Vec<Range>, Vec<Range>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for &(first, last) in ranges {
        let here = count.min(last - first + 1);
        count -= here;
        if here > 0 {
            before.push((first, first + here - 1));
        }
        if first + here <= last {
            after.push((first + here, last));
        }
    }
    (before, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_and_the_one_after_it_have_each_request_once() {
        let members = vec![(3, 5), (9, 9), (12, 14)];
        let whole =
            BatchPayload { run: "run-1".to_owned(), chunk: 0, round: 1, part: 10, members, mixed: false };
        for count in 0..=whole.len() {
            let (first, after) = (whole.first(count), whole.after(count));
            assert_eq!((first.len(), first.part, after.part), (count, 10, 10 + count));
            assert_eq!(
                first.indexes().chain(after.indexes()).collect::<Vec<_>>(),
                whole.indexes().collect::<Vec<_>>()
            );
        }
        assert_eq!(whole.first(4).members, [(3, 5), (9, 9)]);
        assert_eq!(whole.clone().kept(Kept::default()), whole);
    }
}
