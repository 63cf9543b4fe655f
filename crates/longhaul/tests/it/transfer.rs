//! Backup and restore.

use std::process::{Command, Stdio};

use crate::place::{Place, Ran};

#[test]
fn a_backup_comes_back_and_the_former_store_is_kept() {
    let place = Place::new();
    let kept = place.enqueue(&["echo"]);
    place.ok(&["backup", "b.db"]);
    let newer = place.enqueue(&["echo"]);
    place.run(&["backup", "b.db"]).fails(2, &["b.db exists"]);
    place.run(&["restore", "b.db"]).fails(2, &["there is a store", "--yes"]);
    let restored = place.json(&["restore", "b.db", "--yes"]);
    let aside = restored["aside"].as_str().expect("a path").to_owned();
    place.ok(&["jobs", "show", &kept]);
    assert_eq!(place.run(&["jobs", "show", &newer]).code, Some(4));
    place.ok(&["jobs", "show", &newer, "--store", &format!("sqlite://{aside}")]);
}

#[test]
fn a_backup_holds_what_was_spent_and_uploaded_and_secrets_only_if_asked() {
    let place = Place::new();
    place.write("p.txt", "one\ntwo\n");
    let run = ["run", "p.txt", "--profile", "sim", "--out", "a.jsonl"];
    place.ok(&run);
    let spent = place.json(&["costs"]);
    place.ok(&["tokens", "add", "me"]);
    std::fs::create_dir_all(place.path(".longhaul/files")).expect("a folder");
    place.write(".longhaul/files/file-1.content", "uploaded");
    let plain = place.json(&["backup", "plain.db"]);
    assert_eq!(plain["beside_the_store"], serde_json::json!(["llm.db", "files/file-1.content"]));
    place.ok(&["backup", "whole.db", "--secrets"]);

    // A disk that is gone.
    std::fs::remove_dir_all(place.path(".longhaul")).expect("it was there");
    place.ok(&["restore", "plain.db"]);
    assert_eq!(place.json(&["costs"]), spent);
    assert_eq!(crate::place::read(&place.path(".longhaul/files/file-1.content")), "uploaded");
    assert!(!place.path(".longhaul/tokens.json").exists());
    // Nothing of the backup's own is left in the store, and the answers are there.
    assert!(place.ok(&["doctor"]).contains("sound"));
    place.ok(&run);
    assert_eq!(place.json(&["costs"]), spent, "nothing is asked again");

    // What was spent since is still known after a restore.
    place.write("q.txt", "three\n");
    place.ok(&["run", "q.txt", "--profile", "sim", "--out", "b.jsonl"]);
    let more = place.json(&["costs"]);
    assert_ne!(more, spent);
    let restored = place.json(&["restore", "whole.db", "--yes"]);
    assert_eq!(restored["beside_the_store"], serde_json::json!(["tokens.json"]), "{restored}");
    assert_eq!(place.json(&["costs"]), more);
    assert_eq!(place.json(&["tokens", "ls"])["items"][0]["name"], "me");
}

#[test]
fn only_a_store_can_be_restored() {
    let place = Place::new();
    place.write("x.db", "this is no database, although its name says so");
    place.run(&["restore", "x.db"]).fails(2, &["x.db is not a longhaul store"]);
    place.run(&["restore", "missing.db"]).fails(4, &["missing.db"]);
    assert!(!place.path(".longhaul").exists());
}

#[test]
fn a_backup_makes_a_new_store_elsewhere() {
    let place = Place::new();
    let id = place.enqueue(&["echo"]);
    place.ok(&["backup", "b.db"]);
    place.ok(&["restore", "b.db", "--store", "sqlite://new/other.db"]);
    place.ok(&["jobs", "show", &id, "--store", "sqlite://new/other.db"]);
}

#[test]
fn a_file_of_an_early_build_is_not_restored_and_leaves_nothing_behind() {
    let place = Place::new();
    let kept = place.enqueue(&["echo"]);
    rusqlite::Connection::open(place.path("early.db"))
        .expect("a database")
        .execute_batch(
            "CREATE TABLE lh_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
             INSERT INTO lh_meta VALUES ('schema_version', 1);
             CREATE TABLE lh_jobs (seq INTEGER PRIMARY KEY, id BLOB);",
        )
        .expect("tables");
    let ran = place.run(&["restore", "early.db", "--yes"]);
    ran.fails(1, &["early.db cannot be restored", "an early build wrote this file"]);
    assert_eq!(litter(&place), [""; 0]);
    place.ok(&["jobs", "show", &kept]);
}

/// Names that a restore gives to files that are not to stay.
fn litter(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path(".longhaul")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("restor")).collect()
}

/// Runs with a limit on the size of files, in blocks of 512 bytes: it refuses writes as a full disk does.
fn run_limited(place: &Place, blocks: u32, args: &[&str]) -> Ran {
    // A signal would end the program otherwise.
    let script = format!(r#"trap '' XFSZ; ulimit -f {blocks}; exec "$0" "$@""#);
    let program = place.command(args);
    let mut limited = Command::new("sh");
    limited.args(["-c", &script]).arg(program.get_program()).args(program.get_args());
    limited.current_dir(program.get_current_dir().expect("a folder"));
    limited.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ran::from(limited.stdin(Stdio::null()).output().expect("running longhaul"))
}

#[test]
fn a_full_disk_leaves_no_half_copies() {
    let place = Place::new();
    let large = format!("{:?}", "large ".repeat(100_000));
    let kept = place.feed(&["enqueue", "echo", "-"], &large).stdout.trim().to_owned();
    place.ok(&["backup", "b.db"]);
    let blocks = 600;
    assert!(std::fs::metadata(place.path("b.db")).expect("a backup").len() > u64::from(blocks) * 512);

    let ran = run_limited(&place, blocks, &["backup", "c.db"]);
    assert!(matches!(ran.code, Some(1 | 6)), "{ran:?}");
    assert!(!place.path("c.db").exists(), "half a backup would be in the way of the next");
    place.ok(&["backup", "c.db"]);

    run_limited(&place, blocks, &["restore", "b.db", "--yes"]).fails(1, &["b.db cannot be restored"]);
    assert_eq!(litter(&place), [""; 0]);
    place.ok(&["jobs", "show", &kept]);
}
