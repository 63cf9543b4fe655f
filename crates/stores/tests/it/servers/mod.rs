//! Real servers for the tests, started on a free port of this machine and ended with this process.

pub(crate) mod postgres;
pub(crate) mod redis;

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Waits until somebody listens.
pub(crate) fn wait_for_port(port: u16) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < START_TIMEOUT, "nobody listens on port {port}");
        // A server tells nobody that it listens now: this one bounded poll finds out.
        std::thread::sleep(POLL);
    }
}

/// Installs a package of this distribution when its program is missing. A missing server is a failure, never a skip.
pub(crate) fn need(program: &str, package: &str) {
    let found = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    };
    if found() {
        return;
    }
    for tool in [&["apt-get"][..], &["sudo", "-n", "apt-get"]] {
        let mut command = Command::new(tool[0]);
        command.args(&tool[1..]).args(["install", "-y", "--no-install-recommends", package]);
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if done.is_ok_and(|status| status.success()) && found() {
            return;
        }
    }
    panic!("{program} is missing and could not be installed; run: apt-get install {package}");
}
