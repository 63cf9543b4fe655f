//! Crowds of slow clients come and go, and the server's memory does not grow with them.
#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

use crate::place::Place;
use crate::workers::Process;

/// Clients of each habit in a crowd.
const CLIENTS: usize = 100;
/// Crowds until the allocator has come to rest: its free pieces fit the next crowd better each time.
const FIRST_ROUNDS: usize = 10;
/// Crowds that must not need more than the first ones did.
const FURTHER_ROUNDS: usize = 20;
/// What these may need more all the same: a kilobyte for each of their connections would be found.
const SLACK_KB: u64 = 8_000;

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
const HALF_HEAD: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-padding: xxxx";
const HALF_UPLOAD: &str = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nx-longhaul: 1\r\nexpect: 100-continue\r\n\
    content-type: multipart/form-data; boundary=limit\r\ncontent-length: 1000000\r\n\r\n";
const HALF_JSON: &str = "POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
    content-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
const PIECE: &str =
    "--limit\r\ncontent-disposition: form-data; name=\"file\"; filename=\"slow.jsonl\"\r\n\r\nslow";

/// Sends the start of something and waits until the server has answered to it, so that it holds what it has read.
fn begin(address: &str, text: &str, answered: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("a connection");
    socket.write_all(text.as_bytes()).expect("sent");
    let mut answer = vec![0; 1024];
    let length = socket.read(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..length]);
    assert!(answer.starts_with(answered), "{answer}");
    socket
}

/// A crowd comes, the memory is read while it is there, and it has left when this returns.
fn round(address: &str, process: u32) -> u64 {
    let mut crowd = Vec::new();
    for _ in 0..CLIENTS {
        crowd.push(begin(address, HEALTH, "HTTP/1.1 200"));
        crowd.push(begin(address, &format!("{HEALTH}{HALF_HEAD}"), "HTTP/1.1 200"));
        for start in [HALF_UPLOAD, HALF_JSON] {
            let mut socket = begin(address, start, "HTTP/1.1 100");
            socket.write_all(PIECE.as_bytes()).expect("sent");
            crowd.push(socket);
        }
    }
    let memory_kb = memory_kb(process);
    for mut socket in crowd {
        // The server closes a connection when it has let go of it.
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
    memory_kb
}

/// Memory that is the process's own: pages of its file come and go as the system likes.
fn memory_kb(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line of memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn crowds_of_slow_clients_leave_no_memory_behind() {
    let place = Place::new();
    let mut command = place.command(&["up", "--no-workers", "--port", "0", "--quiet", "-o", "text"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut process = Process(child.expect("running longhaul"));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().expect("piped")).read_line(&mut line).expect("a first line");
    let address = line.trim().trim_start_matches("http://").to_owned();
    let rounds = |count| (0..count).map(|_| round(&address, process.0.id())).collect::<Vec<u64>>();
    let (first, further) = (rounds(FIRST_ROUNDS), rounds(FURTHER_ROUNDS));
    let bound = first.iter().max().expect("rounds") + SLACK_KB;
    assert!(further.iter().all(|kb| *kb <= bound), "more than {bound} kB: {first:?}, then {further:?}");
}
