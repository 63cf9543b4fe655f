//! Runs behind a server: every verb is a call of `/api/v1/runs`.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use longhaul_api::Listed;
use longhaul_api::page::cursor_of;
use longhaul_api::processes::Number;
use longhaul_api::runs::{Decision, Resolve, Resume, RetryRun, Run, RunDetail};
use longhaul_llm::Llm;
use longhaul_pipeline::{Error as RunError, FollowedRun, Part, Results, Retry, RunId, Status};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::{Error, Queue};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Api, Server, found, refused};
use crate::app::App;
use crate::args::SpendingArgs;
use crate::commands::run_lines::ResultsSource;
use crate::exit::Code;
use crate::pipelines::{self, Place};
use crate::run_client::{RunClient, RunsClient};

/// How often a server that is away is asked again where a run stands, and how long in between: two minutes.
const STATUS_TRIES_MAX: u32 = 120;
const STATUS_AGAIN: Duration = Duration::from_secs(1);
/// Runs on one page of the API.
const RUNS_MAX: usize = 100;

/// The runs of a server.
pub(crate) struct RemoteRuns {
    api: Arc<Api>,
    queue: Queue,
}

impl RemoteRuns {
    pub(crate) fn new(server: Server) -> Self {
        Self { api: Arc::clone(&server.api), queue: Queue::new(Arc::new(server)) }
    }

    /// The API.
    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    /// Uploads a file, hands in what refers to it by a field, and deletes the upload: by then the server has stored what it needs.
    pub(crate) async fn hand_in_file<T: DeserializeOwned>(
        &self,
        path: &[&str],
        (name, file): (&str, File),
        (field, asked): (&str, &(impl Serialize + Sync)),
    ) -> Result<T> {
        let file = self.api.upload(name, file).await?;
        let mut body = serde_json::to_value(asked)?;
        body[field] = Value::from(file.as_str());
        let answer = self.api.hand_in(path, &body).await;
        self.api.delete_upload(&file).await;
        answer.map_err(refused)
    }

    /// The queue behind it.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }
}

#[async_trait]
impl RunsClient for RemoteRuns {
    async fn list(&self, pipeline: Option<&str>, cursor: Option<i64>, limit: usize) -> Result<Listed<Run>> {
        let mut all = Listed { next: cursor.map(cursor_of), ..Listed::whole(Vec::new()) };
        loop {
            let wanted = (limit - all.items.len()).min(RUNS_MAX);
            let mut query = vec![("limit", wanted.to_string())];
            query.extend(pipeline.map(|name| ("pipeline", name.to_owned())));
            query.extend(all.next.take().map(|next| ("cursor", next)));
            let page: Listed<Run> = self.api.get(&["runs"], &query).await.map_err(refused)?;
            all.items.extend(page.items);
            all.next = page.next;
            if all.next.is_none() || all.items.len() >= limit {
                return Ok(all);
            }
        }
    }

    async fn find(&self, name: &str) -> Result<Option<Box<dyn RunClient>>> {
        let Some(run) = found::<Run>(self.api.get(&["runs", name], &[]).await)? else { return Ok(None) };
        Ok(Some(Box::new(RemoteRun {
            api: Arc::clone(&self.api),
            queue: self.queue.clone(),
            id: RunId::named(run.status.id),
            pipeline: run.status.pipeline.into_owned(),
            unit: run.status.unit.into_owned(),
        })))
    }
}

/// A run of a server.
pub(crate) struct RemoteRun {
    api: Arc<Api>,
    queue: Queue,
    id: RunId,
    pipeline: String,
    unit: String,
}

impl RemoteRun {
    /// The API of its server.
    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    fn path<'a>(&'a self, verb: &'a [&'a str]) -> Vec<&'a str> {
        ["runs", self.id.as_str()].iter().chain(verb).copied().collect()
    }

    async fn verb(&self, verb: &str, body: Option<&(impl Serialize + Sync)>) -> Result<u64> {
        let answer: Number = self.api.send(Method::POST, &self.path(&[verb]), body).await.map_err(refused)?;
        Ok(answer.changed)
    }

    async fn parts(&self, limit: usize) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        let mut next = None;
        while parts.len() < limit {
            let wanted = (limit - parts.len()).min(PAGE_MAX);
            let mut query = vec![("limit", wanted.to_string())];
            query.extend(next.take().map(|next| ("cursor", next)));
            let page: Listed<Part> = self.api.get(&self.path(&["parts"]), &query).await?;
            parts.extend(page.items);
            match page.next {
                Some(cursor) => next = Some(cursor),
                None => break,
            }
        }
        Ok(parts)
    }
}

#[async_trait]
impl FollowedRun for RemoteRun {
    fn id(&self) -> &RunId {
        &self.id
    }

    fn unit(&self) -> &str {
        &self.unit
    }

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn llm(&self) -> Option<&Llm> {
        None
    }

    async fn status(&self) -> longhaul_pipeline::Result<Status> {
        let mut tries = 0;
        loop {
            match self.api.get::<Run>(&self.path(&[]), &[]).await {
                Ok(run) => return Ok(run.status),
                Err(Error::NotFound(_)) => return Err(RunError::NoRun(self.id.to_string())),
                // A restarted server continues the run, so keep following it.
                Err(Error::Unavailable(_)) if tries < STATUS_TRIES_MAX => tries += 1,
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(STATUS_AGAIN).await;
        }
    }
}

#[async_trait]
impl ResultsSource for RemoteRun {
    fn pipeline(&self) -> &str {
        &self.pipeline
    }

    async fn results(&self, after: i64, limit: usize) -> Result<Results> {
        let query = [("limit", limit.to_string()), ("cursor", cursor_of(after))];
        let Listed { items, next, .. } = self.api.get(&self.path(&["results"]), &query).await?;
        Ok(Results { items, next: next.as_deref().map(super::seq_of).transpose()? })
    }
}

#[async_trait]
impl RunClient for RemoteRun {
    async fn run(&self) -> Result<Run> {
        Ok(self.api.get(&self.path(&[]), &[]).await?)
    }

    async fn detail(&self, parts: usize) -> Result<RunDetail> {
        let mut detail: RunDetail = self.api.get(&self.path(&[]), &[]).await?;
        detail.parts = self.parts(parts).await?;
        Ok(detail)
    }

    async fn pause(&self) -> Result<Run> {
        Ok(self.api.send(Method::POST, &self.path(&["pause"]), None::<&()>).await?)
    }

    async fn resume(&self, spending: &SpendingArgs) -> Result<u64> {
        let SpendingArgs { max_cost, allow_unpriced } = *spending;
        let body = Resume { max_cost_usd: max_cost.map(longhaul_llm::NanoUsd::as_dollars), allow_unpriced };
        self.verb("resume", Some(&body)).await
    }

    async fn cancel(&self) -> Result<u64> {
        self.verb("cancel", None::<&()>).await
    }

    async fn retry(&self, which: Retry) -> Result<u64> {
        let part = match which {
            Retry::Failed => None,
            Retry::Part(number) => Some(number + 1),
        };
        self.verb("retry", Some(&RetryRun { part })).await
    }

    async fn resolve(&self, decision: Decision) -> Result<u64> {
        self.verb("resolve", Some(&Resolve { decision })).await
    }

    async fn remove(&self) -> Result<u64> {
        let answer: Number = self.api.send(Method::DELETE, &self.path(&[]), None::<&()>).await?;
        Ok(answer.changed)
    }

    async fn write_results(&self, app: &App, place: &Place<'_>) -> Result<Code> {
        pipelines::write_remote_results(app, self, place).await
    }
}
