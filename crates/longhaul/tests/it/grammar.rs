//! The command line itself: help, options before and after the command, exit codes, streams.

use std::io::Read as _;
use std::process::Stdio;

use crate::place::Place;

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
    }
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
    ] {
        assert_eq!(place.run(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn a_question_does_not_make_a_store() {
    let place = Place::new();
    for args in [&["jobs", "ls"][..], &["queues", "ls"], &["process", "ls"], &["events"], &["workers", "ls"]]
    {
        place.run(args).fails(6, &["there is no store at .longhaul/longhaul.db", "default", "hint:"]);
    }
    assert!(!place.path(".longhaul").exists());
    let doctor = place.run(&["doctor"]);
    assert_eq!(doctor.code, Some(8), "{doctor:?}");
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
    for check in ["settings", "clock", "disk", "store", "file", "workers", "leases"] {
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
