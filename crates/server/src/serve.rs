//! Connections: how many, how slow they may be, and how they end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::ctx::Ctx;

/// Time for a TLS handshake.
const HANDSHAKE_WAIT: std::time::Duration = std::time::Duration::from_secs(10);
/// Pause after an accept that failed: the process has no descriptor left, and more will come free.
const ACCEPT_AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(100);
/// What a connection buffers of a request's head, or of a body that nobody takes, and of an answer that nobody reads.
pub const CONNECTION_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// HTTP/2: requests at once on a connection, and what it may send before somebody reads it.
const STREAMS_MAX: u32 = 100;
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;

/// A running server. Dropping it ends it at once; [`Server::stop`] lets requests end first.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    ctx_draining: tokio::sync::watch::Sender<bool>,
    task: JoinHandle<()>,
    /// Removes expired uploads, and tables of sheets that are gone.
    pruning: JoinHandle<()>,
}

impl Server {
    /// Listens and serves; port 0 takes any free one. With a certificate of its own it speaks TLS.
    pub async fn bind(
        ctx: Ctx,
        address: SocketAddr,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        if ctx.options.test_objects {
            crate::compat::test_objects::seed(&ctx).await.map_err(io::Error::other)?;
        }
        let ctx_draining = ctx.draining.clone();
        let cleaned = ctx.clone();
        let pruning = tokio::spawn(async move {
            let clock = Arc::clone(cleaned.queue().clock());
            tokio::join!(cleaned.uploads.keep_pruned(&*clock), crate::sheets::keep_swept(&cleaned));
        });
        let task = tokio::spawn(accept(listener, ctx, tls.map(TlsAcceptor::from)));
        Ok(Self { address, ctx_draining, task, pruning })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it: no new connections, and requests under way have the time that the options give them.
    pub async fn stop(mut self) {
        self.ctx_draining.send_replace(true);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        self.pruning.abort();
    }
}

async fn accept(listener: TcpListener, ctx: Ctx, tls: Option<TlsAcceptor>) {
    let router = crate::router::router(ctx.clone());
    let slots = Arc::new(Semaphore::new(ctx.options.connections_max));
    let graceful = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(ctx.options.head_wait)
        .max_buf_size(CONNECTION_BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(CONNECTION_BUFFER_BYTES_MAX);
    let mut draining = ctx.draining.subscribe();
    loop {
        // One that is accepted is served: the rest wait in the system's queue, and are not held open here unserved.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };
        // An answer of a few small pieces must not wait for more of them.
        let _ = stream.set_nodelay(true);
        let (builder, watcher) = (builder.clone(), graceful.watcher());
        let (router, tls) = (router.clone(), tls.clone());
        tokio::spawn(async move {
            let _slot = slot;
            connection(stream, tls, builder, watcher, router).await;
        });
    }
    drop(listener);
    if tokio::time::timeout(ctx.options.drain_wait, graceful.shutdown()).await.is_err() {
        warn!("some requests did not end in time");
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    builder: auto::Builder<TokioExecutor>,
    watcher: hyper_util::server::graceful::Watcher,
    router: Router,
) {
    let service = TowerToHyperService::new(router);
    let ended = match tls {
        None => {
            let connection =
                builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
            watcher.watch(connection).await
        }
        Some(tls) => {
            let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(stream)).await else {
                debug!("a TLS handshake failed");
                return;
            };
            let connection =
                builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
            watcher.watch(connection).await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
}
