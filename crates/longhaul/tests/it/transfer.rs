//! Backup and restore.

use crate::place::Place;

#[test]
fn a_backup_comes_back_and_the_former_store_is_kept() {
    let place = Place::new();
    let kept = place.enqueue(&["echo"]);
    place.ok(&["backup", "b.db"]);
    let newer = place.enqueue(&["echo"]);
    place.run(&["backup", "b.db"]).fails(1, &["b.db exists"]);
    place.run(&["restore", "b.db"]).fails(2, &["there is a store", "--yes"]);
    let restored = place.json(&["restore", "b.db", "--yes"]);
    let aside = restored["aside"].as_str().expect("a path").to_owned();
    place.ok(&["jobs", "show", &kept]);
    assert_eq!(place.run(&["jobs", "show", &newer]).code, Some(4));
    place.ok(&["jobs", "show", &newer, "--store", &format!("sqlite://{aside}")]);
}

#[test]
fn only_a_store_can_be_restored() {
    let place = Place::new();
    place.write("x.db", "this is no database, although its name says so");
    place.run(&["restore", "x.db"]).fails(1, &["x.db is not a longhaul store"]);
    place.run(&["restore", "missing.db"]).fails(1, &["missing.db"]);
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
    let names = std::fs::read_dir(place.path(".longhaul")).expect("a folder");
    let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    let litter = |name: &std::ffi::OsString| name.to_string_lossy().contains("restor");
    assert!(!names.iter().any(litter), "{names:?}");
    place.ok(&["jobs", "show", &kept]);
}
