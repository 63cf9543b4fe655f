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

/// People paste this output into tickets.
#[test]
fn settings_of_profiles_are_listed_without_their_secrets() {
    let place = Place::new();
    place.write(
        "longhaul.toml",
        "[profiles.mine]\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nkey_env = \"MY_KEY\"\n\
         headers = [\"X-Team: hidden\"]\nproxy = \"http://me:hidden@proxy:3128\"\n",
    );
    let shown = |args: &[&str]| {
        let output = place.command(args).env("MY_KEY", "hidden").output().expect("running longhaul");
        String::from_utf8(output.stdout).expect("text") + &String::from_utf8_lossy(&output.stderr)
    };
    for args in
        [&["config", "show"] as &[&str], &["config", "show", "-o", "json"], &["doctor"], &["keys", "ls"]]
    {
        let text = shown(args);
        assert!(text.contains("mine") && !text.contains("hidden"), "{args:?}: {text}");
    }
    let text = shown(&["config", "show"]);
    for line in
        ["profiles.mine.headers", "X-Team: …", "…@proxy:3128", "profiles.mine.key_env", "longhaul.toml"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn doctor_looks_at_models_without_asking_any() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    let checks = place.json(&["doctor"]);
    let find = |name: &str| {
        let items = checks["items"].as_array().expect("checks");
        items.iter().find(|item| item["check"] == name).unwrap_or_else(|| panic!("no check {name}")).clone()
    };
    assert_eq!(find("llm.db")["text"], "not there yet: no prompt was run");
    assert!(!place.path(".longhaul/llm.db").exists(), "a look makes no file");
    for name in ["profiles", "engines", "prices"] {
        assert!(find(name)["text"].as_str().is_some(), "{name}");
    }
    place.write("old.toml", "as_of = \"2020-01-01\"\nsource = \"old\"\n[provider.openai]\nmodels = []\n");
    let old = place.run(&[
        "doctor",
        "--config",
        place.write("c.toml", "[llm]\nprices = \"old.toml\"\n").to_str().expect("a path"),
    ]);
    assert!(old.stdout.contains("note") && old.stdout.contains("days old"), "{old:?}");
    std::fs::write(place.path(".longhaul/llm.db"), "no database").expect("a file");
    let broken = place.run(&["doctor"]);
    assert_eq!(broken.code, Some(8), "{broken:?}");
    assert!(broken.stdout.contains("llm.db"), "{broken:?}");
}

#[test]
fn a_store_that_is_none_is_told_with_the_nearest_form() {
    let place = Place::new();
    for (store, words) in [
        (
            "host=localhost dbname=jobs password=secret",
            vec!["password=***", "postgres://USER:PASSWORD@localhost/jobs?"],
        ),
        ("localhost:6379", vec!["\"localhost:6379\"", "did you mean redis://localhost:6379?"]),
        ("redis:/x", vec!["\"redis:/x\"", "did you mean redis://x?"]),
        ("sqlite", vec!["\"sqlite\"", "did you mean sqlite://.longhaul/longhaul.db?"]),
        ("sqlite://:memory:", vec!["in memory", "did you mean memory://?"]),
        ("", vec!["the store URL is empty", "did you mean sqlite://.longhaul/longhaul.db?"]),
        ("me:secret@h:5432/d", vec!["me:***@h:5432/d", "postgres://USER@h:5432/DATABASE?"]),
        ("http://localhost:7788", vec!["--server"]),
    ] {
        for args in
            [["jobs", "ls", "--store", store].as_slice(), &["move", "--to", "sqlite://a", "--from", store]]
        {
            let ran = place.run(args);
            ran.fails(2, &words);
            ran.fails(2, &["sqlite://PATH", "memory://"]);
            assert!(!ran.stderr.contains("secret"), "{ran:?}");
        }
    }
}
