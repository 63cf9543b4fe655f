//! `longhaul up` as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::place::Place;
use crate::workers::Process;

/// A running server.
pub(crate) struct Served {
    pub(crate) process: Process,
    /// Where it is reached.
    pub(crate) url: String,
}

impl Served {
    /// On a free port, with further arguments and settings.
    pub(crate) fn start(place: &Place, args: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = place.command(&[&["up", "--port", "0", "-o", "json"], args].concat());
        command.envs(settings.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child: Child = command.spawn().expect("running longhaul");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a first line");
        let first: Value = serde_json::from_str(&line).expect(&line);
        let url = first["url"].as_str().expect("an address").to_owned();
        Self { process: Process(child), url }
    }
}
