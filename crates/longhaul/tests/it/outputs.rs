//! Which files a command writes over, and which it leaves alone: nothing is sent or stored before that is clear.

use std::fs::File;
use std::os::unix::fs::symlink;

use crate::llm::sim::{Desk, Sim};
use crate::place::{Place, read};

const PROMPTS: &str = "prompts.txt";

/// A simulator, a place with three prompts, and those prompts.
fn start() -> (Sim, Desk, String) {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 3);
    let prompts = read(&desk.place.path(PROMPTS));
    (sim, desk, prompts)
}

#[test]
fn the_prompts_are_never_written_over_by_whatever_name() {
    let (sim, desk, prompts) = start();
    symlink("prompts.txt", desk.place.path("link.txt")).expect("a link");
    std::fs::hard_link(desk.place.path(PROMPTS), desk.place.path("hard.txt")).expect("a hard link");
    std::fs::create_dir(desk.place.path("folder")).expect("a folder");
    let absolute = desk.place.path(PROMPTS).display().to_string();
    for name in [PROMPTS, "./prompts.txt", "folder/../prompts.txt", &absolute, "link.txt", "hard.txt"] {
        for option in ["--out", "--errors"] {
            let ran = desk.run(&["run", PROMPTS, "--sync", option, name, "--force"]);
            ran.fails(2, &[option, "reads", "name another file"]);
        }
    }
    // The link may also be what is read.
    desk.run(&["run", "link.txt", "--sync", "--out", PROMPTS]).fails(2, &["reads"]);
    assert_eq!(read(&desk.place.path(PROMPTS)), prompts);
    assert_eq!(sim.count("calls"), 0);
    assert!(!desk.place.path(".longhaul").exists(), "nothing is stored");
}

#[test]
fn what_comes_by_redirection_is_not_written_over_either() {
    let (sim, desk, prompts) = start();
    let open = || File::open(desk.place.path(PROMPTS)).expect("prompts");
    let mut command = desk.command(&["run", "-", "--sync", "--out", PROMPTS]);
    let ran = command.stdin(open()).output().expect("running longhaul");
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    let append = File::options().append(true).open(desk.place.path(PROMPTS)).expect("prompts");
    let ran = desk.command(&["run", PROMPTS, "--sync"]).stdout(append).output().expect("running longhaul");
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    assert_eq!((read(&desk.place.path(PROMPTS)), sim.count("calls")), (prompts, 0));
}

#[test]
fn schema_template_and_system_files_are_inputs_too() {
    let (sim, desk, _) = start();
    desk.place.write("template.md", "Say {{prompt}}");
    desk.place.write("system.md", "be short");
    let args = ["run", PROMPTS, "--sync", "--schema", "schema.json", "--template", "@template.md"];
    for out in ["schema.json", "template.md", "system.md"] {
        let ran = desk.run(&[&args[..], &["--system", "@system.md", "--out", out, "--force"]].concat());
        ran.fails(2, &["reads", out]);
    }
    assert_eq!(sim.count("calls"), 0);
}

#[test]
fn a_file_of_something_else_is_left_alone_unless_forced() {
    let (sim, desk, _) = start();
    desk.place.write("notes.jsonl", "my notes\n");
    symlink("notes.jsonl", desk.place.path("link.jsonl")).expect("a link");
    for (option, name) in [("--out", "notes.jsonl"), ("--out", "link.jsonl"), ("--errors", "notes.jsonl")] {
        let ran = desk.run(&["run", PROMPTS, "--sync", option, name]);
        ran.fails(2, &[name, "exists and was left as it is", "--force"]);
    }
    assert_eq!(read(&desk.place.path("notes.jsonl")), "my notes\n");
    assert_eq!(
        (sim.count("calls"), desk.json(&["runs", "ls"])["items"].as_array().map(Vec::len)),
        (0, Some(0))
    );
    desk.ok(&["run", PROMPTS, "--sync", "--out", "link.jsonl", "--force"]);
    assert_eq!(desk.answers("notes.jsonl").len(), 3);
    assert!(desk.place.path("link.jsonl").is_symlink(), "a link stays a link");
}

#[test]
fn the_same_command_writes_its_own_output_again_until_somebody_changes_it() {
    let (_sim, desk, _) = start();
    let args = ["run", PROMPTS, "--sync", "--out", "a.jsonl", "--errors", "e.jsonl"];
    desk.ok(&args);
    let first = read(&desk.place.path("a.jsonl"));
    desk.ok(&args);
    desk.ok(&["runs", "results", &desk.run_id(), "--out", "a.jsonl"]);
    assert_eq!(read(&desk.place.path("a.jsonl")), first);
    // Another run is not the one that wrote it.
    let other = [&args[..], &["--temperature", "0"]].concat();
    desk.run(&other).fails(2, &["a.jsonl", "is not an output of run-"]);
    desk.place.write("a.jsonl", &format!("{first}my correction\n"));
    desk.run(&args).fails(2, &["a.jsonl", "was changed after run-"]);
    let results = desk.run(&["runs", "results", &desk.run_id(), "--out", "a.jsonl"]);
    results.fails(2, &["was changed after run-", "--force"]);
    desk.ok(&[&args[..], &["--force"]].concat());
    assert_eq!(read(&desk.place.path("a.jsonl")), first);
}

#[test]
fn an_empty_file_and_a_device_are_no_loss() {
    let (_sim, desk, _) = start();
    desk.place.write("empty.jsonl", "");
    desk.ok(&["run", PROMPTS, "--sync", "--out", "empty.jsonl", "--errors", "/dev/null"]);
    assert_eq!(desk.answers("empty.jsonl").len(), 3);
}

#[test]
fn out_and_errors_are_two_files_however_they_are_spelt() {
    let (sim, desk, _) = start();
    let ran = desk.run(&["run", PROMPTS, "--sync", "--out", "a.jsonl", "--errors", "./a.jsonl"]);
    ran.fails(2, &["--out and --errors both name"]);
    assert_eq!(sim.count("calls"), 0);
}

#[test]
fn a_sheet_is_written_over_only_in_place_or_where_it_wrote_before() {
    let (sim, desk, _) = start();
    desk.place.write("t.csv", "text\nfine\n");
    desk.place.write("r.toml", "[[category]]\nname = \"tone\"\n");
    desk.place.write("notes.csv", "my,notes\n");
    symlink("t.csv", desk.place.path("link.csv")).expect("a link");
    let score = |out: &[&str]| {
        desk.run(&[&["score", "t.csv", "--text-column", "text", "--rubric", "r.toml"], out].concat())
    };
    for out in ["t.csv", "./t.csv", "link.csv"] {
        score(&["--out", out, "--force"]).fails(2, &["reads", "--in-place"]);
    }
    score(&["--out", "notes.csv"]).fails(2, &["exists and was left as it is", "--force"]);
    score(&["--out", "no/folder/s.csv"]).fails(4, &["cannot be written"]);
    assert_eq!(sim.count("calls"), 0);
    for _ in 0..2 {
        let ran = score(&["--out", "s.csv"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let id = desk.run_id();
    let export = |out: &str| desk.run(&["runs", "results", &id, "--out", out]);
    export("notes.csv").fails(2, &["exists and was left as it is", "--force"]);
    export("link.csv").fails(2, &["reads"]);
    for _ in 0..2 {
        assert_eq!(export("copy.csv").code, Some(0));
    }
    assert_eq!(read(&desk.place.path("notes.csv")), "my,notes\n");
    assert_eq!(read(&desk.place.path("t.csv")), "text\nfine\n");
}

#[test]
fn results_are_appended_to_results_only() {
    let place = Place::new();
    place.enqueue(&["echo", "1", "--process", "p"]);
    place.drain(&[]);
    place.write("notes.txt", "my notes\n");
    place.run(&["results", "p", "--out", "notes.txt"]).fails(2, &["does not begin with results", "--force"]);
    assert_eq!(read(&place.path("notes.txt")), "my notes\n");
    place.ok(&["results", "p", "--out", "notes.txt", "--force"]);
    assert!(read(&place.path("notes.txt")).starts_with("my notes\n{\"id\":"));
    place.run(&["results", "p", "--out", "no/folder/r.jsonl"]).fails(4, &["folder that exists"]);
}

#[test]
fn what_is_not_there_has_one_exit_code() {
    let (_sim, desk, _) = start();
    desk.place.write("t.csv", "text\nfine\n");
    desk.place.enqueue(&["echo"]);
    for args in [
        &["run", "nosuch.txt"][..],
        &["estimate", "nosuch.txt"],
        &["run", PROMPTS, "--schema", "nosuch.json"],
        &["run", PROMPTS, "--system", "@nosuch.md"],
        &["run", PROMPTS, "--template", "@nosuch.md"],
        &["run", PROMPTS, "--out", "no/folder/a.jsonl"],
        &["score", "nosuch.csv", "--text-column", "text", "--sample", "1"],
        &["score", "t.csv", "--text-column", "text", "--rubric", "nosuch.toml", "--sample", "1"],
        &["score", "t.csv", "--text-column", "text", "--schema", "nosuch.json", "--sample", "1"],
        &["enqueue", "echo", "@nosuch.json"],
        &["restore", "nosuch.db", "--yes"],
        &["backup", "no/folder/b.db"],
    ] {
        let ran = desk.run(args);
        assert_eq!(ran.code, Some(4), "{args:?}: {ran:?}");
        let named = ["o such file or directory", "there is no folder"];
        assert!(named.iter().any(|words| ran.stderr.contains(words)), "{args:?}: {ran:?}");
    }
}
