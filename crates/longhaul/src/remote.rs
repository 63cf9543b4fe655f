//! A store that is a running server (`--server`): what callers ask goes over the public API. Workers and maintenance run at the
//! server, so there is no second half of the seam here.

mod forms;
mod http;
mod runs;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use longhaul_api::page::{Listed, cursor_of};
use longhaul_queue::events::EventPage;
use longhaul_queue::job::JobResult;
use longhaul_queue::store::{
    CancelReply, Caps, Count, Deleted, Enqueued, ListRequest, Page, ProcessInfo, QueueChange, QueueInfo,
    RetryRequest, Schedule, Signal, UnparkRequest, UnparkTarget, Unparked, WorkerInfo,
};
use longhaul_queue::{
    Error, Job, JobChange, JobDetail, JobId, NewJob, ProcessId, Result, State, Store, Timestamp,
};
use reqwest::{Method, Url};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::exit::{Code, Failure};

use forms::Changed;
pub(crate) use http::{Api, TOKEN_NAME};
pub(crate) use runs::{RemoteRuns, write_table};

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
        changed.state(id)
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

/// A refusal is one job's, a server that cannot be reached is everybody's.
fn judged<T>(answer: Result<T>) -> Result<Result<T>> {
    match answer {
        Err(error) if error.is_transient() => Err(error),
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
        let body = forms::Submission { jobs: jobs.iter().map(Into::into).collect() };
        self.api.send(Method::POST, &["jobs"], Some(&body)).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>> {
        let look = |api: Arc<Api>, id: String| async move {
            let Some(text) = found(api.bytes(&["jobs", &id]).await)? else { return Ok(None) };
            forms::detail(&text).map(Some).map_err(|error| api.strange(&error))
        };
        Ok(self.each(ids, look).await?.into_iter().flatten().collect())
    }

    async fn list(&self, request: ListRequest) -> Result<Page<Job>> {
        let order = if request.newest_first { "newest" } else { "oldest" };
        let mut query = vec![("order", order.to_owned()), ("limit", request.limit.to_string())];
        query.push(("search", request.filter.to_string()));
        query.extend(request.cursor.map(|seq| ("cursor", cursor_of(seq))));
        let Listed { items, next, partial } = self.api.get(&["jobs"], &query).await?;
        Ok(Page { items, next: next.as_deref().map(seq_of).transpose()?, partial })
    }

    async fn counts(&self) -> Result<Vec<Count>> {
        Ok(self.api.get::<Listed<Count>>(&["counts"], &[]).await?.items)
    }

    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked> {
        let signal = match request.signal {
            Signal::Resume(value) => json!({ "resume": value }),
            Signal::Done(value) => json!({ "done": value }),
            Signal::Retry(error) => json!({ "retry": error.text }),
            Signal::Fail(error) => json!({ "fail": error.text }),
        };
        let body = match request.target {
            UnparkTarget::Key(key) => json!({ "key": key, "signal": signal }),
            UnparkTarget::Ids(ids) => json!({ "ids": ids, "signal": signal }),
            UnparkTarget::Waiting { key, ids } => json!({ "key": key, "ids": ids, "signal": signal }),
        };
        self.api.send(Method::POST, &["signals"], Some(&body)).await
    }

    async fn cancel(&self, ids: Vec<JobId>, _now: Timestamp) -> Result<Vec<CancelReply>> {
        let cancel = |api: Arc<Api>, id: String| async move {
            let answer = api.send::<Changed>(Method::POST, &["jobs", &id, "cancel"], None::<&()>).await;
            Ok(match found(answer)? {
                None => CancelReply::NotFound,
                Some(changed) => match (changed.change.as_str(), changed.state) {
                    ("cancelled", _) => CancelReply::Cancelled,
                    ("requested", _) => CancelReply::Requested,
                    (_, Some(state)) => CancelReply::Ended(state),
                    (other, None) => {
                        return Err(Error::Corrupt(format!("the server says {other:?} of job {id}")));
                    }
                },
            })
        };
        self.each(ids, cancel).await
    }

    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>> {
        let keep_data = request.keep_data;
        let retry = |api: Arc<Api>, id: String| async move {
            let body = json!({ "keep_data": keep_data });
            let answer = api.send::<Changed>(Method::POST, &["jobs", &id, "retry"], Some(&body)).await;
            judged(answer.map(|changed| changed.state.unwrap_or(State::Ready)))
        };
        self.each(request.ids, retry).await
    }

    async fn unhold(&self, id: JobId, _now: Timestamp) -> Result<State> {
        self.verb(id, "unhold").await
    }

    async fn edit(&self, id: JobId, change: JobChange, _now: Timestamp) -> Result<State> {
        let changed: Changed =
            self.api.send(Method::PATCH, &["jobs", &id.to_string()], Some(&change)).await?;
        changed.state(id)
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
        let answer: Option<Listed<JobResult>> = found(self.api.get(&path, &query).await)?;
        let Some(Listed { items, next, partial }) = answer else {
            return Ok(Page { items: Vec::new(), next: None, partial: false });
        };
        Ok(Page { items, next: next.as_deref().map(seq_of).transpose()?, partial })
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
        let listed: Listed<forms::Queue> = self.api.get(&["queues"], &[]).await?;
        Ok(listed.items.into_iter().map(Into::into).collect())
    }

    async fn set_queue(&self, change: QueueChange) -> Result<()> {
        let mut body = serde_json::Map::new();
        body.extend(change.paused.map(|paused| ("paused".to_owned(), json!(paused))));
        body.extend(change.max_running.map(|limit| ("max_running".to_owned(), json!(limit))));
        let per_key = change.max_running_per_key;
        body.extend(per_key.map(|limit| ("max_running_per_key".to_owned(), json!(limit))));
        let ageing_ms = change.ageing.map(|ageing| ageing.map(|ageing| ageing.as_millis() as u64));
        body.extend(ageing_ms.map(|ageing_ms| ("ageing_ms".to_owned(), json!(ageing_ms))));
        body.extend(change.retention.map(|rule| ("retention".to_owned(), json!(rule))));
        self.api.send::<Value>(Method::PATCH, &["queues", &change.name], Some(&body)).await.map(drop)
    }

    async fn processes(&self, after: Option<ProcessId>, limit: usize) -> Result<Vec<ProcessInfo>> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(after.map(|id| ("cursor", id.as_str().to_owned())));
        let listed: Listed<forms::Process> = self.api.get(&["processes"], &query).await?;
        Ok(listed.items.into_iter().map(Into::into).collect())
    }

    async fn process(&self, id: ProcessId) -> Result<Option<ProcessInfo>> {
        let answer: Option<forms::Process> = found(self.api.get(&["processes", id.as_str()], &[]).await)?;
        Ok(answer.map(Into::into))
    }

    async fn seal(&self, id: ProcessId, sealed: bool, _now: Timestamp) -> Result<()> {
        let path = ["processes", id.as_str(), if sealed { "seal" } else { "open" }];
        self.api.send::<Value>(Method::POST, &path, None::<&()>).await.map(drop)
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        Ok(self.api.get::<Listed<Schedule>>(&["schedules"], &[]).await?.items)
    }

    async fn put_schedule(&self, schedule: Schedule) -> Result<()> {
        let body = forms::ScheduleIn::from(&schedule);
        self.api.send::<Value>(Method::PUT, &["schedules", &schedule.name], Some(&body)).await.map(drop)
    }

    async fn delete_schedule(&self, name: String) -> Result<bool> {
        let answer = self.api.send::<Value>(Method::DELETE, &["schedules", &name], None::<&()>).await;
        Ok(found(answer)?.is_some())
    }

    async fn workers(&self, _now: Timestamp) -> Result<Vec<WorkerInfo>> {
        Ok(self.api.get::<Listed<WorkerInfo>>(&["workers"], &[]).await?.items)
    }

    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(after.map(|id| ("after", id.to_string())));
        self.api.get(&["events"], &query).await
    }
}
