//! Worker processes that a test starts, kills and replaces.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::place::Place;

/// Between two looks at a process or a file. A child's end has no event that a plain test could wait for together with
/// another's, so this one poll stands for all; it is bounded by [`WAIT_MAX`].
const LOOK_EVERY: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A running program that does not outlive the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(place: &Place, args: &[&str]) -> Self {
        let mut command = place.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("running longhaul"))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("looking at a process").is_some()
    }

    /// SIGKILL at a moment of the test's choice. This waits for nothing: different moments are what is tested.
    pub(crate) fn kill_after(&mut self, moment: Duration) {
        std::thread::sleep(moment);
        self.kill();
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("killing a process");
        self.0.wait().expect("waiting for a process");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ctrl-C.
pub(crate) fn interrupt(process: &Process) {
    let id = process.0.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
}

/// Looks until `done` says so.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < WAIT_MAX, "{what} did not happen in time");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A named pipe: opening it for reading waits until somebody opens it for writing.
pub(crate) fn fifo(place: &Place, name: &str) {
    assert!(std::process::Command::new("mkfifo").arg(place.path(name)).status().expect("mkfifo").success());
}
