//! Calls of a server's API.

use std::time::Duration;

use longhaul_llm::{HttpClient, plain_client};
use longhaul_queue::{Error, Result};
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::multipart::{Form, Part};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Where the token is taken from.
pub(crate) const TOKEN_NAME: &str = "LONGHAUL_TOKEN";

/// Longest wait for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Longest time to hand over a large file, or for the server to read one and store what is in it.
const WORK_WAIT: Duration = Duration::from_secs(3_600);

/// A server's API.
pub(crate) struct Api {
    client: HttpClient,
    base: Url,
    token: Option<String>,
}

/// What uploads are for, in the words of the SDKs.
const UPLOAD_PURPOSE: &str = "user_data";

/// An upload whose command was killed goes by itself after this time.
const UPLOAD_KEPT: Duration = Duration::from_secs(24 * 3_600);

/// A file that was uploaded.
#[derive(Debug, Deserialize)]
struct Uploaded {
    id: String,
}

/// What an API tells of an error.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    detail: String,
    /// The form of the SDKs, for uploads.
    #[serde(default)]
    error: SdkError,
}

#[derive(Debug, Default, Deserialize)]
struct SdkError {
    #[serde(default)]
    message: String,
}

impl Api {
    pub(crate) fn new(base: Url, token: Option<String>) -> Result<Self> {
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

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(crate) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Asks for something.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T> {
        self.answer(self.request(Method::GET, path, query)?).await
    }

    /// Changes something, with a body or without.
    pub(crate) async fn send<T: DeserializeOwned>(
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

    /// Hands in work that the server reads and stores whole before it answers.
    pub(crate) async fn hand_in<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        let body = serde_json::to_vec(body).map_err(Error::invalid)?;
        let request = self.request(Method::POST, path, &[])?.timeout(WORK_WAIT);
        self.answer(request.header("content-type", "application/json").body(body)).await
    }

    /// Uploads a file under a name, and answers the id that work refers to it by.
    pub(crate) async fn upload(&self, name: &str, file: std::fs::File) -> Result<String> {
        let cannot = |error: std::io::Error| Error::invalid(format!("{name} cannot be read: {error}"));
        let bytes = file.metadata().map_err(cannot)?.len();
        let content = reqwest::Body::from(tokio::fs::File::from_std(file));
        let part = Part::stream_with_length(content, bytes).file_name(name.to_owned());
        let expiry = ("expires_after[seconds]", UPLOAD_KEPT.as_secs().to_string());
        let form = Form::new().text("purpose", UPLOAD_PURPOSE).text(expiry.0, expiry.1).part("file", part);
        let request = self.files(Method::POST, None)?.timeout(WORK_WAIT).multipart(form);
        Ok(self.answer::<Uploaded>(request).await?.id)
    }

    /// Deletes an upload that is not needed any more. If that fails, it expires.
    pub(crate) async fn delete_upload(&self, id: &str) {
        if let Ok(request) = self.files(Method::DELETE, Some(id)) {
            drop(self.taken(request).await);
        }
    }

    /// The bytes of something large, piece by piece.
    pub(crate) async fn download(&self, path: &[&str], query: &[(&str, String)]) -> Result<Response> {
        self.taken(self.request(Method::GET, path, query)?.timeout(WORK_WAIT)).await
    }

    /// What changes, without end.
    pub(crate) async fn events(&self) -> Result<Response> {
        let mut request = self.request(Method::GET, &["events"], &[])?.timeout(Duration::MAX).build();
        if let Ok(request) = &mut request {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        }
        let request = request.map_err(|error| self.unreachable(&error))?;
        self.judged(self.client.execute(request).await).await
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> Result<RequestBuilder> {
        self.request_at(method, &[&["api", "v1"], path].concat(), query)
    }

    /// Uploads have the routes of the SDKs.
    fn files(&self, method: Method, id: Option<&str>) -> Result<RequestBuilder> {
        self.request_at(method, &[&["v1", "files"], id.as_slice()].concat(), &[])
    }

    fn request_at(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> Result<RequestBuilder> {
        let mut url = self.base.clone();
        let mut segments =
            url.path_segments_mut().map_err(|()| Error::invalid(format!("{} has no path", self.base)))?;
        segments.pop_if_empty().extend(path);
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
            "{} sent an unexpected response: {error}; it may run another version",
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
        let Problem { detail, error } = serde_json::from_slice(&text).unwrap_or_default();
        let told = if detail.is_empty() { error.message } else { detail };
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
