//! Exit codes of waits.

use std::process::Stdio;

use crate::place::{Place, Ran};

#[test]
fn a_wait_ends_with_the_jobs_and_tells_how() {
    let place = Place::new();
    let good = place.enqueue(&["echo", "--process", "p"]);
    let bad = place.enqueue(&["fail", "--max-attempts", "1", "--process", "p"]);
    place.drain(&[]);
    place.ok(&["jobs", "wait", &good]);
    let ran = place.run(&["jobs", "wait", &good, &bad, "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let ended: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(
        (&ended["items"][0]["state"], &ended["items"][1]["state"]),
        (&"succeeded".into(), &"failed".into())
    );
    assert_eq!(place.run(&["jobs", "wait", "--process", "p"]).code, Some(3));
}

#[test]
fn a_wait_that_runs_out_of_time_is_124() {
    let place = Place::new();
    let id = place.enqueue(&["echo", "--process", "p"]);
    assert_eq!(place.run(&["jobs", "wait", &id, "--timeout", "10ms"]).code, Some(124));
    assert_eq!(place.run(&["jobs", "wait", "--process", "p", "--timeout", "10ms"]).code, Some(124));
}

#[test]
fn a_wait_for_nothing_is_4() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    place.run(&["jobs", "wait", "0198c5a2-7d1e-7000-8000-000000000001"]).fails(4, &["there is no job"]);
    place.run(&["jobs", "wait", "--process", "nobody"]).fails(4, &["there is no process nobody"]);
    assert_eq!(place.run(&["jobs", "wait"]).code, Some(2));
}

#[test]
fn a_wait_is_woken_by_another_process() {
    let place = Place::new();
    let id = place.enqueue(&["echo"]);
    let mut command = place.command(&["jobs", "wait", &id, "--timeout", "30s"]);
    let waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("running longhaul");
    place.drain(&[]);
    let ran = Ran::from(waiting.wait_with_output().expect("waiting"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_retry_from_the_start_drops_the_checkpoint() {
    let place = Place::new();
    let id = place.enqueue(&["x", "--max-attempts", "1"]);
    place.drain(&["--exec", r#"echo '{"longhaul":"save","data":{"at":5}}'; exit 1"#]);
    place.ok(&["jobs", "retry", &id]);
    assert_eq!(place.show(&id)["data"]["at"], 5);
    place.ok(&["jobs", "cancel", &id]);
    place.ok(&["jobs", "retry", &id, "--reset"]);
    assert!(place.show(&id)["data"].is_null());
}
