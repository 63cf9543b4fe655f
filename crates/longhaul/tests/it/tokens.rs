//! Tokens and keys that many processes change at once.

use std::process::{Child, Stdio};

use crate::place::{Place, Ran, read};

const PROCESSES: usize = 24;

fn start(place: &Place, args: &[&str]) -> Child {
    let mut command = place.command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("running longhaul")
}

fn all_end_well(children: Vec<Child>) {
    for child in children {
        let ran = Ran::from(child.wait_with_output().expect("it ends"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

fn names(place: &Place) -> Vec<String> {
    let list = place.json(&["tokens", "ls"]);
    let items = list["items"].as_array().expect("a list").iter();
    let mut names: Vec<String> =
        items.map(|token| token["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_token_of_many_processes_is_kept_and_every_removed_one_is_gone() {
    let place = Place::new();
    let name = |number: usize| format!("t{number:02}");
    all_end_well((0..PROCESSES).map(|number| start(&place, &["tokens", "add", &name(number)])).collect());
    assert_eq!(names(&place), (0..PROCESSES).map(name).collect::<Vec<_>>());
    // Half of them go while as many others come.
    let mixed = (0..PROCESSES).map(|number| match number % 2 {
        0 => start(&place, &["tokens", "rm", &name(number)]),
        _ => start(&place, &["tokens", "add", &name(PROCESSES + number)]),
    });
    all_end_well(mixed.collect());
    let mut expected: Vec<String> = (0..PROCESSES).filter(|number| number % 2 == 1).map(name).collect();
    expected.extend((0..PROCESSES).filter(|number| number % 2 == 1).map(|number| name(PROCESSES + number)));
    assert_eq!(names(&place), expected);
}

#[test]
fn a_damaged_file_of_tokens_is_named_and_left_as_it_is() {
    let place = Place::new();
    place.ok(&["tokens", "add", "ci"]);
    place.run(&["tokens", "add", "ci"]).fails(2, &["token named ci", "tokens rm ci"]);
    let path = place.path(".longhaul").join("tokens.json");
    std::fs::write(&path, "[{").expect("written");
    place.run(&["tokens", "add", "other"]).fails(1, &["tokens.json is damaged", "move it away"]);
    assert_eq!(read(&path), "[{");
}

#[test]
fn a_key_of_many_processes_is_one_of_theirs_and_whole() {
    let place = Place::new();
    let key = |number: usize| format!("sk-{}", "k".repeat(100 + number));
    let children = (0..PROCESSES).map(|number| {
        let mut command = place.command(&["keys", "set", "openai"]);
        let path = place.write(&format!("key-{number}"), &key(number));
        command.stdin(std::fs::File::open(path).expect("a file"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("running longhaul")
    });
    all_end_well(children.collect());
    let stored = read(&place.path("config").join("longhaul").join("keys").join("openai"));
    assert!((0..PROCESSES).any(|number| stored == key(number) + "\n"), "{stored}");
}
