//! A person's verbs that let jobs run: retry an ended one, with the children that fell with it, drop the edges that hold
//! one, change one that waits or has not come through, and start one before its time.

use std::collections::VecDeque;

use super::insert::scope_of;
use super::tables::{EdgeRow, Tables, UniqueRow};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::graph::{Edge, comes_back};
use crate::job::{JobChange, JobId, OnFailure};
use crate::state::{Spent, State};
use crate::store::{RetryRequest, refusals};

impl EdgeRow {
    /// Whether the parent's retry lets the child, which is in `state`, wait again: it waits or fell, or is to be told how the
    /// parent ends this time. A child that works on what it was told is left to it.
    fn is_reopened(&self, state: State) -> bool {
        let failed = matches!(self.ended, Some(State::Failed | State::Cancelled));
        let told = self.satisfied && failed && self.dependency.on_failure == OnFailure::Run;
        !self.satisfied || told && !matches!(state, State::Running | State::Parked)
    }
}

impl Tables {
    pub(super) fn retry(&mut self, request: &RetryRequest) -> Vec<Result<State>> {
        request.ids.iter().map(|id| self.retry_one(*id, request.keep_data, request.now)).collect()
    }

    fn retry_one(&mut self, id: JobId, keep_data: bool, now: Timestamp) -> Result<State> {
        let job = &self.row(id).ok_or_else(|| refusals::no_job(id))?.job;
        if !matches!(job.state, State::Failed | State::Cancelled) {
            return Err(Error::wrong_state(id, job.state, "retried"));
        }
        let seq = job.seq;
        self.take_unique_again(seq)?;
        self.update(seq, |row| {
            // Who retries a child does not want to wait for parents that have failed.
            for edge in row.edges.iter_mut().filter(|edge| edge.ended.is_some()) {
                edge.satisfied = true;
            }
            row.job.run_at = now;
            if !keep_data {
                row.data = None;
            }
        });
        self.reset(seq, now);
        self.release(seq, now);
        self.revive_children(seq, now);
        Ok(self.jobs.get(&seq).map_or(State::Ready, |row| row.job.state))
    }

    /// Makes an ended job blocked, without what its end left behind; what was learnt (data, history, fence) stays.
    fn reset(&mut self, seq: i64, now: Timestamp) {
        self.update(seq, |row| {
            let Spent { continues, parks, .. } = row.job.spent;
            row.move_to(State::Blocked, now);
            row.job.spent = Spent { continues, parks, ..Spent::default() };
            row.job.finished_at = None;
            row.job.error = None;
            // A job that has expired would be cancelled again before it could run.
            row.job.expires_at = row.job.expires_at.filter(|at| *at > now);
            row.result = None;
            row.remove_at = None;
            row.recount();
        });
    }

    /// Brings back the children that fell with a parent, or ran because it failed, and theirs in turn.
    fn revive_children(&mut self, parent: i64, now: Timestamp) {
        let mut parents = VecDeque::from([parent]);
        while let Some(parent) = parents.pop_front() {
            let Some(id) = self.jobs.get(&parent).map(|row| row.job.id) else { continue };
            for seq in self.children_of(id) {
                if self.reopen_edge(seq, id) && self.take_unique_again(seq).is_ok() {
                    self.reset(seq, now);
                    parents.push_back(seq);
                }
            }
        }
    }

    /// Lets a child wait for its parent again, and says whether that brings the child back: it fell by its parents, or ran
    /// because this one failed, and no other of them keeps it down.
    fn reopen_edge(&mut self, child: i64, parent: JobId) -> bool {
        let mut revived = false;
        self.update(child, |row| {
            let (state, reason) = (row.job.state, row.job.error.as_ref().map(|error| error.reason));
            let mut edges = row.edges.iter_mut().filter(|edge| edge.dependency.job_id == parent);
            let Some(edge) = edges.find(|edge| edge.is_reopened(state)) else { return };
            let on_failure = edge.dependency.on_failure;
            *edge = EdgeRow { satisfied: false, ended: None, result: None, error: None, ..*edge };
            row.recount();
            let kept_down = row.edges.iter().any(|edge| edge.standing() == Edge::Cancels);
            revived = !kept_down && comes_back(on_failure, state, reason);
        });
        revived
    }

    /// Takes the job's unique key again, unless another unfinished job has it.
    fn take_unique_again(&mut self, seq: i64) -> Result<()> {
        let Some(row) = self.jobs.get(&seq) else { return Ok(()) };
        let Some(scope) = scope_of(&row.submitted) else { return Ok(()) };
        let job_id = row.job.id;
        let other = self.uniques.get(&scope).filter(|unique| unique.ended.is_none() && unique.seq != seq);
        if let Some(other) = other {
            return Err(refusals::key_taken(job_id, other.job_id, &scope.key));
        }
        let unique = row.submitted.options.unique.as_ref();
        let taken_until = unique.and_then(|unique| unique.enqueue_window_end(row.job.created_at));
        self.uniques.insert(scope, UniqueRow { job_id, seq, ended: None, taken_until });
        Ok(())
    }

    pub(super) fn unhold(&mut self, id: JobId, now: Timestamp) -> Result<State> {
        let row = self.row(id).ok_or_else(|| refusals::no_job(id))?;
        if row.job.state != State::Blocked {
            return Err(Error::wrong_state(id, row.job.state, "released from a hold"));
        }
        if !row.edges.iter().any(|edge| edge.standing() == Edge::Holds) {
            return Err(refusals::not_held(id));
        }
        let seq = row.job.seq;
        self.update(seq, |row| {
            for edge in row.edges.iter_mut().filter(|edge| edge.standing() == Edge::Holds) {
                edge.satisfied = true;
            }
        });
        self.release(seq, now);
        Ok(self.jobs.get(&seq).map_or(State::Blocked, |row| row.job.state))
    }

    pub(super) fn edit(&mut self, id: JobId, change: JobChange) -> Result<State> {
        let job = &self.row(id).ok_or_else(|| refusals::no_job(id))?.job;
        let (seq, state) = (job.seq, job.state);
        change.check(id, state, job.started_at.is_some())?;
        let options = change.of_options(job.options.clone());
        self.update(seq, |row| {
            row.job.priority = change.priority.unwrap_or(row.job.priority);
            row.job.options = options;
            row.submitted.priority = row.job.priority;
            row.submitted.options = row.job.options.clone();
            if let Some(payload) = change.payload {
                row.payload = payload;
                row.data = None;
            }
        });
        Ok(state)
    }

    pub(super) fn run_now(&mut self, id: JobId, now: Timestamp) -> Result<State> {
        let job = &self.row(id).ok_or_else(|| refusals::no_job(id))?.job;
        if job.state != State::Scheduled {
            return Err(Error::wrong_state(id, job.state, "started now"));
        }
        let seq = job.seq;
        self.update(seq, |row| {
            row.move_to(State::Ready, now);
            row.job.run_at = now;
        });
        Ok(State::Ready)
    }
}
