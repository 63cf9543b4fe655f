//! A job that takes its worker along (queues.md, complaint 9).

use crate::place::Place;
use crate::workers::{Process, until};

#[test]
fn a_poison_job_is_stopped_after_three_crashes_and_its_neighbours_succeed() {
    const NEIGHBOURS: u64 = 12;
    let place = Place::new();
    let poison = place.enqueue(&["x", "\"poison\"", "--process", "p"]);
    for _ in 0..NEIGHBOURS {
        place.enqueue(&["x", "1", "--process", "p"]);
    }
    let command = r#"case "$(cat)" in *poison*) kill -9 $PPID; sleep 600;; esac; echo 1"#;
    let work = ["work", "--lease", "1s", "--concurrency", "4", "--exec", command];
    let mut worker = Process::start(&place, &work);
    let mut wait = Process::start(&place, &["jobs", "wait", "--process", "p"]);
    let mut deaths = 0;
    until("the end of all jobs", || {
        // What a supervisor such as systemd does.
        if worker.has_ended() {
            deaths += 1;
            worker = Process::start(&place, &work);
        }
        wait.has_ended()
    });
    let job = place.show(&poison);
    assert_eq!((&job["state"], &job["error"]["reason"]), (&"failed".into(), &"poison".into()), "{job}");
    assert_eq!((&job["spent"]["crashes"], &job["fence"]), (&3.into(), &3.into()), "{job}");
    assert_eq!(deaths, 3);
    let process = place.json(&["process", "show", "p"]);
    let counts = &process["counts"];
    assert_eq!((&counts["succeeded"], &counts["failed"]), (&NEIGHBOURS.into(), &1.into()), "{process}");
}
