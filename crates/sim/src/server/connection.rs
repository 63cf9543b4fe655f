//! Connections that can break: a handler drops its own, an outage strikes all. That is what a client sees when a provider's
//! balancer dies: a connection that is refused, hangs, or ends without a response.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, sleep_until};

use crate::outage::{Outage, OutageKind};
use crate::sim_core::SimCore;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Delay before a port is tried again that another program has taken meanwhile.
const BIND_WAIT: Duration = Duration::from_millis(100);
/// Neither HTTP nor TLS.
const GARBAGE: &[u8] = b"\0\0\0\0 this is no protocol \0\0\0\0\r\n\r\n";

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
pub(super) struct Gate {
    /// Absent while connections are refused.
    listener: Option<TcpListener>,
    address: SocketAddr,
    core: Arc<SimCore>,
    outages: watch::Receiver<Option<Outage>>,
}

impl Gate {
    pub(super) fn new(listener: TcpListener, core: Arc<SimCore>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        Ok(Self { listener: Some(listener), address, outages: core.outages(), core })
    }

    /// Listens again once an outage is over that refuses connections.
    async fn listen(&mut self) -> io::Result<&mut TcpListener> {
        let refused = |core: &SimCore| core.outage().filter(|outage| outage.kind == OutageKind::Refuse);
        if refused(&self.core).is_some() || self.listener.is_none() {
            self.listener = None;
            // A socket that is bound and does not listen refuses connections and keeps the port.
            let socket = bound(self.address)?;
            while let Some(outage) = refused(&self.core) {
                sleep_until(outage.until).await;
            }
            self.listener = Some(socket.listen(BACKLOG)?);
        }
        self.listener.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

impl Listener for Gate {
    type Io = Droppable;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Droppable, SocketAddr) {
        loop {
            let mut outages = self.outages.clone();
            outages.mark_unchanged();
            let listener = match self.listen().await {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(%error, "the simulator cannot listen, trying again");
                    sleep(BIND_WAIT).await;
                    continue;
                }
            };
            let (stream, address) = tokio::select! {
                accepted = Listener::accept(listener) => accepted,
                _ = outages.changed() => continue,
            };
            // A stream of small pieces must not wait for more of them.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            match self.core.outage().map(|outage| outage.kind) {
                Some(OutageKind::Reset | OutageKind::Refuse) => reset(&stream),
                Some(OutageKind::Garbage) => {
                    let _ = stream.try_write(GARBAGE);
                }
                Some(OutageKind::Hang | OutageKind::Unavailable | OutageKind::Throttled) | None => {
                    return (Droppable::new(stream, self.core.outages()), address);
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Has a connection end with a reset when it is dropped.
fn reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        tracing::debug!(%error, "a connection ends without a reset");
    }
}

/// A connection that can be dropped.
pub(super) struct Droppable {
    stream: TcpStream,
    dropped: Arc<AtomicBool>,
    health: Health,
}

/// What an outage has made of a connection.
enum Health {
    /// Nothing, until one comes.
    Well(Pin<Box<dyn Future<Output = Outage> + Send>>),
    /// Nothing moves before its end.
    Hangs(Pin<Box<Sleep>>),
    Broken,
}

impl Droppable {
    fn new(stream: TcpStream, mut outages: watch::Receiver<Option<Outage>>) -> Self {
        let struck = async move {
            let strikes = |outage: &Option<Outage>| {
                outage.is_some_and(|outage| outage.lasts() && outage.is_of_connections())
            };
            match outages.wait_for(strikes).await.map(|outage| *outage) {
                Ok(Some(outage)) => outage,
                Ok(None) | Err(_) => std::future::pending().await,
            }
        };
        Self { stream, dropped: Arc::default(), health: Health::Well(Box::pin(struck)) }
    }

    /// Ready with an error once the connection is broken, pending while it hangs; `None` while it is well.
    fn poll_outage(&mut self, cx: &mut Context<'_>) -> Option<Poll<io::Error>> {
        loop {
            self.health = match &mut self.health {
                Health::Well(struck) => match struck.as_mut().poll(cx) {
                    Poll::Pending => return None,
                    Poll::Ready(Outage { kind: OutageKind::Hang, until }) => {
                        Health::Hangs(Box::pin(sleep_until(until)))
                    }
                    Poll::Ready(_) => Health::Broken,
                },
                Health::Hangs(end) => match end.as_mut().poll(cx) {
                    Poll::Pending => return Some(Poll::Pending),
                    Poll::Ready(()) => Health::Broken,
                },
                Health::Broken => {
                    reset(&self.stream);
                    return Some(Poll::Ready(io::ErrorKind::ConnectionReset.into()));
                }
            };
        }
    }

    /// The stream, where bytes can still move.
    fn poll_usable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TcpStream>>> {
        if let Some(broken) = self.poll_outage(cx) {
            return Poll::Ready(Err(ready!(broken)));
        }
        Poll::Ready(Ok(Pin::new(&mut self.stream)))
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TcpStream>>> {
        if self.dropped.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        self.poll_usable(cx)
    }
}

impl AsyncRead for Droppable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_usable(cx))?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Droppable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_writable(cx))?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_writable(cx))?.poll_write_vectored(cx, slices)
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
