//! Which ids have been seen, and where. Only a hash of each id is kept: a million of them take 35 MB. The hash has a
//! random key, so a false alarm among a million ids has a chance of 1 in 40 million and does not come again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, RandomState};

/// Ids by hash, with their lines.
#[derive(Debug, Default)]
pub(super) struct Ids {
    key: RandomState,
    lines: HashMap<u64, u64>,
}

impl Ids {
    /// Remembers an id; the line that it stands on already, if there is one.
    pub(super) fn insert(&mut self, id: &str, line: u64) -> Option<u64> {
        match self.lines.entry(self.key.hash_one(id)) {
            Entry::Occupied(first) => Some(*first.get()),
            Entry::Vacant(place) => {
                place.insert(line);
                None
            }
        }
    }
}
