//! What the store holds. [`Tables::update`] is the only way a row changes, so that the claim order, the counters and
//! the event of a call cannot drift from the rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::clock::Timestamp;
use crate::events::{Change, Event};
use crate::job::{
    Dependency, Job, JobDetail, JobId, LogLine, NewJob, ParentResult, ParentStatus, ProcessId, Progress, Run,
    Wake, WorkerId,
};
use crate::json::Json;
use crate::limits::{EVENT_CHANGES_MAX, EVENTS_KEPT_MAX};
use crate::state::{JobError, State};
use crate::store::{QueueSettings, Record, Schedule, Signal, WorkerInfo, rules};

/// Everything that is stored.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) jobs: BTreeMap<i64, Row>,
    pub(super) seq_of: HashMap<JobId, i64>,
    /// Highest `seq` given out.
    pub(super) last_seq: i64,
    /// Ready jobs per queue, in the order of claims.
    pub(super) ready: BTreeMap<String, BTreeSet<(i32, Timestamp, i64)>>,
    /// Children by parent.
    pub(super) children: HashMap<JobId, BTreeSet<i64>>,
    /// Jobs with `after_process`, by process.
    pub(super) waiters: HashMap<ProcessId, BTreeSet<i64>>,
    pub(super) processes: BTreeMap<ProcessId, ProcessRow>,
    pub(super) queues: BTreeMap<String, QueueSettings>,
    /// The key served last, by queue; those that ever had a fair key.
    pub(super) turns: BTreeMap<String, String>,
    pub(super) records: BTreeMap<String, Record>,
    pub(super) uniques: BTreeMap<UniqueScope, UniqueRow>,
    pub(super) signals: BTreeMap<String, SignalRow>,
    pub(super) schedules: BTreeMap<String, Schedule>,
    pub(super) workers: BTreeMap<WorkerId, WorkerInfo>,
    pub(super) ledger: BTreeMap<(i64, String, String, State), u64>,
    pub(super) events: VecDeque<Event>,
    /// Something was written since the last [`Tables::publish`].
    pub(super) touched: bool,
    last_event: u64,
    news: News,
}

/// A job with all that belongs to it.
pub(super) struct Row {
    pub(super) job: Job,
    /// As it was handed in, to recognise a repeated enqueue however far the job has come.
    pub(super) submitted: NewJob,
    pub(super) payload: Json,
    pub(super) data: Option<Json>,
    pub(super) result: Option<Json>,
    pub(super) edges: Vec<EdgeRow>,
    /// `after_process` is not satisfied yet.
    pub(super) waits_for_process: bool,
    pub(super) wake: Option<Wake>,
    pub(super) runs: Vec<Run>,
    pub(super) progress: Option<Progress>,
    pub(super) log: Vec<LogLine>,
    /// When the pruner takes an ended job.
    pub(super) remove_at: Option<Timestamp>,
}

/// An edge, kept with the child. Once satisfied it changes only if the parent had failed and is retried.
pub(super) struct EdgeRow {
    pub(super) dependency: Dependency,
    pub(super) satisfied: bool,
    /// How the parent ended; always known when satisfied.
    pub(super) ended: Option<State>,
    /// The parent's result, copied so that deleting the parent starves nobody.
    pub(super) result: Option<Json>,
    /// Why the parent did not succeed.
    pub(super) error: Option<JobError>,
}

/// A process: exists while it has jobs or is unsealed.
pub(super) struct ProcessRow {
    pub(super) sealed: bool,
    pub(super) counts: [u64; 8],
    pub(super) helpers: [u64; 8],
}

impl ProcessRow {
    /// Whether nobody needs to wait for it any more.
    pub(super) fn is_done(&self) -> bool {
        let unfinished =
            State::ALL.iter().zip(self.counts).any(|(state, count)| !state.is_terminal() && count > 0);
        self.sealed && !unfinished
    }

    fn is_empty(&self) -> bool {
        self.counts.iter().chain(&self.helpers).all(|count| *count == 0)
    }

    fn count(&mut self, job: &Job) -> &mut u64 {
        let counts = if job.helper { &mut self.helpers } else { &mut self.counts };
        &mut counts[job.state as usize]
    }
}

impl Default for ProcessRow {
    fn default() -> Self {
        Self { sealed: true, counts: [0; 8], helpers: [0; 8] }
    }
}

/// Within what a unique key is unique.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct UniqueScope {
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) key: String,
}

/// Who holds a unique key. Outlives its job.
pub(super) struct UniqueRow {
    pub(super) job_id: JobId,
    pub(super) seq: i64,
    /// How the holder ended; `None` while it has not.
    pub(super) ended: Option<State>,
    /// End of the window.
    pub(super) taken_until: Option<Timestamp>,
}

impl UniqueRow {
    pub(super) fn is_taken(&self, now: Timestamp) -> bool {
        self.ended.is_none() || self.taken_until.is_some_and(|until| until > now)
    }
}

/// A signal that came, kept for jobs that park later and to recognise a repeated one.
pub(super) struct SignalRow {
    pub(super) signal: Signal,
    pub(super) expires_at: Timestamp,
}

/// What the running call has changed so far: each job once, with its newest state.
#[derive(Default)]
struct News {
    changes: Vec<Change>,
    index_of: HashMap<JobId, usize>,
}

impl News {
    fn note(&mut self, job: &Job, progress: Option<Progress>) {
        let change = Change {
            job_id: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            process_id: job.process_id.clone(),
            state: job.state,
            progress,
        };
        match self.index_of.get(&job.id) {
            Some(&index) => self.changes[index] = change,
            None => {
                self.index_of.insert(job.id, self.changes.len());
                self.changes.push(change);
            }
        }
    }
}

impl Tables {
    /// The row of a job.
    pub(super) fn row(&self, id: JobId) -> Option<&Row> {
        self.jobs.get(self.seq_of.get(&id)?)
    }

    /// Adds a row with all its indexes.
    pub(super) fn add(&mut self, row: Row) {
        let job = &row.job;
        self.last_seq = self.last_seq.max(job.seq);
        self.seq_of.insert(job.id, job.seq);
        for edge in &row.edges {
            self.children.entry(edge.dependency.job_id).or_default().insert(job.seq);
        }
        if let Some(process_id) = &row.submitted.after_process {
            self.waiters.entry(process_id.clone()).or_default().insert(job.seq);
        }
        if let Some(process_id) = &job.process_id {
            *self.processes.entry(process_id.clone()).or_default().count(job) += 1;
        }
        if job.options.fair_key.is_some() {
            self.turns.entry(job.queue.clone()).or_default();
        }
        add_ready(&mut self.ready, job);
        self.news.note(job, None);
        self.jobs.insert(job.seq, row);
        self.touched = true;
    }

    /// Changes a row and everything that is derived from it.
    pub(super) fn update(&mut self, seq: i64, change: impl FnOnce(&mut Row)) {
        let Some(row) = self.jobs.get_mut(&seq) else { return };
        let was = row.job.state;
        self.touched = true;
        drop_ready(&mut self.ready, &row.job);
        count_down(&mut self.processes, &row.job);
        change(row);
        if let Some(process_id) = &row.job.process_id {
            *self.processes.entry(process_id.clone()).or_default().count(&row.job) += 1;
        }
        add_ready(&mut self.ready, &row.job);
        if was != row.job.state {
            self.news.note(&row.job, None);
        }
    }

    /// Makes a job's progress the news.
    pub(super) fn note_progress(&mut self, seq: i64) {
        if let Some(row) = self.jobs.get(&seq) {
            self.news.note(&row.job, row.progress.clone());
        }
    }

    /// Removes a row for good. Its unique key and its place in the ledger stay.
    pub(super) fn remove(&mut self, seq: i64) {
        let Some(row) = self.jobs.remove(&seq) else { return };
        self.touched = true;
        self.seq_of.remove(&row.job.id);
        // An edge leads to this very job, not to one that is given the same id later.
        self.children.remove(&row.job.id);
        drop_ready(&mut self.ready, &row.job);
        for edge in &row.edges {
            drop_from(&mut self.children, &edge.dependency.job_id, seq);
        }
        if let Some(process_id) = &row.submitted.after_process {
            drop_from(&mut self.waiters, process_id, seq);
        }
        count_down(&mut self.processes, &row.job);
        if let Some(process_id) = &row.job.process_id {
            self.drop_empty_process(process_id);
        }
    }

    /// Forgets that an edge leads from `parent` to `child`.
    pub(super) fn forget_child(&mut self, parent: &JobId, child: i64) {
        drop_from(&mut self.children, parent, child);
    }

    /// Forgets a process that has no jobs and expects none.
    pub(super) fn drop_empty_process(&mut self, id: &ProcessId) {
        if self.processes.get(id).is_some_and(|process| process.sealed && process.is_empty()) {
            self.processes.remove(id);
        }
    }

    /// What the call has changed is no event.
    pub(super) fn forget_news(&mut self) {
        self.news = News::default();
    }

    /// Turns what a call has changed into one event. Says whether anything was written at all: a claim that finds
    /// nothing must not wake the others, or they would wake each other for ever.
    pub(super) fn publish(&mut self, now: Timestamp) -> bool {
        let mut changes = std::mem::take(&mut self.news).changes;
        let touched = std::mem::take(&mut self.touched);
        if changes.is_empty() {
            return touched;
        }
        let more = changes.len().saturating_sub(EVENT_CHANGES_MAX) as u64;
        changes.truncate(EVENT_CHANGES_MAX);
        self.last_event += 1;
        self.events.push_back(Event { id: self.last_event, at: now, changes, more });
        if self.events.len() > EVENTS_KEPT_MAX {
            self.events.pop_front();
        }
        true
    }
}

impl Row {
    /// The job with everything known of it.
    pub(super) fn detail(&self) -> JobDetail {
        JobDetail {
            job: self.job.clone(),
            payload: self.payload.clone(),
            data: self.data.clone(),
            result: self.result.clone(),
            depends_on: self.edges.iter().map(EdgeRow::status).collect(),
            after_process: self.submitted.after_process.clone(),
            runs: self.runs.clone(),
            progress: self.progress.clone(),
            log: self.log.clone(),
        }
    }

    /// What the satisfied edges brought, in the order of `depends_on`.
    pub(super) fn parents(&self) -> Vec<ParentResult> {
        let satisfied = self.edges.iter().filter(|edge| edge.satisfied);
        satisfied
            .filter_map(|edge| {
                let state = edge.ended?;
                let (result, error) = (edge.result.clone(), edge.error.clone());
                Some(ParentResult { job_id: edge.dependency.job_id, state, result, error })
            })
            .collect()
    }

    /// Brings `waits_for` in line with the edges: in every state it is the number of unsatisfied ones, and one more
    /// for the process.
    pub(super) fn recount(&mut self) {
        let open = self.edges.iter().filter(|edge| !edge.satisfied).count();
        self.job.waits_for = u32::try_from(open).unwrap_or(u32::MAX) + u32::from(self.waits_for_process);
    }

    /// Ready or scheduled, whichever `run_at` says.
    pub(super) fn start_by_time(&mut self, now: Timestamp) {
        self.move_to(rules::first_state(false, self.job.run_at, now), now);
    }

    pub(super) fn move_to(&mut self, state: State, now: Timestamp) {
        if self.job.state != state {
            self.job.state = state;
            self.job.updated_at = now;
        }
    }
}

impl EdgeRow {
    fn status(&self) -> ParentStatus {
        let Dependency { job_id, on_failure } = self.dependency;
        ParentStatus { job_id, on_failure, satisfied: self.satisfied, ended: self.ended }
    }
}

fn add_ready(ready: &mut BTreeMap<String, BTreeSet<(i32, Timestamp, i64)>>, job: &Job) {
    if job.state == State::Ready {
        ready.entry(job.queue.clone()).or_default().insert((job.priority, job.run_at, job.seq));
    }
}

fn drop_ready(ready: &mut BTreeMap<String, BTreeSet<(i32, Timestamp, i64)>>, job: &Job) {
    if job.state == State::Ready
        && let Some(queue) = ready.get_mut(&job.queue)
    {
        queue.remove(&(job.priority, job.run_at, job.seq));
    }
}

fn count_down(processes: &mut BTreeMap<ProcessId, ProcessRow>, job: &Job) {
    if let Some(process) = job.process_id.as_ref().and_then(|id| processes.get_mut(id)) {
        *process.count(job) -= 1;
    }
}

fn drop_from<K: Eq + std::hash::Hash>(index: &mut HashMap<K, BTreeSet<i64>>, key: &K, seq: i64) {
    if let Some(set) = index.get_mut(key) {
        set.remove(&seq);
        if set.is_empty() {
            index.remove(key);
        }
    }
}
