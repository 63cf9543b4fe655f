//! How a worker is asked to end. The first SIGTERM drains, which `exec` tests; here is the second.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::place::{Place, read};
use crate::workers::{Process, fifo};

#[test]
fn a_second_term_gives_running_jobs_back_and_costs_them_nothing() {
    let place = Place::new();
    let id = place.enqueue(&["x"]);
    fifo(&place, "started");
    let mut command = place.command(&["work", "--exec", "echo > started; exec sleep 600"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut worker = Process(command.spawn().expect("running longhaul"));
    let mut said = BufReader::new(worker.0.stderr.take().expect("piped")).lines().map_while(Result::ok);
    read(&place.path("started"));
    term(&worker);
    assert!(said.any(|line| line.contains("draining")), "the first signal drains");
    assert_eq!(place.show(&id)["state"], "running");
    term(&worker);
    assert!(said.any(|line| line.contains("given back")), "the second one gives back");
    assert_eq!(worker.0.wait().expect("waiting").code(), Some(130));
    let job = place.show(&id);
    assert_eq!((&job["state"], &job["fence"]), (&"ready".into(), &1.into()), "{job}");
    assert_eq!((&job["spent"]["attempt"], &job["spent"]["crashes"]), (&0.into(), &0.into()), "{job}");
}

fn term(worker: &Process) {
    let status = Command::new("kill").arg(worker.0.id().to_string()).status().expect("kill");
    assert!(status.success());
}
