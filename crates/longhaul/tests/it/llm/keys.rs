//! Keys, models and the simulator's own command.

use std::os::unix::fs::PermissionsExt as _;

use super::sim::{Desk, Sim};

const KEY: &str = "sk-stored-0123456789";

#[test]
fn a_stored_key_is_private_used_and_never_shown() {
    let sim = Sim::start(&["--require-key", KEY]);
    let desk = Desk::at(&sim, 3);
    let run = ["run", "prompts.txt", "--sync"];
    desk.run(&run).fails(5, &["held (auth)"]);
    let set = desk.feed(&["keys", "set", "p"], &format!("{KEY}\n"));
    assert_eq!(set.code, Some(0), "{set:?}");
    let path = desk.place.path("config/longhaul/keys/p");
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o600, 0o700));
    let listed = desk.json(&["keys", "ls"]);
    let ours = listed["items"].as_array().expect("a list").iter().find(|line| line["profile"] == "p");
    assert_eq!(ours.map(|line| &line["key"]), Some(&"stored".into()), "{listed}");
    let ran = desk.ok(&run);
    for text in [set.stdout, set.stderr, listed.to_string(), ran.stdout, ran.stderr] {
        assert!(!text.contains(KEY), "{text}");
    }
    desk.ok(&["keys", "rm", "p"]);
    assert!(!path.exists());
    desk.run(&["keys", "rm", "p"]).fails(4, &["no key is stored"]);
    desk.run(&["models"]).fails(5, &["longhaul keys ls"]);
}

#[test]
fn a_key_that_is_none_is_not_stored() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 1);
    for (input, word) in [("", "empty"), ("two words\n", "not a key")] {
        desk.feed(&["keys", "set", "p"], input).fails(5, &[word]);
    }
    desk.feed(&["keys", "set", "nosuch"], KEY).fails(5, &["there is no profile", "[profiles.nosuch]"]);
    assert!(!desk.place.path("config").exists());
}

#[test]
fn models_are_listed_with_prices() {
    let sim = Sim::start(&[]);
    for (provider, path) in [("openai", "/v1"), ("anthropic", ""), ("gemini", "/v1beta")] {
        let desk = Desk::new(1, provider, &format!("{}{path}", sim.url()));
        let models = desk.json(&["models"]);
        let small =
            models["items"].as_array().expect("a list").iter().find(|line| line["model"] == "sim-small");
        let small = small.unwrap_or_else(|| panic!("{provider}: {models}"));
        assert!(small["input_usd_per_million"].is_number() && small["batches"] == true, "{small}");
    }
    sim.stop();
    let desk = Desk::new(1, "openai", "http://127.0.0.1:9/v1");
    desk.run(&["models"]).fails(6, &["profile p lists no models", "is it running"]);
}

#[test]
fn a_busy_port_and_wrong_options_are_said() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 1);
    let port = sim.address().rsplit_once(':').expect("a port").1;
    desk.run(&["sim", "serve", "--port", port]).fails(1, &["cannot listen on 127.0.0.1", port, "--port"]);
    desk.run(&["sim", "serve", "--port", "0", "--host", "0.0.0.0"]).fails(2, &["not this machine alone"]);
    let wrong = r#"{"faults":{"rate_nosuch":1}}"#;
    desk.run(&["sim", "serve", "--port", "0", "--options", wrong]).fails(2, &["rate_nosuch"]);
}

#[test]
fn a_variable_that_should_hold_a_key_and_is_not_set_is_named() {
    let sim = Sim::start(&[]);
    let mut desk = Desk::at(&sim, 1);
    desk.set("LONGHAUL_PROFILES__P__KEY_ENV", "MY_OWN_KEY");
    let args = ["run", "prompts.txt", "--sync"];
    desk.run(&args).fails(5, &["profile \"p\"", "MY_OWN_KEY is not set"]);
    // Also where no profile is named and this one would be the only one.
    desk.set("LONGHAUL_LLM__PROFILE", "");
    desk.run(&args).fails(5, &["no provider is set up", "MY_OWN_KEY, the key of profile p, is not set"]);
    assert_eq!(sim.count("calls"), 0);
    desk.set("MY_OWN_KEY", "k");
    desk.ok(&args);
}

#[test]
fn without_any_key_a_run_says_what_to_set() {
    let sim = Sim::start(&[]);
    let mut desk = Desk::at(&sim, 1);
    desk.env.clear();
    let args = ["run", "prompts.txt"];
    desk.run(&args).fails(5, &["no provider is set up", "OPENAI_API_KEY", "--profile sim"]);
    desk.run(&["run", "prompts.txt", "--profile", "nosuch"]).fails(5, &["there is no profile", "openai"]);
    let misspelt = desk.run(&["run", "prompts.txt", "--profile", "ollma"]);
    misspelt.fails(5, &["there is no profile \"ollma\"", "did you mean ollama?"]);
    desk.run(&["run", "prompts.txt", "--base-url", &sim.base_url()]).fails(2, &["no model is named"]);
    desk.set("LONGHAUL_PROFILES__HALF__MODEL", "m");
    desk.run(&args).fails(5, &["half", "LONGHAUL_PROFILES__HALF__MODEL", "names no provider"]);
    assert_eq!(sim.count("calls"), 0);
}
