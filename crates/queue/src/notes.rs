//! What a run tells on the way: checkpoint, progress, log lines, usage and follow-up jobs. Progress and log lines are
//! gathered and written at most four times a second a job, and at the latest before the job is settled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::warn;

use crate::client::Queue;
use crate::error::Result;
use crate::job::{LogLine, NewJob, Progress};
use crate::json::Json;
use crate::limits::LOG_LINES_MAX;
use crate::live_run::LiveRun;
use crate::store::Save;

/// Least time between two flushes of one job's notes.
const FLUSH_GAP: Duration = Duration::from_millis(250);

/// The notes of one run.
pub(crate) struct Notes {
    unwritten: AtomicBool,
    saved: AtomicBool,
    state: Mutex<NotesState>,
    /// Held over a write, so that the last flush waits for one that is under way.
    writing: tokio::sync::Mutex<()>,
}

struct NotesState {
    data: Option<Json>,
    progress: Option<Progress>,
    log: VecDeque<LogLine>,
    usage: Option<Json>,
    follow_ups: Vec<NewJob>,
}

impl Notes {
    pub(crate) fn new(data: Option<Json>) -> Self {
        let state =
            NotesState { data, progress: None, log: VecDeque::new(), usage: None, follow_ups: Vec::new() };
        Self {
            unwritten: AtomicBool::new(false),
            saved: AtomicBool::new(false),
            state: Mutex::new(state),
            writing: tokio::sync::Mutex::new(()),
        }
    }

    /// The newest checkpoint: an earlier run's, or this one's own.
    pub(crate) fn data(&self) -> Option<Json> {
        self.lock().data.clone()
    }

    /// Whether this run has stored new data.
    pub(crate) fn has_saved(&self) -> bool {
        self.saved.load(Ordering::Acquire)
    }

    pub(crate) fn set_progress(&self, progress: Progress) -> FirstNote {
        self.lock().progress = Some(progress);
        FirstNote(!self.unwritten.swap(true, Ordering::AcqRel))
    }

    pub(crate) fn add_line(&self, line: LogLine) -> FirstNote {
        let mut state = self.lock();
        if state.log.len() == LOG_LINES_MAX {
            // The store keeps no more either.
            state.log.pop_front();
        }
        state.log.push_back(line);
        drop(state);
        FirstNote(!self.unwritten.swap(true, Ordering::AcqRel))
    }

    pub(crate) fn set_usage(&self, usage: Json) {
        self.lock().usage = Some(usage);
    }

    pub(crate) fn take_usage(&self) -> Option<Json> {
        self.lock().usage.take()
    }

    pub(crate) fn add_follow_up(&self, job: NewJob) {
        self.lock().follow_ups.push(job);
    }

    pub(crate) fn follow_ups(&self) -> usize {
        self.lock().follow_ups.len()
    }

    pub(crate) fn take_follow_ups(&self) -> Vec<NewJob> {
        std::mem::take(&mut self.lock().follow_ups)
    }

    /// Whether something waits to be written, or is being written right now.
    pub(crate) fn needs_flush(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) || self.writing.try_lock().is_err()
    }

    fn take_unwritten(&self, data: Option<Json>) -> Save {
        self.unwritten.store(false, Ordering::Release);
        let mut state = self.lock();
        Save { data, progress: state.progress.take(), log: std::mem::take(&mut state.log).into() }
    }

    /// After a failed write: a newer report stands, and the lines taken come before those that came since.
    fn put_back(&self, save: Save) {
        let mut state = self.lock();
        if state.progress.is_none() {
            state.progress = save.progress;
        }
        let newer = std::mem::replace(&mut state.log, save.log.into());
        state.log.extend(newer);
        let too_many = state.log.len().saturating_sub(LOG_LINES_MAX);
        state.log.drain(..too_many);
        drop(state);
        self.unwritten.store(true, Ordering::Release);
    }

    fn written(&self, data: Json) {
        let mut state = self.lock();
        // The same data again is no progress.
        if state.data.as_ref() != Some(&data) {
            state.data = Some(data);
            self.saved.store(true, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, NotesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a note is the first since the last write, which the flusher must hear of.
#[must_use]
pub(crate) struct FirstNote(pub(crate) bool);

/// Writes a run's checkpoint, if one is given, and whatever else waits. One attempt; the notes are kept if it fails.
pub(crate) async fn write(run: &LiveRun, data: Option<Json>) -> Result<()> {
    let notes = &run.notes;
    let _turn = notes.writing.lock().await;
    let save = notes.take_unwritten(data);
    if save == Save::default() {
        return Ok(());
    }
    let engine = &run.services.engine;
    match engine.store().save(run.lease.clone(), save.clone(), engine.clock().now()).await {
        Ok(()) => {
            if let Some(data) = save.data {
                notes.written(data);
            }
            Ok(())
        }
        Err(error) => {
            if error.is_transient() {
                notes.put_back(save);
            }
            Err(error)
        }
    }
}

/// Writes notes in the background.
#[derive(Default)]
pub(crate) struct Flusher {
    waiting: Mutex<Vec<Arc<LiveRun>>>,
    wake: Notify,
}

impl Flusher {
    /// This run has something to write.
    pub(crate) fn add(&self, run: Arc<LiveRun>) {
        self.lock().push(run);
        self.wake.notify_one();
    }

    /// Writes for ever: at once what comes after a quiet time, then again after each gap.
    pub(crate) async fn run(&self, queue: &Queue) {
        loop {
            self.wake.notified().await;
            let mut writes = JoinSet::new();
            // The lock is taken and left in this line: it must not be held while the runs are written.
            let waiting = std::mem::take(&mut *self.lock());
            for run in waiting {
                writes.spawn(async move { (write(&run, None).await, run) });
            }
            while let Some(written) = writes.join_next().await {
                let Ok((Err(error), run)) = written else { continue };
                if error.is_transient() {
                    self.add(run);
                } else {
                    // The executor learns of a lost lease when it settles; the notes are lost with it.
                    warn!(job_id = %run.job.id, %error, "notes could not be written");
                }
            }
            queue.clock().sleep_until(queue.clock().now() + FLUSH_GAP).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<LiveRun>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
