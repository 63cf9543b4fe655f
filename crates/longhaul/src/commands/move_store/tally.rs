//! What a store holds, by counts and hashes: the SHA-256 of every piece, added up without an order, so that stores may give
//! pieces of one kind in the order they like.

use anyhow::{Context as _, Result};
use longhaul_queue::EngineStore;
use longhaul_queue::limits::PIECES_MAX;
use longhaul_queue::store::{ExportRecord, LEASE_PREFIX};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// In the order of an export.
const PARTS: [&str; 9] = [
    "last place",
    "queue settings",
    "open processes",
    "jobs",
    "unique keys",
    "signals",
    "schedules",
    "ledger",
    "records",
];
const JOBS: usize = 3;

/// Counts and hashes, by part.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Tally {
    parts: [Part; PARTS.len()],
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Part {
    pieces: u64,
    sum: [u8; 32],
}

/// One part, for people and programs.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) part: &'static str,
    pub(super) old: u64,
    pub(super) new: u64,
    pub(super) digest: String,
    pub(super) same: bool,
}

/// Whether a piece belongs to the installation and not to the processes that ran it.
pub(super) fn is_moved(piece: &ExportRecord) -> bool {
    match piece {
        ExportRecord::Record { name, .. } => name != super::RECORD && !name.starts_with(LEASE_PREFIX),
        _ => true,
    }
}

fn part_of(piece: &ExportRecord) -> usize {
    match piece {
        ExportRecord::LastSeq(_) => 0,
        ExportRecord::Queue(_) => 1,
        ExportRecord::OpenProcess(_) => 2,
        ExportRecord::Job(_) => JOBS,
        ExportRecord::Unique(_) => 4,
        ExportRecord::Signal { .. } => 5,
        ExportRecord::Schedule(_) => 6,
        ExportRecord::Ledger(_) => 7,
        ExportRecord::Record { .. } => 8,
    }
}

impl Tally {
    /// What a store holds.
    pub(super) async fn of(store: &dyn EngineStore) -> Result<Self> {
        let mut tally = Self::default();
        let mut after = None;
        loop {
            let page = store.export(after, PIECES_MAX).await?;
            for piece in page.pieces.iter().filter(|piece| is_moved(piece)) {
                tally.add(piece)?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(tally);
            }
        }
    }

    /// Whether a store holds nothing yet.
    pub(super) async fn is_empty(store: &dyn EngineStore) -> Result<bool> {
        let page = store.export(None, PIECES_MAX).await?;
        Ok(page.next.is_none() && !page.pieces.iter().any(is_moved))
    }

    pub(super) fn add(&mut self, piece: &ExportRecord) -> Result<()> {
        let text = serde_json::to_vec(piece).context("writing a piece as JSON")?;
        let part = &mut self.parts[part_of(piece)];
        part.pieces += 1;
        part.sum = sum(part.sum, Sha256::digest(text).into());
        Ok(())
    }

    pub(super) fn jobs(&self) -> u64 {
        self.parts[JOBS].pieces
    }

    pub(super) fn pieces(&self) -> u64 {
        self.parts.iter().map(|part| part.pieces).sum()
    }

    /// Both side by side.
    pub(super) fn rows(&self, found: &Self) -> Vec<Row> {
        let pairs = PARTS.into_iter().zip(self.parts.iter().zip(&found.parts));
        pairs
            .map(|(part, (old, new))| Row {
                part,
                old: old.pieces,
                new: new.pieces,
                digest: old.sum.iter().map(|byte| format!("{byte:02x}")).collect(),
                same: old == new,
            })
            .collect()
    }
}

/// Adds numbers of 256 bits, lowest byte first, without the carry of the last.
fn sum(a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
    let mut carry = 0;
    std::array::from_fn(|index| {
        let both = u16::from(a[index]) + u16::from(b[index]) + carry;
        carry = both >> 8;
        both.to_le_bytes()[0]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_carries_and_knows_no_order() {
        let (mut one, mut high) = ([0; 32], [0xff; 32]);
        one[0] = 1;
        assert_eq!(sum(high, one), [0; 32]);
        high[0] = 0xfe;
        assert_eq!(sum(one, high), [0xff; 32]);
        assert_eq!(sum(high, one), sum(one, high));
    }

    #[test]
    fn a_tally_tells_any_difference_but_the_order() {
        let queue = |name: &str| ExportRecord::OpenProcess(name.into());
        let tally = |pieces: &[ExportRecord]| {
            let mut tally = Tally::default();
            pieces.iter().for_each(|piece| tally.add(piece).expect("it is JSON"));
            tally
        };
        let both = tally(&[queue("a"), queue("b")]);
        assert_eq!(both, tally(&[queue("b"), queue("a")]));
        assert_ne!(both, tally(&[queue("a"), queue("a")]));
        assert_ne!(both, tally(&[queue("a"), queue("c")]));
        assert_ne!(both, tally(&[queue("a")]));
        assert_eq!((both.pieces(), both.jobs()), (2, 0));
    }
}
