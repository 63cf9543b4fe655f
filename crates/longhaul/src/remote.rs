//! A store that is a running server (`--server`): what callers ask goes over the public API. Workers and maintenance run at the
//! server, so there is no second half of the seam here.

mod http;
mod runs;
pub(crate) mod sheets;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use longhaul_api::counts::CountOut;
use longhaul_api::events::EventsOut;
use longhaul_api::job_out::{EnqueuedOut, JobDetailOut, JobOut};
use longhaul_api::jobs::ManyJobs;
use longhaul_api::page::{Listed, cursor_of};
use longhaul_api::processes::{ProcessOut, Results};
use longhaul_api::queues::{QueueIn, QueueOut};
use longhaul_api::schedules::{ScheduleIn, ScheduleOut};
use longhaul_api::verbs::{ChangeIn, ChangeMade, Changed, RetryIn, SignalIn, Signalled};
use longhaul_api::workers::WorkerOut;
use longhaul_queue::events::EventPage;
use longhaul_queue::job::JobResult;
use longhaul_queue::store::{
    CancelReply, Caps, Count, Deleted, Enqueued, ListRequest, Page, ProcessInfo, QueueChange, QueueInfo,
    RetryRequest, Schedule, UnparkRequest, UnparkTarget, Unparked, WorkerInfo,
};
use longhaul_queue::{
    Error, Job, JobChange, JobDetail, JobId, NewJob, ProcessId, Result, State, Store, Timestamp,
};
use reqwest::{Method, Url};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::exit::{Code, Failure};

pub(crate) use http::{Api, TOKEN_NAME};
pub(crate) use runs::{RemoteRun, RemoteRuns};

/// Calls of one request under way at once, where each job takes a call.
const CALLS_AT_ONCE: usize = 16;
/// Between two attempts to hear of changes.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// A running server.
pub(crate) struct Server {
    api: Arc<Api>,
    changes: watch::Sender<u64>,
    listening: OnceLock<AbortHandle>,
}

impl Server {
    /// The server at a URL.
    pub(crate) fn new(url: Url, token: Option<String>) -> Result<Self> {
        Ok(Self {
            api: Arc::new(Api::new(url, token)?),
            changes: watch::Sender::new(0),
            listening: OnceLock::new(),
        })
    }

    /// One call for each job, answered in their order.
    async fn each<T, F>(&self, ids: Vec<JobId>, call: impl Fn(Arc<Api>, String) -> F + Send) -> Result<Vec<T>>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let calls: Vec<F> = ids.into_iter().map(|id| call(Arc::clone(&self.api), id.to_string())).collect();
        stream::iter(calls).buffered(CALLS_AT_ONCE).try_collect().await
    }

    async fn verb(&self, id: JobId, verb: &str) -> Result<State> {
        let path = ["jobs", &id.to_string(), verb];
        let changed: Changed = self.api.send(Method::POST, &path, None::<&()>).await?;
        state_of(&changed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.get() {
            listening.abort();
        }
    }
}

/// Tells of every change that the server tells of, and of every time that it could not be heard.
async fn listen(api: Arc<Api>, changes: watch::Sender<u64>) {
    loop {
        if let Ok(mut events) = api.events().await {
            while let Ok(Some(_)) = events.chunk().await {
                changes.send_modify(|number| *number += 1);
            }
        }
        changes.send_modify(|number| *number += 1);
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

/// The state after a change, which every verb tells but a deletion.
fn state_of(changed: &Changed) -> Result<State> {
    let id = changed.id;
    changed.state.ok_or_else(|| Error::Corrupt(format!("the server does not tell the state of job {id}")))
}

/// A page of the server as one of the queue.
fn page<T: Into<U>, U>(listed: Listed<T>) -> Result<Page<U>> {
    let Listed { items, next, partial } = listed;
    let next = next.as_deref().map(seq_of).transpose()?;
    Ok(Page { items: all(items), next, partial })
}

fn all<T: Into<U>, U>(items: Vec<T>) -> Vec<U> {
    items.into_iter().map(Into::into).collect()
}

/// The place that a cursor of the server means.
fn seq_of(cursor: &str) -> Result<i64> {
    longhaul_api::page::seq_of(cursor)
        .ok_or_else(|| Error::Corrupt(format!("{cursor:?} is not a cursor of this version")))
}

/// What the server refuses is wrong usage, as it is without a server.
pub(crate) fn refused(error: Error) -> anyhow::Error {
    match error {
        Error::Invalid(text) => Failure::new(Code::Usage, text).into(),
        error => error.into(),
    }
}

/// A missing thing is `None`.
fn found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A refusal is one job's; a server that cannot be reached, or a token that does not suffice, is everybody's.
fn judged<T>(answer: Result<T>) -> Result<Result<T>> {
    match answer {
        Err(error) if error.is_transient() || matches!(error, Error::Denied(_)) => Err(error),
        answer => Ok(answer),
    }
}

#[async_trait]
impl Store for Server {
    fn caps(&self) -> Caps {
        Caps {
            name: "server",
            durability: format!("that of the server at {}", self.api.url()),
            advice: None,
            shared: true,
        }
    }

    fn watch(&self) -> watch::Receiver<u64> {
        let receiver = self.changes.subscribe();
        self.listening
            .get_or_init(|| tokio::spawn(listen(Arc::clone(&self.api), self.changes.clone())).abort_handle());
        receiver
    }

    async fn insert(&self, jobs: Vec<NewJob>, _now: Timestamp) -> Result<Vec<Enqueued>> {
        let body = ManyJobs { jobs: all(jobs) };
        let enqueued: Vec<EnqueuedOut> = self.api.send(Method::POST, &["jobs"], Some(&body)).await?;
        Ok(all(enqueued))
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>> {
        let look = |api: Arc<Api>, id: String| async move {
            found(api.get::<JobDetailOut>(&["jobs", &id], &[]).await)
        };
        Ok(self.each(ids, look).await?.into_iter().flatten().map(Into::into).collect())
    }

    async fn list(&self, request: ListRequest) -> Result<Page<Job>> {
        let order = if request.newest_first { "newest" } else { "oldest" };
        let mut query = vec![("order", order.to_owned()), ("limit", request.limit.to_string())];
        query.push(("search", request.filter.to_string()));
        query.extend(request.cursor.map(|seq| ("cursor", cursor_of(seq))));
        page(self.api.get::<Listed<JobOut>>(&["jobs"], &query).await?)
    }

    async fn counts(&self) -> Result<Vec<Count>> {
        Ok(all(self.api.get::<Listed<CountOut>>(&["counts"], &[]).await?.items))
    }

    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked> {
        let (key, ids) = match request.target {
            UnparkTarget::Key(key) => (Some(key), None),
            UnparkTarget::Ids(ids) => (None, Some(ids)),
            UnparkTarget::Waiting { key, ids } => (Some(key), Some(ids)),
        };
        let body = SignalIn { key, ids, signal: request.signal.into() };
        let reached: Signalled = self.api.send(Method::POST, &["signals"], Some(&body)).await?;
        Ok(reached.into())
    }

    async fn cancel(&self, ids: Vec<JobId>, _now: Timestamp) -> Result<Vec<CancelReply>> {
        let cancel = |api: Arc<Api>, id: String| async move {
            let answer = api.send::<Changed>(Method::POST, &["jobs", &id, "cancel"], None::<&()>).await;
            Ok(match found(answer)? {
                None => CancelReply::NotFound,
                Some(Changed { change: ChangeMade::Cancelled, .. }) => CancelReply::Cancelled,
                Some(Changed { change: ChangeMade::Requested, .. }) => CancelReply::Requested,
                Some(changed) => CancelReply::Ended(state_of(&changed)?),
            })
        };
        self.each(ids, cancel).await
    }

    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>> {
        let keep_data = request.keep_data;
        let retry = |api: Arc<Api>, id: String| async move {
            let body = RetryIn { keep_data };
            let answer = api.send::<Changed>(Method::POST, &["jobs", &id, "retry"], Some(&body)).await;
            judged(answer.map(|changed| changed.state.unwrap_or(State::Ready)))
        };
        self.each(request.ids, retry).await
    }

    async fn unhold(&self, id: JobId, _now: Timestamp) -> Result<State> {
        self.verb(id, "unhold").await
    }

    async fn edit(&self, id: JobId, change: JobChange, _now: Timestamp) -> Result<State> {
        let change = ChangeIn::from(change);
        let changed: Changed =
            self.api.send(Method::PATCH, &["jobs", &id.to_string()], Some(&change)).await?;
        state_of(&changed)
    }

    async fn run_now(&self, id: JobId, _now: Timestamp) -> Result<State> {
        self.verb(id, "run-now").await
    }

    async fn results(&self, process_id: ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>> {
        let mut query = vec![("limit", limit.to_string()), ("cursor", cursor_of(after))];
        if !self.api.has_token() {
            // Results are stored and then deleted at the server, so they are needed whole. With a token, its scopes decide.
            query.push(("secrets", true.to_string()));
        }
        let path = ["processes", process_id.as_str(), "results"];
        let answer: Option<Results> = found(self.api.get(&path, &query).await)?;
        let (items, next) = answer.map_or_else(Default::default, |results| (results.items, results.next));
        page(Listed { items, next, partial: false })
    }

    async fn delete(&self, ids: Vec<JobId>) -> Result<Deleted> {
        let delete = |api: Arc<Api>, id: String| async move {
            let answer = api.send::<Changed>(Method::DELETE, &["jobs", &id], None::<&()>).await;
            judged(found(answer).map(|deleted| u64::from(deleted.is_some())))
        };
        let mut all = Deleted::default();
        for (id, deleted) in ids.clone().into_iter().zip(self.each(ids, delete).await?) {
            match deleted {
                Ok(deleted) => all.deleted += deleted,
                Err(error) => all.refused.push((id, error)),
            }
        }
        Ok(all)
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        Ok(all(self.api.get::<Listed<QueueOut>>(&["queues"], &[]).await?.items))
    }

    async fn set_queue(&self, change: QueueChange) -> Result<()> {
        let name = change.name.clone();
        let body = QueueIn::from(change);
        self.api.send::<Value>(Method::PATCH, &["queues", &name], Some(&body)).await.map(drop)
    }

    async fn processes(&self, after: Option<ProcessId>, limit: usize) -> Result<Vec<ProcessInfo>> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(after.map(|id| ("cursor", id.as_str().to_owned())));
        Ok(all(self.api.get::<Listed<ProcessOut>>(&["processes"], &query).await?.items))
    }

    async fn process(&self, id: ProcessId) -> Result<Option<ProcessInfo>> {
        let answer: Option<ProcessOut> = found(self.api.get(&["processes", id.as_str()], &[]).await)?;
        Ok(answer.map(Into::into))
    }

    async fn seal(&self, id: ProcessId, sealed: bool, _now: Timestamp) -> Result<()> {
        let path = ["processes", id.as_str(), if sealed { "seal" } else { "open" }];
        self.api.send::<Value>(Method::POST, &path, None::<&()>).await.map(drop)
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        Ok(all(self.api.get::<Listed<ScheduleOut>>(&["schedules"], &[]).await?.items))
    }

    async fn put_schedule(&self, schedule: Schedule) -> Result<()> {
        let name = schedule.name.clone();
        let body = ScheduleIn::from(schedule);
        self.api.send::<Value>(Method::PUT, &["schedules", &name], Some(&body)).await.map(drop)
    }

    async fn delete_schedule(&self, name: String) -> Result<bool> {
        let answer = self.api.send::<Value>(Method::DELETE, &["schedules", &name], None::<&()>).await;
        Ok(found(answer)?.is_some())
    }

    async fn workers(&self, _now: Timestamp) -> Result<Vec<WorkerInfo>> {
        Ok(all(self.api.get::<Listed<WorkerOut>>(&["workers"], &[]).await?.items))
    }

    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(after.map(|id| ("after", id.to_string())));
        Ok(self.api.get::<EventsOut>(&["events"], &query).await?.into())
    }
}
