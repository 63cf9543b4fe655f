//! The simulator over HTTP: OpenAI's, Anthropic's and Gemini's wire forms on one port, so that tests drive the real clients
//! over a real socket. Beside them stand `/health` and `/props` as a local engine has them, and `/sim/…` for the one who
//! runs the test: `GET /sim/stats`, `GET /sim/log`, `GET` and `POST /sim/limits`, `/sim/faults` and `/sim/outage`.

mod admin;
mod anthropic;
mod body;
mod connection;
mod files;
mod gemini;
mod openai;
mod results;
mod strict;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::ledger::TRACEPARENT;
use super::options::SimOptions;
use super::sim_core::SimCore;
use connection::{Connection, Gate};
use wire::Wire;

use longhaul_llm::trace;

/// Largest body of a request: the largest batch that a provider takes, and some room around it.
pub const BODY_BYTES_MAX: usize = 300 * 1000 * 1000;
/// How long a stop waits for calls under way.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// A running server. Dropping it stops it at once; [`SimServer::stop`] lets calls end first.
#[derive(Debug)]
pub struct SimServer {
    address: SocketAddr,
    core: Arc<SimCore>,
    stopping: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl SimServer {
    /// Listens and serves; port 0 takes any free one.
    pub async fn bind(options: SimOptions, address: SocketAddr) -> io::Result<Self> {
        Self::serve(SimCore::new(options)?, address).await
    }

    /// Serves a simulator that is there already.
    pub async fn serve(core: Arc<SimCore>, address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stopping = watch::Sender::new(false);
        let mut stopped = stopping.subscribe();
        let service = router(Arc::clone(&core)).into_make_service_with_connect_info::<Connection>();
        let serve = axum::serve(Gate::new(listener, Arc::clone(&core))?, service).with_graceful_shutdown(
            async move {
                let _ = stopped.wait_for(|stopping| *stopping).await;
            },
        );
        let task = tokio::spawn(async move {
            if let Err(error) = serve.await {
                tracing::warn!(%error, "the simulator's server ended");
            }
        });
        Ok(Self { address, core, stopping, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a URL without a path; OpenAI's clients want `/v1` after it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The simulator behind it, for its books and knobs.
    pub fn core(&self) -> &Arc<SimCore> {
        &self.core
    }

    /// Ends it: calls that hang return at once, others have a few seconds.
    pub async fn stop(mut self) {
        self.core.stop();
        self.stopping.send_replace(true);
        let _ = tokio::time::timeout(STOP_WAIT, &mut self.task).await;
    }
}

impl Drop for SimServer {
    fn drop(&mut self) {
        self.core.stop();
        self.stopping.send_replace(true);
        self.task.abort();
    }
}

fn router(core: Arc<SimCore>) -> Router {
    let mut wires = Router::new()
        .route("/v1/models", get(wire::models))
        .route("/v1/models/{id}", get(wire::model))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1beta/models", get(gemini::models))
        .route("/v1beta/models/{call}", post(gemini::call));
    // A local engine has no batch API.
    if core.options().slots.is_none() {
        wires = wires
            .route("/v1/files", post(files::upload).get(files::list))
            .route("/v1/files/{id}", get(files::retrieve).delete(files::delete))
            .route("/v1/files/{id}/content", get(files::content))
            .route("/v1/batches", post(openai::create_batch).get(openai::list_batches))
            .route("/v1/batches/{id}", get(openai::retrieve_batch))
            .route("/v1/batches/{id}/cancel", post(openai::cancel_batch))
            .route("/v1/messages/batches", post(anthropic::create_batch).get(anthropic::list_batches))
            .route(
                "/v1/messages/batches/{id}",
                get(anthropic::retrieve_batch).delete(anthropic::delete_batch),
            )
            .route("/v1/messages/batches/{id}/cancel", post(anthropic::cancel_batch))
            .route("/v1/messages/batches/{id}/results", get(anthropic::results))
            .route("/v1beta/batches", get(gemini::list_batches))
            .route(
                "/v1beta/batches/{id}",
                get(gemini::retrieve_batch).post(gemini::cancel_batch).delete(gemini::delete_batch),
            )
            .route("/upload/v1beta/files", post(gemini::upload))
            .route("/v1beta/files/{id}", get(gemini::file).delete(gemini::delete_file))
            .route("/download/v1beta/files/{id}", get(gemini::file));
    }
    let wires = wires.route_layer(from_fn_with_state(Arc::clone(&core), check_key));
    let open = Router::new()
        .route("/health", get(admin::health))
        .route("/props", get(admin::props))
        .route("/sim/stats", get(admin::stats))
        .route("/sim/log", get(admin::log))
        .route("/sim/limits", get(admin::limits).post(admin::set_limits))
        .route("/sim/faults", get(admin::faults).post(admin::set_faults))
        .route("/sim/outage", get(admin::outage).post(admin::begin_outage));
    wires.merge(open).fallback(wire::not_found).layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).with_state(core)
}

async fn check_key(State(core): State<Arc<SimCore>>, request: Request, next: Next) -> Response {
    let wire = Wire::of(request.uri().path(), request.headers());
    let trace = request.headers().get(trace::TRACEPARENT).and_then(|value| value.to_str().ok());
    let trace = trace.map(str::to_owned);
    if let Some(error) = core.outage_error() {
        return wire.refusal(&core, &error);
    }
    match core.authorize(wire.key(request.uri(), request.headers())) {
        Ok(()) => TRACEPARENT.scope(trace, next.run(request)).await,
        Err(error) => wire.refusal(&core, &error),
    }
}
