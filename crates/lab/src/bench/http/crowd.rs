//! A crowd of slow clients: idle ones, ones whose request never ends, ones whose upload never ends. Whoever is thrown out
//! by the server comes back at once, so that the crowd stays as large as it is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::client::{Connection, get};

const IDLE: usize = 400;
const SLOW_HEADS: usize = 300;
const SLOW_UPLOADS: usize = 300;
/// All of them.
pub(super) const SIZE: usize = IDLE + SLOW_HEADS + SLOW_UPLOADS;
/// Between two pieces of what a slow client sends.
const GAP: Duration = Duration::from_secs(1);
/// Until all are connected.
const GATHER_MAX: Duration = Duration::from_secs(30);

/// How a client wastes the server's time.
#[derive(Debug, Clone, Copy)]
enum Habit {
    /// Asks once and keeps the connection.
    Idle,
    /// Sends the head of a request byte by byte.
    Head,
    /// Begins an upload and sends a few bytes at a time.
    Upload,
}

/// Connected clients; they leave when this goes.
pub(super) struct Crowd {
    held: Arc<AtomicUsize>,
    _clients: JoinSet<()>,
}

impl Crowd {
    /// Returns when all are connected.
    pub(super) async fn gather(address: SocketAddr) -> Result<Self> {
        let held = Arc::new(AtomicUsize::new(0));
        let mut clients = JoinSet::new();
        for (habit, count) in [(Habit::Idle, IDLE), (Habit::Head, SLOW_HEADS), (Habit::Upload, SLOW_UPLOADS)]
        {
            for _ in 0..count {
                clients.spawn(stay(address, habit, Arc::clone(&held)));
            }
        }
        let started = Instant::now();
        while held.load(Ordering::Relaxed) < SIZE {
            if started.elapsed() > GATHER_MAX {
                bail!("only {} of {SIZE} slow clients got a connection", held.load(Ordering::Relaxed));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Until every upload has begun and every head is under way.
        tokio::time::sleep(GAP * 2).await;
        Ok(Self { held, _clients: clients })
    }

    /// How many are connected now.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

async fn stay(address: SocketAddr, habit: Habit, held: Arc<AtomicUsize>) {
    loop {
        if let Ok(connection) = Connection::open(address).await {
            held.fetch_add(1, Ordering::Relaxed);
            // That it ends is what it is for.
            let _ = waste(connection, habit).await;
            held.fetch_sub(1, Ordering::Relaxed);
        }
        // A server that refuses at once must not be called in a tight loop.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn waste(mut connection: Connection, habit: Habit) -> Result<()> {
    match habit {
        Habit::Idle => {
            connection.call(&get("/healthz")).await?;
            connection.closed().await;
            Ok(())
        }
        Habit::Head => {
            let head = b"GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nx-padding: ";
            drip(connection.into_stream(), head.chunks(1).chain(std::iter::repeat(&b"x"[..]))).await
        }
        Habit::Upload => {
            let head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\nx-longhaul: 1\r\n\
                content-type: multipart/form-data; boundary=limit\r\ncontent-length: 1000000\r\n\r\n\
                --limit\r\ncontent-disposition: form-data; name=\"file\"; filename=\"slow.jsonl\"\r\n\r\n";
            drip(connection.into_stream(), std::iter::once(&head[..]).chain(std::iter::repeat(&b"slow"[..])))
                .await
        }
    }
}

/// Sends piece after piece until the server has enough.
async fn drip(stream: TcpStream, pieces: impl Iterator<Item = &[u8]>) -> Result<()> {
    let (mut answers, mut requests) = stream.into_split();
    let mut answer = [0; 1024];
    for piece in pieces {
        requests.write_all(piece).await?;
        if let Ok(read) = tokio::time::timeout(GAP, answers.read(&mut answer)).await {
            read?;
            break;
        }
    }
    Ok(())
}
