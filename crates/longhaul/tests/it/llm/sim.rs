//! The simulator as a process of its own, and a place whose profiles lead to it.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::place::{Place, Ran, read};
use crate::workers::Process;

/// An answer of the simulator's own pages comes at once.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

/// A running `longhaul sim serve`.
pub(crate) struct Sim {
    process: Process,
    url: String,
}

impl Sim {
    /// Starts one on a free port.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_at("0", args)
    }

    /// Starts one on a port; the first line that it prints is its address.
    pub(crate) fn start_at(port: &str, args: &[&str]) -> Self {
        let place = Place::new();
        let mut command = place.command(&[&["sim", "serve", "--port", port], args].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process(command.spawn().expect("running longhaul"));
        let mut url = String::new();
        let stdout = process.0.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut url).expect("the simulator's address");
        assert!(url.starts_with("http://"), "the simulator does not start: {args:?}");
        Self { process, url: url.trim_end().to_owned() }
    }

    /// Starts one with settings as JSON.
    pub(crate) fn with(options: &str) -> Self {
        Self::start(&["--options", options])
    }

    /// Without a path.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// As OpenAI's clients want it.
    pub(crate) fn base_url(&self) -> String {
        format!("{}/v1", self.url)
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("http://").expect("a URL")
    }

    /// One of the sums of what it saw.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let stats = self.stats();
        stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
    }

    pub(crate) fn stats(&self) -> Value {
        serde_json::from_str(&http(self.address(), "GET", "/sim/stats", "")).expect("stats")
    }

    /// The calls that it executed, oldest first.
    pub(crate) fn log(&self) -> Vec<Value> {
        // It comes in chunks of whole lines, with their lengths in between.
        let body = http(self.address(), "GET", "/sim/log", "");
        let lines = body.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Changes what goes wrong from now on.
    pub(crate) fn set_faults(&self, faults: &str) {
        self.post("/sim/faults", faults);
    }

    /// Tells one of its own pages something.
    pub(crate) fn post(&self, path: &str, body: &str) {
        http(self.address(), "POST", path, body);
    }

    pub(crate) fn stop(mut self) {
        self.process.kill();
    }
}

/// An amount in dollars, as nano-dollars: a double's shortest text loses none.
pub(crate) fn nanos(dollars: &Value) -> u64 {
    (dollars.as_f64().unwrap_or_else(|| panic!("{dollars} is not an amount")) * 1e9).round() as u64
}

/// The body of an answer. The simulator answers `Connection: close` with a length or to the end.
fn http(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the simulator listens");
    stream.set_read_timeout(Some(ANSWER_WAIT)).expect("a time limit");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n");
    write!(stream, "{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .expect("asking");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {text}");
    body.to_owned()
}

/// A place with a file of prompts and a profile for a provider.
pub(crate) struct Desk {
    pub(crate) place: Place,
    /// Beyond those that keep the test short.
    pub(crate) env: Vec<(String, String)>,
}

impl Desk {
    /// Prompts in `prompts.txt`, a schema in `schema.json`, and the profile `p` for a provider's dialect at an address.
    pub(crate) fn new(prompts: u64, provider: &str, base_url: &str) -> Self {
        let place = Place::new();
        let mut text = String::new();
        for number in 0..prompts {
            writeln!(text, "prompt number {number}").expect("writing to a string");
        }
        place.write("prompts.txt", &text);
        place.write(
            "schema.json",
            r#"{"type":"object","required":["label","n"],"additionalProperties":false,
                "properties":{"label":{"type":"string"},"n":{"type":"integer"}}}"#,
        );
        let mut desk = Self { place, env: Vec::new() };
        desk.set("LONGHAUL_PROFILES__P__PROVIDER", provider);
        desk.set("LONGHAUL_PROFILES__P__BASE_URL", base_url);
        desk.set("LONGHAUL_PROFILES__P__MODEL", "sim-small");
        desk.set("LONGHAUL_PROFILES__P__BATCHES", "true");
        desk.set("LONGHAUL_LLM__PROFILE", "p");
        desk.set("LONGHAUL_LLM__BATCH_POLL", "100ms");
        // A killed process keeps its requests for as long as this.
        desk.set("LONGHAUL_WORKER__LEASE", "1s");
        desk
    }

    /// A place for a simulator in OpenAI's dialect.
    pub(crate) fn at(sim: &Sim, prompts: u64) -> Self {
        Self::new(prompts, "openai", &sim.base_url())
    }

    /// Sets a variable of the environment.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.retain(|(each, _)| each != name);
        self.env.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().expect("running longhaul"))
    }

    /// Runs with text on stdin.
    pub(crate) fn feed(&self, args: &[&str], input: &str) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().expect("running longhaul");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("feeding longhaul");
        Ran::from(child.wait_with_output().expect("waiting for longhaul"))
    }

    /// Runs and demands success.
    pub(crate) fn ok(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran
    }

    /// Runs with `-o json`, demands success and reads the answer.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ran = self.ok(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {ran:?}"))
    }

    /// Starts a command that the test stops.
    pub(crate) fn start(&self, args: &[&str]) -> Process {
        let mut command = self.command(args);
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("running longhaul"))
    }

    /// The lines of a file of answers.
    pub(crate) fn answers(&self, name: &str) -> Vec<Value> {
        let line = |line: &str| serde_json::from_str(line).expect("a line of JSON");
        read(&self.place.path(name)).lines().map(line).collect()
    }

    /// The only run, as `runs ls` lists it.
    pub(crate) fn only_run(&self) -> Value {
        let runs = self.json(&["runs", "ls"]);
        assert_eq!(runs["items"].as_array().map(Vec::len), Some(1), "{runs}");
        runs["items"][0].clone()
    }

    /// The id of the only run.
    pub(crate) fn run_id(&self) -> String {
        self.only_run()["id"].as_str().expect("an id").to_owned()
    }
}

/// Demands an answer for every prompt, in order, each once.
pub(crate) fn all_answered(answers: &[Value], prompts: u64) {
    let indexes: Vec<Option<u64>> = answers.iter().map(|answer| answer["index"].as_u64()).collect();
    assert_eq!(indexes, (0..prompts).map(Some).collect::<Vec<_>>());
    for answer in answers {
        assert!(answer["error"].is_null() && !answer["answer"].is_null(), "{answer}");
    }
}
