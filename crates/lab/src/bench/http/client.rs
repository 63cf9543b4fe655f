//! A client that costs little, so that the server is measured and not the client: one connection, one request at a time,
//! and of the answer only its status and its length are read.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const HEAD_END: &[u8] = b"\r\n\r\n";

/// A request without a body.
pub(super) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

/// A request with a body of JSON.
pub(super) fn post(path: &str, json: &str) -> Vec<u8> {
    let length = json.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}"
    )
    .into_bytes()
}

/// A connection that is kept open.
pub(super) struct Connection {
    stream: TcpStream,
    /// One answer, head and body.
    answer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("connecting to the server")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, answer: Vec::with_capacity(4096) })
    }

    /// Sends a request and returns the body of its answer.
    pub(super) async fn call(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request).await.context("sending a request")?;
        self.answer.clear();
        let body = loop {
            self.more().await?;
            if let Some(end) = self.answer.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END) {
                break end + HEAD_END.len();
            }
        };
        let end = body + length(&self.answer[..body])?;
        while self.answer.len() < end {
            self.more().await?;
        }
        let succeeded = self.answer.starts_with(b"HTTP/1.1 2");
        ensure!(succeeded, "the server answered {}", String::from_utf8_lossy(&self.answer));
        Ok(&self.answer[body..end])
    }

    /// Returns when the server has closed the connection.
    pub(super) async fn closed(mut self) {
        while self.more().await.is_ok() {
            self.answer.clear();
        }
    }

    /// For who does not keep to the protocol.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    async fn more(&mut self) -> Result<()> {
        let count = self.stream.read_buf(&mut self.answer).await.context("reading an answer")?;
        ensure!(count > 0, "the server closed a connection");
        Ok(())
    }
}

fn length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head).context("the head of an answer")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.context("an answer without a length")?.parse().context("the length of an answer")
}
