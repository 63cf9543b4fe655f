//! Calls of a server's API.

use std::time::Duration;

use longhaul_llm::{HttpClient, plain_client};
use longhaul_queue::{Error, Result};
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Where the token is taken from.
pub(crate) const TOKEN_NAME: &str = "LONGHAUL_TOKEN";

/// Longest wait for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// A server's API.
pub(super) struct Api {
    client: HttpClient,
    base: Url,
    token: Option<String>,
}

/// What an API tells of an error.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    detail: String,
}

impl Api {
    pub(super) fn new(base: Url, token: Option<String>) -> Result<Self> {
        if let Some(token) = &token
            && HeaderValue::from_str(token).is_err()
        {
            return Err(Error::Denied(format!(
                "{TOKEN_NAME} has a line break or another control character, which no token has; set it again as \
                 longhaul tokens add printed it"
            )));
        }
        let client = plain_client(base.as_str(), ANSWER_WAIT).map_err(Error::invalid)?;
        Ok(Self { client, base, token })
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Asks for something.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T> {
        self.answer(self.request(Method::GET, path, query)?).await
    }

    /// Changes something, with a body or without.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T> {
        let request = self.request(method, path, &[])?;
        let request = match body {
            Some(body) => {
                let body = serde_json::to_vec(body).map_err(Error::invalid)?;
                request.header("content-type", "application/json").body(body)
            }
            None => request,
        };
        self.answer(request).await
    }

    /// What changes, without end.
    pub(super) async fn events(&self) -> Result<Response> {
        let mut request = self.request(Method::GET, &["events"], &[])?.timeout(Duration::MAX).build();
        if let Ok(request) = &mut request {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        }
        let request = request.map_err(|error| self.unreachable(&error))?;
        self.judged(self.client.execute(request).await).await
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> Result<RequestBuilder> {
        let mut url = self.base.clone();
        let mut segments =
            url.path_segments_mut().map_err(|()| Error::invalid(format!("{} has no path", self.base)))?;
        segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        drop(segments);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query.iter().map(|(name, value)| (*name, value.as_str())));
        }
        // The second shows that no form of a web page has sent it.
        let headers = [("accept", "application/json"), ("x-longhaul", "1")];
        let request = self.client.request(method, url);
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        })
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.taken(request).await?;
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| self.strange(&error))
    }

    fn strange(&self, error: &serde_json::Error) -> Error {
        Error::Corrupt(format!(
            "{} answers something else than expected: {error}; is it of another version?",
            self.url()
        ))
    }

    /// Sends a call and takes its answer, unless it is a refusal.
    async fn taken(&self, request: RequestBuilder) -> Result<Response> {
        self.judged(request.send().await).await
    }

    async fn judged(&self, answer: reqwest::Result<Response>) -> Result<Response> {
        let response = answer.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.bytes().await.unwrap_or_default();
        let told = serde_json::from_slice::<Problem>(&text).unwrap_or_default().detail;
        let told = if told.is_empty() { format!("{} answers {status}", self.url()) } else { told };
        Err(match status {
            StatusCode::NOT_FOUND => Error::NotFound(told),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::Denied(format!("{told}; a token is taken from {TOKEN_NAME}"))
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Error::Unavailable(told)
            }
            _ => Error::Invalid(told),
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            text = cause.to_string();
            source = cause.source();
        }
        Error::Unavailable(format!("the server at {} cannot be reached: {text}", self.url()))
    }
}
