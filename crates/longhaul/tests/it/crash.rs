//! Killed processes: workers, callers, and the bounded form of `verify crash`.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::place::{Place, read};
use crate::workers::{Process, fifo};

#[test]
fn random_kills_lose_nothing() {
    let place = Place::new();
    let report = place.json(&["verify", "crash", "--kills", "25", "--jobs", "600"]);
    assert_eq!(report["ok"], true, "{report}");
    // The jobs may end before the last kill; most must have happened.
    assert!(report["facts"]["workers_killed"].as_u64() >= Some(20), "{report}");
    assert!(report["facts"]["runs_cut_off_and_repeated"].as_u64() > Some(0), "{report}");
    assert!(report["checks"].as_array().expect("checks").len() >= 15, "{report}");
    assert!(!place.path(".longhaul").exists());
}

/// Workers are killed, connections cut, and the server itself is ended and comes back with what it had on disk.
#[test]
fn dying_servers_lose_nothing() {
    for own in ["redis", "postgres"] {
        let report = Place::new()
            .json(&["verify", "crash", "--own", own, "--kills", "10", "--faults", "10", "--jobs", "400"]);
        assert_eq!(report["ok"], true, "{own}: {report}");
        assert_eq!(report["facts"]["server_restarts"], 2, "{own}: {report}");
        assert!(report["facts"]["connections_cut"].as_u64() >= Some(5), "{own}: {report}");
    }
}

#[test]
fn verify_keeps_away_from_stores_with_jobs() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    let store = "sqlite://.longhaul/longhaul.db";
    for what in ["crash", "sharing", "fair", "lease"] {
        place.run(&["verify", what, "--store", store]).fails(2, &["has jobs", "name a new file"]);
    }
    place.run(&["verify", "crash", "--store", "memory://"]).fails(2, &["cannot be shared"]);
    place.run(&["verify", "crash", "--faults", "3"]).fails(2, &["--own redis"]);
}

/// Others tell workers apart by host or process id, and a restart under the same name then hides what the dead one
/// held (queues.md, complaint 7).
#[test]
fn a_worker_restarted_on_the_same_host_hides_nothing() {
    let place = Place::new();
    let id = place.enqueue(&["x"]);
    fifo(&place, "started");
    let command = r#"if [ "$LONGHAUL_FENCE" = 1 ]; then echo > started; exec sleep 600; fi; echo 7"#;
    let mut first = Process::start(&place, &["work", "--lease", "1s", "--exec", command]);
    read(&place.path("started"));
    first.kill();
    place.drain(&["--lease", "1s", "--exec", command]);
    let job = place.show(&id);
    assert_eq!((&job["state"], &job["result"], &job["fence"]), (&"succeeded".into(), &7.into(), &2.into()));
    let runs = job["runs"].as_array().expect("runs");
    assert_eq!((&runs[0]["outcome"], &runs[1]["outcome"]), (&"crash".into(), &"done".into()));
    assert_ne!(runs[0]["worker"], runs[1]["worker"]);
    // The crash is on record and cost no attempt (complaint 10).
    assert_eq!((&job["spent"]["attempt"], &job["spent"]["crashes"]), (&0.into(), &1.into()));
}

#[test]
fn a_killed_submission_leaves_all_of_a_batch_or_nothing() {
    const JOBS: u64 = 3_000;
    const ROUNDS: u32 = 12;
    let line = |number: u64| {
        format!(
            "{{\"id\":\"0198c5a2-7d1e-7000-8000-{number:012x}\",\"kind\":\"echo\",\"payload\":{number},\"process_id\":\"p\"}}\n"
        )
    };
    let input: String = (0..JOBS).map(line).collect();
    let stored = |place: &Place| {
        let shown = place.run(&["process", "show", "p", "-o", "json"]);
        let process = serde_json::from_str::<serde_json::Value>(&shown.stdout).unwrap_or_default();
        process["total"].as_u64().unwrap_or(0)
    };
    let started = Instant::now();
    assert_eq!(Place::new().feed(&["-q", "enqueue", "-"], &input).code, Some(0));
    let whole = started.elapsed();
    for round in 0..ROUNDS {
        let place = Place::new();
        kill_while_feeding(&place, &input, whole * round / ROUNDS);
        let count = stored(&place);
        assert!(count == 0 || count == JOBS, "{count} of {JOBS} jobs were stored in round {round}");
        // Repeating it is a no-op for what is there, and stores the rest.
        assert_eq!(place.feed(&["-q", "enqueue", "-"], &input).code, Some(0));
        assert_eq!(stored(&place), JOBS);
    }
}

fn kill_while_feeding(place: &Place, input: &str, after: Duration) {
    let mut command = place.command(&["enqueue", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut submission = Process(command.spawn().expect("running longhaul"));
    let mut stdin = submission.0.stdin.take().expect("piped");
    let text = input.to_owned();
    // The pipe is smaller than the input, and the reader may die.
    let feeding = std::thread::spawn(move || drop(stdin.write_all(text.as_bytes())));
    submission.kill_after(after);
    feeding.join().expect("feeding");
}
