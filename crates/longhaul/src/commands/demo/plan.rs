//! The demo's jobs: groups of nine and a join, some on their own, and a report that gets everybody's results.

use longhaul_queue::{JobId, Json, NewJob, Result, Timestamp};

use super::work::Work;

/// The process that all jobs belong to.
pub(super) const PROCESS: &str = "demo";
/// Jobs of a group, its join included.
const GROUP: u32 = 10;
/// One job in so many stands on its own.
const OTHERS: u32 = 11;

/// What is to be done, and what must come out.
pub(super) struct Plan {
    /// Jobs in all.
    pub(super) jobs: u32,
    ids: Vec<JobId>,
}

impl Plan {
    /// A plan with `jobs` jobs, at least the report.
    pub(super) fn new(jobs: u32) -> Self {
        let jobs = jobs.max(1);
        // Ids that are known beforehand make the enqueue repeatable.
        let id = |number| JobId::generate(Timestamp::from_millis(i64::from(number)), fastrand::u128(..));
        Self { jobs, ids: (0..jobs).map(id).collect() }
    }

    /// Everybody's id, in submission order; the report is the last.
    pub(super) fn ids(&self) -> &[JobId] {
        &self.ids
    }

    /// What the report must say: the sum of all values.
    pub(super) fn expected(&self) -> u64 {
        (0..self.jobs - 1).filter(|number| !self.is_join(*number)).map(value).sum()
    }

    fn grouped(&self) -> u32 {
        self.jobs / OTHERS * GROUP
    }

    fn is_join(&self, number: u32) -> bool {
        number < self.grouped() && number % GROUP == GROUP - 1
    }

    /// A join takes its group; the report takes the joins and those on their own.
    fn parents(&self, number: u32) -> Vec<u32> {
        if number + 1 == self.jobs {
            (0..number).filter(|other| self.is_join(*other) || *other >= self.grouped()).collect()
        } else if self.is_join(number) {
            (number + 1 - GROUP..number).collect()
        } else {
            Vec::new()
        }
    }

    /// The jobs.
    pub(super) fn jobs(&self) -> Result<Vec<NewJob>> {
        (0..self.jobs).map(|number| self.job(number)).collect()
    }

    fn job(&self, number: u32) -> Result<NewJob> {
        let job = if number + 1 == self.jobs {
            NewJob::new("demo.report", Json::null())
        } else if self.is_join(number) {
            NewJob::new("demo.join", Json::null())
        } else {
            NewJob::new("demo.work", Json::of(&Work { value: value(number), ms: millis(number) })?)
        };
        let id = |number: u32| self.ids[number as usize];
        let job = self.parents(number).into_iter().map(id).fold(job, NewJob::after);
        Ok(job.id(id(number)).process(PROCESS))
    }
}

fn value(number: u32) -> u64 {
    u64::from(number) * 7_919 % 1_000
}

/// 20 to 60 ms, as a quick request would take.
fn millis(number: u32) -> u64 {
    20 + u64::from(number) * 37 % 41
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_reaches_the_report_once() {
        for jobs in [1, 2, 10, 11, 12, 100, 300, 1_001] {
            let plan = Plan::new(jobs);
            let mut values = vec![0; jobs as usize];
            for number in 0..jobs {
                let parents = plan.parents(number);
                let own = if plan.is_join(number) || number + 1 == jobs { 0 } else { value(number) };
                values[number as usize] =
                    own + parents.iter().map(|parent| values[*parent as usize]).sum::<u64>();
            }
            assert_eq!(values.last(), Some(&plan.expected()), "{jobs} jobs");
        }
    }
}
