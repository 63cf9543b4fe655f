//! `--server`: the same commands from elsewhere, through a running server.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::place::{Place, Ran};
use crate::served::Served;

/// Somebody elsewhere, who has nothing but a server's address.
pub(crate) struct Away {
    pub(crate) place: Place,
    pub(crate) url: String,
}

impl Away {
    pub(crate) fn from(server: &Served) -> Self {
        Self { place: Place::new(), url: server.url.clone() }
    }

    pub(crate) fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [args, &["--server", &self.url]].concat()
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.place.run(&self.args(args))
    }

    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.place.ok(&self.args(args))
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.place.json(&self.args(args))
    }
}

#[test]
fn commands_say_the_same_through_a_server_as_beside_its_store() {
    let home = Place::new();
    let server = Served::start(&home, &["--no-workers"], &[]);
    let away = Away::from(&server);
    let first = away.ok(&[
        "enqueue",
        "echo",
        r#"{"user":{"id":42},"big":12345678901234567890123}"#,
        "--tag",
        "night",
    ]);
    let child = away.ok(&["enqueue", "echo", "null", "--after", &first, "--priority", "7"]);
    let later = away.ok(&["enqueue", "echo", "\"a text\"", "--delay", "2h", "--queue", "slow"]);
    let lines = (0..5).map(|n| format!("{{\"kind\":\"echo\",\"payload\":{n},\"process_id\":\"p 1/2\"}}\n"));
    let fed = away.place.feed(&away.args(&["enqueue", "-"]), &lines.collect::<String>());
    assert_eq!(fed.code, Some(0), "{fed:?}");
    away.ok(&["queues", "pause", "slow"]);
    away.ok(&["queues", "set", "slow", "--max-running", "2", "--max-running-per-key", "1", "--ageing", "5m"]);
    away.ok(&["enqueue", "echo", "--queue", "slow", "--fair-key", "acme"]);
    away.ok(&[
        "schedule",
        "add",
        "nightly",
        r#"{"n":1}"#,
        "--cron",
        "0 3 * * *",
        "--kind",
        "echo",
        "--tz",
        "UTC",
    ]);
    let looks: [&[&str]; 15] = [
        &["jobs", "ls"],
        &["jobs", "ls", "--limit", "3"],
        &["jobs", "ls", "--state", "scheduled"],
        &["jobs", "ls", "--queue", "slow"],
        &["jobs", "ls", "--process", "p 1/2"],
        &["jobs", "ls", "--tag", "night"],
        &["jobs", "ls", "--search", "user.id:42"],
        &["jobs", "show", &first],
        &["jobs", "show", &child[..20]],
        &["jobs", "explain", &later],
        &["queues", "ls"],
        &["process", "ls"],
        &["process", "show", "p 1/2"],
        &["schedule", "ls"],
        &["events", "--limit", "5"],
    ];
    for look in looks {
        let look = [look, &["-o", "json"]].concat();
        assert_eq!(away.ok(&look), home.ok(&look), "{look:?}");
    }

    home.drain(&[]);
    let wait = ["jobs", "wait", &first, &child, "-o", "json"];
    assert_eq!(away.ok(&wait), home.ok(&wait));
    assert_eq!(away.json(&["jobs", "show", &first]), home.show(&first));
    assert_eq!(away.ok(&["results", "p 1/2"]), home.ok(&["results", "p 1/2"]));
    away.ok(&["consume", "p 1/2", "--yes"]);
    away.run(&["process", "show", "p 1/2"]).fails(4, &["p 1/2"]);
}

#[test]
fn jobs_are_changed_through_a_server() {
    let home = Place::new();
    let server = Served::start(&home, &["--no-workers"], &[]);
    let away = Away::from(&server);
    let ids: Vec<String> = (0..3).map(|_| away.ok(&["enqueue", "echo", "1", "--delay", "1h"])).collect();
    away.ok(&["jobs", "cancel", &ids[0], &ids[1]]);
    assert_eq!(home.show(&ids[0])["state"], "cancelled");
    away.ok(&["jobs", "retry", &ids[0]]);
    assert_ne!(home.show(&ids[0])["state"], "cancelled");
    away.ok(&["jobs", "rm", &ids[1], "--yes"]);
    home.run(&["jobs", "show", &ids[1]]).fails(4, &[]);
    // By filter, which counts them first.
    away.ok(&["jobs", "cancel", "--kind", "echo", "--yes"]);
    let left = home.json(&["jobs", "ls", "--state", "cancelled"]);
    assert_eq!(left["items"].as_array().map(Vec::len), Some(2), "{left}");
    away.ok(&["process", "open", "o"]);
    away.ok(&["enqueue", "echo", "1", "--process", "o"]);
    assert_eq!(home.json(&["process", "show", "o"])["sealed"], false);
    away.ok(&["process", "seal", "o"]);
    assert_eq!(home.json(&["process", "show", "o"])["sealed"], true);
    away.ok(&["schedule", "add", "s", "--cron", "0 * * * *", "--kind", "echo"]);
    away.ok(&["schedule", "rm", "s"]);
    away.run(&["schedule", "rm", "s"]).fails(4, &["s"]);
    assert!(away.place.path(".longhaul").read_dir().is_err(), "nothing is made where one only asks");
}

#[test]
fn a_wait_elsewhere_ends_when_the_job_does() {
    let home = Place::new();
    let server = Served::start(&home, &["--no-workers"], &[]);
    let away = Away::from(&server);
    let id = away.ok(&["enqueue", "echo", "1"]);
    let mut wait = away.place.command(&away.args(&["jobs", "wait", &id, "--timeout", "60s"]));
    let wait = wait.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("running longhaul");
    home.drain(&[]);
    assert_eq!(wait.wait_with_output().expect("its end").status.code(), Some(0));
}

#[test]
fn what_does_not_go_through_a_server_says_so() {
    let home = Place::new();
    let mut server = Served::start(&home, &["--no-workers"], &[]);
    let away = Away::from(&server);
    away.place.write("p.txt", "a prompt\n");
    for command in [
        &["work", "--drain"][..],
        &["up", "--port", "0"],
        &["mcp"],
        &["work", "--drain"],
        &["doctor"],
        &["backup", "b.db"],
    ] {
        away.run(command).fails(2, &["does not work through the server", "without --server"]);
    }
    away.run(&["jobs", "show", "00000000-0000-7000-8000-000000000000"]).fails(4, &["there is no job"]);
    away.run(&["jobs", "ls", "--store", "memory://"]).fails(2, &["--store"]);
    away.place
        .run(&["jobs", "ls", "--server", "localhost:1"])
        .fails(2, &["store.server", "http://HOST:PORT"]);
    server.process.kill();
    away.run(&["jobs", "ls"]).fails(6, &["cannot be reached", &away.url]);
}

#[test]
fn a_server_that_wants_a_token_gets_it_from_the_environment() {
    let home = Place::new();
    let token = home.json(&["tokens", "add", "me", "--scope", "read"])["token"].as_str().map(str::to_owned);
    let token = token.expect("a token");
    let server = Served::start(&home, &["--no-workers"], &[("LONGHAUL_SERVER__TOKEN", "always")]);
    let away = Away::from(&server);
    away.run(&["queues", "ls"]).fails(5, &["LONGHAUL_TOKEN"]);
    let mut with = away.place.command(&away.args(&["queues", "ls", "-o", "json"]));
    let ran = with.env("LONGHAUL_TOKEN", token).output().expect("running longhaul");
    let answer: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(answer["items"], json!([]));
}
