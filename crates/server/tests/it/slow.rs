//! Slow clients, byte by byte: what each of them can make the server hold is bounded by a constant.

use std::time::Duration;

use longhaul_server::{CONNECTION_BUFFER_BYTES_MAX, SMALL_BODY_BYTES, ServerOptions};
use longhaul_sim::SimOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::raw;
use crate::stage::Stage;

/// Long enough for a busy machine.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// The head of an enqueue whose body has so many bytes.
fn enqueue_head(length: usize) -> String {
    format!(
        "POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// A job with a body of so many bytes.
fn enqueue_body(length: usize) -> String {
    let (start, end) = (r#"{"kind":"a","payload":""#, r#""}"#);
    format!("{start}{}{end}", "x".repeat(length - start.len() - end.len()))
}

/// The status of the next answer.
async fn status(socket: &mut TcpStream) -> u16 {
    let mut answer = Vec::new();
    let reading = async {
        while !answer.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            assert!(socket.read_buf(&mut answer).await.expect("an answer") > 0, "closed without an answer");
        }
    };
    tokio::time::timeout(ANSWER_WAIT, reading).await.expect("an answer in time");
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn a_head_is_buffered_up_to_a_bound() {
    let stage = Stage::new().await;
    let head = |length: usize| {
        let start = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-padding: ";
        format!("{start}{}\r\n\r\n", "x".repeat(length - start.len() - 4))
    };
    let long = raw::send(&stage, head(CONNECTION_BUFFER_BYTES_MAX / 2).as_bytes()).await.expect("an answer");
    assert_eq!(long.status, 200);
    let too_long =
        raw::send(&stage, head(CONNECTION_BUFFER_BYTES_MAX + 1).as_bytes()).await.expect("an answer");
    assert_eq!(too_long.status, 431);
    stage.stop().await;
}

/// Sends so much of a body that it needs the shared room, and the rest when told to; answers whether it was refused before.
async fn half_open(mut socket: TcpStream, refusals: Sender<u16>, mut finish: watch::Receiver<bool>) -> u16 {
    const LENGTH: usize = 2 * SMALL_BODY_BYTES;
    let body = enqueue_body(LENGTH);
    let (first, rest) = body.split_at(SMALL_BODY_BYTES + 1);
    socket.write_all((enqueue_head(LENGTH) + first).as_bytes()).await.expect("sent");
    tokio::select! {
        status = status(&mut socket) => {
            refusals.send(status).await.expect("the test listens");
            return status;
        }
        told = finish.changed() => told.expect("the test tells"),
    }
    socket.write_all(rest.as_bytes()).await.expect("sent");
    status(&mut socket).await
}

#[tokio::test]
async fn half_open_bodies_share_a_room_and_short_ones_still_come_in() {
    const HELD: usize = 4;
    const REFUSED: usize = 6;
    // Each takes one small body's length beyond what is free to all.
    let options = ServerOptions { bodies_bytes_max: HELD * SMALL_BODY_BYTES, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    let (refusals, mut refused) = mpsc::channel(HELD + REFUSED);
    let finish = watch::Sender::new(false);
    let mut callers = JoinSet::new();
    for _ in 0..HELD + REFUSED {
        let socket = TcpStream::connect(stage.address()).await.expect("a connection");
        callers.spawn(half_open(socket, refusals.clone(), finish.subscribe()));
    }
    // Nobody has sent all, so whoever is answered is refused.
    for _ in 0..REFUSED {
        let status = tokio::time::timeout(ANSWER_WAIT, refused.recv()).await.expect("an answer in time");
        assert_eq!(status, Some(503));
    }
    let short = enqueue_head(SMALL_BODY_BYTES) + &enqueue_body(SMALL_BODY_BYTES);
    let mut socket = TcpStream::connect(stage.address()).await.expect("a connection");
    socket.write_all(short.as_bytes()).await.expect("sent");
    assert_eq!(status(&mut socket).await, 201, "a short one needs no room");
    finish.send_replace(true);
    let ended = callers.join_all().await;
    assert_eq!(ended.iter().filter(|status| **status == 201).count(), HELD, "{ended:?}");
    // Their room is free again.
    let long = enqueue_head(2 * SMALL_BODY_BYTES) + &enqueue_body(2 * SMALL_BODY_BYTES);
    socket.write_all(long.as_bytes()).await.expect("sent");
    assert_eq!(status(&mut socket).await, 201);
    stage.stop().await;
}
