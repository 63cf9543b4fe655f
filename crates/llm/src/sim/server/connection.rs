//! Connections that can be dropped: a handler marks its connection, and from then on nothing can be written to it. That is
//! what a client sees when a provider's balancer dies: a connection that ends without a response.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// A handler's hold on the connection that its request came through.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    dropped: Arc<AtomicBool>,
}

impl Connection {
    /// Nothing more is written.
    pub(super) fn drop_it(&self) {
        self.dropped.store(true, Ordering::Release);
    }
}

impl Connected<IncomingStream<'_, Gate>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Gate>) -> Self {
        Self { dropped: Arc::clone(&stream.io().dropped) }
    }
}

/// A listener of such connections.
#[derive(Debug)]
pub(super) struct Gate {
    listener: TcpListener,
}

impl Gate {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener }
    }
}

impl Listener for Gate {
    type Io = Droppable;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Droppable, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // A stream of small pieces must not wait for more of them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        (Droppable { stream, dropped: Arc::default() }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that can be dropped.
#[derive(Debug)]
pub(super) struct Droppable {
    stream: TcpStream,
    dropped: Arc<AtomicBool>,
}

impl Droppable {
    fn writable(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl AsyncRead for Droppable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Droppable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.writable() {
            Ok(stream) => stream.poll_write(cx, bytes),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.writable() {
            Ok(stream) => stream.poll_write_vectored(cx, slices),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
