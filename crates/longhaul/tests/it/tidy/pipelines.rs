//! Names of a pipeline stand in its own files. Whoever compares a name, a prefix or a kind elsewhere makes the next pipeline a change of
//! that file too: ask the pipeline, or the list.

use std::collections::BTreeSet;
use std::fs;

use longhaul_pipeline::About;

use super::{read, root, sources};
use crate::place::Place;

/// Every pipeline, with where its commands are, beside the files that carry its name.
const PIPELINES: [(&About, &[&str]); 2] = [
    (
        &longhaul_prompts::ABOUT,
        &["longhaul/src/commands/run", "longhaul/src/prompts", "longhaul/src/answers"],
    ),
    (&longhaul_sheets::ABOUT, &["longhaul/src/commands/score"]),
];

/// Files and folders that may name any pipeline.
const SHARED: [&str; 2] = [
    // The one list.
    "longhaul/src/pipelines.rs",
    "longhaul/src/commands/demo",
];

/// Texts that begin like a name and are none: the models' file, a verb for jobs.
const NOT_NAMES: [&str; 2] = ["llm.db", "run-now"];

/// Where a text may stand that is written like a name, and why.
const EXCEPTIONS: [(&str, &str, &str); 4] = [
    ("pipeline/src/table_files/xlsx/bounds.rs", "sheets", "those of a workbook"),
    ("server/src/api/openapi.rs", "prompts", "describes the routes"),
    ("server/src/api/openapi.rs", "sheets", "describes the routes"),
    ("server/src/mcp/", "prompts", "an argument of the tools that ask models"),
];

#[test]
fn names_of_a_pipeline_stand_in_its_own_files() {
    let settings = settings();
    let mut used = BTreeSet::new();
    let mut broken = Vec::new();
    for (file, path) in sources() {
        let text = read(&path);
        for (about, commands) in PIPELINES {
            if is_place_of(&file, about, commands) {
                continue;
            }
            for literal in names_in(without_tests(&text), about) {
                let excepted =
                    |(place, name, _): &&(&str, &str, &str)| file.starts_with(place) && literal == *name;
                match EXCEPTIONS.iter().find(excepted) {
                    Some(exception) => drop(used.insert(exception)),
                    None if literal.split(' ').next().is_some_and(|word| settings.contains(word)) => {}
                    None => broken.push(format!("{file} names {literal:?} of {}", about.name)),
                }
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    let unused: Vec<_> = EXCEPTIONS.iter().filter(|exception| !used.contains(exception)).collect();
    assert!(unused.is_empty(), "these exceptions are not needed: {unused:#?}");
}

#[test]
fn every_pipeline_is_looked_for() {
    let folders =
        fs::read_dir(root().join("pipelines")).expect("a folder").map(|entry| entry.expect("an entry"));
    let folders: BTreeSet<String> = folders.map(|entry| entry.file_name().display().to_string()).collect();
    let known: BTreeSet<String> = PIPELINES.iter().map(|(about, _)| about.name.to_owned()).collect();
    assert_eq!(folders, known, "a pipeline has the name of its folder");
}

/// What is looked for is found.
#[test]
fn a_name_is_found_wherever_a_text_begins_with_it() {
    let found = |line: &str| names_in(line, &longhaul_prompts::ABOUT).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(found(r#"if kind == "llm.request" || queue.starts_with("run-") {"#), ["llm.request", "run-"]);
    assert_eq!(
        found(r#"match name { "prompts" => 1, "/api/v1/prompts/estimate" => 2 }"#),
        ["prompts", "/api/v1/prompts/estimate"]
    );
    assert_eq!(found(r#"note("prompts go here, by longhaul run-now"); // "llm.run""#), Vec::<String>::new());
    assert_eq!(found(r#"open("llm.db"); verb("run-now")"#), Vec::<String>::new());
}

/// A pipeline's own crate, routes, types of the API, commands and calls of a server; what all may name; and tests.
fn is_place_of(file: &str, about: &About, commands: &[&str]) -> bool {
    let name = about.name;
    let own = [
        format!("pipelines/{name}/"),
        format!("server/src/api/{name}"),
        format!("api/src/{name}"),
        format!("longhaul/src/remote/{name}"),
    ];
    own.iter()
        .map(String::as_str)
        .chain(commands.iter().copied())
        .chain(SHARED)
        .any(|place| file.starts_with(place))
        || file.contains("/tests/")
        || file.contains("/testing/")
        || file.ends_with("/tests.rs")
}

/// The source without the unit tests at its end.
fn without_tests(text: &str) -> &str {
    let end = text.find("#[cfg(test)]\nmod ").or_else(|| text.find("#[cfg(test)]\npub(crate) mod "));
    &text[..end.unwrap_or(text.len())]
}

/// String literals that name a pipeline. What follows a quotation mark is looked at, be it the first or the last of a literal: no code
/// begins like a name.
fn names_in<'a>(text: &'a str, about: &'a About) -> impl Iterator<Item = &'a str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(|line| line.split('"').skip(1)).filter(|literal| is_name(literal, about))
}

/// The name itself, the address of its routes, or what begins with one of its prefixes.
fn is_name(literal: &str, about: &About) -> bool {
    let routes = format!("/api/v1/{}", about.name);
    let starts = [routes.as_str(), about.prefix, about.kind_prefix];
    (literal == about.name || starts.into_iter().any(|start| literal.starts_with(start)))
        && !NOT_NAMES.iter().any(|other| literal.starts_with(other))
}

/// Settings that begin like kinds.
fn settings() -> BTreeSet<String> {
    let shown = Place::new().json(&["config", "show"]);
    let items = shown["items"].as_array().expect("a list of settings").iter();
    items.map(|item| item["key"].as_str().expect("a key").to_owned()).collect()
}
