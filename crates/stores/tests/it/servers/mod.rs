//! Real servers for the tests.

pub(crate) mod postgres;
pub(crate) mod redis;

use std::process::{Command, Stdio};

use longhaul_stores::temporary::{Kind, Server};

/// Starts a server, or installs its package first. A missing server is a failure, never a skip.
fn start(kind: Kind, package: &str, start: impl Fn(Kind) -> std::io::Result<Server>) -> Server {
    let started = match start(kind) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            install(package);
            start(kind)
        }
        answer => answer,
    };
    started.unwrap_or_else(|error| panic!("{kind:?}: {error}; it comes with: apt-get install {package}"))
}

fn install(package: &str) {
    for tool in [&["apt-get"][..], &["sudo", "-n", "apt-get"]] {
        let mut command = Command::new(tool[0]);
        command.args(&tool[1..]).args(["install", "-y", "--no-install-recommends", package]);
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if done.is_ok_and(|status| status.success()) {
            return;
        }
    }
}
