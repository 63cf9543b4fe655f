//! What one job's end does to others: children are released, cancelled or held; who waits for a process starts with
//! its last job. Always within the call that ended the job.

use std::collections::VecDeque;

use super::insert::scope_of;
use super::tables::{EdgeRow, ProcessRow, Row, Tables};
use crate::clock::Timestamp;
use crate::graph::{Edge, edge};
use crate::job::{JobId, ProcessId, Removal, Retention, Window};
use crate::json::Json;
use crate::state::{JobError, State};

/// A job's end, about to happen.
struct Ending {
    seq: i64,
    state: State,
    error: Option<JobError>,
}

impl Tables {
    /// Ends a job and everything that falls with it, breadth first, children in `seq` order: the nearest parent is
    /// the one that a child's error names. A list instead of recursion, because chains may be long.
    pub(super) fn end(&mut self, seq: i64, state: State, error: Option<JobError>, now: Timestamp) {
        let mut endings = VecDeque::from([Ending { seq, state, error }]);
        let mut removals = Vec::new();
        while let Some(ending) = endings.pop_front() {
            let ended = self.jobs.get(&ending.seq).is_none_or(|row| row.job.state.is_terminal());
            if ended {
                continue;
            }
            let seq = ending.seq;
            if self.end_one(ending, now) == Removal::Now {
                removals.push(seq);
            }
            endings.extend(self.tell_children(seq, now));
            if let Some(process_id) = self.jobs.get(&seq).and_then(|row| row.job.process_id.clone()) {
                self.tell_waiters(&process_id, now);
            }
        }
        for seq in removals {
            self.remove(seq);
        }
    }

    fn end_one(&mut self, ending: Ending, now: Timestamp) -> Removal {
        let Ending { seq, state, error } = ending;
        let Some(row) = self.jobs.get(&seq) else { return Removal::Never };
        let (queue, kind) = (row.job.queue.clone(), row.job.kind.clone());
        let of_queue = self.queues.get(&queue).and_then(|queue| queue.retention);
        let retention = row.job.options.retention.or(of_queue);
        let retention = retention.unwrap_or_else(|| Retention::default_for(row.job.process_id.is_some()));
        let removal = retention.removal(state, now);
        self.update(seq, |row| {
            row.move_to(state, now);
            row.job.finished_at = Some(now);
            row.job.lease_until = None;
            row.job.cancel_requested = false;
            row.job.park = None;
            row.wake = None;
            row.job.error = if state == State::Succeeded { None } else { error.or(row.job.error.take()) };
            row.remove_at = removal.pruned_at();
        });
        *self.ledger.entry((now.day(), queue, kind, state)).or_default() += 1;
        self.free_unique(seq, state, now);
        removal
    }

    /// Frees the key of an ended job unless a window holds it on.
    fn free_unique(&mut self, seq: i64, state: State, now: Timestamp) {
        let Some(row) = self.jobs.get(&seq) else { return };
        let Some(scope) = scope_of(&row.submitted) else { return };
        let window = row.job.options.unique.as_ref().and_then(|unique| unique.window);
        let Some(unique) = self.uniques.get_mut(&scope).filter(|unique| unique.seq == seq) else { return };
        unique.ended = Some(state);
        if let (State::Succeeded, Some(Window::Success { length })) = (state, window) {
            unique.taken_until = Some(now + length);
        }
        // Whether a window has passed is asked when the key is, so that a clock that steps back asks again.
        if unique.taken_until.is_none() {
            self.uniques.remove(&scope);
        }
    }

    /// Hands a parent's end to its children and returns those that end with it.
    fn tell_children(&mut self, parent: i64, now: Timestamp) -> Vec<Ending> {
        let Some(row) = self.jobs.get(&parent) else { return Vec::new() };
        let (id, end) = (row.job.id, row.end());
        let mut endings = Vec::new();
        for seq in self.children_of(id) {
            let mut news = Edge::Open;
            self.update(seq, |child| news = child.parent_ended(id, &end));
            self.release(seq, now);
            if news == Edge::Cancels {
                endings.push(Ending {
                    seq,
                    state: State::Cancelled,
                    error: Some(JobError::dependency(id, end.state)),
                });
            }
        }
        endings
    }

    /// Lets a job just added find out what its parents and its process have done before.
    pub(super) fn open_new(&mut self, seq: i64, now: Timestamp) {
        // Also one that fell with another member: once retried, it must not wait for parents that ended long ago.
        let Some(row) = self.jobs.get(&seq) else { return };
        let parents: Vec<JobId> = row.edges.iter().map(|edge| edge.dependency.job_id).collect();
        let process_id = row.submitted.after_process.clone();
        let mut cause = None;
        for id in parents {
            let Some(parent) = self.row(id).filter(|parent| parent.job.state.is_terminal()) else { continue };
            let end = parent.end();
            self.update(seq, |row| {
                if row.parent_ended(id, &end) == Edge::Cancels {
                    cause.get_or_insert_with(|| JobError::dependency(id, end.state));
                }
            });
        }
        if process_id.is_some_and(|id| self.is_done(&id)) {
            self.update(seq, |row| row.waits_for_process = false);
        }
        self.release(seq, now);
        if cause.is_some() {
            self.end(seq, State::Cancelled, cause, now);
        }
    }

    /// Releases who waits for a process, once it is done.
    pub(super) fn tell_waiters(&mut self, process_id: &ProcessId, now: Timestamp) {
        if !self.is_done(process_id) {
            return;
        }
        let waiters: Vec<i64> = self.waiters.get(process_id).into_iter().flatten().copied().collect();
        for seq in waiters {
            self.update(seq, |row| row.waits_for_process = false);
            self.release(seq, now);
        }
    }

    pub(super) fn is_done(&self, process_id: &ProcessId) -> bool {
        self.processes.get(process_id).is_none_or(ProcessRow::is_done)
    }

    pub(super) fn children_of(&self, id: JobId) -> Vec<i64> {
        self.children.get(&id).into_iter().flatten().copied().collect()
    }

    /// Counts what a job waits for, and starts a blocked one that waits for nothing.
    pub(super) fn release(&mut self, seq: i64, now: Timestamp) {
        self.update(seq, |row| {
            row.recount();
            if row.job.state == State::Blocked && row.job.waits_for == 0 {
                row.start_by_time(now);
            }
        });
    }

    /// A blocked child that a failed or cancelled job holds.
    pub(super) fn held_child(&self, id: JobId) -> Option<JobId> {
        let children = self.children.get(&id).into_iter().flatten();
        let mut blocked =
            children.filter_map(|seq| self.jobs.get(seq)).filter(|row| row.job.state == State::Blocked);
        let holds = |edge: &EdgeRow| edge.dependency.job_id == id && edge.standing() == Edge::Holds;
        blocked.find(|row| row.edges.iter().any(holds)).map(|row| row.job.id)
    }
}

/// What a job leaves to its children.
struct ParentEnd {
    state: State,
    result: Option<Json>,
    error: Option<JobError>,
}

impl Row {
    fn end(&self) -> ParentEnd {
        ParentEnd { state: self.job.state, result: self.result.clone(), error: self.job.error.clone() }
    }

    /// Notes a parent's end on its edge and says what it asks of this job. An edge satisfied before asks nothing.
    fn parent_ended(&mut self, parent: JobId, end: &ParentEnd) -> Edge {
        let blocked = self.job.state == State::Blocked;
        let open = self.edges.iter_mut().find(|edge| edge.dependency.job_id == parent && !edge.satisfied);
        let Some(open) = open else { return Edge::Open };
        open.ended = Some(end.state);
        open.error.clone_from(&end.error);
        match open.standing() {
            Edge::Satisfied => {
                open.satisfied = true;
                open.result.clone_from(&end.result);
                Edge::Satisfied
            }
            // A child that has ended before stays as it is.
            Edge::Cancels if !blocked => Edge::Open,
            asked @ (Edge::Open | Edge::Cancels | Edge::Holds) => asked,
        }
    }
}

impl EdgeRow {
    /// What the edge asks of the child as things are.
    pub(super) fn standing(&self) -> Edge {
        match self.ended {
            _ if self.satisfied => Edge::Satisfied,
            None => Edge::Open,
            Some(ended) => edge(ended, self.dependency.on_failure),
        }
    }
}
