//! `examples/worker.py` against the real server: it dies in the middle of a job, and another goes on from its checkpoint.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::place::Place;
use crate::served::Served;
use crate::workers::{Process, fifo, until};

/// A worker with a lease so short that its death is noticed soon.
fn worker(served: &Served, place: &Place) -> Process {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/worker.py");
    let mut command = Command::new("python3");
    command.args([script, &served.url]).env("LEASE_SECONDS", "1").current_dir(place.path("."));
    Process(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("running python3"))
}

#[test]
fn a_python_worker_dies_and_another_goes_on_from_its_checkpoint() {
    let place = Place::new();
    // A server that only serves and keeps time.
    let server = Served::start(&place, &["--no-workers"], &[]);
    place.write("first.txt", "one two three");
    fifo(&place, "second.txt");
    let payload = json!({"files": ["first.txt", "second.txt"]}).to_string();
    let id = place.enqueue(&["count_words", &payload]);
    let mut first = worker(&server, &place);
    // The second file is a pipe that nobody writes to: there the worker waits until it dies.
    until("a checkpoint", || place.show(&id)["data"]["counts"]["first.txt"] == 3);
    first.kill();
    let _other = worker(&server, &place);
    until("a second run", || place.show(&id)["fence"] == 2);
    // Opening waits for the reader, which is the second worker.
    let mut pipe = std::fs::OpenOptions::new().write(true).open(place.path("second.txt")).expect("a reader");
    pipe.write_all(b"four five").expect("written");
    drop(pipe);
    until("the end", || place.show(&id)["state"] == "succeeded");
    let job = place.show(&id);
    assert_eq!(job["result"], json!({"first.txt": 3, "second.txt": 2}));
    let counted: Vec<&str> =
        job["log"].as_array().expect("a log").iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(counted, ["counted first.txt", "counted second.txt"], "nothing was done twice");
    assert_eq!(job["runs"][0]["outcome"], "crash", "{job}");
    assert_eq!(place.json(&["workers", "ls"])["items"].as_array().map(Vec::len), Some(2));
}
