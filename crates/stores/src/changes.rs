//! What a transaction has changed so far: counters, the ledger, processes and events, booked in memory.

use std::collections::HashMap;

use longhaul_queue::State;
use longhaul_queue::events::Change;
use longhaul_queue::job::{JobId, ProcessId, Progress};
use longhaul_queue::limits::EVENT_CHANGES_MAX;

/// What names a job in counters and events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobKey<'a> {
    pub(crate) id: JobId,
    pub(crate) queue: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) process: Option<&'a str>,
    pub(crate) helper: bool,
}

/// What a command, or several, have changed.
#[derive(Default, Clone)]
pub(crate) struct Changes {
    pub(crate) counts: Counts,
    pub(crate) ledger: Counts,
    pub(crate) processes: HashMap<String, ProcessDelta>,
    pub(crate) events: Vec<Change>,
    pub(crate) more_events: u64,
}

/// So many jobs more, or less, by queue, kind and state. There may be a queue for each user or agent, so this is a map.
#[derive(Default, Clone)]
pub(crate) struct Counts {
    by_queue: HashMap<String, HashMap<String, [i64; 8]>>,
}

impl Counts {
    fn add(&mut self, queue: &str, kind: &str, state: State, jobs: i64) {
        let kinds = match self.by_queue.get_mut(queue) {
            Some(kinds) => kinds,
            None => self.by_queue.entry(queue.to_owned()).or_default(),
        };
        let by_state = match kinds.get_mut(kind) {
            Some(by_state) => by_state,
            None => kinds.entry(kind.to_owned()).or_default(),
        };
        by_state[state as usize] += jobs;
    }

    /// Queue, kind, state and change, where there is one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, State, i64)> {
        self.by_queue.iter().flat_map(|(queue, kinds)| {
            kinds.iter().flat_map(move |(kind, by_state)| {
                let changed = State::ALL.into_iter().zip(*by_state).filter(|(_, jobs)| *jobs != 0);
                changed.map(move |(state, jobs)| (queue.as_str(), kind.as_str(), state, jobs))
            })
        })
    }

    fn absorb(&mut self, later: &Self) {
        for (queue, kind, state, jobs) in later.iter() {
            self.add(queue, kind, state, jobs);
        }
    }

    /// The changes of a queue by kind in one state.
    pub(crate) fn in_queue(&self, queue: &str, state: State) -> impl Iterator<Item = (&str, i64)> {
        let kinds = self.by_queue.get(queue).into_iter().flatten();
        kinds.map(move |(kind, by_state)| (kind.as_str(), by_state[state as usize]))
    }
}

/// Deltas by helper and state.
pub(crate) type ProcessDelta = [[i64; 8]; 2];

impl Changes {
    /// Books a job's move: `None` is "not stored".
    pub(crate) fn moved(&mut self, subject: JobKey<'_>, from: Option<State>, to: Option<State>) {
        if let Some(from) = from {
            self.counts.add(subject.queue, subject.kind, from, -1);
        }
        if let Some(to) = to {
            self.counts.add(subject.queue, subject.kind, to, 1);
            if to.is_terminal() && from.is_none_or(|from| !from.is_terminal()) {
                self.ledger.add(subject.queue, subject.kind, to, 1);
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

    /// Books a job that comes as it is, from elsewhere: it is counted, and no news.
    pub(crate) fn came(&mut self, subject: JobKey<'_>, state: State) {
        self.counts.add(subject.queue, subject.kind, state, 1);
        if let Some(process) = subject.process {
            let delta = self.processes.entry(process.to_owned()).or_default();
            delta[usize::from(subject.helper)][state as usize] += 1;
        }
    }

    /// Adds an event.
    pub(crate) fn tell(&mut self, subject: JobKey<'_>, state: State, progress: Option<Progress>) {
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

    fn is_empty(&self) -> bool {
        let counted = !self.counts.by_queue.is_empty() || !self.ledger.by_queue.is_empty();
        !counted && self.processes.is_empty() && self.events.is_empty() && self.more_events == 0
    }

    /// Adds what came after.
    pub(crate) fn absorb(&mut self, later: Self) {
        // Most groups are one command.
        if self.is_empty() {
            *self = later;
            return;
        }
        self.counts.absorb(&later.counts);
        self.ledger.absorb(&later.ledger);
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
