//! A batch as clients see it, read from its job and its run, and what can be done with it.

use std::time::Duration;

use longhaul_llm::Usage;
use longhaul_llm::provider::BatchState;
use longhaul_queue::store::{Filter, ListRequest, Page, Signal};
use longhaul_queue::{Error as QueueError, Job, JobDetail, JobId, Json, State, Timestamp};

use super::{BatchPayload, Counts, Ended, Form, KIND, Kept, LineFault, SdkBatches, Told, key_of, run_of};
use crate::{Error, Result, manage};

/// How often and how long a cancel waits for a batch that is being checked or submitted.
const TELL_TRIES_MAX: u32 = 100;
const TELL_WAIT: Duration = Duration::from_millis(100);

/// A batch as clients see it.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its job.
    pub id: JobId,
    /// What it was given.
    pub payload: BatchPayload,
    /// When it was created.
    pub created_at: Timestamp,
    /// Where it stands.
    pub state: BatchState,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How its requests stand.
    pub counts: Counts,
    /// What the answers used, once it has ended.
    pub usage: Option<Usage>,
    /// Bytes of the lines with an answer, and of those without, once it has ended.
    pub bytes: (u64, u64),
    /// Lines that could not be read, or why it failed as a whole.
    pub faults: Vec<LineFault>,
    /// What it remembers.
    pub kept: Kept,
}

/// Which page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newer {
    /// Those that are older than this one, or the newest.
    Older(Option<JobId>),
    /// Those that are newer than this one.
    Newer(JobId),
}

impl SdkBatches {
    /// The batch of a job; `None` where there is no such job, or it is no batch.
    pub async fn get(&self, id: JobId) -> Result<Option<Batch>> {
        match self.queue().store().get(vec![id]).await?.pop() {
            Some(detail) if detail.job.kind == KIND => self.read(detail).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Batches of a form, newest first: those of one owner, or all.
    pub async fn list(
        &self,
        form: Form,
        owner: Option<&str>,
        from: Newer,
        limit: usize,
    ) -> Result<Page<Batch>> {
        let tag = owner.map_or_else(|| form.tag().to_owned(), |owner| form.tag_of(owner));
        let (newest_first, from) = match from {
            Newer::Older(from) => (true, from),
            Newer::Newer(from) => (false, Some(from)),
        };
        let cursor = match from {
            Some(id) => Some(self.queue().get(id).await?.job.seq),
            None => None,
        };
        let filter = Filter { tag: Some(tag), ..Filter::default() };
        let page = self.queue().list(ListRequest { filter, newest_first, cursor, limit }).await?;
        let mut ids: Vec<JobId> = page.items.iter().map(|job| job.id).collect();
        if !newest_first {
            ids.reverse();
        }
        let mut items = Vec::with_capacity(page.items.len());
        for detail in self.queue().store().get(ids).await? {
            items.push(self.read(detail).await?);
        }
        Ok(Page { items, next: page.next, partial: page.partial })
    }

    /// Whether the answers of a batch are still there.
    pub async fn has_results(&self, batch: &Batch) -> Result<bool> {
        Ok(self.queue().store().process(run_of(batch.id).process()).await?.is_some())
    }

    /// Deletes the answers of a batch that has ended.
    pub async fn delete_results(&self, batch: &Batch) -> Result<()> {
        if !batch.state.is_terminal() {
            return Err(Error::Invalid("the batch has not ended: cancel it first".to_owned()));
        }
        if self.has_results(batch).await? {
            manage::remove(&self.parts().prompts, &run_of(batch.id)).await?;
        }
        Ok(())
    }

    /// Deletes a batch that has ended, its answers and its input for good.
    pub async fn delete(&self, batch: &Batch) -> Result<()> {
        self.delete_results(batch).await?;
        self.queue().consume(vec![batch.id]).await?;
        let deleted = self.parts().uploads.delete(&batch.payload.input_file).await;
        deleted.map_err(|error| QueueError::Unavailable(error.to_string()))?;
        Ok(())
    }

    /// Asks a batch to end. What has been answered by then is kept.
    pub async fn cancel(&self, id: JobId) -> Result<Batch> {
        for _ in 0..TELL_TRIES_MAX {
            let missing = || QueueError::NotFound(format!("there is no batch {id}"));
            let batch = self.get(id).await?.ok_or_else(missing)?;
            if batch.state.is_terminal() || batch.state == BatchState::Cancelling {
                return Ok(batch);
            }
            if self.tell(id, Told::Cancel).await? {
                continue;
            }
            if self.is_waiting(id).await? {
                // Nobody has looked at it yet: there is nothing to end but the job.
                self.queue().cancel(id).await?;
                continue;
            }
            tokio::time::sleep(TELL_WAIT).await;
        }
        let text = "the batch is being checked: try again in a moment";
        Err(QueueError::Unavailable(text.to_owned()).into())
    }

    async fn is_waiting(&self, id: JobId) -> Result<bool> {
        let job = self.queue().get(id).await?.job;
        Ok(job.started_at.is_none() && matches!(job.state, State::Ready | State::Scheduled))
    }

    /// Tells a batch something if it is parked, and says whether it was.
    pub(super) async fn tell(&self, id: JobId, told: Told) -> Result<bool> {
        let signal = Signal::Resume(Json::of(&told)?);
        Ok(!self.queue().unpark_waiting(&key_of(id), vec![id], signal).await?.jobs.is_empty())
    }

    /// The batch of a job that was read.
    pub(super) async fn read(&self, detail: JobDetail) -> Result<Batch> {
        let payload: BatchPayload = detail.payload.to()?;
        let JobDetail { job, data, result, .. } = detail;
        let base = Batch {
            id: job.id,
            payload,
            created_at: job.created_at,
            state: BatchState::Queued,
            ended_at: job.finished_at,
            counts: Counts::default(),
            usage: None,
            bytes: (0, 0),
            faults: Vec::new(),
            kept: Kept::default(),
        };
        if let Some(result) = result {
            let Ended { state, faults, counts, usage, bytes, kept } = result.to()?;
            return Ok(Batch { state, faults, counts, usage: Some(usage), bytes, kept, ..base });
        }
        match job.state {
            State::Cancelled => Ok(Batch { state: BatchState::Cancelled, ..base }),
            State::Failed => {
                let message = job.error.as_ref().map_or_else(String::new, |error| error.text.clone());
                let fault = LineFault { code: "server_error".to_owned(), line: None, message, param: None };
                Ok(Batch { state: BatchState::Failed, faults: vec![fault], ..base })
            }
            State::Blocked
            | State::Scheduled
            | State::Ready
            | State::Running
            | State::Parked
            | State::Succeeded => self.under_way(base, &job, data).await,
        }
    }

    async fn under_way(&self, base: Batch, job: &Job, data: Option<Json>) -> Result<Batch> {
        let kept: Kept = data.map(|data| data.to()).transpose()?.unwrap_or_default();
        let Some(total) = kept.total else { return Ok(base) };
        let counts = self.counts(job.id, total).await?;
        let all_ended = counts.completed + counts.failed + counts.not_run >= total;
        let state = match () {
            () if kept.cancelling_at.is_some() => BatchState::Cancelling,
            () if all_ended => BatchState::Finalizing,
            () => BatchState::Running,
        };
        Ok(Batch { state, counts, kept, ..base })
    }

    /// How the requests of a batch stand, from the maintained counters.
    pub(super) async fn counts(&self, id: JobId, total: u64) -> Result<Counts> {
        let info = self.queue().store().process(run_of(id).process()).await?;
        let count = |state: State| info.as_ref().map_or(0, |info| info.counts[state as usize]);
        Ok(Counts {
            total,
            completed: count(State::Succeeded),
            failed: count(State::Failed),
            not_run: count(State::Cancelled),
        })
    }
}
