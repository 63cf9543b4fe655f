//! Who is next. Urgent calls come before others; among calls of one urgency, runs take turns by deficit round-robin with
//! tokens as the coin, so that a run with long prompts gets no more than one with short ones. A run that waits alone has
//! everything.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{Ask, Urgency};

/// Tokens that a run may spend a turn, times its weight.
const QUANTUM: u64 = 4096;
/// A dearer call counts as this: it bounds how often the ring turns for one.
const COST_MAX: u64 = 256 * QUANTUM;

/// Calls that wait for admission.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    rings: [Ring<T>; Urgency::ALL.len()],
    in_flight: HashMap<Arc<str>, usize>,
    len: usize,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn(usize);

/// The runs of one urgency; whose turn it is stands first.
type Ring<T> = VecDeque<Run<T>>;

#[derive(Debug)]
struct Run<T> {
    name: Arc<str>,
    deficit: u64,
    weight: u64,
    concurrency: Option<usize>,
    line: VecDeque<Entry<T>>,
}

/// A waiting call.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub id: u64,
    /// In tokens.
    pub cost: u64,
    pub item: T,
}

impl<T> Waiting<T> {
    pub(super) fn new() -> Self {
        Self { rings: std::array::from_fn(|_| VecDeque::new()), in_flight: HashMap::new(), len: 0 }
    }

    /// Queues a call behind its run's others, or before them if it was refused once.
    pub(super) fn push(&mut self, ask: &Ask, mut entry: Entry<T>) {
        // At least one, or calls without tokens would all go in one turn.
        entry.cost = entry.cost.clamp(1, COST_MAX);
        self.len += 1;
        let ring = &mut self.rings[ask.urgency as usize];
        let position = ring.iter().position(|run| run.name == ask.run).unwrap_or_else(|| {
            let (name, line) = (ask.run.clone(), VecDeque::new());
            ring.push_back(Run { name, deficit: 0, weight: 1, concurrency: None, line });
            ring.len() - 1
        });
        let run = &mut ring[position];
        // The newest call's settings hold: they may have been changed while older ones wait.
        (run.weight, run.concurrency) =
            (u64::from(ask.weight.max(1)), ask.run_concurrency.map(|most| most.max(1)));
        if ask.refusals > 0 {
            run.line.push_front(entry);
        } else {
            run.line.push_back(entry);
        }
    }

    /// Whose turn it is, if anyone may go. Asking again changes nothing until someone comes or goes.
    pub(super) fn next(&mut self) -> Option<Turn> {
        (0..self.rings.len()).find(|ring| turn(&mut self.rings[*ring], &self.in_flight)).map(Turn)
    }

    /// The call whose turn it is.
    pub(super) fn front(&self, turn: Turn) -> Option<&Entry<T>> {
        self.rings[turn.0].front()?.line.front()
    }

    /// Admits the call whose turn it is.
    pub(super) fn admit(&mut self, turn: Turn) -> Option<Entry<T>> {
        let ring = &mut self.rings[turn.0];
        let run = ring.front_mut()?;
        let entry = run.line.pop_front()?;
        run.deficit = run.deficit.saturating_sub(entry.cost);
        self.len -= 1;
        *self.in_flight.entry(run.name.clone()).or_default() += 1;
        if run.line.is_empty() {
            ring.pop_front();
        }
        Some(entry)
    }

    /// A call of the run has ended.
    pub(super) fn ended(&mut self, run: &Arc<str>) {
        if let Some(in_flight) = self.in_flight.get_mut(run) {
            *in_flight -= 1;
            if *in_flight == 0 {
                self.in_flight.remove(run);
            }
        }
    }

    /// Takes a call out that no longer waits.
    pub(super) fn remove(&mut self, ask: &Ask, id: u64) {
        let ring = &mut self.rings[ask.urgency as usize];
        let Some(position) = ring.iter().position(|run| run.name == ask.run) else { return };
        let line = &mut ring[position].line;
        if let Some(found) = line.iter().position(|entry| entry.id == id) {
            line.remove(found);
            self.len -= 1;
            if line.is_empty() {
                ring.remove(position);
            }
        }
    }

    /// Takes all calls out.
    pub(super) fn clear(&mut self) -> Vec<T> {
        self.len = 0;
        let runs = self.rings.iter_mut().flat_map(std::mem::take);
        runs.flat_map(|run| run.line).map(|entry| entry.item).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Turns the ring until its first run may send its first call; whether there is one.
fn turn<T>(ring: &mut Ring<T>, in_flight: &HashMap<Arc<str>, usize>) -> bool {
    let mut full_in_a_row = 0;
    while full_in_a_row < ring.len() {
        let Some(run) = ring.front_mut() else { return false };
        let full = run.concurrency.is_some_and(|most| in_flight.get(&run.name).is_some_and(|n| *n >= most));
        let cost = run.line.front().map_or(0, |entry| entry.cost);
        if full {
            full_in_a_row += 1;
        } else if cost <= run.deficit {
            return true;
        } else {
            full_in_a_row = 0;
            run.deficit += QUANTUM * run.weight;
        }
        ring.rotate_left(1);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(waiting: &mut Waiting<&'static str>, ask: &Ask, cost: u64, item: &'static str) {
        let id = waiting.len as u64;
        waiting.push(ask, Entry { id, cost, item });
    }

    fn drain(waiting: &mut Waiting<&'static str>) -> Vec<&'static str> {
        let mut order = Vec::new();
        while let Some(turn) = waiting.next() {
            assert_eq!(waiting.next(), Some(turn));
            order.extend(waiting.admit(turn).map(|entry| entry.item));
        }
        order
    }

    #[test]
    fn the_urgent_go_first_whenever_they_come() {
        let mut waiting = Waiting::new();
        for (urgency, item) in
            [(Urgency::Bulk, "bulk"), (Urgency::Interactive, "person"), (Urgency::Deadline, "deadline")]
        {
            push(&mut waiting, &Ask { urgency, ..Ask::new("a", 0) }, 10, item);
        }
        assert_eq!(drain(&mut waiting), ["person", "deadline", "bulk"]);
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn a_refused_call_keeps_its_place_at_the_head_of_its_run() {
        let mut waiting = Waiting::new();
        push(&mut waiting, &Ask::new("a", 0), 10, "second");
        push(&mut waiting, &Ask { refusals: 1, ..Ask::new("a", 0) }, 10, "first");
        assert_eq!(drain(&mut waiting), ["first", "second"]);
    }

    #[test]
    fn turns_are_measured_in_tokens() {
        let mut waiting = Waiting::new();
        for _ in 0..3 {
            push(&mut waiting, &Ask::new("long", 0), QUANTUM, "long");
        }
        for _ in 0..12 {
            push(&mut waiting, &Ask::new("short", 0), QUANTUM / 4, "short");
        }
        let order = drain(&mut waiting);
        for turn in order.chunks(5) {
            assert_eq!(turn, ["long", "short", "short", "short", "short"]);
        }
    }

    #[test]
    fn a_weight_multiplies_the_turn() {
        let mut waiting = Waiting::new();
        for _ in 0..6 {
            push(&mut waiting, &Ask { weight: 3, ..Ask::new("heavy", 0) }, QUANTUM, "heavy");
            push(&mut waiting, &Ask::new("light", 0), QUANTUM, "light");
        }
        let heavy = drain(&mut waiting)[..8].iter().filter(|item| **item == "heavy").count();
        assert_eq!(heavy, 6);
    }

    #[test]
    fn a_call_of_any_cost_gets_its_turn() {
        let mut waiting = Waiting::new();
        push(&mut waiting, &Ask::new("a", 0), u64::MAX, "huge");
        push(&mut waiting, &Ask::new("b", 0), 0, "free");
        assert_eq!(drain(&mut waiting), ["free", "huge"]);
    }

    #[test]
    fn a_run_at_its_own_cap_lets_others_pass() {
        let mut waiting = Waiting::new();
        let capped = Ask { run_concurrency: Some(1), ..Ask::new("capped", 0) };
        push(&mut waiting, &capped, 10, "capped 1");
        push(&mut waiting, &capped, 10, "capped 2");
        push(&mut waiting, &Ask::new("open", 0), 10, "open");
        assert_eq!(drain(&mut waiting), ["capped 1", "open"]);
        waiting.ended(&capped.run);
        assert_eq!(drain(&mut waiting), ["capped 2"]);
    }

    #[test]
    fn who_leaves_is_forgotten() {
        let mut waiting = Waiting::new();
        let ask = Ask::new("a", 0);
        push(&mut waiting, &ask, 10, "first");
        push(&mut waiting, &ask, 10, "second");
        waiting.remove(&ask, 0);
        waiting.remove(&ask, 7);
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting.clear(), ["second"]);
        assert!(waiting.next().is_none());
    }
}
