//! A relay between the program and the simulator that stops at a chosen exchange, so that a test can kill the program
//! exactly there. One request a connection, so that it need not understand HTTP.

use std::io::{Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Longest that a test waits for the exchange it wants to stop at.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How far an exchange gets before it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The provider never sees the request.
    BeforeRequest,
    /// The provider has done it, the program does not hear of it.
    BeforeAnswer,
    /// The program hears half of the answer.
    HalfOfAnswer,
}

/// Where to stop.
#[derive(Debug, Clone)]
pub(super) struct StopAt {
    /// Whether it is this method and path.
    pub(super) target: fn(&str) -> bool,
    /// The how-manieth such exchange, from 1.
    pub(super) nth: u32,
    pub(super) stop: Stop,
}

/// A running relay.
pub(super) struct Relay {
    address: String,
    plan: Arc<Mutex<Option<StopAt>>>,
    stopped: Receiver<()>,
    at_once: Arc<AtOnce>,
}

/// How many exchanges are under way, and how many there were at most.
#[derive(Default)]
struct AtOnce {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Relay {
    /// Relays to an address.
    pub(super) fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let plan = Arc::new(Mutex::new(None));
        let (send, stopped) = channel();
        let at_once = Arc::new(AtOnce::default());
        let (shared, upstream, counted) = (Arc::clone(&plan), upstream.to_owned(), Arc::clone(&at_once));
        // It ends with the test's process; nobody connects to it by then.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (plan, upstream, send) = (Arc::clone(&shared), upstream.clone(), send.clone());
                let counted = Arc::clone(&counted);
                thread::spawn(move || {
                    let now = counted.now.fetch_add(1, Ordering::SeqCst) + 1;
                    counted.most.fetch_max(now, Ordering::SeqCst);
                    exchange(client, &upstream, &plan, &send);
                    counted.now.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, plan, stopped, at_once }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The most exchanges that were under way at once.
    pub(super) fn most_at_once(&self) -> usize {
        self.at_once.most.load(Ordering::SeqCst)
    }

    /// Stops at an exchange that is to come.
    pub(super) fn stop_at(&self, at: StopAt) {
        *self.plan.lock().expect("no panic") = Some(at);
    }

    /// Returns when that exchange has stopped. It is never taken further.
    pub(super) fn wait(&self) {
        self.stopped.recv_timeout(WAIT_MAX).expect("the exchange came");
    }
}

/// One request and its answer. Whoever hangs up early ends it.
fn exchange(mut client: TcpStream, upstream: &str, plan: &Mutex<Option<StopAt>>, stopped: &Sender<()>) {
    let Some(request) = read_request(&mut client) else { return };
    let stop = stop_here(&request, plan);
    if stop == Some(Stop::BeforeRequest) {
        return hang(client, stopped);
    }
    let Some(answer) = ask(upstream, &request) else { return };
    match stop {
        Some(Stop::HalfOfAnswer) => {
            let body = position(&answer, b"\r\n\r\n").map_or(0, |end| end + 4);
            let half = body + (answer.len() - body) / 2;
            let _ = client.write_all(&answer[..half]);
            hang(client, stopped);
        }
        Some(_) => hang(client, stopped),
        None => {
            let _ = client.write_all(&answer);
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

/// Tells the test, and holds the connection until the other side is gone.
fn hang(mut client: TcpStream, stopped: &Sender<()>) {
    let _ = stopped.send(());
    let _ = client.read(&mut [0; 1]);
}

fn stop_here(request: &[u8], plan: &Mutex<Option<StopAt>>) -> Option<Stop> {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let target = line.trim_end_matches(" HTTP/1.1").split('?').next().unwrap_or_default();
    let mut plan = plan.lock().expect("no panic");
    let at = plan.as_mut().filter(|at| (at.target)(target))?;
    at.nth -= 1;
    if at.nth > 0 {
        return None;
    }
    plan.take().map(|at| at.stop)
}

/// The answer to a request, whole.
fn ask(upstream: &str, request: &[u8]) -> Option<Vec<u8>> {
    let end = position(request, b"\r\n")?;
    let mut server = TcpStream::connect(upstream).ok()?;
    server.write_all(&request[..end]).ok()?;
    server.write_all(b"\r\nconnection: close").ok()?;
    server.write_all(&request[end..]).ok()?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).ok()?;
    Some(answer)
}

/// A request with its body, by its length or its last chunk.
fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some(end) = position(&request, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
            let length: Option<usize> =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let whole = match length {
                Some(length) => request.len() >= end + 4 + length,
                None if head.contains("transfer-encoding: chunked") => request.ends_with(b"0\r\n\r\n"),
                None => true,
            };
            if whole {
                return Some(request);
            }
        }
        match client.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
