//! `examples/worker.py` against the real server: it dies in the middle of a job, and another goes on from its checkpoint.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

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

async fn post(server: &Served, path: &str, body: &Value) -> Value {
    let url = format!("{}/api/v1/work/{path}", server.url);
    let client = longhaul_llm::plain_client(&url, Duration::from_secs(60)).expect("a client");
    let request = client.post(&url).header("content-type", "application/json").body(body.to_string());
    let text = request.send().await.expect("an answer").text().await.expect("a body");
    serde_json::from_str(&text).expect(&text)
}

/// What the server itself ran comes back at once. A worker elsewhere did not die with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_behind_http_keeps_its_job_when_the_server_is_killed() {
    let place = Place::new();
    // Longer than the test would wait.
    let start = || Served::start(&place, &[], &[("LONGHAUL_WORKER__LEASE", "10m")]);
    let (own, elsewhere) = (place.enqueue(&["sleep", r#"{"for":"600s"}"#]), place.enqueue(&["x"]));
    let mut first = start();
    let claimed = post(&first, "claim", &json!({"queues": ["default"], "kinds": ["x"]})).await;
    let lease = &claimed["jobs"][0]["lease"];
    assert_eq!(lease["job_id"], elsewhere.as_str(), "{claimed}");
    until("the server's own run", || place.show(&own)["state"] == "running");
    first.process.kill();
    let second = start();
    until("the rescue of the server's own run", || place.show(&own)["runs"][0]["outcome"] == "crash");
    let renewed = post(&second, "extend", &json!({"leases": [lease]})).await;
    assert!(renewed["leases"][0]["extended"].is_object(), "{renewed}");
    let job = place.show(&elsewhere);
    assert_eq!(
        (&job["state"], &job["fence"], &job["spent"]["crashes"]),
        (&"running".into(), &1.into(), &0.into())
    );
}
