//! Outcomes in every form, and files that appear whole or not at all.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use tempfile::TempDir;

use super::*;

/// Three prompts: a text with everything that needs care, a value, and a failure.
fn outcomes() -> Vec<(Item, Outcome)> {
    let usage = json!({"fresh_in": 5, "cache_write": 1, "cache_read": 4, "out": 2, "reasoning": 3});
    let values = [
        json!({"text": "one,\n\"two\" \\", "stop": "end", "model": "m", "usage": usage, "cost_usd": 0.00125, "cached": false}),
        json!({"text": "{\"a\":1}", "json": {"a": 1, "b": [true]}, "stop": "length", "model": "m", "usage": usage,
            "cost_usd": null, "cached": true, "created": 7}),
        json!({"class": "throttled", "message": "the provider answered 429"}),
    ];
    let outcomes = values.map(|value| serde_json::from_value(value).expect("an outcome"));
    let items = (0..).map(|index| Item {
        index,
        custom_id: (index < 2).then(|| format!("p{index}")),
        columns: None,
        prompt: None,
    });
    items.zip(outcomes).collect()
}

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn options(&self, form: Form, errors: bool, properties: &[&str]) -> Options {
        Options {
            out: self.path("out"),
            errors: errors.then(|| self.path("errors")),
            form,
            properties: properties.iter().map(|name| (*name).to_owned()).collect(),
            endpoint: Endpoint::Chat,
            input: prompts::Form::Csv,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("a file")
    }

    fn files(&self) -> usize {
        fs::read_dir(self.folder.path()).expect("a folder").count()
    }

    fn write(&self, options: Options, outcomes: &[(Item, Outcome)]) -> String {
        let mut answers = Answers::create(options).expect("a place");
        for (item, outcome) in outcomes {
            answers.write(item, outcome).expect("written");
        }
        assert_eq!(answers.finish().expect("finished"), Written { answers: 2, errors: 1 });
        self.read("out")
    }
}

#[test]
fn jsonl_says_everything_of_an_answer() {
    let place = Place::new();
    let usage = r#"{"fresh_in":5,"cache_write":1,"cache_read":4,"out":2,"reasoning":3}"#;
    let first = format!(
        r#"{{"id":"p0","index":0,"answer":"one,\n\"two\" \\","stop":"end","model":"m","usage":{usage},"cost_usd":0.00125,"cached":false}}"#
    );
    let second = format!(
        r#"{{"id":"p1","index":1,"answer":{{"a":1,"b":[true]}},"stop":"length","model":"m","usage":{usage},"cost_usd":null,"cached":true}}"#
    );
    let third =
        r#"{"id":null,"index":2,"error":{"class":"throttled","message":"the provider answered 429"}}"#;
    let text = place.write(place.options(Form::Jsonl, false, &[]), &outcomes());
    assert_eq!(text, format!("{first}\n{second}\n{third}\n"));
    // With a file of their own, errors are nowhere else.
    let text = place.write(place.options(Form::Jsonl, true, &[]), &outcomes());
    assert_eq!(text, format!("{first}\n{second}\n"));
    assert_eq!(place.read("errors"), format!("{third}\n"));
}

#[test]
fn batch_lines_are_what_the_sdk_reads() {
    let place = Place::new();
    let text = place.write(place.options(Form::Openai, true, &[]), &outcomes());
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["custom_id"], &lines[0]["error"]), (&json!("p0"), &Value::Null));
    assert_eq!(lines[0]["response"]["status_code"], 200);
    let body = &lines[1]["response"]["body"];
    assert_eq!((&body["object"], &body["created"]), (&json!("chat.completion"), &json!(7)));
    assert_eq!(body["choices"][0]["message"]["content"], "{\"a\":1}");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3}})
    );
    let error = r#"{"id":"batch_req_2","custom_id":null,"response":null,"error":{"code":"throttled","message":"the provider answered 429"}}"#;
    assert_eq!(place.read("errors"), format!("{error}\n"));
}

#[test]
fn calls_of_tools_are_part_of_a_batch_line() {
    let call = json!({"id": "c", "name": "f", "arguments": "{}"});
    let value = json!({"text": "", "stop": "tool_calls", "model": "m", "tool_calls": [call]});
    let outcome = serde_json::from_value(value).expect("an outcome");
    let line: Value =
        serde_json::from_str(&render::openai(&Item::default(), &outcome).expect("a line")).expect("JSON");
    let choice = &line["response"]["body"]["choices"][0];
    let expected = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["tool_calls"]),
        (&json!("tool_calls"), &expected)
    );
}

#[test]
fn vectors_are_written_in_every_form() {
    let place = Place::new();
    let usage = json!({"fresh_in": 3});
    // 0.1 and -2.5; the second answers two texts, and its caller wants the compact form.
    let one = json!({"text": "", "vectors": ["zczMPQAAIMA="], "stop": "end", "model": "e", "usage": usage, "cost_usd": 0.000002});
    let two = json!({"text": "", "vectors": ["zczMPQAAIMA=", "AAAAPw=="], "stop": "end", "model": "e", "usage": usage,
        "encoding_format": "base64", "cached": true});
    let error = json!({"class": "throttled", "message": "429"});
    let outcomes: Vec<(Item, Outcome)> = (0..)
        .zip([one, two, error])
        .map(|(index, value)| {
            let item = Item { index, custom_id: Some(format!("t{index}")), columns: None, prompt: None };
            (item, serde_json::from_value(value).expect("an outcome"))
        })
        .collect();
    let write = |form| {
        let options = Options { endpoint: Endpoint::Embeddings, ..place.options(form, true, &[]) };
        place.write(options, &outcomes)
    };
    assert_eq!(
        write(Form::Jsonl),
        "{\"id\":\"t0\",\"index\":0,\"embedding\":[0.1,-2.5],\"model\":\"e\",\"usage\":{\"fresh_in\":3},\"cost_usd\":2e-6,\"cached\":false}\n\
         {\"id\":\"t1\",\"index\":1,\"embeddings\":[\"zczMPQAAIMA=\",\"AAAAPw==\"],\"model\":\"e\",\"usage\":{\"fresh_in\":3},\"cost_usd\":null,\"cached\":true}\n"
    );
    let lines = write(Form::Openai);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        lines[0]["response"]["body"],
        json!({"object": "list", "model": "e", "usage": {"prompt_tokens": 3, "total_tokens": 3},
            "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -2.5]}]})
    );
    assert_eq!(lines[1]["response"]["body"]["data"][1]["embedding"], "AAAAPw==");
    let table = write(Form::Table { delimiter: b';' });
    assert_eq!(table.lines().next(), Some("index;id;prompt;embedding;error"));
    assert_eq!(table.lines().nth(1), Some("0;t0;;[0.1,-2.5];"));
    assert_eq!(write(Form::Text { escaped: true }).lines().next(), Some("[0.1,-2.5]"));
}

#[test]
fn a_table_keeps_its_columns_and_every_row() {
    let place = Place::new();
    let mut outcomes = outcomes();
    for (item, _) in &mut outcomes {
        let text = format!("a;{}", item.index);
        item.columns = Some(vec![("text".to_owned(), text), ("answer".to_owned(), "old".to_owned())]);
    }
    let text = place.write(place.options(Form::Table { delimiter: b',' }, true, &[]), &outcomes);
    let expected = "text,answer,answer_2,error\na;0,old,\"one,\n\"\"two\"\" \\\",\n\
        a;1,old,\"{\"\"a\"\":1,\"\"b\"\":[true]}\",\na;2,old,,throttled: the provider answered 429\n";
    assert_eq!(text, expected);
    assert_eq!(place.read("errors").lines().count(), 1);
    // What we write can be read again.
    let options = prompts::Options {
        format: prompts::Format::Csv,
        template: Some("{{answer_2}}".parse().expect("a template")),
        endpoint: Endpoint::Chat,
        sheet: None,
        line_bytes_max: 1000,
    };
    let read = prompts::PromptFile::open(&place.path("out"), options).expect("a table");
    let columns =
        read.lines().expect("rows").next().expect("a row").expect("valid").columns.expect("columns");
    assert_eq!(columns[2], ("answer_2".to_owned(), "one,\n\"two\" \\".to_owned()));
}

/// A prompt with these columns, its answer, and a prompt that failed.
fn hostile(columns: Option<&[(String, String)]>) -> Vec<(Item, Outcome)> {
    let answer = |text: &str| json!({"text": text, "stop": "end", "model": "m"});
    let values = [answer("=cmd|'/c calc'!A0"), answer("-5"), json!({"class": "bad_request", "message": "x"})];
    let outcomes = values.map(|value| serde_json::from_value(value).expect("an outcome"));
    let item = |index| Item {
        index,
        custom_id: Some("@id".to_owned()),
        columns: columns.map(<[_]>::to_vec),
        prompt: None,
    };
    (0..).map(item).zip(outcomes).collect()
}

#[test]
fn no_answer_is_a_formula_and_columns_of_a_csv_file_stay_as_they_were() {
    let place = Place::new();
    let table = Form::Table { delimiter: b',' };
    let text = place.write(place.options(table, false, &[]), &hostile(None));
    let expected =
        "index,id,prompt,answer,error\n0,'@id,,'=cmd|'/c calc'!A0,\n1,'@id,,-5,\n2,'@id,,,bad_request: x\n";
    assert_eq!(text, expected);
    let columns = [("=text".to_owned(), "+1".to_owned())];
    let text = place.write(place.options(table, false, &["=a"]), &hostile(Some(&columns)));
    assert!(text.starts_with("=text,'=a,error\n+1,"), "{text}");
    // In a workbook the same was a text, and no formula.
    let options = Options { input: prompts::Form::Xlsx, ..place.options(table, false, &[]) };
    let text = place.write(options, &hostile(Some(&columns)));
    assert!(text.starts_with("'=text,answer,error\n'+1,'=cmd"), "{text}");
}

#[test]
fn a_workbook_is_one_and_can_be_asked_about_again() {
    let place = Place::new();
    let columns = vec![("text".to_owned(), "hello".to_owned()), ("n".to_owned(), "7".to_owned())];
    let options = Options { out: place.path("out.xlsx"), ..place.options(Form::Workbook, true, &[]) };
    let mut answers = Answers::create(options).expect("a place");
    for (item, outcome) in &hostile(Some(&columns)) {
        answers.write(item, outcome).expect("written");
    }
    answers.finish().expect("finished");
    assert_eq!(place.files(), 2, "the workbook and the errors");
    let options = prompts::Options {
        template: Some("{{answer}}".parse().expect("a template")),
        line_bytes_max: 1000,
        ..prompts::Options::default()
    };
    let read = prompts::PromptFile::open(&place.path("out.xlsx"), options).expect("a workbook");
    assert_eq!(read.check().expect("valid").form, prompts::Form::Xlsx);
    let rows: Vec<_> = read.lines().expect("rows").map(|row| row.expect("valid")).collect();
    let column = |row: usize| rows[row].columns.clone().expect("columns");
    let expected = [("text", "hello"), ("n", "7"), ("answer", "=cmd|'/c calc'!A0"), ("error", "")];
    assert_eq!(column(0), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(rows.iter().map(|row| row.line).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(column(2)[3].1, "bad_request: x");
}

#[test]
fn a_form_that_nobody_writes_is_refused_by_its_name() {
    for name in ["out.xls", "out.ODS", "out.parquet"] {
        let error = check_places(&[("--out", Some(Path::new(name)))]).expect_err("refused");
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[test]
fn a_schema_gives_a_column_a_property() {
    let place = Place::new();
    let form = Form::Table { delimiter: b';' };
    let text = place.write(place.options(form, false, &["a", "b", "missing"]), &outcomes());
    let expected = "index;id;prompt;a;b;missing;error\n0;p0;;;;;\n1;p1;;1;[true];;\n2;;;;;;throttled: the provider answered 429\n";
    assert_eq!(text, expected);
}

#[test]
fn text_in_a_file_has_a_line_a_prompt() {
    let place = Place::new();
    let text = place.write(place.options(Form::Text { escaped: true }, true, &[]), &outcomes());
    assert_eq!(text, "one,\\n\"two\" \\\\\n{\"a\":1}\n\n");
    assert_eq!(place.read("errors").lines().count(), 1);
    let text = place.write(place.options(Form::Text { escaped: false }, false, &[]), &outcomes());
    assert_eq!(text, "one,\n\"two\" \\\n{\"a\":1}\n\n");
}

#[test]
fn the_name_of_the_output_chooses_its_form() {
    use prompts::Form as Input;
    let cases = [
        ("-", Input::Jsonl, None, Form::Jsonl),
        ("-", Input::Openai, None, Form::Openai),
        ("-", Input::Text, None, Form::Text { escaped: false }),
        ("-", Input::Csv, Some(b';'), Form::Table { delimiter: b';' }),
        ("out.csv", Input::Csv, Some(b';'), Form::Table { delimiter: b';' }),
        ("out.csv", Input::Tsv, Some(b'\t'), Form::Table { delimiter: b',' }),
        ("out.tsv", Input::Jsonl, None, Form::Table { delimiter: b'\t' }),
        ("out.xlsx", Input::Jsonl, None, Form::Workbook),
        ("-", Input::Xlsx, None, Form::Table { delimiter: b',' }),
        ("out.jsonl", Input::Csv, Some(b','), Form::Jsonl),
        ("out.JSONL", Input::Openai, None, Form::Openai),
        ("out.txt", Input::Csv, Some(b','), Form::Text { escaped: true }),
        ("out", Input::Text, None, Form::Text { escaped: true }),
    ];
    for (out, input, delimiter, expected) in cases {
        assert_eq!(Form::choose(Path::new(out), input, delimiter), expected, "{out} {input:?}");
    }
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let place = Place::new();
    fs::write(place.path("out"), "before").expect("a file");
    fs::set_permissions(place.path("out"), fs::Permissions::from_mode(0o640)).expect("permissions");
    let outcomes = outcomes();
    let mut answers = Answers::create(place.options(Form::Jsonl, true, &[])).expect("a place");
    answers.write(&outcomes[0].0, &outcomes[0].1).expect("written");
    drop(answers);
    assert_eq!((place.read("out").as_str(), place.files()), ("before", 1));

    let text = place.write(place.options(Form::Jsonl, true, &[]), &outcomes);
    assert_eq!((text.lines().count(), place.files()), (2, 2));
    let mode = |name| fs::metadata(place.path(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode("out"), 0o640);
    // A new file is for whoever the user's mask lets read it.
    assert_ne!(mode("errors") & 0o400, 0);
}

#[test]
fn a_link_stays_a_link() {
    let place = Place::new();
    fs::write(place.path("real"), "before").expect("a file");
    std::os::unix::fs::symlink(place.path("real"), place.path("out")).expect("a link");
    place.write(place.options(Form::Jsonl, false, &[]), &outcomes());
    assert!(fs::symlink_metadata(place.path("out")).expect("a link").is_symlink());
    assert_eq!(place.read("real").lines().count(), 3);
}

#[test]
fn an_answer_out_of_order_is_refused() {
    let place = Place::new();
    let outcomes = outcomes();
    let mut answers = Answers::create(place.options(Form::Jsonl, false, &[])).expect("a place");
    answers.write(&outcomes[1].0, &outcomes[1].1).expect("written");
    for (item, outcome) in &outcomes[..2] {
        let error = answers.write(item, outcome).expect_err("out of order");
        assert!(error.to_string().contains("this is a bug"), "{error}");
    }
}

#[test]
fn places_that_cannot_be_written_are_refused_at_once() {
    let place = Place::new();
    let mut options = place.options(Form::Jsonl, true, &[]);
    options.errors = Some(options.out.clone());
    assert!(
        Answers::create(options)
            .expect_err("the same")
            .to_string()
            .starts_with("--out and --errors both name ")
    );
    for name in ["no/such/folder/out", ""] {
        let mut options = place.options(Form::Jsonl, false, &[]);
        options.out = place.path(name);
        let error = Answers::create(options).expect_err("no place");
        assert!(error.to_string().contains(" cannot be written: "), "{error}");
        assert!(crate::exit::hint_of(&error).is_some());
    }
    // A device is written to as it is.
    let mut options = place.options(Form::Jsonl, false, &[]);
    options.out = PathBuf::from("/dev/null");
    let mut answers = Answers::create(options).expect("a device");
    answers.write(&outcomes()[0].0, &outcomes()[0].1).expect("written");
    answers.finish().expect("finished");
    assert!(!Path::new("/dev/null").is_file());
}
