//! What the program keeps is its owner's alone: files, and the environment of commands.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::place::{Place, Ran, read};
use crate::served::Served;

/// Files that others could read, and folders that others could look into.
fn open_to_others(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("listed") {
        let path = entry.expect("an entry").path();
        let metadata = path.metadata().expect("there");
        if metadata.permissions().mode() & 0o077 != 0 {
            found.push(format!("{} {:o}", path.display(), metadata.permissions().mode()));
        }
        if metadata.is_dir() {
            open_to_others(&path, found);
        }
    }
}

/// Sends a request and reads the answer.
fn exchange(address: &str, request: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("a connection");
    socket.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Uploads a file as a form does.
fn upload(address: &str) {
    let part = |name: &str, text: &str| {
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"; filename=\"f\"\r\n\r\n{text}\r\n")
    };
    let body = part("purpose", "batch") + &part("file", "{}") + "--x--\r\n";
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: {address}\r\nx-longhaul: 1\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    exchange(address, &(head + &body));
}

#[test]
fn nothing_that_is_kept_is_readable_by_others() {
    let place = Place::new();
    place.ok(&["tokens", "add", "ci"]);
    place.enqueue(&["echo"]);
    place.write("prompts.txt", "Name a river.\n");
    place.ok(&["run", "prompts.txt", "--profile", "sim", "--out", "answers.jsonl"]);
    place.ok(&["backup", "copy.db"]);
    let served = Served::start(&place, &["--profile", "sim"], &[]);
    upload(served.url.trim_start_matches("http://"));
    let mut found = Vec::new();
    open_to_others(&place.path(".longhaul"), &mut found);
    assert_eq!(found, Vec::<String>::new());
    let mode = |name: &str| place.path(name).metadata().expect("there").permissions().mode() & 0o077;
    assert_eq!((mode("copy.db"), mode(".longhaul")), (0, 0));
    assert!(place.path(".longhaul").join("longhaul.db-wal").exists(), "the log of the store was looked at");
}

#[test]
fn a_command_gets_the_usual_variables_and_those_that_are_named() {
    let place = Place::new();
    place.enqueue(&["x"]);
    let work = |args: &[&str]| {
        let mut command = place.command(&[&["work", "--drain", "--exec", "env > variables"], args].concat());
        command.env("OPENAI_API_KEY", "sk-hidden").env("LONGHAUL_TOKEN", "lh_hidden").env("MINE", "passed");
        command.env("LC_ALL", "C");
        Ran::from(command.output().expect("running longhaul"))
    };
    let ran = work(&["--env", "MINE"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result = read(&place.path("variables"));
    assert!(!result.contains("hidden"), "{result}");
    for part in ["MINE=passed", "PATH=", "LC_ALL=C", "LONGHAUL_JOB_ID="] {
        assert!(result.contains(part), "{part}: {result}");
    }
    work(&["--env", "NOT_THERE"]).fails(2, &["--env NOT_THERE", "export NOT_THERE="]);
}

#[test]
fn a_machine_that_cannot_start_commands_costs_no_job_an_attempt() {
    let place = Place::new();
    let lines: String =
        (0..20).map(|_| "{\"kind\":\"x\",\"process_id\":\"p\",\"options\":{\"max_attempts\":1}}\n").collect();
    place.feed(&["enqueue", "-"], &lines);
    let work = place.command(&["work", "--drain", "--concurrency", "16", "--exec", "sleep 0.3; echo 1"]);
    // Enough for the store and a few commands at once, not for sixteen.
    let script = r#"ulimit -n 40; exec "$0" "$@""#;
    let mut limited = std::process::Command::new("sh");
    limited.arg("-c").arg(script).arg(work.get_program()).args(work.get_args());
    limited.current_dir(place.path("."));
    limited.envs(work.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::from(limited.output().expect("it runs"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stderr.matches("no command can be started").count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("20 done"), "{ran:?}");
}

#[test]
fn a_profile_with_an_address_and_no_key_is_listed_among_the_models() {
    let place = Place::new();
    let profile = [
        ("LONGHAUL_PROFILES__OWN__PROVIDER", "openai"),
        ("LONGHAUL_PROFILES__OWN__BASE_URL", "http://127.0.0.1:9/v1"),
        ("LONGHAUL_PROFILES__OWN__MODEL", "my-model"),
    ];
    let served = Served::start(&place, &[], &profile);
    let address = served.url.trim_start_matches("http://");
    let get = |path: &str| {
        exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"))
    };
    assert!(get("/v1/models").contains("own/my-model"));
    assert!(get("/").contains("own"), "the page tells what the banner tells");
}
