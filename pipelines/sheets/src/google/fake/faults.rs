//! Bad days: calls that go wrong, by their number or at a rate.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::CallKind;

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SheetsFault {
    /// 429, with a time to wait or without.
    TooMany(Option<Duration>),
    /// This status; nothing is done.
    Status(u16),
    /// No answer ever comes; nothing is done.
    Hang,
    /// It is done, and the connection ends without an answer.
    LostAnswer,
}

#[derive(Default)]
pub(super) struct Faults {
    /// Calls so far, reads and writes apart.
    calls: [u64; 2],
    by_number: BTreeMap<(CallKind, u64), SheetsFault>,
    by_part: Vec<(CallKind, f64, SheetsFault, fastrand::Rng)>,
}

impl Faults {
    pub(super) fn at(&mut self, kind: CallKind, nth: u64, fault: SheetsFault) {
        self.by_number.insert((kind, self.calls[kind as usize] + nth), fault);
    }

    pub(super) fn some(&mut self, kind: CallKind, part: f64, fault: SheetsFault, seed: u64) {
        self.by_part.push((kind, part, fault, fastrand::Rng::with_seed(seed)));
    }

    /// What becomes of the next call.
    pub(super) fn next(&mut self, kind: CallKind) -> Option<SheetsFault> {
        self.calls[kind as usize] += 1;
        let by_number = self.by_number.remove(&(kind, self.calls[kind as usize]));
        // Each is drawn, whether it is needed or not: what befalls a call does not depend on the other faults.
        let drawn: Vec<SheetsFault> = self
            .by_part
            .iter_mut()
            .filter(|(of, ..)| *of == kind)
            .filter_map(|(_, part, fault, random)| (random.f64() < *part).then_some(*fault))
            .collect();
        by_number.or_else(|| drawn.first().copied())
    }
}
