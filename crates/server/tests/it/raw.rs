//! Requests byte by byte: what no decent client would send.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stage::Stage;

/// Long enough for a busy machine; a server that has not answered by then does not answer.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The head as it came, in lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Whether it has a header.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.head.contains(&format!("\r\n{name}:"))
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.head.split_once(&format!("\r\n{name}:"))?;
        rest.split("\r\n").next().map(str::trim)
    }

    /// The body as JSON, `null` where it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Sends these bytes on a connection of their own and reads what comes back; an endless stream is read until its head.
pub(crate) async fn send(stage: &Stage, bytes: &[u8]) -> Result<Answer, String> {
    let mut socket = TcpStream::connect(stage.address()).await.map_err(|error| error.to_string())?;
    // A server that refuses a request need not read all of it.
    let _ = socket.write_all(bytes).await;
    let mut read = Vec::new();
    let reading = async {
        loop {
            match socket.read_buf(&mut read).await {
                Ok(0) | Err(_) => break,
                Ok(_) if is_endless(&read) => break,
                Ok(_) => {}
            }
        }
    };
    let in_time = tokio::time::timeout(ANSWER_WAIT, reading).await;
    in_time.map_err(|_| format!("no end after {}", String::from_utf8_lossy(&read)))?;
    parse(&read).ok_or_else(|| format!("no answer but {:?}", String::from_utf8_lossy(&read)))
}

fn is_endless(read: &[u8]) -> bool {
    let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&read[..at]);
    head.contains("text/event-stream") && head.contains("x-accel-buffering")
}

fn parse(read: &[u8]) -> Option<Answer> {
    let at = read.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&read[..at]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &read[at + 4..];
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body) } else { body.to_vec() };
    Some(Answer { status, head, body })
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(&String::from_utf8_lossy(&rest[..at]), 16).unwrap_or(0);
        let Some(piece) = rest.get(at + 2..at + 2 + length).filter(|_| length > 0) else { break };
        whole.extend_from_slice(piece);
        rest = rest.get(at + 4 + length..).unwrap_or_default();
    }
    whole
}
