//! Providers and disks that do not work: nothing hangs without a word, nothing is lost, and the exit code is documented.

use std::process::{Command, Stdio};

use crate::place::{Ran, read};

use super::sim::{Desk, Sim, all_answered};

const RUN: [&str; 5] = ["run", "prompts.txt", "--sync", "--out", "answers.jsonl"];
const REQUESTS: u64 = 12;

/// Every first attempt goes wrong in this way, and every second one well.
fn once(fault: &str) -> Sim {
    Sim::with(&format!(
        r#"{{"faults":{{"{fault}":1.0,"calm_after":1,"retry_after_ms":20,"hang_ms":60000}}}}"#
    ))
}

#[test]
fn a_provider_that_hangs_is_given_up_on_and_asked_again() {
    let sim = once("rate_timeout");
    let mut desk = Desk::at(&sim, REQUESTS);
    desk.set("LONGHAUL_PROFILES__P__TIMEOUT", "1s");
    let ran = desk.ok(&RUN);
    all_answered(&desk.answers("answers.jsonl"), REQUESTS);
    // Nobody knows which of them were executed: all are said to be possible.
    assert!(ran.stderr.contains("may have been billed"), "{ran:?}");
    let spent = &desk.only_run()["spent"];
    assert_eq!(spent["unknown_calls"], REQUESTS, "{spent}");
    assert!(sim.count("executed") > REQUESTS);
}

#[test]
fn html_and_dropped_connections_are_asked_again() {
    // All of them are sent at first: more would be sent one by one, to see whether the provider is back.
    const AT_ONCE: u64 = 8;
    let check = |fault: &str| {
        let sim = once(fault);
        let desk = Desk::at(&sim, AT_ONCE);
        desk.ok(&RUN);
        all_answered(&desk.answers("answers.jsonl"), AT_ONCE);
        let spent = &desk.only_run()["spent"];
        let (known, unknown) = (spent["calls"].as_u64(), spent["unknown_calls"].as_u64());
        let booked = known.zip(unknown).map(|(known, unknown)| known + unknown).expect("counts");
        assert!(sim.count("executed") <= booked, "{fault}: {spent}, {}", sim.stats());
        assert_eq!(unknown.is_some_and(|unknown| unknown > 0), fault == "rate_drop", "{fault}: {spent}");
    };
    // They wait for most of the time, so they may as well wait together.
    std::thread::scope(|scope| {
        for fault in ["rate_html", "rate_drop", "rate_5xx"] {
            scope.spawn(move || check(fault));
        }
    });
}

#[test]
fn what_cannot_be_answered_fails_with_its_reason_and_can_be_asked_again() {
    let sim = Sim::with(r#"{"context_tokens":50}"#);
    let desk = Desk::at(&sim, 0);
    let long = "word ".repeat(400);
    desk.place.write("prompts.txt", &format!("short\n{long}\nalso short\n"));
    let ran = desk.run(&[&RUN[..], &["--errors", "errors.jsonl"]].concat());
    ran.fails(3, &["without an answer: 1 request;", "context_too_long", "runs retry"]);
    assert_eq!(desk.answers("answers.jsonl").len(), 2);
    let errors = desk.answers("errors.jsonl");
    assert_eq!((errors.len(), &errors[0]["index"]), (1, &1.into()));
    assert_eq!(errors[0]["error"]["class"], "context_too_long");
    let id = desk.run_id();
    // The hint leads to the reason.
    let failures = desk.json(&["runs", "show", &id])["failures"].clone();
    assert_eq!((failures.as_array().map(Vec::len), &failures[0]["unit"]), (Some(1), &"index 1".into()));
    let shown = desk.ok(&["runs", "show", &id]).stdout;
    assert!(shown.contains("failed: index 1: context_too_long"), "{shown}");
    desk.run(&["runs", "retry", &id, "--part", "1"]).fails(2, &["have no parts"]);
    let address = sim.address().rsplit_once(':').expect("a port").1.to_owned();
    sim.stop();
    let roomy = Sim::start_at(&address, &[]);
    desk.ok(&["runs", "retry", &id]);
    desk.ok(&["work", "--drain"]);
    desk.ok(&["runs", "results", &id, "--out", "answers.jsonl"]);
    all_answered(&desk.answers("answers.jsonl"), 3);
    assert_eq!(roomy.count("executed"), 1);
    desk.run(&["runs", "retry", &id]).fails(4, &["no request of", "failed"]);
}

/// In whatever a run says or stores, the key is not.
#[test]
fn a_key_that_is_refused_holds_the_run_and_is_never_shown() {
    const WRONG: &str = "sk-wrong-0123456789";
    const RIGHT: &str = "sk-right-0123456789";
    let sim = Sim::start(&["--require-key", RIGHT]);
    for mode in ["--sync", "--batch"] {
        let mut desk = Desk::at(&sim, 40);
        desk.set("LONGHAUL_PROFILES__P__KEY_ENV", "TEST_KEY");
        desk.set("TEST_KEY", WRONG);
        let args = ["-v", "run", "prompts.txt", mode, "--out", "answers.jsonl"];
        let ran = desk.run(&args);
        ran.fails(5, &["held (auth)", "incorrect API key", "longhaul keys ls", "repeat the command"]);
        let id = desk.run_id();
        let shown = desk.ok(&["runs", "show", &id]);
        assert!(shown.stdout.contains("held: auth"), "{shown:?}");
        let everywhere = [ran.stdout, ran.stderr, shown.stdout, shown.stderr, stored(&desk)].concat();
        assert!(!everywhere.contains(WRONG), "the key is in {everywhere}");
        desk.set("TEST_KEY", RIGHT);
        let ran = desk.ok(&args);
        all_answered(&desk.answers("answers.jsonl"), 40);
        assert!(![ran.stdout, ran.stderr, stored(&desk)].concat().contains(RIGHT));
    }
}

#[test]
fn an_expired_key_holds_the_run_too() {
    let sim = Sim::with(r#"{"keys_expired":true}"#);
    let desk = Desk::at(&sim, 5);
    desk.run(&RUN).fails(5, &["held (auth)", "expired", "longhaul keys ls"]);
    assert_eq!(desk.only_run()["units"]["total"], 5);
    desk.run(&["models"]).fails(5, &["expired", "longhaul keys ls"]);
}

/// All files beside the store, as text as far as they are.
fn stored(desk: &Desk) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(desk.place.path(".longhaul")).expect("a folder") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
        text += &String::from_utf8_lossy(&bytes);
    }
    text
}

/// A limit on the size of files refuses writes as a full disk does.
#[test]
fn a_full_disk_is_said_and_a_later_run_completes() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 2_000);
    let before = sim.count("executed");
    // Blocks of 512 bytes: room for the tables, not for the requests. A signal would end the program otherwise.
    let script = r#"trap '' XFSZ; ulimit -f 700; exec "$0" "$@""#;
    let program = desk.command(&RUN);
    let mut limited = Command::new("sh");
    limited.args(["-c", script]).arg(program.get_program()).args(program.get_args());
    limited.current_dir(program.get_current_dir().expect("a folder"));
    limited.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::from(limited.stdin(Stdio::null()).output().expect("running longhaul"));
    assert!(matches!(ran.code, Some(1 | 6)), "{ran:?}");
    assert!(ran.stderr.contains("error:") && ran.stderr.contains("disk"), "{ran:?}");
    assert!(!desk.place.path("answers.jsonl").exists(), "no half file");
    desk.ok(&RUN);
    all_answered(&desk.answers("answers.jsonl"), 2_000);
    assert!(sim.count("executed") >= before + 2_000);
}

/// The answers are stored before they are written: a disk that is full then costs only another try.
#[test]
fn answers_that_cannot_be_written_are_kept() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 20);
    let args = ["run", "prompts.txt", "--sync", "--consume", "--out"];
    let ran = desk.run(&[&args[..], &["/dev/full"]].concat());
    ran.fails(1, &["/dev/full", "No space left"]);
    assert_eq!(desk.only_run()["units"]["done"], 20);
    let ran = desk.run(&[&args[..], &["no/such/folder/a.jsonl"]].concat());
    ran.fails(4, &["cannot be written"]);
    desk.ok(&[&args[..], &["answers.txt"]].concat());
    assert_eq!(read(&desk.place.path("answers.txt")).lines().count(), 20);
    assert_eq!(sim.count("executed"), 20);
}
