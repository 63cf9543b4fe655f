//! Stands between processes and the server of their store, and cuts their connections when told to.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// See the module.
pub(super) struct Proxy {
    port: u16,
    cut: Arc<Notify>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Passes everything on to `server`.
    pub(super) async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("starting a proxy")?;
        let port = listener.local_addr().context("the proxy's port")?.port();
        let cut = Arc::new(Notify::new());
        let serving = tokio::spawn(serve(listener, server, Arc::clone(&cut)));
        Ok(Self { port, cut, serving })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Drops every connection, with whatever is on its way.
    pub(super) fn cut(&self) {
        self.cut.notify_waiters();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, server: SocketAddr, cut: Arc<Notify>) {
    loop {
        let Ok((mut client, _)) = listener.accept().await else { continue };
        let cut = Arc::clone(&cut);
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(server).await else { return };
            // A single answer is often a whole round trip: nothing may wait for company.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                () = cut.notified() => {}
            }
        });
    }
}
