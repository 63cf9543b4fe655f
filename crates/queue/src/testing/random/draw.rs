//! What the random run draws: jobs, settlements and signals from a small universe, so that they meet often.

use super::Run;
use crate::job::{
    Claimed, Dependency, JobChange, JobId, LogLine, NewJob, OnFailure, Progress, Retention, Unique,
    UniquePolicy, Window,
};
use crate::state::{Event, JobError, OnTimeout, Outcome, Park, Policy, Reason, State, settle};
use crate::store::{Field, Filter, NameForm, SettleItem, Signal};
use crate::testing::bench::{days, id, json, secs};

impl Run<'_> {
    /// True in so many of a hundred cases.
    pub(super) fn maybe(&mut self, percent: u32) -> bool {
        self.rng.u32(0..100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.rng.usize(..choices.len())]
    }

    /// A submission: mostly new jobs, some handed in again, in any order.
    pub(super) fn draw_jobs(&mut self, count: usize) -> Vec<NewJob> {
        let first = self.last_id + 1;
        self.last_id += count as u64;
        let numbers: Vec<u64> = (first..=self.last_id).collect();
        let mut jobs: Vec<NewJob> = (0..count).map(|index| self.draw_job(&numbers, index)).collect();
        self.rng.shuffle(&mut jobs);
        if self.maybe(15) {
            jobs.extend(self.draw_repeated());
        }
        jobs
    }

    /// A job that may depend on earlier members of its submission and on older jobs.
    fn draw_job(&mut self, numbers: &[u64], index: usize) -> NewJob {
        let now = self.now();
        let number = numbers[index];
        // A store may keep long payloads elsewhere than short ones.
        let text = "long ".repeat(if self.maybe(30) { 200 } else { 0 });
        let payload = json(&format!(r#"{{"n":{number},"text":"{text}"}}"#));
        let mut job = NewJob::new(*self.pick(&["x", "y"]), payload)
            .id(id(number))
            .queue(*self.pick(&["a", "b"]))
            .priority(self.rng.i32(-1..2))
            .max_attempts(self.rng.u32(1..4));
        if self.maybe(40) {
            job = job.process(*self.pick(&["p", "q"]));
            job.helper = self.maybe(20);
        }
        job.run_at = self.maybe(20).then(|| now + secs(self.rng.u64(0..20)));
        job.expires_at = self.maybe(10).then(|| now + secs(self.rng.u64(5..60)));
        job.depends_on = self.draw_parents(&numbers[..index]);
        if self.maybe(8) {
            job = job.after_process(*self.pick(&["p", "q"]));
        }
        if self.maybe(40) {
            job = job.fair_key(*self.pick(&["t1", "t2", "t3"]));
        }
        if self.maybe(25) {
            job = job.unique(self.draw_unique());
        }
        if self.maybe(30) {
            job.options.retention = self.draw_retention();
        }
        if self.maybe(30) {
            job = job.tag("red");
        }
        job
    }

    pub(super) fn draw_change(&mut self) -> JobChange {
        let text = "long ".repeat(if self.maybe(30) { 200 } else { 0 });
        JobChange {
            priority: self.maybe(60).then(|| self.rng.i32(-1..2)),
            title: self.maybe(40).then(|| (*self.pick(&["", "new"])).to_owned()),
            payload: self.maybe(40).then(|| json(&format!(r#"{{"changed":"{text}"}}"#))),
        }
    }

    /// Conditions of a list: few at a time, so that something is found.
    pub(super) fn draw_filter(&mut self) -> Filter {
        let states = if self.maybe(40) { self.rng.usize(1..4) } else { 0 };
        let number = self.rng.u32(0..30).to_string();
        let digits = self.rng.usize(1..33);
        let prefix = self.draw_id().to_string().replace('-', "")[..digits].to_owned();
        let field = Field { path: "n".to_owned(), value: number.clone() };
        let hidden = NameForm { prefix: "b".to_owned(), bytes: 1 };
        Filter {
            states: (0..states).map(|_| *self.pick(&State::ALL)).collect(),
            queue: self.maybe(20).then(|| (*self.pick(&["a", "b", "c"])).to_owned()),
            kind: self.maybe(20).then(|| (*self.pick(&["x", "y", "z"])).to_owned()),
            tag: self.maybe(20).then(|| "red".to_owned()),
            process_id: self.maybe(20).then(|| "p".into()),
            id_prefix: self.maybe(10).then_some(prefix),
            search: if self.maybe(20) { vec![number] } else { Vec::new() },
            fields: if self.maybe(10) { vec![field] } else { Vec::new() },
            hide_secrets: self.maybe(10),
            hidden_queues: if self.maybe(10) { vec![hidden] } else { Vec::new() },
        }
    }

    fn draw_parents(&mut self, members: &[u64]) -> Vec<Dependency> {
        let mut parents: Vec<JobId> = Vec::new();
        if !members.is_empty() && self.maybe(40) {
            parents.push(id(*self.pick(members)));
        }
        for _ in 0..2 {
            if self.maybe(15) && !self.submitted.is_empty() {
                let lately = self.submitted.len().saturating_sub(12);
                let index = self.rng.usize(lately..self.submitted.len());
                parents.extend(self.submitted[index].id);
            }
        }
        parents.sort_unstable();
        parents.dedup();
        let policies = [OnFailure::Cancel, OnFailure::Run, OnFailure::Hold];
        parents.into_iter().map(|job_id| Dependency { job_id, on_failure: *self.pick(&policies) }).collect()
    }

    /// A job that was handed in before. Not one whose times or payload others may have moved.
    fn draw_repeated(&mut self) -> Option<NewJob> {
        let index = self.rng.usize(..self.submitted.len().max(1));
        let job = self.submitted.get(index)?.clone();
        if job.run_at.is_some() || job.options.unique.is_some() {
            return None;
        }
        Some(if self.maybe(20) { NewJob { payload: json(r#""other""#), ..job } } else { job })
    }

    fn draw_unique(&mut self) -> Unique {
        let windows = [
            None,
            None,
            Some(Window::Enqueue { length: secs(30) }),
            Some(Window::Success { length: secs(30) }),
        ];
        let debounce = UniquePolicy::Debounce { wait: secs(5), cap: secs(12) };
        let policies = [UniquePolicy::Skip, UniquePolicy::Replace, debounce];
        let (window, policy) = (*self.pick(&windows), *self.pick(&policies));
        Unique { key: (*self.pick(&["u", "v"])).to_owned(), window, policy }
    }

    pub(super) fn draw_retention(&mut self) -> Option<Retention> {
        *self.pick(&[
            None,
            Some(Retention::UntilConsumed { ttl: None }),
            Some(Retention::UntilConsumed { ttl: Some(days(2)) }),
            Some(Retention::Keep { succeeded: secs(60), failed: days(1) }),
            Some(Retention::DeleteOnSuccess),
        ])
    }

    /// A claimed job, perhaps long lost.
    pub(super) fn draw_claimed(&mut self) -> Option<Claimed> {
        let index = self.rng.usize(..self.claimed.len().max(1));
        self.claimed.get(index).cloned()
    }

    pub(super) fn draw_settlement(&mut self) -> Option<SettleItem> {
        let claimed = self.draw_claimed()?;
        let event = self.draw_event();
        let policy = Policy::default().with(&claimed.job.options);
        let mut settlement = settle(event, claimed.job.spent, &policy, self.now(), self.rng.f64());
        settlement.usage = self.maybe(20).then(|| json(r#"{"tokens":5}"#));
        let count = if self.maybe(15) { self.rng.usize(1..3) } else { 0 };
        let follow_ups = self.draw_jobs(count);
        Some(SettleItem { lease: claimed.lease, settlement, follow_ups })
    }

    fn draw_event(&mut self) -> Event {
        let error = |reason| JobError::new(reason, "by chance");
        let data = self.maybe(50).then(|| json(&self.rng.u32(0..100).to_string()));
        match self.rng.u32(0..20) {
            0..7 => Event::Outcome(Outcome::Done(json(&self.rng.u32(0..100).to_string()))),
            8 | 9 => {
                let after = self.maybe(50).then(|| secs(self.rng.u64(0..5)));
                Event::Outcome(Outcome::Continue { after, data })
            }
            10..14 => Event::Outcome(Outcome::Park { park: self.draw_park(), data }),
            14 | 15 => Event::Outcome(Outcome::Retry { error: error(Reason::Failure), after: None, data }),
            16 => {
                Event::Outcome(Outcome::Retry { error: error(Reason::Throttle), after: Some(secs(3)), data })
            }
            7 | 17 => Event::Outcome(Outcome::Fail(error(Reason::Failure))),
            18 => Event::Release,
            _ => Event::Cancel,
        }
    }

    fn draw_park(&mut self) -> Park {
        let until = self.maybe(60).then(|| self.now() + secs(self.rng.u64(0..30)));
        let on_timeout = *self.pick(&[OnTimeout::Resume, OnTimeout::Retry, OnTimeout::Fail]);
        Park { key: self.draw_key(), until, on_timeout }
    }

    pub(super) fn draw_key(&mut self) -> String {
        format!("k{}", self.rng.u32(0..6))
    }

    pub(super) fn draw_signal(&mut self) -> Signal {
        let error = JobError::new(Reason::Failure, "by signal");
        match self.rng.u32(0..6) {
            0..3 => Signal::Resume(json(&self.rng.u32(0..100).to_string())),
            3 => Signal::Done(json(r#""signalled""#)),
            4 => Signal::Retry(error),
            _ => Signal::Fail(error),
        }
    }

    pub(super) fn draw_progress(&mut self) -> Option<Progress> {
        let at = self.now();
        self.maybe(50).then(|| Progress { done: self.rng.u64(0..10), total: Some(10), message: None, at })
    }

    pub(super) fn draw_log(&mut self) -> Vec<LogLine> {
        let at = self.now();
        (0..self.rng.u32(0..3)).map(|number| LogLine { at, text: format!("line {number}") }).collect()
    }
}
