//! Habits of this repository that a machine can check: what may not stand where in the source, and that documents name
//! only what exists. An exception stands in the list beside its rule, with its reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use longhaul_queue::State;

use crate::place::Place;

mod pipelines;

/// A longer file is split by concept.
const FILE_LINES_MAX: usize = 700;

/// A text, and the files that may contain it. The texts are built from two parts, or this file would break its rules.
const BANNED: [(&str, &str, &[&str]); 10] = [
    ("tod", "o!(", &[]),
    ("dbg", "!(", &[]),
    ("unimplemente", "d!(", &[]),
    ("#[igno", "re", &[]),
    // What others test against is compiled on request: the conformance suite, the fake of Google Sheets, hostile workbooks,
    // temporary servers.
    (
        "featur",
        "e = \"",
        &[
            "pipeline/src/lib.rs",
            "pipeline/src/table_files.rs",
            "pipelines/sheets/src/google.rs",
            "queue/src/lib.rs",
            "sqlite/src/lib.rs",
            "stores/src/lib.rs",
        ],
    ),
    // Time is an argument. The bench compares moments of two processes, finer than the clock's milliseconds.
    ("SystemTime", "::now", &["llm/src/clock.rs", "queue/src/clock.rs", "lab/src/bench/child.rs"]),
    ("Timestamp", "::now", &[]),
    ("Zoned", "::now", &[]),
    // Settings come from one place. An exec command learns of its job from its environment. The seed or size of a test, where a server's programs are, and a clean environment for the program under test.
    (
        "env:",
        ":var",
        &[
            "lab/src/verify/step.rs",
            "longhaul/src/config.rs",
            "longhaul/tests/it/llm/sync.rs",
            "longhaul/tests/it/place.rs",
            "longhaul/tests/it/score/crash.rs",
            "longhaul/tests/it/score/google.rs",
            "sqlite/src/child.rs",
            "stores/tests/it/redis.rs",
            "stores/tests/it/sqlite.rs",
        ],
    ),
    // Waiting for another process's lock, or for company in a crowd; jobs that are to block their thread; the end of a
    // test's patience while tokio's time stands still; a server that is yet to answer; and the bounded poll of the tests that
    // kill processes, since no event tells of the end of either of two children.
    (
        "std::thread",
        "::sleep",
        &[
            "lab/src/verify/lease.rs",
            "lab/src/verify/step.rs",
            "longhaul/tests/it/workers.rs",
            "pipeline/src/private_file.rs",
            "queue/src/testing/started.rs",
            "sqlite/src/connection.rs",
            "sqlite/src/writer.rs",
            "stores/src/temporary.rs",
        ],
    ),
];

#[test]
fn source_keeps_to_its_rules() {
    let mut broken = Vec::new();
    for (name, path) in sources() {
        let text = read(&path);
        if text.lines().count() > FILE_LINES_MAX {
            broken.push(format!("{name} is longer than {FILE_LINES_MAX} lines"));
        }
        for (start, end, allowed) in BANNED {
            let banned = format!("{start}{end}");
            if !allowed.contains(&name.as_str()) {
                let lines = text.lines().enumerate().filter(|(_, line)| line.contains(&banned));
                broken.extend(lines.map(|(number, _)| format!("{name}:{} has {banned}", number + 1)));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A file that was renamed must not leave its exception behind.
#[test]
fn exceptions_name_files_that_use_them() {
    for (start, end, allowed) in BANNED {
        for name in allowed {
            let (_, path) = sources().into_iter().find(|(source, _)| source == name).expect(name);
            let text = read(&path);
            assert!(text.contains(&format!("{start}{end}")), "{name} needs no exception for {start}{end}");
        }
    }
}

/// Which of ours each crate knows. A pipeline names no other, and only the binary names them all.
const KNOWS: [(&str, &[&str]); 12] = [
    ("crates/queue", &[]),
    ("crates/sqlite", &[]),
    ("crates/llm", &["sqlite"]),
    ("crates/sim", &["llm"]),
    ("crates/stores", &["queue", "sqlite"]),
    // The simulator for its tests' helpers.
    ("crates/pipeline", &["llm", "queue", "sim", "sqlite", "stores"]),
    ("pipelines/prompts", &["llm", "pipeline", "queue"]),
    ("pipelines/sheets", &["llm", "pipeline", "queue", "stores"]),
    ("crates/api", &["llm", "pipeline", "queue"]),
    ("crates/server", &["api", "llm", "pipeline", "prompts", "queue", "sheets"]),
    ("crates/lab", &["queue", "stores"]),
    (
        "crates/longhaul",
        &["api", "lab", "llm", "pipeline", "prompts", "queue", "server", "sheets", "sim", "stores"],
    ),
];

#[test]
fn crates_depend_in_one_direction() {
    for (folder, known) in KNOWS {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        let (_, dependencies) = manifest.split_once("\n[dependencies]").expect("dependencies");
        let (own, _) = dependencies.split_once("\n[").expect("a section below");
        let names = own.lines().filter_map(|line| line.split(['.', ' ']).next());
        let mut found: Vec<&str> = names.filter_map(|name| name.strip_prefix("longhaul-")).collect();
        found.sort_unstable();
        assert_eq!(found, known, "{folder}");
    }
    let folders = ["crates", "pipelines"].map(|folder| fs::read_dir(root().join(folder)).expect("a folder"));
    assert_eq!(folders.into_iter().flatten().count(), KNOWS.len(), "every crate is in the list");
}

/// A worker needs no HTTP: its handlers are registered without the server. Settings may be called after it.
#[test]
fn workers_are_built_without_the_server() {
    for name in ["commands/work.rs", "commands/working.rs", "backend.rs"] {
        let text = read(&root().join("crates/longhaul/src").join(name));
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && !"_\".".contains(c)));
        let words = words.filter_map(|word| word.split('.').next());
        let named: Vec<&str> = words.filter(|word| ["longhaul_server", "server"].contains(word)).collect();
        assert!(named.is_empty(), "{name} names {named:?}");
    }
}

/// A longer map is not read.
const MAP_LINES_MAX: usize = 200;

#[test]
fn the_map_is_short() {
    let lines = read(&root().join("ARCHITECTURE.md")).lines().count();
    assert!(lines <= MAP_LINES_MAX, "ARCHITECTURE.md has {lines} lines; decisions go to docs/decisions.md");
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for path in documents() {
        let folder = path.parent().expect("a document has a folder");
        for link in links(&read(&path)) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            let found = target.is_file() && (heading.is_empty() || headings(&target).contains(heading));
            if !found {
                broken.push(format!("{}: {link}", name_of(&path, "")));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_document_is_linked_from_another() {
    let documents = documents();
    let linked: BTreeSet<PathBuf> = documents
        .iter()
        .flat_map(|path| {
            let folder = path.parent().expect("a document has a folder").to_owned();
            links(&read(path)).into_iter().map(move |link| {
                folder.join(link.split('#').next().unwrap_or_default()).canonicalize().unwrap_or_default()
            })
        })
        .collect();
    for path in documents.iter().filter(|path| name_of(path, "").starts_with("docs/")) {
        assert!(linked.contains(path), "no document links to {}", name_of(path, ""));
    }
}

#[test]
fn documents_name_commands_that_exist() {
    let place = Place::new();
    let mut named = BTreeSet::new();
    for path in documents() {
        for (name, line) in read(&path).lines().flat_map(commands).map(|found| (name_of(&path, ""), found)) {
            named.insert((line, name));
        }
    }
    assert!(named.len() > 20, "only {} commands found: the search is broken", named.len());
    for (words, document) in named {
        let words: Vec<&str> = words.split(' ').collect();
        let known = |args: &[&str]| place.run(&[args, &["--help"]].concat()).code == Some(0);
        assert!(known(&words[..1]), "{document} names the command {words:?}");
        // The second word may be an argument; it is a command only where the first one has commands.
        let nested = place.ok(&[words[0], "--help"]).contains("\nCommands:\n");
        assert!(!nested || words.len() < 2 || known(&words), "{document} names the command {words:?}");
    }
}

#[test]
fn documents_name_every_state_and_setting() {
    let concepts = read(&root().join("docs/concepts.md"));
    for state in State::ALL {
        assert!(concepts.contains(&format!("`{state}`")), "docs/concepts.md does not name {state}");
    }
    let operations = read(&root().join("docs/operations.md"));
    let models = read(&root().join("docs/models.md"));
    let settings = Place::new().json(&["config", "show"]);
    let settings = settings["items"].as_array().expect("a list of settings");
    assert!(!settings.is_empty());
    for setting in settings {
        let key = setting["key"].as_str().expect("a key");
        if key.starts_with("profiles.") {
            let profile = format!("`{}`", key.split('.').nth(1).expect("a profile"));
            assert!(models.contains(&profile), "docs/models.md does not name {profile}");
            continue;
        }
        assert!(operations.contains(&format!("`{key}`")), "docs/operations.md does not name {key}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The source files, each with its name: the path, without `crates/`.
fn sources() -> Vec<(String, PathBuf)> {
    let paths = ["crates", "pipelines"].map(|folder| files(&root().join(folder), "rs"));
    let named = paths.into_iter().flatten().map(|path| {
        let name = name_of(&path, "");
        (name.strip_prefix("crates/").unwrap_or(&name).to_owned(), path)
    });
    named.collect()
}

/// The path below a folder of the repository.
fn name_of(path: &Path, folder: &str) -> String {
    path.strip_prefix(root().join(folder)).expect("a file of the repository").display().to_string()
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// The Markdown files of the root and of docs.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut found = files(&root.join("docs"), "md");
    found.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)),
    );
    found
}

/// Links to files of the repository: `](file)`, `](file#heading)`.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// The anchors that a document's headings make.
fn headings(path: &Path) -> BTreeSet<String> {
    let text = read(path);
    let titles = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |title: &str| {
        let title = title.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect()
    };
    titles.map(anchor).collect()
}

/// The first two words after `longhaul`, in code: "`longhaul …", "$ longhaul …" and "cargo run … -- …".
fn commands(line: &str) -> Vec<String> {
    let starts = ["`longhaul ", "$ longhaul ", "cargo run --release -- "];
    let after = starts.iter().flat_map(|start| line.split(start).skip(1));
    after
        .filter_map(|rest| {
            let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase()) && !word.is_empty();
            let words: Vec<&str> = rest.split([' ', '`', ',', ':']).take(2).take_while(is_word).collect();
            (!words.is_empty()).then(|| words.join(" "))
        })
        .collect()
}
