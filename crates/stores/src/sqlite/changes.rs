//! What a transaction has changed so far: counters, the ledger, processes and events, booked in memory.

use std::collections::HashMap;

use longhaul_queue::State;
use longhaul_queue::events::Change;
use longhaul_queue::job::{JobId, ProcessId, Progress};
use longhaul_queue::limits::EVENT_CHANGES_MAX;

/// What names a job in counters and events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) id: JobId,
    pub(super) queue: &'a str,
    pub(super) kind: &'a str,
    pub(super) process: Option<&'a str>,
    pub(super) helper: bool,
}

/// What a command, or several, have changed.
#[derive(Default, Clone)]
pub(super) struct Changes {
    pub(super) counts: Vec<CountDelta>,
    pub(super) ledger: Vec<CountDelta>,
    pub(super) processes: HashMap<String, ProcessDelta>,
    pub(super) events: Vec<Change>,
    pub(super) more_events: u64,
}

/// So many jobs more, or less, of a kind in a state.
#[derive(Clone)]
pub(super) struct CountDelta {
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) state: State,
    pub(super) jobs: i64,
}

/// Deltas by helper and state.
pub(super) type ProcessDelta = [[i64; 8]; 2];

impl Changes {
    /// Books a job's move: `None` is "not stored".
    pub(super) fn moved(&mut self, subject: Subject<'_>, from: Option<State>, to: Option<State>) {
        if let Some(from) = from {
            add(&mut self.counts, subject, from, -1);
        }
        if let Some(to) = to {
            add(&mut self.counts, subject, to, 1);
            if to.is_terminal() && from.is_none_or(|from| !from.is_terminal()) {
                add(&mut self.ledger, subject, to, 1);
            }
            self.tell(subject, to, None);
        }
        if let Some(process) = subject.process {
            let delta = match self.processes.get_mut(process) {
                Some(delta) => delta,
                None => self.processes.entry(process.to_owned()).or_default(),
            };
            let by_state = &mut delta[usize::from(subject.helper)];
            if let Some(from) = from {
                by_state[from as usize] -= 1;
            }
            if let Some(to) = to {
                by_state[to as usize] += 1;
            }
        }
    }

    /// Adds an event.
    pub(super) fn tell(&mut self, subject: Subject<'_>, state: State, progress: Option<Progress>) {
        if self.events.len() >= EVENT_CHANGES_MAX {
            self.more_events += 1;
            return;
        }
        self.events.push(Change {
            job_id: subject.id,
            queue: subject.queue.to_owned(),
            kind: subject.kind.to_owned(),
            process_id: subject.process.map(ProcessId::from),
            state,
            progress,
        });
    }

    /// Changes in the number of a queue's jobs in a state.
    pub(super) fn in_queue(&self, queue: &str, state: State) -> impl Iterator<Item = &CountDelta> {
        self.counts.iter().filter(move |delta| delta.state == state && delta.queue == queue)
    }

    /// Adds what came after.
    pub(super) fn absorb(&mut self, later: Self) {
        merge(&mut self.counts, later.counts);
        merge(&mut self.ledger, later.ledger);
        for (process, delta) in later.processes {
            let sum = self.processes.entry(process).or_default();
            for (sum, delta) in sum.iter_mut().flatten().zip(delta.iter().flatten()) {
                *sum += delta;
            }
        }
        self.more_events += later.more_events;
        for event in later.events {
            if self.events.len() < EVENT_CHANGES_MAX {
                self.events.push(event);
            } else {
                self.more_events += 1;
            }
        }
    }
}

fn add(deltas: &mut Vec<CountDelta>, subject: Subject<'_>, state: State, jobs: i64) {
    let same = |delta: &&mut CountDelta| {
        delta.state == state && delta.queue == subject.queue && delta.kind == subject.kind
    };
    match deltas.iter_mut().find(same) {
        Some(delta) => delta.jobs += jobs,
        None => {
            deltas.push(CountDelta {
                queue: subject.queue.to_owned(),
                kind: subject.kind.to_owned(),
                state,
                jobs,
            });
        }
    }
}

fn merge(kept: &mut Vec<CountDelta>, own: Vec<CountDelta>) {
    for delta in own {
        let same = |other: &&mut CountDelta| {
            other.state == delta.state && other.queue == delta.queue && other.kind == delta.kind
        };
        match kept.iter_mut().find(same) {
            Some(other) => other.jobs += delta.jobs,
            None => kept.push(delta),
        }
    }
}
