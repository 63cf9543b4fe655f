//! The jobs of `verify crash`, and what must come out. The same seed gives the same plan in every process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_queue::{JobId, Json, NewJob, Result, RetryPolicy, Timestamp};
use serde::{Deserialize, Serialize};

/// The process that all jobs belong to.
pub(super) const PROCESS: &str = "verify";
/// The kind that a handler in the worker runs.
pub(super) const STEP: &str = "verify.step";
/// The kind that a command runs.
pub(super) const EXEC: &str = "verify.exec";
/// Jobs of a group: four roots, five that depend on some of them, a join of all nine.
const GROUP: usize = 10;
const ROOTS: usize = 4;
/// Values stay below this.
const MODULUS: u64 = 1_000_003;
/// A slow job takes at least so long.
const SLOW_MS: u64 = 100;
/// Before a planned retry.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// How a job comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// In one run.
    Plain,
    /// In one run with [`Way::SAVES`] checkpoints.
    Save,
    /// In several runs: [`Way::CONTINUES`] times it asks to go on later.
    Continue,
    /// At the second attempt.
    Retry,
}

impl Way {
    /// Checkpoints of [`Way::Save`].
    pub(super) const SAVES: u64 = 3;
    /// Continuations of [`Way::Continue`].
    pub(super) const CONTINUES: u64 = 2;
}

/// A job's input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Payload {
    /// Where to write what happens.
    pub(super) journal: PathBuf,
    /// Its number in the plan.
    pub(super) number: usize,
    /// What it adds to its parents' values.
    pub(super) own: u64,
    /// How it comes to its end.
    pub(super) way: Way,
    /// How long a run takes.
    pub(super) ms: u64,
}

/// A job's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Its own number and its parents' values, added up.
    pub(super) value: u64,
    /// The run that made it.
    pub(super) fence: u64,
}

/// A value from a job's own number and its parents'.
pub(super) fn add_up(own: u64, parents: impl IntoIterator<Item = u64>) -> u64 {
    parents.into_iter().fold(own % MODULUS, |sum, value| (sum + value) % MODULUS)
}

/// One job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planned {
    pub(super) id: JobId,
    pub(super) parents: Vec<usize>,
    pub(super) way: Way,
    /// The result that it must have.
    pub(super) value: u64,
    own: u64,
    ms: u64,
    exec: bool,
    priority: i32,
}

impl Planned {
    /// Slow enough to be caught while it runs.
    pub(super) fn is_slow(&self) -> bool {
        self.ms >= SLOW_MS
    }
}

/// All jobs in submission order. The last one joins all joins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) jobs: Vec<Planned>,
}

impl Plan {
    /// Draws a plan.
    pub(super) fn draw(jobs: u32, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut plan = Self { jobs: Vec::with_capacity(jobs as usize) };
        for number in 0..jobs as usize {
            let parents = parents(number, jobs as usize, &mut random);
            let planned = plan.draw_one(number, parents, &mut random);
            plan.jobs.push(planned);
        }
        plan
    }

    fn draw_one(&self, number: usize, parents: Vec<usize>, random: &mut fastrand::Rng) -> Planned {
        let way = match random.u8(0..10) {
            0 => Way::Save,
            1 => Way::Continue,
            2 => Way::Retry,
            _ => Way::Plain,
        };
        let own = random.u64(0..MODULUS);
        // A few are slow, so that kills and pauses find them, and first in line after a rescue, so that a paused worker
        // finds them running elsewhere.
        let slow = random.u8(0..50) == 0;
        // Ids are the same in every repetition of a submission: that is what makes it repeatable.
        let at = Timestamp::from_millis(1_700_000_000_000 + i64::try_from(number).unwrap_or(0));
        Planned {
            id: JobId::generate(at, random.u128(..)),
            value: add_up(own, parents.iter().map(|parent| self.jobs[*parent].value)),
            parents,
            way,
            own,
            ms: if slow { random.u64(SLOW_MS..3 * SLOW_MS) } else { random.u64(0..6) },
            // A command costs a process or two, so they are few.
            exec: random.u8(0..100) < 6,
            priority: if slow { -2 } else { random.i32(-1..=1) },
        }
    }

    /// The jobs, ready to be submitted.
    pub(super) fn new_jobs(&self, journal: &Path) -> Result<Vec<NewJob>> {
        (0..self.jobs.len()).map(|number| self.new_job(number, journal)).collect()
    }

    fn new_job(&self, number: usize, journal: &Path) -> Result<NewJob> {
        let Planned { id, parents, way, own, ms, exec, priority, .. } = &self.jobs[number];
        let payload = Payload { journal: journal.to_owned(), number, own: *own, way: *way, ms: *ms };
        let kind = if *exec { EXEC } else { STEP };
        let job = NewJob::new(kind, Json::of(&payload)?)
            .id(*id)
            .process(PROCESS)
            .priority(*priority)
            .retry(RetryPolicy::fixed(RETRY_DELAY))
            .max_attempts(20);
        let mut job = parents.iter().map(|parent| self.jobs[*parent].id).fold(job, NewJob::after);
        // Random kills would rightly make poison of a job that is always hit.
        job.options.max_crashes = Some(1_000_000);
        Ok(job)
    }
}

fn parents(number: usize, jobs: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let grouped = (jobs - 1) / GROUP * GROUP;
    if number + 1 == jobs {
        return (GROUP - 1..grouped).step_by(GROUP).collect();
    }
    if number >= grouped {
        return Vec::new();
    }
    let first = number / GROUP * GROUP;
    match number % GROUP {
        place if place < ROOTS => Vec::new(),
        place if place == GROUP - 1 => (first..number).collect(),
        _ => {
            let mut chosen = random.choose_multiple(first..number, 2);
            chosen.sort_unstable();
            chosen
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        assert_eq!(Plan::draw(234, 7), Plan::draw(234, 7));
        assert_ne!(Plan::draw(234, 7), Plan::draw(234, 8));
    }

    #[test]
    fn parents_come_before_their_children_and_the_last_job_joins_all_joins() {
        for jobs in [20, 21, 100, 101, 609] {
            let plan = Plan::draw(jobs, 1);
            assert_eq!(plan.jobs.len(), jobs as usize);
            for (number, planned) in plan.jobs.iter().enumerate() {
                assert!(planned.parents.iter().all(|parent| *parent < number));
            }
            let last = plan.jobs.last().expect("a last job");
            assert_eq!(last.parents.len(), (jobs as usize - 1) / GROUP);
            assert!(last.parents.iter().all(|join| plan.jobs[*join].parents.len() == GROUP - 1));
        }
    }
}
