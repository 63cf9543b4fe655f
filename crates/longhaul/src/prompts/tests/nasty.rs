//! What is refused, with the line and the field.

use super::*;

#[test]
fn a_refused_line_of_json_names_its_field() {
    let cases = [
        ("{\"prompt\":\"a\"} x", "not JSON: trailing characters (column 16)"),
        ("{\"prompt\":\"a\"", "not JSON: EOF while parsing an object (column 13)"),
        ("{", "not JSON: EOF while parsing an object (column 1)"),
        ("12", "neither a text nor an object"),
        ("[\"a\"]", "a JSON list is not a prompt"),
        ("\" \"", "the prompt is empty"),
        ("{\"prompt\":\"\"}", "`prompt` is empty"),
        ("{\"prompt\":[\"a\"]}", "`prompt` must be a text"),
        ("{\"prompt\":\"a\",\"messages\":[]}", "`prompt` and `messages` exclude each other"),
        ("{\"promt\":\"a\",\"x\":1}", "there is neither `prompt` nor `messages`, but promt, x"),
        ("{}", "there is neither `prompt` nor `messages`, but no field"),
        ("{\"messages\":[]}", "`messages` is empty"),
        ("{\"messages\":\"a\"}", "`messages` must be a list"),
        (
            "{\"messages\":[{\"role\":\"me\",\"content\":\"a\"}]}",
            "`messages` [0] needs a role: system, developer, user, assistant, tool",
        ),
        ("{\"messages\":[{\"role\":\"user\"}]}", "`messages` [0] needs `content`: a text or a list of parts"),
        ("{\"prompt\":\"a\",\"max_tokens\":0}", "`max_tokens` must be a whole number above 0"),
        ("{\"prompt\":\"a\",\"temperature\":\"hot\"}", "`temperature` must be a number"),
        ("{\"prompt\":\"a\",\"model\":1}", "`model` must be a text"),
        ("{\"prompt\":\"a\",\"system\":1}", "`system` must be a text"),
        ("{\"prompt\":\"a\",\"stream\":true}", "`stream` must be false: a run writes whole answers"),
        ("{\"prompt\":\"a\",\"n\":2}", "`n` must be 1: a run keeps one answer a prompt"),
        ("{\"prompt\":\"a\",\"id\":[]}", "`id` must be a text or a number"),
        ("{\"prompt\":\"a\",\"id\":\"\"}", "`id` must have 1 to 512 bytes"),
    ];
    for (line, problem) in cases {
        let content = format!("\"fine\"\n\n{line}\n");
        assert_eq!(input("a.jsonl", &content).refused(), format!("a.jsonl line 3: {problem}"), "{line}");
    }
}

#[test]
fn a_refused_batch_line_names_its_field() {
    let fine = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x"}]}}"#;
    let cases = [
        (fine.to_owned(), "`custom_id` \"a\" stands on line 1 already"),
        (fine.replace("\"a\"", "7"), "`custom_id` must be a text"),
        (fine.replace("\"custom_id\":\"a\",", ""), "`custom_id` is missing"),
        (fine.replace("\"a\"", "\"\""), "`custom_id` must have 1 to 512 bytes"),
        (fine.replace("POST", "GET"), "`method` is \"GET\", and must be \"POST\""),
        (
            fine.replace("chat/completions", "responses"),
            "`url` is \"/v1/responses\", which a run cannot serve",
        ),
        (fine.replace("\"url\":", "\"uri\":"), "`url` is missing"),
        (fine.replace("\"messages\":", "\"message\":"), "`body.messages` must be a list"),
        (
            r#"{"custom_id":"b","url":"/v1/chat/completions","body":"x"}"#.to_owned(),
            "`body` must be an object",
        ),
        (
            r#"{"custom_id":"b","url":"/v1/embeddings","body":{}}"#.to_owned(),
            "`body.input` must be a text or a list",
        ),
        (
            r#"{"custom_id":"b","url":"/v1/embeddings","body":{"input":"x"}}"#.to_owned(),
            "`url` differs from that of line 1",
        ),
        ("\"x\"".to_owned(), "not a JSON object"),
    ];
    for (line, problem) in cases {
        let content = format!("{fine}\n{line}\n");
        assert_eq!(input("a.jsonl", &content).refused(), format!("a.jsonl line 2: {problem}"), "{line}");
    }
    let error = input("a.jsonl", fine).template("{{x}}").refused();
    assert!(error.contains("so --template has nothing to fill"), "{error}");
}

#[test]
fn what_cannot_be_embedded_is_named() {
    let cases = [
        (r#"{"messages":[]}"#, "there is neither `prompt` nor `input`, but messages"),
        (r#"{"prompt":"x","input":"y"}"#, "`prompt` and `input` exclude each other"),
        (r#"{"input":" "}"#, "`input` must be a text or a list"),
        (r#"{"input":[]}"#, "`input` must be a text or a list"),
        (r#"{"prompt":7}"#, "`input` must be a text or a list"),
        (
            r#"{"custom_id":"a","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x"}]}}"#,
            "`url` asks for a chat, and --embed for embeddings",
        ),
    ];
    for (line, problem) in cases {
        assert_eq!(input("a.jsonl", line).embed().refused(), format!("a.jsonl line 1: {problem}"), "{line}");
    }
}

#[test]
fn a_refused_table_names_its_columns() {
    let cases = [
        ("id,text\n1,a", None, "line 1: there is no column `prompt`, but id, text"),
        ("id,text\n1,a", Some("{{lang}}"), "line 1: the template asks for {{lang}}, and there is id, text"),
        ("\n\na,b,a\n1,2,3", Some("{{b}}"), "line 3: the column \"a\" is there twice"),
        ("prompt,b\nx,1\ny", None, "line 3: 1 fields, and the header has 2: prompt, b"),
        ("prompt,b\nx,1\ny,2,3", None, "line 3: 3 fields, and the header has 2: prompt, b"),
        ("prompt,b\n\"x\n\",1\n ,2\n", None, "line 4: the column `prompt` is empty"),
        ("b,prompt\n1,\"x\n2,y\n", None, "line 2: a quote opens here and is never closed"),
    ];
    for (content, template, problem) in cases {
        let mut input = input("a.csv", content);
        input.template = template;
        assert_eq!(input.refused(), format!("a.csv {problem}"), "{content}");
    }
    assert_eq!(
        input("a.jsonl", r#"{"id":1,"text":"x"}"#).template("{{lang}}").refused(),
        "a.jsonl line 1: the template asks for {{lang}}, and there is id, text"
    );
}

#[test]
fn bytes_that_are_not_utf8_are_named_by_line_and_place() {
    for name in ["a.txt", "-"] {
        let refused = input(name, b"fine\nab\xE4c\nfine\n").refused();
        assert!(refused.ends_with(" line 2: not UTF-8 at byte 3 of the line"), "{refused}");
    }
    let refused = input("a.csv", b"prompt\n\"x\n\xFF\"\n").refused();
    assert!(
        refused.ends_with(
            "line 2: a quoted field that begins here goes on to line 3: not UTF-8 at byte 1 of the line"
        ),
        "{refused}"
    );
}

#[test]
fn a_line_beyond_the_limit_is_told_and_passed_over() {
    let long = "x".repeat(2_000_000);
    let content = format!("fine\n{long}\nfine\n{long}");
    assert_eq!(
        input("a.txt", &content).refused(),
        "a.txt has 2 lines that cannot be used:\n  line 2: longer than 1000000 bytes\n  line 4: longer than 1000000 bytes"
    );
    let just = "x".repeat(LINE_BYTES_MAX);
    assert_eq!(input("a.txt", &format!("{just}\r\nb\r\n")).texts(), [just.as_str(), "b"]);
    let open = format!("prompt\n\"{}", "y\n".repeat(LINE_BYTES_MAX));
    let refused = input("a.csv", &open).refused();
    assert!(
        refused.starts_with("a.csv line 2: a quoted field that begins here goes on to line "),
        "{refused}"
    );
}

#[test]
fn the_first_ten_faults_are_listed() {
    let refused = input("a.jsonl", &"{}\n".repeat(25)).refused();
    assert!(refused.starts_with("a.jsonl has 25 lines that cannot be used:\n  line 1: "), "{refused}");
    assert!(refused.contains("\n  line 10: ") && !refused.contains("line 11"), "{refused}");
    assert!(refused.ends_with("\n  and 15 more"), "{refused}");
}

#[test]
fn files_of_other_kinds_are_told_apart() {
    let cases: [(&[u8], &str); 6] = [
        (b"\xFF\xFEa\0", "is UTF-16 text"),
        (b"\x1F\x8B\x08", "is compressed"),
        (b"\xD0\xCF\x11\xE0", "is an old or an encrypted workbook"),
        (b"PAR1", "is a Parquet file"),
        (b"[\n\"a\"\n]", "is one JSON list"),
        (b"[\"a\"]", "is one JSON list"),
    ];
    for (content, problem) in cases {
        assert_eq!(input("-", content).refused(), format!("stdin {problem}"));
    }
    let refused = input("-", b"PK\x03\x04").refused();
    assert!(refused.starts_with("stdin cannot be read as a workbook"), "{refused}");
    let refused = input("a.xlsx", "prompt\na\n").refused();
    assert_eq!(refused, "a.xlsx is not a workbook: it does not begin like a zip archive");
    let refused = input("a.csv", b"PK\x03\x04").format(Format::Csv).refused();
    assert_eq!(refused, "a.csv is a zip archive, as workbooks are");
}
