//! A tiny server: each test says what it answers and looks at what was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use longhaul_llm::profile::Timeouts;
use longhaul_llm::types::{ChatRequest, Message, Role};
use longhaul_llm::{Profile, Provider, ProviderKind, Secret, connect};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The key that no message may show.
pub(crate) const KEY: &str = "sk-very-secret-key";

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).expect("text")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().expect("text")).unwrap_or_default()
    }
}

/// A server that answers by a function of method and path, such as `GET /v1/models`.
pub(crate) struct Stub {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Stub {
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Response + Send + Sync + 'static) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let answer = Arc::new(answer);
        let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            let seen = Seen { line: format!("{method} {uri}"), headers, body };
            let response = answer(&seen);
            log.lock().expect("the log").push(seen);
            async move { response }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let app = Router::new().fallback(handler).layer(axum::extract::DefaultBodyLimit::disable());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("the log").clone()
    }

    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("a call")
    }
}

/// An answer of JSON.
pub(crate) fn json(value: Value) -> Response {
    axum::Json(value).into_response()
}

/// What a raw server does after its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Close,
    Hang,
}

/// A server that reads the head of a request, writes bytes, and closes or keeps still.
pub(crate) async fn raw(bytes: impl Into<Vec<u8>>, then: Then) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    let bytes = bytes.into();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let mut head = [0; 65536];
                let _ = socket.read(&mut head).await;
                let _ = socket.write_all(&bytes).await;
                match then {
                    Then::Close => drop(socket),
                    Then::Hang => std::future::pending().await,
                }
            });
        }
    });
    format!("http://{address}")
}

pub(crate) fn profile(kind: ProviderKind, url: &str) -> Profile {
    Profile {
        base_url: url.to_owned(),
        key: Some(Secret::new(KEY)),
        batches: Some(true),
        ..Profile::new("test", kind)
    }
}

pub(crate) fn client(kind: ProviderKind, url: &str) -> Arc<dyn Provider> {
    connect(&profile(kind, url)).expect("a client")
}

/// Waits so short that a test of waiting is short too.
pub(crate) fn impatient(kind: ProviderKind, url: &str) -> Profile {
    let wait = Duration::from_millis(50);
    let timeouts = Timeouts { answer: wait, silence: wait, ..Timeouts::default() };
    Profile { timeouts, ..profile(kind, url) }
}

pub(crate) fn question() -> ChatRequest {
    ChatRequest {
        model: "m-1".to_owned(),
        messages: vec![Message::text(Role::User, "hello")],
        max_tokens: Some(16),
        ..ChatRequest::default()
    }
}
