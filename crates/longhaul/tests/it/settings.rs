//! Flag, environment, file, default; and refusals that name the source.

use crate::place::{Place, Ran};

fn origin(place: &Place, key: &str) -> (String, String) {
    let settings = place.json(&["config", "show"]);
    let list = settings["items"].as_array().expect("a list");
    let setting = list.iter().find(|setting| setting["key"] == key).expect("the setting");
    (
        setting["value"].as_str().unwrap_or_default().to_owned(),
        setting["origin"].as_str().unwrap_or_default().to_owned(),
    )
}

#[test]
fn each_source_goes_before_the_next() {
    let place = Place::new();
    assert_eq!(origin(&place, "worker.lease"), ("60s".to_owned(), "default".to_owned()));
    std::fs::create_dir(place.path(".longhaul")).expect("a directory");
    place.write(".longhaul/config.toml", "[worker]\nlease = \"2m\"\n");
    assert_eq!(origin(&place, "worker.lease"), ("2m".to_owned(), ".longhaul/config.toml".to_owned()));
    place.write("longhaul.toml", "[worker]\nlease = \"3m\"\nqueues = [\"a\", \"b\"]\nconcurrency = 9\n");
    assert_eq!(origin(&place, "worker.lease").1, "longhaul.toml");
    assert_eq!(origin(&place, "worker.queues").0, "a,b");
    let mut command = place.command(&["config", "show", "-o", "jsonl"]);
    let ran = Ran::from(command.env("LONGHAUL_WORKER__LEASE", "4m").output().expect("running longhaul"));
    assert!(
        ran.stdout.contains(r#"{"key":"worker.lease","value":"4m","origin":"LONGHAUL_WORKER__LEASE"}"#),
        "{ran:?}"
    );
    let ran = place.run(&["work", "--drain", "--lease", "5m", "--queue", "q", "--concurrency", "2"]);
    assert!(ran.stderr.contains("2 slots") && ran.stderr.contains("queues       q"), "{ran:?}");
}

#[test]
fn a_wrong_setting_is_named_with_its_source() {
    let place = Place::new();
    place.write("longhaul.toml", "[store]\nurl = \"mysql://x\"\n");
    place.run(&["jobs", "ls"]).fails(5, &["store.url", "mysql://x", "longhaul.toml", "hint:"]);
    place.write("longhaul.toml", "[store]\nulr = \"x\"\n");
    place.run(&["jobs", "ls"]).fails(5, &["`store.ulr` in longhaul.toml"]);
    place.write("longhaul.toml", "[store\n");
    place.run(&["jobs", "ls"]).fails(5, &["longhaul.toml is wrong"]);
    place.run(&["jobs", "ls", "--config", "other.toml"]).fails(5, &["other.toml cannot be read"]);
    std::fs::remove_file(place.path("longhaul.toml")).expect("removing");
    place.run(&["jobs", "ls", "--store", "mysql://x"]).fails(2, &["--store"]);
}

#[test]
fn init_writes_a_file_that_is_valid_and_never_overwrites_one() {
    let place = Place::new();
    assert_eq!(place.ok(&["init"]), "longhaul.toml");
    place.ok(&["config", "show"]);
    place.run(&["init"]).fails(1, &["exists"]);
}
