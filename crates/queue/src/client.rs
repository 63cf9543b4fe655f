//! The verbs of a caller: enqueue, cancel, retry, unpark, results, consume, explain. A thin layer over the store that
//! fills in ids and time and checks bounds before anything is written.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tracing::{Level, debug, enabled};

use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::events::EventPage;
use crate::graph;
use crate::job::{Job, JobChange, JobDetail, JobId, JobResult, NewJob, ProcessId};
use crate::limits::{AGEING_MAX, INSERT_MAX, Limits, PAGE_MAX, check_name};
use crate::logs::{self, SLICE};
use crate::outage::Outages;
use crate::state::State;
use crate::store::{
    CancelReply, Deleted, Enqueued, Filter, InsertOutcome, ListRequest, Page, ProcessInfo, QueueChange,
    RetryRequest, Signal, Store, UnparkRequest, UnparkTarget, Unparked, refusals,
};

mod explain;
mod pages;

pub use explain::Explanation;

use pages::Pages;

/// A handle on a store for callers. Cheap to clone.
#[derive(Clone)]
pub struct Queue {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    outages: Arc<Outages>,
}

impl Queue {
    /// A handle with default limits, and the time that counts for the store: its server's, or this machine's.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let clock = store.clock().unwrap_or_else(|| Arc::new(SystemClock));
        Self { store, clock, limits: Limits::default(), outages: Arc::default() }
    }

    /// Uses another clock.
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Uses other limits.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The store's last error, for as long as workers and duties on this handle and its clones cannot reach or write it.
    /// They try again until they can; who watches this tells people of it, and the log leaves that to them.
    pub fn outage(&self) -> watch::Receiver<Option<String>> {
        self.outages.watch()
    }

    pub(crate) fn outages(&self) -> &Outages {
        &self.outages
    }

    /// What this handle accepts.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Stores one job.
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued> {
        let mut enqueued = self.enqueue_many(vec![job]).await?;
        enqueued.pop().ok_or_else(|| Error::Corrupt("the store answered nothing for an insert".to_owned()))
    }

    /// Stores many jobs, all or none; they may depend on each other in any order. Refuses cycles.
    pub async fn enqueue_many(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        let jobs = self.prepare(jobs)?;
        let count = jobs.len();
        let job_id = logs::only(&jobs, |job| job.id);
        // Copied for the line at the end, and only where lines are written.
        let process_id =
            enabled!(Level::DEBUG).then(|| logs::common(&jobs, |job| job.process_id.as_ref()).cloned());
        let process_id = process_id.flatten();
        let process_id = process_id.as_ref().map(ProcessId::as_str);
        debug!(slice = SLICE, count, job_id, process_id, "ENTER enqueue");
        let started = Instant::now();
        let enqueued = self.store.insert(jobs, self.clock.now()).await;
        // Not always the id from above: a unique key may have been taken.
        let job_id = enqueued.as_ref().ok().and_then(|jobs| logs::only(jobs, |job| Some(job.id)));
        let (ok, elapsed_us) = (enqueued.is_ok(), started.elapsed().as_micros());
        let is_new = |enqueued: &&Enqueued| enqueued.how == InsertOutcome::Inserted;
        let inserted = enqueued.as_ref().map_or(0, |jobs| jobs.iter().filter(is_new).count());
        debug!(slice = SLICE, count, inserted, job_id, process_id, ok, elapsed_us, "EXIT enqueue");
        enqueued
    }

    pub(crate) fn prepare(&self, jobs: Vec<NewJob>) -> Result<Vec<NewJob>> {
        Self::prepare_jobs(jobs, &self.limits, self.clock.now())
    }

    /// Fills in ids and checks bounds: what [`Queue::enqueue_many`] does before it writes. For stores that enqueue
    /// inside a caller's own transaction.
    pub fn prepare_jobs(mut jobs: Vec<NewJob>, limits: &Limits, now: Timestamp) -> Result<Vec<NewJob>> {
        if jobs.len() > INSERT_MAX {
            return Err(Error::invalid(format!(
                "{} jobs in one submission, at most {INSERT_MAX} are allowed; send several",
                jobs.len()
            )));
        }
        // Ids of one submission follow each other, so that an index of ids grows at its end.
        let mut random = fastrand::u128(..);
        for job in &mut jobs {
            limits.check_job(job)?;
            job.id.get_or_insert_with(|| JobId::generate(now, random));
            random = JobId::next_random(random);
        }
        graph::check(&jobs)?;
        Ok(jobs)
    }

    /// One job with everything known of it.
    pub async fn get(&self, id: JobId) -> Result<JobDetail> {
        let found = self.store.get(vec![id]).await?.pop();
        found.ok_or_else(|| refusals::no_job(id))
    }

    /// A page of jobs, as full as it can be: goes on where the store's walk reached its bound. Who must answer within a
    /// time asks the store itself.
    pub async fn list(&self, request: ListRequest) -> Result<Page<Job>> {
        let limit = request.limit.clamp(1, PAGE_MAX);
        let mut page = self.store.list(request.clone()).await?;
        while page.partial {
            let rest = ListRequest { cursor: page.next, limit: limit - page.items.len(), ..request.clone() };
            let more = self.store.list(rest).await?;
            page.items.extend(more.items);
            page = Page { items: page.items, ..more };
        }
        Ok(page)
    }

    /// Cancels one job. A running one is asked to end.
    pub async fn cancel(&self, id: JobId) -> Result<CancelReply> {
        let reply = self.store.cancel(vec![id], self.clock.now()).await?.pop();
        match reply {
            None | Some(CancelReply::NotFound) => Err(refusals::no_job(id)),
            Some(reply) => Ok(reply),
        }
    }

    /// Cancels every unfinished job of a process.
    pub async fn cancel_process(&self, process_id: ProcessId) -> Result<u64> {
        self.cancel_where(Filter { process_id: Some(process_id), ..Filter::default() }).await
    }

    /// Cancels every unfinished job that matches, page by page, and says how many.
    pub async fn cancel_where(&self, filter: Filter) -> Result<u64> {
        let unfinished = |state: &State| !state.is_terminal();
        let states = if filter.states.is_empty() { State::ALL.to_vec() } else { filter.states.clone() };
        let filter = Filter { states: states.into_iter().filter(unfinished).collect(), ..filter };
        if filter.states.is_empty() {
            return Ok(0);
        }
        let mut cancelled = 0;
        let mut pages = Pages::new(self, filter);
        while let Some(ids) = pages.next().await? {
            let replies = self.store.cancel(ids, self.clock.now()).await?;
            let took =
                |reply: &&CancelReply| matches!(reply, CancelReply::Cancelled | CancelReply::Requested);
            cancelled += replies.iter().filter(took).count() as u64;
        }
        Ok(cancelled)
    }

    /// Puts a failed or cancelled job back, with its checkpoint or from the start.
    pub async fn retry(&self, id: JobId, keep_data: bool) -> Result<State> {
        let request = RetryRequest { ids: vec![id], keep_data, now: self.clock.now() };
        let reply = self.store.retry(request).await?.pop();
        reply.unwrap_or_else(|| Err(refusals::no_job(id)))
    }

    /// Puts every failed or cancelled job that matches back, and says how many.
    pub async fn retry_where(&self, filter: Filter, keep_data: bool) -> Result<u64> {
        let retryable = |state: &State| matches!(state, State::Failed | State::Cancelled);
        // Cancelled jobs come back only when named: somebody meant it.
        let states = if filter.states.is_empty() { vec![State::Failed] } else { filter.states.clone() };
        let filter = Filter { states: states.into_iter().filter(retryable).collect(), ..filter };
        if filter.states.is_empty() {
            return Ok(0);
        }
        let mut retried = 0;
        let mut pages = Pages::new(self, filter);
        while let Some(ids) = pages.next().await? {
            let replies = self.store.retry(RetryRequest { ids, keep_data, now: self.clock.now() }).await?;
            retried += replies.iter().filter(|reply| reply.is_ok()).count() as u64;
        }
        Ok(retried)
    }

    /// Releases a job held by failed parents: their edges are dropped.
    pub async fn unhold(&self, id: JobId) -> Result<State> {
        self.store.unhold(id, self.clock.now()).await
    }

    /// Changes a job that neither runs nor has succeeded; see [`JobChange`]. With a new payload a failed or cancelled job can be
    /// retried.
    pub async fn edit(&self, id: JobId, change: JobChange) -> Result<State> {
        self.limits.check_change(&change)?;
        self.store.edit(id, change, self.clock.now()).await
    }

    /// Starts a scheduled job now instead of at its time.
    pub async fn run_now(&self, id: JobId) -> Result<State> {
        self.store.run_now(id, self.clock.now()).await
    }

    /// Tells whoever waits for `key`, now or later. The first signal for a key counts.
    pub async fn unpark(&self, key: &str, signal: Signal) -> Result<Unparked> {
        check_name("key", key)?;
        self.send(UnparkTarget::Key(key.to_owned()), signal).await
    }

    /// Tells these parked jobs. When one of them is not parked the others are told all the same, and the error names
    /// it and its state.
    pub async fn unpark_jobs(&self, ids: Vec<JobId>, signal: Signal) -> Result<Unparked> {
        let unparked = self.send(UnparkTarget::Ids(ids.clone()), signal).await?;
        let Some(id) = ids.into_iter().find(|id| !unparked.jobs.contains(id)) else { return Ok(unparked) };
        let state = self.get(id).await?.job.state;
        let told = match unparked.jobs.len() {
            0 => String::new(),
            count => format!("; other jobs that were told: {count}"),
        };
        Err(Error::invalid(format!("job {id} is {state}, and only a parked job can be unparked{told}")))
    }

    /// Tells those of these jobs that wait for `key`. Repeating it is harmless: who was told waits for it no more.
    pub async fn unpark_waiting(&self, key: &str, ids: Vec<JobId>, signal: Signal) -> Result<Unparked> {
        self.send(UnparkTarget::Waiting { key: key.to_owned(), ids }, signal).await
    }

    async fn send(&self, target: UnparkTarget, signal: Signal) -> Result<Unparked> {
        if let Signal::Resume(value) | Signal::Done(value) = &signal {
            self.limits.check_value("signal", value)?;
        }
        self.store
            .unpark(UnparkRequest { target, signal, now: self.clock.now(), jitter: fastrand::f64() })
            .await
    }

    /// Stops claims from a queue; what runs goes on.
    pub async fn pause(&self, queue: &str) -> Result<()> {
        self.set_queue(QueueChange { name: queue.to_owned(), paused: Some(true), ..QueueChange::default() })
            .await
    }

    /// Lets claims from a queue go on.
    pub async fn resume(&self, queue: &str) -> Result<()> {
        self.set_queue(QueueChange { name: queue.to_owned(), paused: Some(false), ..QueueChange::default() })
            .await
    }

    /// Changes a queue's settings.
    pub async fn set_queue(&self, change: QueueChange) -> Result<()> {
        check_name("queue", &change.name)?;
        if let Some(Some(ageing)) = change.ageing
            && (ageing.as_millis() == 0 || ageing > AGEING_MAX)
        {
            return Err(Error::invalid("ageing must be at least a millisecond and at most a year"));
        }
        self.store.set_queue(change).await
    }

    /// How far a process has come.
    pub async fn process(&self, id: &ProcessId) -> Result<ProcessInfo> {
        let found = self.store.process(id.clone()).await?;
        found.ok_or_else(|| {
            Error::not_found(format!("there is no process {id}: it has no jobs, or all are consumed"))
        })
    }

    /// Leaves a process open for more jobs: what waits for it waits for [`Queue::seal`] too.
    pub async fn open_process(&self, id: ProcessId) -> Result<()> {
        check_name("process_id", id.as_str())?;
        self.store.seal(id, false, self.clock.now()).await
    }

    /// Says that a process gets no more jobs.
    pub async fn seal(&self, id: ProcessId) -> Result<()> {
        self.store.seal(id, true, self.clock.now()).await
    }

    /// Ended jobs of a process after `after` (0 at first), in submission order.
    pub async fn results(&self, process_id: &ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>> {
        let started = Instant::now();
        debug!(slice = SLICE, %process_id, after, limit, "ENTER results");
        let page = self.store.results(process_id.clone(), after, limit.clamp(1, PAGE_MAX)).await;
        let count = page.as_ref().map_or(0, |page| page.items.len());
        let (ok, elapsed_us) = (page.is_ok(), started.elapsed().as_micros());
        debug!(slice = SLICE, %process_id, count, ok, elapsed_us, "EXIT results");
        page
    }

    /// Acknowledges results: deletes exactly these ended jobs for good. Store them first: a crash in between repeats
    /// delivery, the other order would lose it.
    pub async fn consume(&self, ids: Vec<JobId>) -> Result<Deleted> {
        let started = Instant::now();
        let job_id = logs::only(&ids, |id| Some(*id));
        debug!(slice = SLICE, count = ids.len(), job_id, "ENTER consume");
        let deleted = self.store.delete(ids).await;
        let (count, refused) =
            deleted.as_ref().map_or((0, 0), |deleted| (deleted.deleted, deleted.refused.len()));
        let (ok, elapsed_us) = (deleted.is_ok(), started.elapsed().as_micros());
        debug!(slice = SLICE, count, job_id, refused, ok, elapsed_us, "EXIT consume");
        deleted
    }

    /// Deletes a whole process for good. Refused while a job of it is unfinished or more may come, and what comes in
    /// the meantime is left alone, so that nothing unread is deleted.
    pub async fn consume_process(&self, process_id: &ProcessId) -> Result<u64> {
        let filter = Filter { process_id: Some(process_id.clone()), ..Filter::default() };
        // Before the check: whatever is enqueued after this line has a higher number, and is not what was checked.
        let newest = ListRequest { filter: filter.clone(), newest_first: true, cursor: None, limit: 1 };
        let Some(newest) = self.list(newest).await?.items.pop() else { return Ok(0) };
        let Some(info) = self.store.process(process_id.clone()).await? else { return Ok(0) };
        if info.unfinished() > 0 {
            return Err(Error::invalid(format!(
                "process {process_id} has {} unfinished jobs and cannot be consumed yet; wait for it, or cancel it",
                info.unfinished()
            )));
        }
        if !info.sealed {
            return Err(Error::invalid(format!(
                "process {process_id} is open for more jobs and cannot be consumed yet; seal it first"
            )));
        }
        self.delete_up_to(filter, Some(newest.seq)).await
    }

    /// Deletes every ended job that matches, page by page, and says how many.
    pub async fn delete_where(&self, filter: Filter) -> Result<u64> {
        self.delete_up_to(filter, None).await
    }

    async fn delete_up_to(&self, filter: Filter, last_seq: Option<i64>) -> Result<u64> {
        let states = if filter.states.is_empty() { State::ALL.to_vec() } else { filter.states.clone() };
        let filter =
            Filter { states: states.into_iter().filter(|state| state.is_terminal()).collect(), ..filter };
        if filter.states.is_empty() {
            return Ok(0);
        }
        let mut deleted = 0;
        let mut pages = Pages::up_to(self, filter, last_seq);
        while let Some(ids) = pages.next().await? {
            deleted += self.consume(ids).await?.deleted;
        }
        Ok(deleted)
    }

    /// What has changed after an event's id, oldest first; `None` starts with the newest. Wait for more with
    /// [`Queue::changes`].
    pub async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage> {
        self.store.events(after, limit.clamp(1, PAGE_MAX)).await
    }

    /// Changes whenever something in the store may have changed: a reason to look, never proof.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.store.watch()
    }

    /// Why a job waits, and until when.
    pub async fn explain(&self, id: JobId) -> Result<Explanation> {
        let detail = self.get(id).await?;
        explain::explain(self, &detail).await
    }
}
