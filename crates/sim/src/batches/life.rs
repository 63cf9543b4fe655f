//! The life of one batch: its states by time, which lines have run, and its results.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Batch, BatchView};
use crate::options::BatchOptions;
use crate::sim_core::SimCore;
use longhaul_llm::provider::{BatchLine, BatchState, LineOutcome};

/// When a batch passes from state to state, counted from its creation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    queue: Duration,
    run: Duration,
    finalize: Duration,
    cancel: Duration,
    window: Duration,
}

impl Plan {
    pub(super) fn new(options: &BatchOptions) -> Self {
        let (queue, window) = (options.scaled(options.queue_s), options.window());
        let run = match options.expire_after {
            // So slow that only this part is done when time is up.
            Some(part) => window.saturating_sub(queue).div_f64(part.clamp(0.001, 0.999)),
            None => options.scaled(options.run_s),
        };
        let finalize = options.scaled(options.finalize_s);
        Self { queue, run, finalize, cancel: options.scaled(options.cancel_s), window }
    }

    fn expires(&self) -> bool {
        self.queue + self.run > self.window
    }
}

/// What has happened to a batch.
#[derive(Debug, Default)]
pub(super) struct Life {
    pub(super) cancelled: Option<Instant>,
    pub(super) failed: Option<(String, String)>,
    /// The attempt of each line that has run, in the order of running.
    pub(super) attempts: Vec<u32>,
    pub(super) failed_lines: u64,
    pub(super) polls: u32,
}

impl Batch {
    pub(super) fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_at(&self, life: &Life, now: Instant) -> BatchState {
        let plan = &self.plan;
        let age = now.saturating_duration_since(self.created);
        if let Some(cancelled) = life.cancelled {
            let ended = now.saturating_duration_since(cancelled) >= plan.cancel;
            return if ended { BatchState::Cancelled } else { BatchState::Cancelling };
        }
        if age < plan.queue {
            BatchState::Queued
        } else if life.failed.is_some() {
            BatchState::Failed
        } else if plan.expires() {
            if age < plan.window { BatchState::Running } else { BatchState::Expired }
        } else if age < plan.queue + plan.run {
            BatchState::Running
        } else if age < plan.queue + plan.run + plan.finalize {
            BatchState::Finalizing
        } else {
            BatchState::Completed
        }
    }

    /// How many lines have run by now.
    pub(super) fn lines_due(&self, life: &Life, now: Instant) -> usize {
        if life.failed.is_some() {
            return 0;
        }
        let until = life.cancelled.unwrap_or(now).min(now).min(self.created + self.plan.window);
        let ran = until.saturating_duration_since(self.created).saturating_sub(self.plan.queue);
        let total = self.order.len();
        if ran >= self.plan.run {
            return if until < self.created + self.plan.queue { 0 } else { total };
        }
        ((total as f64 * ran.as_secs_f64() / self.plan.run.as_secs_f64()) as usize).min(total)
    }

    pub(super) fn view_at(&self, life: &Life, now: Instant) -> BatchView {
        let plan = &self.plan;
        let state = self.state_at(life, now);
        let ended_after = match state {
            BatchState::Completed => Some(plan.queue + plan.run + plan.finalize),
            BatchState::Expired => Some(plan.window),
            BatchState::Failed => Some(plan.queue),
            BatchState::Cancelled => {
                life.cancelled.map(|at| at.saturating_duration_since(self.created) + plan.cancel)
            }
            BatchState::Queued | BatchState::Running | BatchState::Finalizing | BatchState::Cancelling => {
                None
            }
        };
        let (total, ran) = (self.order.len() as u64, life.attempts.len() as u64);
        BatchView {
            state,
            total,
            completed: ran - life.failed_lines,
            failed: life.failed_lines,
            not_run: if state.is_terminal() { total - ran } else { 0 },
            expires_ms: self.created_ms + millis(plan.window),
            cancel_ms: life
                .cancelled
                .map(|at| self.created_ms + millis(at.saturating_duration_since(self.created))),
            ended_ms: ended_after.map(|after| self.created_ms + millis(after)),
            error: life.failed.clone().filter(|_| state == BatchState::Failed),
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A line of results: a place in the order, or nobody's.
#[derive(Debug, Clone, Copy)]
enum Place {
    Ran(usize),
    NotRun(usize),
    Unknown(usize),
}

/// The results of an ended batch, made as they are read.
#[derive(Debug)]
pub struct Lines {
    core: Arc<SimCore>,
    batch: Arc<Batch>,
    places: Vec<Place>,
    next: usize,
}

impl SimCore {
    /// The results of a batch; `None` until it has ended, and for one that failed as a whole.
    pub fn batch_lines(self: &Arc<Self>, batch: &Arc<Batch>) -> Option<Lines> {
        let view = self.view_batch(batch);
        if !view.state.is_terminal() || view.state == BatchState::Failed {
            return None;
        }
        let options = &self.options.batch;
        let ran = batch.life().attempts.len();
        let mut places: Vec<Place> = (0..ran.saturating_sub(options.lines_missing)).map(Place::Ran).collect();
        places.extend((ran..batch.order.len()).map(Place::NotRun));
        places.extend((0..options.lines_duplicated.min(ran)).map(Place::Ran));
        places.extend((0..if ran > 0 { options.lines_unknown } else { 0 }).map(Place::Unknown));
        Some(Lines { core: Arc::clone(self), batch: Arc::clone(batch), places, next: 0 })
    }
}

impl Iterator for Lines {
    type Item = BatchLine;

    fn next(&mut self) -> Option<BatchLine> {
        let place = *self.places.get(self.next)?;
        self.next += 1;
        Some(match place {
            Place::Ran(place) => self.line(place, None),
            Place::Unknown(number) => self.line(0, Some(format!("unknown-{number}"))),
            Place::NotRun(place) => {
                let item = &self.batch.given.items[self.batch.order[place] as usize];
                BatchLine { custom_id: Some(item.custom_id.clone()), outcome: LineOutcome::NotRun }
            }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.places.len() - self.next;
        (left, Some(left))
    }
}

impl Lines {
    fn line(&self, place: usize, name: Option<String>) -> BatchLine {
        let index = self.batch.order[place] as usize;
        let item = &self.batch.given.items[index];
        let attempt = self.batch.life().attempts[place];
        let outcome = match self.core.answer_line(&self.batch, index, attempt) {
            Ok((answer, _)) => LineOutcome::Answered(Box::new(answer)),
            Err(error) => LineOutcome::Failed(Box::new(error)),
        };
        BatchLine { custom_id: Some(name.unwrap_or_else(|| item.custom_id.clone())), outcome }
    }
}
