//! Every form of prompts in, and what comes out for it.

use serde_json::{Value, json};

use crate::place::{Place, Ran, read};

use super::sim::{Desk, Sim};

#[test]
fn openai_lines_come_back_as_openai_lines_under_their_names() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    let line = |id: &str| {
        let body =
            json!({"model": "sim-large", "messages": [{"role": "user", "content": format!("hello {id}")}]});
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
    };
    desk.place.write("batch.jsonl", &["z", "a", "m"].map(line).join("\n"));
    for (mode, out) in [("--sync", "sync.jsonl"), ("--batch", "batch-out.jsonl")] {
        desk.ok(&["run", "batch.jsonl", mode, "--out", out]);
        let answers = desk.answers(out);
        let ids: Vec<&Value> = answers.iter().map(|answer| &answer["custom_id"]).collect();
        assert_eq!(ids, ["z", "a", "m"], "in order of the file");
        for answer in &answers {
            assert_eq!(answer["response"]["status_code"], 200, "{answer}");
            let body = &answer["response"]["body"];
            assert!(body["choices"][0]["message"]["content"].is_string(), "{answer}");
            assert_eq!((&body["object"], &body["model"]), (&"chat.completion".into(), &"sim-large".into()));
        }
    }
}

/// The simulator writes its answer in the order of the schema that reached it, as a model does.
#[test]
fn a_schema_reaches_the_model_and_the_table_in_the_order_of_its_writer() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    desk.place.write("prompts.txt", "why?\n");
    let text = json!({"type": "string"});
    let schema = json!({"type": "object", "properties": {"reasoning": text, "answer": text, "a_note": text},
        "required": ["reasoning", "answer", "a_note"], "additionalProperties": false});
    desk.place.write("ordered.json", &schema.to_string());
    for mode in ["--sync", "--batch"] {
        let out = format!("out{mode}.csv");
        desk.ok(&["run", "prompts.txt", mode, "--schema", "ordered.json", "--out", &out]);
        let table = read(&desk.place.path(&out));
        assert_eq!(table.lines().next(), Some("index,id,prompt,reasoning,answer,a_note,error"), "{mode}");
        let out = format!("out{mode}.jsonl");
        desk.ok(&["run", "prompts.txt", mode, "--schema", "ordered.json", "--out", &out]);
        let answer = &desk.answers(&out)[0]["answer"];
        let names: Vec<&String> = answer.as_object().expect("an object").keys().collect();
        assert_eq!(names, ["reasoning", "answer", "a_note"], "{mode}");
    }
}

#[test]
fn a_table_keeps_its_columns_and_gains_those_of_the_schema() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    desk.place.write("in.csv", "id,text\n7,\"one, two\"\n8,\"say \"\"hi\"\"\"\n");
    let args = ["run", "in.csv", "--sync", "--template", "Classify: {{text}}", "--schema", "schema.json"];
    desk.ok(&[&args[..], &["--out", "out.csv"]].concat());
    let table = read(&desk.place.path("out.csv"));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "id,text,label,n,error");
    assert!(
        lines[1].starts_with("7,\"one, two\",") && lines[2].starts_with("8,\"say \"\"hi\"\"\","),
        "{table}"
    );
    // On stdout too, where nothing else may be.
    let ran = desk.ok(&args);
    assert_eq!(ran.stdout, table);
    // The store has the answers only, and says so where the columns would be missed.
    let id = desk.run_id();
    let ran = desk.ok(&["runs", "results", &id, "--out", "stored.csv"]);
    assert!(
        ran.stderr.contains("columns of in.csv") && ran.stderr.contains("longhaul run in.csv"),
        "{ran:?}"
    );
    assert!(read(&desk.place.path("stored.csv")).contains("label,n,error\n"));
    let ran = desk.ok(&["runs", "results", &id, "--out", "stored.jsonl"]);
    assert!(!ran.stderr.contains("columns"), "{ran:?}");
    desk.run(&["run", "in.csv", "--sync", "--template", "{{nosuch}}"]).fails(2, &["nosuch", "text"]);
    desk.run(&["run", "in.csv", "--sync"]).fails(2, &["--template"]);
}

#[test]
fn prompts_that_come_from_no_table_stand_beside_their_answers_in_one() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    desk.place.write("in.txt", "one, two\nthree\n");
    desk.ok(&["run", "in.txt", "--sync", "--out", "out.csv"]);
    let table = read(&desk.place.path("out.csv"));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "index,id,prompt,answer,error");
    assert!(lines[1].starts_with("0,,\"one, two\",") && lines[2].starts_with("1,,three,"), "{table}");
    // The store has them too.
    desk.ok(&["runs", "results", &desk.run_id(), "--out", "stored.csv"]);
    assert_eq!(read(&desk.place.path("stored.csv")), table);
    desk.place.write("in.jsonl", "{\"id\":\"a\",\"prompt\":\"four\"}\n");
    desk.ok(&["run", "in.jsonl", "--sync", "--out", "out2.csv"]);
    assert!(read(&desk.place.path("out2.csv")).contains("\n0,a,four,"));
}

#[test]
fn conversations_and_images_pass_through() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
    let parts = json!([{"type": "text", "text": "what is this?"}, image]);
    let turns = json!({"messages": [
        {"role": "system", "content": "short"}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"}, {"role": "user", "content": parts},
    ]});
    desk.place.write("in.jsonl", &format!("{turns}\n{}\n\"plain\"\n", json!({"prompt": "p", "id": "x"})));
    desk.ok(&["run", "in.jsonl", "--sync", "--out", "out.jsonl"]);
    let answers = desk.answers("out.jsonl");
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[1]["id"], "x");
    // The stored request is what was given.
    let jobs = desk.json(&["jobs", "ls", "--kind", "llm.request", "--search", "what is this"]);
    let id = jobs["items"][0]["id"].as_str().expect("an id").to_owned();
    let payload = desk.json(&["jobs", "show", &id]);
    assert_eq!(payload["payload"]["body"]["messages"], turns["messages"], "{payload}");
}

#[test]
fn stdin_is_read_and_a_limit_is_kept() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    let ran = desk.feed(&["run", "-", "--sync", "--limit", "2"], "one\ntwo\nthree\n");
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 2), "{ran:?}");
    assert_eq!(sim.count("executed"), 2);
    // The same again is the same run.
    let again = desk.feed(&["run", "-", "--sync", "--limit", "2"], "one\ntwo\nthree\n");
    assert_eq!(again.stdout, ran.stdout);
    assert_eq!(sim.count("executed"), 2);
    desk.feed(&["run", "-", "--sync"], "").fails(2, &["stdin has no prompts"]);
}

#[test]
fn bad_lines_are_named_before_anything_is_sent() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 2);
    desk.place.write("bad.jsonl", "{\"prompt\":\"ok\"}\n{\"prompt\":\n{\"nothing\":1}\n");
    let ran = desk.run(&["run", "bad.jsonl", "--sync"]);
    ran.fails(2, &["line 2", "line 3"]);
    desk.run(&["run", "nosuch.txt"]).fails(4, &["nosuch.txt", "No such file"]);
    desk.place.write("wrong.json", "{\"type\":12}");
    let wrong = ["run", "prompts.txt", "--sync", "--schema", "wrong.json"];
    desk.run(&wrong).fails(2, &["--schema wrong.json cannot be used"]);
    desk.run(&["run", "prompts.txt", "--max-cost", "much"]).fails(2, &["--max-cost"]);
    desk.run(&["run", "prompts.txt", "--sync", "--batch"]).fails(2, &["--batch"]);
    let same = ["run", "prompts.txt", "--sync", "--out", "a.jsonl", "--errors", "a.jsonl"];
    desk.run(&same).fails(2, &["--out and --errors both name"]);
    let nowhere = ["run", "prompts.txt", "--sync", "--out", "no/such/folder/a.jsonl"];
    let ran = desk.run(&nowhere);
    ran.fails(4, &["no/such/folder/a.jsonl cannot be written: there is no folder no/such/folder", "hint:"]);
    assert!(!ran.stderr.contains(".partial"), "{ran:?}");
    desk.run(&["run", "prompts.txt", "--sync", "--out", "."]).fails(2, &["is a directory"]);
    desk.run(&["run", "prompts.txt", "--sync", "--schema", "."]).fails(2, &["--schema .", "directory"]);
    desk.run(&["costs", "resolve", "--bill", "abc"]).fails(2, &["--bill", "abc"]);
    assert_eq!((sim.count("calls"), sim.count("batches_created")), (0, 0));
}

#[test]
fn an_address_without_its_scheme_is_told_how_to_be_written() {
    let place = Place::new();
    place.write("prompts.txt", "one\n");
    let run = ["run", "prompts.txt", "--model", "m", "--base-url"];
    place.run(&[&run[..], &["localhost:1234/v1"]].concat()).fails(2, &["write http://localhost:1234/v1"]);
    for wrong in ["", "http://", "ftp://host"] {
        place.run(&[&run[..], &[wrong]].concat()).fails(2, &["--base-url", "like http://127.0.0.1"]);
    }
    place.run(&["run", "prompts.txt", "--profile", "localhost:1234"]).fails(5, &["--base-url", "http://"]);
    place.write("longhaul.toml", "[profiles.mine]\nprovider = \"openai\"\nbase_url = \"localhost:1\"\n");
    let ran = place.run(&["run", "prompts.txt", "--profile", "mine", "--model", "m"]);
    ran.fails(5, &["profiles.mine.base_url", "write http://localhost:1"]);
}

#[test]
fn a_model_that_each_line_names_is_not_shown_as_a_blank() {
    let sim = Sim::start(&[]);
    let place = Place::new();
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "sim-small", "messages": [{"role": "user", "content": "hi"}]}});
    place.write("o.jsonl", &format!("{line}\n"));
    let ran = place.run(&["run", "o.jsonl", "--base-url", &sim.base_url(), "--out", "a.jsonl"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("1 request to the model of each line by profile"), "{ran:?}");
    assert!(ran.stderr.contains("cost not estimated: each line names its model"), "{ran:?}");
    assert!(place.ok(&["runs", "ls"]).contains("the model of each line"));
}

/// What was paid for is not lost with the disk behind stdout.
#[test]
fn answers_that_cannot_be_printed_are_told_as_stored() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 3);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a full device");
    let ran =
        Ran::from(desk.command(&["run", "prompts.txt"]).stdout(full).output().expect("running longhaul"));
    let id = desk.run_id();
    let results = format!("longhaul runs results {id} --out FILE");
    ran.fails(1, &["No space left", &format!("the answers of {id} are stored"), &results]);
    desk.ok(&["runs", "results", &id, "--out", "answers.jsonl"]);
    assert_eq!((desk.answers("answers.jsonl").len(), sim.count("executed")), (3, 3));
}

#[test]
fn system_and_template_are_texts_or_files() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 1);
    // What the newest run says before its only prompt, and that prompt.
    let asked = |args: &[&str]| {
        desk.ok(&[&["run", "prompts.txt", "--sync"], args].concat());
        let id = desk.json(&["runs", "ls"])["items"][0]["id"].as_str().expect("an id").to_owned();
        let jobs = desk.json(&["jobs", "ls", "--process", &id, "--kind", "llm.request"]);
        let job = desk.json(&["jobs", "show", jobs["items"][0]["id"].as_str().expect("an id")]);
        let system = desk.json(&["runs", "show", &id])["settings"]["defaults"]["system"].clone();
        (system, job["payload"]["body"]["messages"][0]["content"].clone())
    };
    desk.place.write("template.md", "One\n{{prompt}}\n\n");
    desk.place.write("system.md", "Be \\n \"short\"\nand kind.\n");
    assert_eq!(asked(&["--template", "@template.md"]), (Value::Null, json!("One\nprompt number 0")));
    let system = json!("Be \\n \"short\"\nand kind.");
    assert_eq!(asked(&["--system", "@system.md"]), (system, json!("prompt number 0")));
    // On the command line, line ends and tabs are written as in most programs.
    let given = asked(&["--template", r"Two\n\t{{prompt}}", "--system", "@@all"]);
    assert_eq!(given, (json!("@all"), json!("Two\n\tprompt number 0")));
    // A file that has changed makes another run, as another text does.
    desk.place.write("template.md", "Three {{prompt}}");
    assert_eq!(asked(&["--template", "@template.md"]).1, json!("Three prompt number 0"));
    desk.run(&["run", "prompts.txt", "--system", "@nosuch.md"]).fails(4, &["--system nosuch.md", "@@"]);
}

#[test]
fn a_workbook_is_read_and_written_as_any_other_table() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    desk.place.write("in.csv", "id,text,n\n7,\"one, two\",0.5\n8,=1+1,\n");
    let args = ["--sync", "--template", "Classify: {{text}}", "--schema", "schema.json", "--out"];
    desk.ok(&[&["run", "in.csv"], &args[..], &["labels.xlsx"]].concat());
    assert!(std::fs::read(desk.place.path("labels.xlsx")).expect("a file").starts_with(b"PK\x03\x04"));
    let id = desk.run_id();
    // The same table, read from the workbook, with another question.
    let again = ["--sync", "--template", "{{text}}", "--out"];
    desk.ok(&[&["run", "labels.xlsx"], &again[..], &["again.csv"]].concat());
    let table = read(&desk.place.path("again.csv"));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "id,text,n,label,n_2,error,answer,error_2");
    assert!(lines[1].starts_with("7,\"one, two\",0.5,"), "{table}");
    assert!(lines[2].starts_with("8,'=1+1,,"), "text in a workbook is not a formula: {table}");
    // What the store has of it goes into a workbook too.
    desk.ok(&["runs", "results", &id, "--out", "stored.xlsx"]);
    assert!(std::fs::read(desk.place.path("stored.xlsx")).expect("a file").starts_with(b"PK"));
    desk.run(&["run", "labels.xlsx", "--sheet", "Nope"]).fails(2, &["no sheet \"Nope\"", "Sheet1"]);
    desk.run(&["run", "in.csv", "--sheet", "Sheet1"]).fails(2, &["in.csv is not a workbook", "--sheet"]);
    desk.run(&[&["run", "in.csv"], &args[..], &["out.ods"]].concat()).fails(2, &["out.ods", ".xlsx"]);
}
