//! Calls over HTTP, for every dialect: one client a profile, time-outs, bounds, and errors that tell whether a call may
//! have been charged. No call is repeated here, and no key leaves in a message.

mod body;
mod client;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::clock::WallClock;
use crate::error::{Class, Error, Result};
use crate::profile::{Profile, Secret, Timeouts};
use crate::provider::{Reply, ResultStream};
use crate::trace::{self, TRACEPARENT};
use crate::types::{Answer, Delta};
use crate::wire::{StreamReader, rate_signals};

use body::{Body, Deltas};
pub(crate) use client::is_this_machine;
pub use client::{pinned_client, plain_client};

/// Bytes of an error's body that are read.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// How a dialect reads an error: status, headers, body, time.
pub(crate) type ErrorReader = fn(u16, &HeaderMap, &str, i64) -> Error;

/// The client of a profile.
#[derive(Clone)]
pub(crate) struct Http {
    client: reqwest::Client,
    /// Where the service is, without a slash at the end.
    base: String,
    /// With its port: a wrong one is as common a mistake as a wrong name.
    host: String,
    /// Of each call: key, dialect, the profile's own.
    headers: HeaderMap,
    secrets: Vec<Secret>,
    timeouts: Timeouts,
    body_bytes_max: usize,
    error_from: ErrorReader,
    clock: Arc<dyn WallClock>,
}

/// What the client of a dialect adds to a profile.
pub(crate) struct Service {
    /// The profile's base URL as the dialect's paths want it.
    pub(crate) base: String,
    /// The key, and what else each call carries.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// How errors are read.
    pub(crate) error_from: ErrorReader,
}

impl Http {
    /// Makes the client. Nothing is sent yet.
    pub(crate) fn new(profile: &Profile, service: Service, clock: Arc<dyn WallClock>) -> Result<Self> {
        let url = client::address(profile)?;
        Ok(Self {
            client: client::build(profile, &url)?,
            base: service.base,
            host: host_of(&url),
            headers: client::headers(profile, &service.headers)?,
            secrets: client::secrets(profile),
            timeouts: profile.timeouts,
            body_bytes_max: profile.body_bytes_max,
            error_from: service.error_from,
            clock,
        })
    }

    /// A call with this profile's headers. The path begins with a slash.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).headers(self.headers.clone())
    }

    /// A call for a list, with its query.
    pub(crate) fn list(&self, path: &str, query: &[(&str, &str)]) -> Result<RequestBuilder> {
        let url = Url::parse_with_params(&format!("{}{path}", self.base), query);
        let url =
            url.map_err(|error| Error::new(Class::BadRequest, format!("the call cannot be made: {error}")))?;
        Ok(self.client.get(url).headers(self.headers.clone()))
    }

    /// A call with a JSON body.
    pub(crate) fn post(&self, path: &str, body: Vec<u8>) -> RequestBuilder {
        self.request(Method::POST, path).header(CONTENT_TYPE, "application/json").body(body)
    }

    /// A call to an address that the service gave out, without the key: it may be somebody else's.
    pub(crate) fn foreign(&self, url: &str) -> RequestBuilder {
        self.client.post(url)
    }

    /// Makes a call whose answer is JSON, and reads it.
    pub(crate) async fn json<T>(
        &self,
        request: RequestBuilder,
        read: impl FnOnce(&Value) -> Result<T>,
    ) -> Result<Reply<T>> {
        self.json_within(self.timeouts.answer, request, read).await
    }

    /// The same for a call that carries much.
    pub(crate) async fn upload<T>(
        &self,
        request: RequestBuilder,
        read: impl FnOnce(&Value) -> Result<T>,
    ) -> Result<Reply<T>> {
        self.json_within(self.timeouts.transfer, request, read).await
    }

    async fn json_within<T>(
        &self,
        limit: Duration,
        request: RequestBuilder,
        read: impl FnOnce(&Value) -> Result<T>,
    ) -> Result<Reply<T>> {
        let call = async {
            let response = self.send(request).await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let bytes = self.whole(response).await?;
            let rate = rate_signals(&headers, self.clock.now_ms());
            let value = serde_json::from_slice(&bytes)
                .map_err(|_| self.unreadable(status, &headers, &bytes))
                .and_then(|value| read(&value));
            value.map(|value| Reply { value, rate: rate.clone() }).map_err(|mut error| {
                *error.rate = rate;
                error
            })
        };
        let result = timeout(limit, call).await.unwrap_or_else(|_| Err(self.silent(limit)));
        result.map_err(|error| self.redact(error))
    }

    /// Makes a call whose answer is a header.
    pub(crate) async fn header(&self, request: RequestBuilder, name: &str) -> Result<String> {
        let limit = self.timeouts.answer;
        let response = timeout(limit, self.send(request)).await.unwrap_or_else(|_| Err(self.silent(limit)));
        let response = response.map_err(|error| self.redact(error))?;
        let value = response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        value.ok_or_else(|| Error::new(Class::Network, format!("the answer has no header {name}")))
    }

    /// Makes a call whose answer comes in pieces. A service that does not stream is read as a whole.
    pub(crate) async fn deltas(
        &self,
        request: RequestBuilder,
        reader: Box<dyn StreamReader>,
        read: fn(&Value) -> Result<Answer>,
    ) -> Result<Reply<ResultStream<Delta>>> {
        let request = request.header(ACCEPT, "text/event-stream");
        let limit = self.timeouts.answer;
        let start = async {
            let response = self.send(request).await?;
            let headers = response.headers().clone();
            let rate = rate_signals(&headers, self.clock.now_ms());
            let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            // Engines name streams in many ways; what is not one names itself.
            if !kind.starts_with("application/json") && !kind.starts_with("text/html") {
                let deltas = Deltas::new(self.body(response), reader);
                return Ok(Reply { value: deltas.into_stream(), rate });
            }
            let status = response.status().as_u16();
            let bytes = self.whole(response).await?;
            let value =
                serde_json::from_slice(&bytes).map_err(|_| self.unreadable(status, &headers, &bytes))?;
            let answer = read(&value)?;
            let text = (!answer.text.is_empty()).then(|| Delta::Text(answer.text.clone()));
            let deltas: Vec<_> = text.into_iter().chain([Delta::End(answer)]).map(Ok).collect();
            Ok(Reply { value: stream::iter(deltas).boxed(), rate })
        };
        let result = timeout(limit, start).await.unwrap_or_else(|_| Err(self.silent(limit)));
        result.map_err(|error| self.redact(error))
    }

    /// Makes a call whose answer is lines, and reads each; only one is held at a time.
    pub(crate) async fn lines<T: Send + 'static>(
        &self,
        request: RequestBuilder,
        read: fn(&str) -> T,
    ) -> Result<ResultStream<T>> {
        let limit = self.timeouts.answer;
        let response = timeout(limit, self.send(request)).await.unwrap_or_else(|_| Err(self.silent(limit)));
        let response = response.map_err(|error| self.redact(error))?;
        Ok(body::lines(self.body(response), self.body_bytes_max, read))
    }

    /// With the trace that the call belongs to, unless the profile has a word of its own on that.
    fn traced(&self, request: RequestBuilder) -> RequestBuilder {
        match trace::traceparent() {
            Some(value) if !self.headers.contains_key(TRACEPARENT) => request.header(TRACEPARENT, value),
            _ => request,
        }
    }

    /// Sends, and makes an error of every status that is not a success.
    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = self.traced(request).send().await.map_err(|error| self.broken(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let headers = response.headers().clone();
        // What can be read of it: an error without its text is still an error.
        let bytes = self.body(response).first(ERROR_BYTES_MAX).await;
        let text = String::from_utf8_lossy(&bytes);
        let mut error = (self.error_from)(status.as_u16(), &headers, &text, self.clock.now_ms());
        if status.is_redirection() {
            // A redirect is not followed: it would carry the key to another host.
            let place = headers.get("location").and_then(|place| place.to_str().ok()).unwrap_or("nowhere");
            error.message = format!("{} points to {place}; change the base URL", self.host);
        }
        Err(error)
    }

    /// A body that is read piece by piece, within the bounds of time for transfers.
    fn body(&self, response: Response) -> Body {
        let deadline = Instant::now() + self.timeouts.transfer;
        Body { response, http: self.clone(), deadline, silence: self.timeouts.silence }
    }

    async fn whole(&self, response: Response) -> Result<Bytes> {
        self.body(response).whole(self.body_bytes_max).await
    }

    /// A success whose body is not what it should be.
    fn unreadable(&self, status: u16, headers: &HeaderMap, bytes: &[u8]) -> Error {
        let start = &bytes[..bytes.len().min(ERROR_BYTES_MAX)];
        let error = (self.error_from)(status, headers, &String::from_utf8_lossy(start), self.clock.now_ms());
        Error { class: Class::Network, maybe_billed: true, ..error }
    }

    /// The network failed. Only a connection that was never made is sure to have cost nothing.
    fn broken(&self, error: reqwest::Error) -> Error {
        let error = error.without_url();
        if error.is_builder() {
            return Error::new(Class::BadRequest, format!("the call cannot be made: {}", chain(&error)));
        }
        if error.is_connect() {
            return Error::new(
                Class::Unreachable,
                format!("cannot connect to {}: {}", self.host, chain(&error)),
            );
        }
        Error::new(Class::Network, format!("{} broke off: {}", self.host, chain(&error))).maybe_billed()
    }

    /// Nothing came within the time. The time for a connection is shorter, so the call had been sent.
    fn silent(&self, limit: Duration) -> Error {
        Error::new(Class::Network, format!("no answer from {} within {} ms", self.host, limit.as_millis()))
            .maybe_billed()
    }

    /// Takes keys out of a message: a service may repeat what it was sent.
    fn redact(&self, mut error: Error) -> Error {
        for secret in &self.secrets {
            let secret = secret.expose();
            if !secret.is_empty() && error.message.contains(secret) {
                error.message = error.message.replace(secret, "…");
            }
        }
        error
    }
}

fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
