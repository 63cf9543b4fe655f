//! The command line itself: help, options before and after the command, exit codes, streams.

use std::io::Read as _;
use std::process::Stdio;

use crate::place::{Place, Ran};

#[test]
fn every_command_has_help_with_an_example() {
    let place = Place::new();
    let commands = [
        "demo",
        "work",
        "enqueue",
        "jobs ls",
        "jobs show",
        "jobs wait",
        "jobs retry",
        "jobs edit",
        "jobs cancel",
        "jobs rm",
        "jobs explain",
        "jobs log",
        "jobs unpark",
        "jobs unhold",
        "queues ls",
        "queues pause",
        "queues resume",
        "queues set",
        "workers ls",
        "process ls",
        "process show",
        "process cancel",
        "process seal",
        "process open",
        "results",
        "consume",
        "schedule ls",
        "schedule add",
        "schedule rm",
        "schedule run",
        "events",
        "backup",
        "restore",
        "verify",
        "bench",
        "doctor",
        "mcp",
        "init",
        "config show",
        "completions",
        "man",
    ];
    for command in commands {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = place.ok(&args);
        assert!(help.contains("Example"), "{command} has no example");
        assert!(help.contains(&format!("longhaul {command}")), "{command} is not in its own example");
        let short: Vec<&str> = command.split(' ').chain(["-h"]).collect();
        check_global_options(&place.ok(&short));
    }
    check_global_options(&place.ok(&["-h"]));
    // Also the long help, where no option of the command itself needs more than a line.
    check_global_options(&place.ok(&["queues", "pause", "--help"]));
}

/// They come after the command's own, a line each.
fn check_global_options(help: &str) {
    let (before, after) = help.split_once("\nGlobal options:\n").expect("they have a heading");
    assert!(before.contains("--help"), "the command's own options come first: {help}");
    let lines: Vec<&str> = after.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 12, "{help}");
    assert!(lines.iter().all(|line| line.trim_start().starts_with('-')), "{help}");
}

#[test]
fn global_options_stand_before_or_after_the_command() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    let before = place.ok(&["-o", "json", "--store", "sqlite://.longhaul/longhaul.db", "jobs", "ls"]);
    let after = place.ok(&["jobs", "ls", "-o", "json", "--store", "sqlite://.longhaul/longhaul.db"]);
    assert_eq!(before, after);
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    let place = Place::new();
    for args in [
        &["jobs", "lst"][..],
        &["enqueue"],
        &["jobs", "ls", "--limit", "0"],
        &["work", "--lease", "5ms"],
        &["jobs", "ls", "--state", "done"],
        &["queues", "set", "mail", "--ageing", "0"],
        &["queues", "set", "", "--max-running", "1"],
        &["enqueue", "echo", "1", "--queue", ""],
        &["enqueue", "echo", "1", "--tag", "a\nb"],
        &["enqueue", ""],
        &["schedule", "add", "", "--cron", "0 8 * * *", "--kind", "echo"],
        &["process", "open", ""],
        &["jobs", "unpark", "--key", ""],
        &["bench", "--only", "bogus"],
        &["tokens", "add", ""],
        &["runs", "ls", "--limit", "0"],
        &["run", "prompts.txt", "--limit", "0"],
        &["run", "prompts.txt", "--concurrency", "0"],
        &["run", "prompts.txt", "--temperature", "-1"],
        &["run", "prompts.txt", "--temperature", "nan"],
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(!place.path(".longhaul").exists(), "{args:?} is refused before a store is made");
    }
}

#[test]
fn a_kind_without_a_handler_is_a_usage_error() {
    let place = Place::new();
    let ran = place.run(&["work", "--drain", "--kind", "bogus"]);
    ran.fails(2, &["--kind bogus", "no handler", "echo, sleep, fail", "--exec CMD"]);
}

#[test]
fn a_token_that_no_header_takes_is_a_wrong_setting() {
    let place = Place::new();
    let mut command = place.command(&["jobs", "ls", "--server", "http://127.0.0.1:1"]);
    let ran: Ran = command.env("LONGHAUL_TOKEN", "lh_a\nb").output().expect("it runs").into();
    ran.fails(5, &["LONGHAUL_TOKEN", "line break"]);
    assert!(!ran.stderr.contains("lh_a"), "it is not shown: {ran:?}");
}

#[test]
fn a_file_of_the_models_that_cannot_be_written_is_told_like_such_a_store() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    std::fs::create_dir(place.path(".longhaul/llm.db")).expect("a folder");
    place.run(&["work", "--drain"]).fails(6, &["error: .longhaul/llm.db: ", "llm.file"]);
}

#[test]
fn a_question_does_not_make_a_store() {
    let place = Place::new();
    for args in [&["jobs", "ls"][..], &["queues", "ls"], &["process", "ls"], &["events"], &["workers", "ls"]]
    {
        place.run(args).fails(6, &["there is no store at .longhaul/longhaul.db", "default", "hint:"]);
    }
    assert!(!place.path(".longhaul").exists());
}

#[test]
fn an_empty_file_is_not_taken_for_a_store() {
    let place = Place::new();
    place.write("empty.db", "");
    let ran = place.run(&["jobs", "ls", "--store", "sqlite://empty.db"]);
    ran.fails(6, &["there is an empty file and no store at empty.db", "hint:"]);
    place.ok(&["enqueue", "echo", "--store", "sqlite://empty.db"]);
    place.ok(&["jobs", "ls", "--store", "sqlite://empty.db"]);
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let place = Place::new();
    let lines: String =
        (0..2_000).map(|n| format!("{{\"kind\":\"echo\",\"payload\":\"{n:0>100}\"}}\n")).collect();
    assert_eq!(place.feed(&["enqueue", "-", "-o", "none"], &lines).code, Some(0));
    let mut command = place.command(&["jobs", "ls", "--limit", "1000", "-o", "jsonl"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("running longhaul");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("reading");
    assert_eq!(child.wait().expect("waiting").code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn what_is_stored_is_told_when_its_id_cannot_be_printed() {
    let place = Place::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a full device");
    let ran = place.command(&["enqueue", "echo"]).stdout(full()).output().expect("running longhaul");
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    let stored = place.json(&["jobs", "ls"])["items"][0]["id"].as_str().expect("a job").to_owned();
    assert_eq!(ran.status.code(), Some(1), "{stderr}");
    for words in [format!("job {stored} is stored"), "No space left".to_owned(), "do not repeat".to_owned()] {
        assert!(stderr.contains(&words), "{words:?} is missing in {stderr:?}");
    }
    let lines = "{\"kind\":\"echo\"}\n{\"kind\":\"echo\"}\n";
    let mut child = place
        .command(&["enqueue", "-"])
        .stdin(Stdio::piped())
        .stdout(full())
        .stderr(Stdio::piped())
        .spawn()
        .expect("running longhaul");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), lines.as_bytes()).expect("it reads");
    let ran = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(stderr.contains("2 jobs from ") && stderr.contains("are stored"), "{stderr}");
}

#[test]
fn notes_never_reach_stdout() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    let drained = place.drain(&[]);
    assert_eq!(drained.stdout, "");
    assert!(drained.stderr.contains("durability") && drained.stderr.contains("1 done"), "{drained:?}");
    let quiet = place.run(&["-q", "work", "--drain"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn doctor_is_content_with_a_new_store() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    let found = place.json(&["doctor"]);
    let checks: Vec<&str> = found["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|check| check["check"].as_str())
        .collect();
    for check in ["settings", "clock", "disk", "store", "write", "file", "workers", "leases"] {
        assert!(checks.contains(&check), "{check} is missing in {checks:?}");
    }
}

#[test]
fn completions_and_manual_need_no_store() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(place.ok(&["completions", shell]).contains("longhaul"));
    }
    assert!(place.ok(&["man"]).contains(".TH longhaul 1"));
}

#[test]
fn a_schedule_is_added_shown_fired_and_removed() {
    let place = Place::new();
    let added = place.json(&[
        "schedule",
        "add",
        "daily",
        "--cron",
        "0 8 * * *",
        "--tz",
        "UTC",
        "--kind",
        "echo",
        "[1]",
    ]);
    assert_eq!(added["next_runs"].as_array().map(Vec::len), Some(3));
    assert_eq!(place.json(&["schedule", "ls"])["items"][0]["job"]["payload"][0], 1);
    let id = place.ok(&["schedule", "run", "daily"]);
    assert_eq!(place.show(&id)["kind"], "echo");
    place.ok(&["schedule", "rm", "daily"]);
    place.run(&["schedule", "rm", "daily"]).fails(4, &["no schedule daily"]);
    place
        .run(&["schedule", "add", "x", "--cron", "nonsense", "--kind", "k"])
        .fails(2, &["nonsense", "hint:"]);
    place
        .run(&["schedule", "add", "x", "--cron", "0 8 * * *", "--tz", "Mars/Base", "--kind", "k"])
        .fails(2, &["Mars/Base"]);
}

#[test]
fn every_page_that_a_manual_page_names_is_printed() {
    let place = Place::new();
    let mut pages = vec!["longhaul".to_owned()];
    let mut seen = 0;
    while let Some(page) = pages.pop() {
        seen += 1;
        let text = place.ok(&["man", &page]).replace("\\-", "-");
        assert!(text.contains(&format!(".TH {page} 1")), "{page}: {text}");
        pages.extend(text.lines().filter_map(|line| Some(line.strip_suffix("(1)")?.to_owned())));
    }
    assert!(seen > 60, "{seen} pages");
    assert_eq!(place.ok(&["man", "jobs", "ls"]), place.ok(&["man", "longhaul-jobs-ls(1)"]));
    place.run(&["man", "nosuch"]).fails(4, &["no manual page nosuch"]);
}

#[test]
fn a_new_folder_is_no_problem_for_doctor() {
    let place = Place::new();
    let checks = place.json(&["doctor"]);
    let store = checks["items"].as_array().expect("a list").iter().find(|check| check["check"] == "store");
    let store = store.expect("a line about the store");
    assert_eq!(store["status"], "ok", "{store}");
    assert!(store["text"].as_str().is_some_and(|text| text.contains("none yet")), "{store}");
    assert!(!place.path(".longhaul").exists(), "a mere question makes no store");
}
