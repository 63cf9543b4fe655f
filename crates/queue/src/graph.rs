//! Dependencies: what a submission must look like, and what a parent's end does to an edge. Pure.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::job::{JobId, NewJob, OnFailure};
use crate::state::{Reason, State};
use crate::store::refusals;

/// What an edge asks of the child, given how its parent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The parent has not ended.
    Open,
    /// The child need not wait for it any more.
    Satisfied,
    /// The child is cancelled.
    Cancels,
    /// The child stays blocked until the parent is retried or the edge is dropped.
    Holds,
}

/// The rule for one edge.
pub fn edge(parent: State, on_failure: OnFailure) -> Edge {
    match parent {
        State::Blocked | State::Scheduled | State::Ready | State::Running | State::Parked => Edge::Open,
        State::Succeeded => Edge::Satisfied,
        State::Failed | State::Cancelled => match on_failure {
            OnFailure::Cancel => Edge::Cancels,
            OnFailure::Run => Edge::Satisfied,
            OnFailure::Hold => Edge::Holds,
        },
    }
}

/// Whether a child comes back when the parent of an edge that was opened again is retried, given where the child stands and
/// why. One that fell with its parents does; so does one that runs whatever its parent's end is, and is to run once more for the
/// next, unless somebody cancelled it or it was too late for it.
pub fn comes_back(on_failure: OnFailure, child: State, reason: Option<Reason>) -> bool {
    let fell = child == State::Cancelled && reason == Some(Reason::Dependency);
    match on_failure {
        OnFailure::Cancel => fell,
        OnFailure::Run => {
            fell || matches!(child, State::Scheduled | State::Ready | State::Succeeded | State::Failed)
        }
        OnFailure::Hold => false,
    }
}

/// Refuses a graph with an id or a parent given twice, or with a cycle, and names the jobs on it.
pub fn check(jobs: &[NewJob]) -> Result<()> {
    // Without edges there is nothing to check: a store finds an id given twice by itself.
    if jobs.iter().all(|job| job.depends_on.is_empty()) {
        return Ok(());
    }
    let mut index_of = HashMap::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        let Some(id) = job.id else { continue };
        if index_of.insert(id, index).is_some() {
            return Err(refusals::given_twice(id));
        }
    }
    for job in jobs {
        let mut parents: Vec<JobId> = job.depends_on.iter().map(|dependency| dependency.job_id).collect();
        parents.sort_unstable();
        if let Some(twice) = parents.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("depends_on names {} twice", twice[0])));
        }
    }
    check_cycles(jobs, &index_of)
}

/// Kahn's algorithm: what cannot be ordered is on a cycle or behind one.
fn check_cycles(jobs: &[NewJob], index_of: &HashMap<JobId, usize>) -> Result<()> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); jobs.len()];
    let mut open_parents = vec![0_usize; jobs.len()];
    for (child, job) in jobs.iter().enumerate() {
        for dependency in &job.depends_on {
            if let Some(&parent) = index_of.get(&dependency.job_id) {
                children[parent].push(child);
                open_parents[child] += 1;
            }
        }
    }
    let mut free: Vec<usize> = (0..jobs.len()).filter(|&job| open_parents[job] == 0).collect();
    let mut ordered = 0;
    while let Some(job) = free.pop() {
        ordered += 1;
        for &child in &children[job] {
            open_parents[child] -= 1;
            if open_parents[child] == 0 {
                free.push(child);
            }
        }
    }
    if ordered == jobs.len() {
        return Ok(());
    }
    let names: Vec<String> = jobs
        .iter()
        .zip(&open_parents)
        .filter(|(_, open)| **open > 0)
        .filter_map(|(job, _)| job.id.map(|id| id.to_string()))
        .take(5)
        .collect();
    Err(Error::invalid(format!("depends_on has a cycle through {}", names.join(", "))))
}

#[cfg(test)]
#[path = "graph/tests.rs"]
mod tests;
