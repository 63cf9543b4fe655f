//! Enqueue: first a plan that refuses everything that must be refused, then writes that cannot fail. So an insert is
//! all or nothing without an undo.

use std::collections::{HashMap, HashSet};

use super::tables::{EdgeRow, Row, Tables, UniqueRow, UniqueScope};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::graph;
use crate::job::{Job, JobId, NewJob, ProcessId, UniquePolicy};
use crate::state::{Spent, State};
use crate::store::{Enqueued, InsertOutcome, refusals, rules};

/// Jobs that may be stored, with what will become of each.
pub(super) struct Plan {
    steps: Vec<(NewJob, Step)>,
}

/// What will become of one job.
struct Step {
    /// The job that the reply names.
    id: JobId,
    seq: i64,
    how: InsertOutcome,
    /// The state of a holder whose row is gone.
    gone: Option<State>,
}

impl Tables {
    /// Stores jobs, all or none.
    pub(super) fn insert(&mut self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let plan = self.plan(jobs, now)?;
        Ok(self.carry_out(plan, now))
    }

    /// Decides about each job in the order given; changes nothing.
    pub(super) fn plan(&self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Plan> {
        graph::check(&jobs)?;
        let mut planner = Planner { tables: self, now, last_seq: self.last_seq, taken: HashMap::new() };
        let mut steps = Vec::with_capacity(jobs.len());
        let mut members = HashSet::with_capacity(jobs.len());
        for job in jobs {
            if let Some(id) = job.id.filter(|id| members.contains(id)) {
                return Err(refusals::given_twice(id));
            }
            let step = planner.step(&job)?;
            if step.how == InsertOutcome::Inserted {
                members.insert(step.id);
            }
            steps.push((job, step));
        }
        self.check_references(&steps)?;
        Ok(Plan { steps })
    }

    /// Everything that a new job waits for must be stored, or be stored with it.
    fn check_references(&self, steps: &[(NewJob, Step)]) -> Result<()> {
        let inserted = || steps.iter().filter(|(_, step)| step.how == InsertOutcome::Inserted);
        let ids: HashSet<JobId> = inserted().map(|(_, step)| step.id).collect();
        let processes: HashSet<&ProcessId> =
            inserted().filter_map(|(job, _)| job.process_id.as_ref()).collect();
        for (job, step) in inserted() {
            let stored = |id: &JobId| ids.contains(id) || self.seq_of.contains_key(id);
            if let Some(unknown) = job.depends_on.iter().find(|dependency| !stored(&dependency.job_id)) {
                return Err(refusals::no_parent(step.id, unknown.job_id));
            }
            let Some(process_id) = &job.after_process else { continue };
            if !processes.contains(process_id) && !self.processes.contains_key(process_id) {
                return Err(refusals::no_process(step.id, process_id));
            }
            if job.process_id.as_ref() == Some(process_id) && !job.helper {
                return Err(refusals::own_process(step.id, process_id));
            }
        }
        Ok(())
    }

    /// Carries out a plan made on these very tables.
    pub(super) fn carry_out(&mut self, plan: Plan, now: Timestamp) -> Vec<Enqueued> {
        let mut replies = Vec::with_capacity(plan.steps.len());
        let mut inserted = Vec::new();
        for (job, step) in plan.steps {
            match step.how {
                InsertOutcome::Inserted => {
                    inserted.push(step.seq);
                    self.add_new(job, &step, now);
                }
                InsertOutcome::Replaced => self.update(step.seq, |row| row.payload = job.payload),
                InsertOutcome::Debounced => self.debounce(&job, step.seq, now),
                InsertOutcome::Duplicate | InsertOutcome::Skipped => {}
            }
            replies.push(step);
        }
        // Only now, with all rows there: parents may come after their children.
        for seq in inserted {
            self.open_new(seq, now);
        }
        let state = |step: &Step| self.jobs.get(&step.seq).map(|row| row.job.state);
        replies
            .iter()
            .map(|step| Enqueued {
                id: step.id,
                seq: step.seq,
                state: state(step).or(step.gone).unwrap_or(State::Succeeded),
                how: step.how,
            })
            .collect()
    }

    /// Adds a job as blocked by everything it names.
    fn add_new(&mut self, submitted: NewJob, step: &Step, now: Timestamp) {
        if let Some(scope) = scope_of(&submitted) {
            let taken_until =
                submitted.options.unique.as_ref().and_then(|unique| unique.enqueue_window_end(now));
            self.uniques
                .insert(scope, UniqueRow { job_id: step.id, seq: step.seq, ended: None, taken_until });
        }
        let edge =
            |&dependency| EdgeRow { dependency, satisfied: false, ended: None, result: None, error: None };
        let edges = submitted.depends_on.iter().map(edge);
        let mut row = Row {
            job: new_job(&submitted, step, now),
            payload: submitted.payload.clone(),
            data: None,
            result: None,
            edges: edges.collect(),
            waits_for_process: submitted.after_process.is_some(),
            wake: None,
            runs: Vec::new(),
            progress: None,
            log: Vec::new(),
            remove_at: None,
            submitted,
        };
        row.recount();
        self.add(row);
    }

    /// Pushes a waiting holder's start back.
    fn debounce(&mut self, job: &NewJob, seq: i64, now: Timestamp) {
        let policy = job.options.unique.as_ref().map(|unique| unique.policy);
        let Some(UniquePolicy::Debounce { wait, cap }) = policy else { return };
        self.update(seq, |row| {
            // Never earlier than the job waits anyway, for a retry or a rate limit.
            row.job.run_at = (now + wait).min(row.job.created_at + cap).max(row.job.run_at);
            if row.job.state != State::Blocked {
                row.start_by_time(now);
            }
        });
    }
}

struct Planner<'a> {
    tables: &'a Tables,
    now: Timestamp,
    last_seq: i64,
    /// Keys taken by earlier jobs of the same submission.
    taken: HashMap<UniqueScope, (JobId, i64)>,
}

impl Planner<'_> {
    fn step(&mut self, job: &NewJob) -> Result<Step> {
        let Some(id) = job.id else {
            return Err(refusals::no_id(&job.kind));
        };
        if let Some(row) = self.tables.row(id) {
            let stored = NewJob { payload: row.payload.clone(), ..row.submitted.clone() };
            if !rules::same_content(&stored, job) {
                return Err(refusals::other_content(id));
            }
            return Ok(Step { id, seq: row.job.seq, how: InsertOutcome::Duplicate, gone: None });
        }
        if let Some(step) = self.holder(job) {
            return Ok(step);
        }
        self.last_seq += 1;
        if let Some(scope) = scope_of(job) {
            self.taken.insert(scope, (id, self.last_seq));
        }
        Ok(Step { id, seq: self.last_seq, how: InsertOutcome::Inserted, gone: None })
    }

    /// What to do when the job's unique key is taken; `None` when it is free.
    fn holder(&self, job: &NewJob) -> Option<Step> {
        let policy = job.options.unique.as_ref()?.policy;
        let scope = scope_of(job)?;
        if let Some(&(id, seq)) = self.taken.get(&scope) {
            // A member of the same submission still waits, whatever its parents will do to it.
            return Some(Step { id, seq, how: second_enqueue(policy, State::Blocked, false), gone: None });
        }
        let unique = self.tables.uniques.get(&scope).filter(|unique| unique.is_taken(self.now))?;
        let row = self.tables.jobs.get(&unique.seq);
        let state = row.map(|row| row.job.state).or(unique.ended)?;
        let has_run = row.is_some_and(|row| row.job.started_at.is_some());
        Some(Step {
            id: unique.job_id,
            seq: unique.seq,
            how: second_enqueue(policy, state, has_run),
            gone: unique.ended,
        })
    }
}

/// What an enqueue does to the holder of its key.
fn second_enqueue(policy: UniquePolicy, holder: State, has_run: bool) -> InsertOutcome {
    let waits = matches!(holder, State::Blocked | State::Scheduled | State::Ready);
    match policy {
        // What a run has left behind (its checkpoint, what it has done outside) belongs to the payload that it was given.
        UniquePolicy::Replace if waits && !has_run => InsertOutcome::Replaced,
        UniquePolicy::Debounce { .. } if waits => InsertOutcome::Debounced,
        UniquePolicy::Skip | UniquePolicy::Replace | UniquePolicy::Debounce { .. } => InsertOutcome::Skipped,
    }
}

pub(super) fn scope_of(job: &NewJob) -> Option<UniqueScope> {
    let key = job.options.unique.as_ref()?.key.clone();
    Some(UniqueScope { queue: job.queue.clone(), kind: job.kind.clone(), key })
}

fn new_job(submitted: &NewJob, step: &Step, now: Timestamp) -> Job {
    Job {
        id: step.id,
        seq: step.seq,
        queue: submitted.queue.clone(),
        kind: submitted.kind.clone(),
        state: State::Blocked,
        process_id: submitted.process_id.clone(),
        helper: submitted.helper,
        priority: submitted.priority,
        run_at: submitted.run_at.unwrap_or(now),
        created_at: now,
        updated_at: now,
        started_at: None,
        finished_at: None,
        expires_at: submitted.expires_at,
        spent: Spent::default(),
        fence: 0,
        lease_until: None,
        worker: None,
        cancel_requested: false,
        waits_for: 0,
        park: None,
        error: None,
        options: submitted.options.clone(),
    }
}
