//! What a handler knows and may do while it runs its job.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, Lease, LogLine, NewJob, ParentResult, Progress, Wake};
use crate::json::Json;
use crate::limits::{INSERT_MAX, LOG_LINE_BYTES_MAX, shorten};
use crate::live_run::LiveRun;
use crate::notes::{self, FirstNote};

/// Attempts to reach the store for one checkpoint before the handler is told that it is unavailable: about 30 s.
const SAVE_TRIES_MAX: u32 = 20;

/// A handler's view of its job. Cheap to clone; clones are one context.
#[derive(Clone)]
pub struct JobContext {
    run: Arc<LiveRun>,
}

impl JobContext {
    pub(crate) fn new(run: Arc<LiveRun>) -> Self {
        Self { run }
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.run.job.id
    }

    /// The job as it was claimed.
    pub fn job(&self) -> &Job {
        &self.run.job
    }

    /// The job's kind.
    pub fn kind(&self) -> &str {
        &self.run.job.kind
    }

    /// Failures of the handler before this run: 0 at first.
    pub fn attempt(&self) -> u32 {
        self.run.job.spent.attempt
    }

    /// The number of this run; a newer one has a higher number.
    pub fn fence(&self) -> u64 {
        self.run.lease.fence
    }

    /// What this run may write with, for a transaction on tables of the handler's own that must not outlive the run
    /// (`sqlite::Transaction::hold`, `PostgresStore::hold_with`).
    pub fn lease(&self) -> &Lease {
        &self.run.lease
    }

    /// How long this run may take.
    pub fn run_limit(&self) -> Duration {
        self.run.policy.run_limit
    }

    /// The input as it is stored.
    pub fn payload(&self) -> &Json {
        &self.run.payload
    }

    /// The newest checkpoint, of an earlier run or saved by this one.
    pub fn data<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let Some(data) = self.run.notes.data() else { return Ok(None) };
        let read =
            data.to().map_err(|error| Error::invalid(format!("checkpoint of job {}: {error}", self.id())))?;
        Ok(Some(read))
    }

    /// Stores a checkpoint: it is there for the next run, whatever becomes of this one. Waits out a store that cannot
    /// be reached for a while; [`Error::LostLease`] means that the job is somebody else's, and the handler should end.
    pub async fn save<T: Serialize + ?Sized + Sync>(&self, data: &T) -> Result<()> {
        let data = Json::of(data)?;
        self.run.services.engine.limits().check_value("data", &data)?;
        self.touch();
        let mut backoff = Backoff::new();
        let mut tries = 1;
        loop {
            match notes::write(&self.run, Some(data.clone())).await {
                Err(error) if error.is_transient() && tries < SAVE_TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(backoff.next_wait()).await;
                }
                done => {
                    self.touch();
                    return done;
                }
            }
        }
    }

    /// Reports how far the run has come. Cheap: the newest report is written now and then.
    pub fn progress(&self, done: u64, total: impl Into<Option<u64>>) {
        self.report(done, total.into(), None);
    }

    /// Reports how far the run has come, with a word for people.
    pub fn progress_with(&self, done: u64, total: impl Into<Option<u64>>, message: impl AsRef<str>) {
        self.report(done, total.into(), Some(shorten(message.as_ref(), LOG_LINE_BYTES_MAX)));
    }

    /// Adds a line to the job's log. Cheap: lines are written together.
    pub fn log(&self, text: impl AsRef<str>) {
        let at = self.touch();
        let line = LogLine { at, text: shorten(text.as_ref(), LOG_LINE_BYTES_MAX) };
        self.announce(&self.run.notes.add_line(line));
    }

    /// Records what the run used, for its history.
    pub fn usage<T: Serialize + ?Sized>(&self, usage: &T) -> Result<()> {
        let usage = Json::of(usage)?;
        self.run.services.engine.limits().check_value("usage", &usage)?;
        self.run.notes.set_usage(usage);
        Ok(())
    }

    /// Whether the run should end; see [`JobContext::cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.run.is_told()
    }

    /// Returns once the run should end, so that a long handler can `save` and answer `Continue`:
    ///
    /// - somebody cancelled the job: the handler has `cancel_grace` to answer as it likes;
    /// - the worker drains: it has `drain_grace`, then the job is given back at no cost.
    ///
    /// When a limit has passed, the lease is lost or the worker stops, there is no time left: the handler's future is
    /// dropped at once, and only what it has spawned or blocks a thread with still learns of it here.
    pub async fn cancelled(&self) {
        self.run.told(LiveRun::is_told).await;
    }

    /// Whether the worker drains: it takes no more jobs, and gives this one back after `drain_grace`.
    pub fn is_draining(&self) -> bool {
        self.run.is_draining()
    }

    /// Whether the run should end for a reason of its own; a drain does not count.
    pub fn is_cancel_requested(&self) -> bool {
        self.run.is_cancel_requested()
    }

    /// Like [`JobContext::cancelled`], for handlers that cannot pause and would rather finish during a drain.
    pub async fn cancel_requested(&self) {
        self.run.told(LiveRun::is_cancel_requested).await;
    }

    /// A key for one step's effect on the outside world: the same in every run of this job, so that the other side
    /// can recognise a repetition.
    pub fn idempotency_key(&self, step: &str) -> String {
        format!("{}:{step}", self.id())
    }

    /// How the parents ended, in the order of `depends_on`.
    pub fn parents(&self) -> &[ParentResult] {
        &self.run.parents
    }

    /// What ended the park before this run, if the job was parked.
    pub fn wake(&self) -> Option<&Wake> {
        self.run.wake.as_ref()
    }

    /// Enqueues a job together with this run's outcome, in one transaction: both are stored or neither. A run that is
    /// to be repeated (a retry, a panic, a limit, a release) enqueues nothing, since its repetition will.
    pub fn enqueue(&self, mut job: NewJob) -> Result<JobId> {
        if self.run.notes.follow_ups() >= INSERT_MAX {
            return Err(Error::invalid(format!("one run may enqueue at most {INSERT_MAX} jobs")));
        }
        job.options.parent_id.get_or_insert(self.id());
        if job.options.trace.is_none() {
            job.options.trace.clone_from(&self.run.job.options.trace);
        }
        let prepared = self.run.services.engine.prepare(vec![job])?.pop();
        let job = prepared.ok_or_else(|| Error::Corrupt("a prepared job is missing".to_owned()))?;
        let id = job.id.ok_or_else(|| Error::Corrupt("a prepared job has no id".to_owned()))?;
        self.run.notes.add_follow_up(job);
        Ok(id)
    }

    fn report(&self, done: u64, total: Option<u64>, message: Option<String>) {
        let at = self.touch();
        self.announce(&self.run.notes.set_progress(Progress { done, total, message, at }));
    }

    fn announce(&self, first: &FirstNote) {
        if first.0 {
            self.run.services.flusher.add(Arc::clone(&self.run));
        }
    }

    fn touch(&self) -> crate::Timestamp {
        let now = self.run.services.engine.clock().now();
        self.run.touch(now);
        now
    }
}
