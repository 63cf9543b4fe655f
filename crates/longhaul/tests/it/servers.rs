//! Stores that are servers: everything above works as it does on a file.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use longhaul_stores::temporary::{Kind, Server};
use serde_json::json;

use crate::place::Place;
use crate::served::Served;

/// A temporary server.
pub(crate) fn server(kind: Kind) -> Server {
    Server::start(kind, &[]).expect("a server")
}

/// Commands on a store at a server.
struct Desk {
    place: Place,
    url: String,
}

impl Desk {
    fn ok(&self, args: &[&str]) -> String {
        self.place.ok(&[args, &["--store", &self.url]].concat())
    }
}

fn works_as_on_a_file(kind: Kind) {
    let server = server(kind);
    let desk = Desk { place: Place::new(), url: server.url() };
    let first = desk.ok(&["enqueue", "echo", r#"{"n":1}"#, "--process", "p"]);
    desk.ok(&["enqueue", "echo", "2", "--process", "p", "--after", &first]);
    desk.ok(&["work", "--drain"]);
    let file = Place::new();
    let same = file.enqueue(&["echo", r#"{"n":1}"#, "--process", "p"]);
    file.enqueue(&["echo", "2", "--process", "p", "--after", &same]);
    file.drain(&[]);
    let results = |text: String| -> Vec<serde_json::Value> {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        lines.map(|line| json!([line["kind"], line["state"], line["result"]])).collect()
    };
    let args = ["results", "p", "-o", "jsonl"];
    assert_eq!(results(desk.ok(&args)), results(file.ok(&args)));
    desk.ok(&["consume", "p", "--yes"]);

    desk.place.write("prompts.txt", &(0..30).map(|n| format!("prompt {n}\n")).collect::<String>());
    desk.ok(&["run", "prompts.txt", "--profile", "sim", "--out", "answers.jsonl"]);
    assert_eq!(crate::place::read(&desk.place.path("answers.jsonl")).lines().count(), 30);
    desk.place.write("t.csv", &format!("text\n{}", "late but fine\n".repeat(20)));
    desk.place.write("r.toml", "[[category]]\nname = \"joy\"\n");
    let score = ["score", "t.csv", "--text-column", "text", "--rubric", "r.toml", "--out", "s.csv"];
    desk.ok(&[&score[..], &["--profile", "sim"]].concat());
    assert_eq!(crate::place::read(&desk.place.path("s.csv")).lines().count(), 21);

    let served = Served::start(&desk.place, &["--store", &desk.url], &[]);
    let away = Place::new();
    let through = |args: &[&str]| away.ok(&[args, &["--server", &served.url]].concat());
    let id = through(&["enqueue", "echo", "[1,2]"]);
    through(&["jobs", "wait", &id, "--timeout", "60s"]);
    assert!(through(&["jobs", "show", &id, "-o", "json"]).contains("[1,2]"));
}

#[test]
fn redis_works_as_a_file_does() {
    works_as_on_a_file(Kind::Redis);
}

#[test]
fn postgres_works_as_a_file_does() {
    works_as_on_a_file(Kind::Postgres);
}

#[test]
fn a_server_that_is_away_is_told_and_its_password_is_not() {
    let place = Place::new();
    for url in ["redis://u:secret@127.0.0.1:1", "postgres://u:secret@127.0.0.1:1/db?password=secret"] {
        let ran = place.run(&["jobs", "ls", "--store", url]);
        ran.fails(6, &["127.0.0.1:1", "store.url"]);
        assert!(!ran.stderr.contains("secret"), "{ran:?}");
        let wrong = place.run(&["jobs", "ls", "--store", &url.replace("://", "x://")]);
        wrong.fails(2, &["u:***@"]);
        assert!(!wrong.stderr.contains("secret"), "{wrong:?}");
        let shown = place.ok(&["config", "show", "--store", url]);
        assert!(!shown.contains("secret") && shown.contains("u:***@"), "{shown}");
    }
    let ran = place.run(&["move", "--from", "redis://u:s?ecret@h", "--to", "sqlite://x.db"]);
    ran.fails(2, &["--from is \"redis://***\"", "%3F for ?"]);
    assert!(!ran.stderr.contains("ecret"), "{ran:?}");
}

fn doctor(place: &Place, url: &str) -> Vec<serde_json::Value> {
    let ran = place.run(&["doctor", "--store", url, "-o", "json"]);
    let found: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON on stdout");
    found["items"].as_array().expect("a list").clone()
}

fn check<'a>(checks: &'a [serde_json::Value], name: &str) -> &'a serde_json::Value {
    checks.iter().find(|check| check["check"] == name).expect("the check is there")
}

#[test]
fn doctor_warns_of_a_redis_that_keeps_nothing() {
    let server = server(Kind::Redis);
    let place = Place::new();
    let checks = doctor(&place, &server.url());
    assert_eq!(check(&checks, "store")["status"], "ok", "{checks:?}");
    let disk = check(&checks, "disk")["text"].as_str().expect("a text");
    assert!(disk.contains(" free for .longhaul"), "{disk}");

    let mut connection = TcpStream::connect(server.address()).expect("the server is there");
    connection.write_all(b"CONFIG SET appendonly no\r\n").expect("it listens");
    let mut answer = [0; 5];
    connection.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"+OK\r\n");
    let checks = doctor(&place, &server.url());
    let store = check(&checks, "store");
    assert_eq!(store["status"], "note", "{store}");
    assert!(store["text"].as_str().is_some_and(|text| text.contains("loses everything")), "{store}");
    let hint = store["hint"].as_str().expect("a hint");
    assert!(hint.contains("appendonly yes") && hint.contains("appendfsync everysec"), "{hint}");
}

#[test]
fn doctor_says_how_to_find_a_server_that_is_away() {
    let place = Place::new();
    for (url, look) in [
        ("redis://127.0.0.1:1", "redis-cli -u redis://127.0.0.1:1 ping"),
        ("postgres://u@127.0.0.1:1/d", "pg_isready -h 127.0.0.1 -p 1"),
    ] {
        let checks = doctor(&place, url);
        let store = check(&checks, "store");
        assert_eq!(store["status"], "problem", "{store}");
        assert!(store["hint"].as_str().is_some_and(|hint| hint.contains(look)), "{store}");
        check(&checks, "disk");
    }
}

#[test]
fn a_verification_can_be_repeated_on_a_server_and_leaves_nothing_there() {
    let server = server(Kind::Redis);
    let desk = Desk { place: Place::new(), url: server.url() };
    let id = desk.ok(&["enqueue", "echo", "1"]);
    for _ in 0..2 {
        desk.ok(&["verify", "lease", "--seconds", "1"]);
    }
    assert!(
        desk.ok(&["jobs", "show", &id, "-o", "json"]).contains("\"ready\""),
        "jobs of others are left alone"
    );
    let mut connection = TcpStream::connect(server.address()).expect("the server is there");
    connection.write_all(b"KEYS *longhaul_stage*\r\n").expect("it listens");
    let mut answer = [0; 4];
    connection.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"*0\r\n", "keys are left");
}
