//! What each form becomes.

use super::*;

#[test]
fn the_form_is_told_by_name_then_by_the_first_line() {
    let batch = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x"}]}}"#;
    let cases = [
        ("a.jsonl", batch, Form::Openai),
        ("-", batch, Form::Openai),
        ("a.JSONL", "\"x\"", Form::Jsonl),
        ("a.ndjson", r#"{"prompt":"x"}"#, Form::Jsonl),
        ("-", r#"{"prompt":"x"}"#, Form::Jsonl),
        ("-", "\n\n\"x\"", Form::Jsonl),
        ("a.csv", "prompt\nx", Form::Csv),
        ("-", "id,prompt\n1,x", Form::Csv),
        ("-", "\"id\";\"prompt\"\n1;x", Form::Csv),
        ("a.tsv", "prompt\tid\nx\t1", Form::Tsv),
        ("-", "id\tprompt\n1\tx", Form::Tsv),
        ("a.txt", "x", Form::Text),
        ("-", "Tell me, shortly, what a prompt is.", Form::Text),
        ("noextension", "x", Form::Text),
        ("a.txt", r#"{"prompt":"x"}"#, Form::Text),
    ];
    for (name, content, form) in cases {
        assert_eq!(input(name, content).ok().0.form, form, "{name}: {content}");
    }
    assert_eq!(input("a.txt", "\"x\"").format(Format::Jsonl).texts(), ["x"]);
    assert_eq!(input("a.jsonl", "\"x\"").format(Format::Text).texts(), ["\"x\""]);
    assert_eq!(input("-", "[INST] x").format(Format::Text).texts(), ["[INST] x"]);
}

#[test]
fn batch_lines_keep_their_body() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}],
        "max_tokens": 5, "top_k": 3});
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body});
    let (summary, lines) = input("a.jsonl", &line.to_string()).ok();
    assert_eq!(lines[0].body, body);
    assert_eq!((lines[0].custom_id.as_deref(), lines[0].endpoint), (Some("a"), Endpoint::Chat));
    assert_eq!((summary.without_model, summary.endpoint), (0, Endpoint::Chat));
    assert_eq!(summary.extra_fields, BTreeSet::from(["top_k".to_owned()]));

    let line =
        json!({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["x", "y"]}});
    let (summary, lines) = input("a.jsonl", &line.to_string()).ok();
    assert_eq!((summary.endpoint, summary.without_model), (Endpoint::Embeddings, 1));
    assert_eq!(lines[0].body, json!({"input": ["x", "y"]}));
    assert!(summary.extra_fields.is_empty());
}

#[test]
fn texts_to_embed_come_in_every_form() {
    let cases = [
        ("a.txt", "one\n", None, json!({"input": "one"})),
        ("a.jsonl", "\"one\"", None, json!({"input": "one"})),
        (
            "a.jsonl",
            r#"{"prompt":"one","id":1,"dimensions":8}"#,
            None,
            json!({"input": "one", "dimensions": 8}),
        ),
        ("a.jsonl", r#"{"input":["one","two"]}"#, None, json!({"input": ["one", "two"]})),
        ("a.jsonl", r#"{"input":[1,2]}"#, None, json!({"input": [1, 2]})),
        ("a.jsonl", r#"{"text":"one"}"#, Some("t: {{text}}"), json!({"input": "t: one"})),
        ("a.csv", "prompt,system\none,s\n", None, json!({"input": "one"})),
        ("a.csv", "a,b\n1,2\n", Some("{{a}}-{{b}}"), json!({"input": "1-2"})),
        (
            "a.jsonl",
            r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"one"}}"#,
            None,
            json!({"input": "one"}),
        ),
    ];
    for (name, content, template, body) in cases {
        let mut input = input(name, content).embed();
        input.template = template;
        let (summary, lines) = input.ok();
        assert_eq!((&lines[0].body, summary.endpoint), (&body, Endpoint::Embeddings), "{content}");
    }
}

#[test]
fn plain_lines_are_prompts_or_conversations() {
    let user = |text: &str| json!({"role": "user", "content": text});
    let cases = [
        (r#""hello""#, None, json!({"messages": [user("hello")]})),
        (r#"{"prompt":"hello"}"#, None, json!({"messages": [user("hello")]})),
        (
            r#"{"id":7,"prompt":"x","system":"s","model":"m","temperature":0}"#,
            Some("7"),
            json!({"model": "m", "temperature": 0, "messages": [{"role": "system", "content": "s"}, user("x")]}),
        ),
        (
            r#"{"custom_id":"c","id":"i","messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[]}]}"#,
            Some("c"),
            json!({"messages": [user("x"), {"role": "assistant", "content": null, "tool_calls": []}]}),
        ),
        (
            r#"{"messages":[{"role":"user","content":"x"}],"system":"s","id":null,"stream":false,"n":1}"#,
            None,
            json!({"messages": [{"role": "system", "content": "s"}, user("x")], "stream": false, "n": 1}),
        ),
    ];
    for (line, id, body) in cases {
        let (_, lines) = input("a.jsonl", line).ok();
        assert_eq!((lines[0].custom_id.as_deref(), &lines[0].body), (id, &body), "{line}");
        assert_eq!(lines[0].columns, None);
    }
}

#[test]
fn a_template_takes_any_fields() {
    let template = "{{ a }}: {{b}}{{c}}{{d}}";
    let line = r#"{"id":"i","a":"x","b":1.5,"c":null,"d":{"e":[true]},"unused":1}"#;
    let (summary, lines) = input("a.jsonl", line).template(template).ok();
    assert_eq!(lines[0].custom_id.as_deref(), Some("i"));
    let text = r#"x: 1.5{"e":[true]}"#;
    assert_eq!(lines[0].body, json!({"messages": [{"role": "user", "content": text}]}));
    assert!(summary.extra_fields.is_empty());
    // A bare line is the field `prompt`, and a value is never read as a template.
    assert_eq!(input("a.jsonl", r#""{{b}}""#).template("a {{prompt}}").texts(), ["a {{b}}"]);
    assert_eq!(input("a.txt", "one\ntwo").template("say {{prompt}}").texts(), ["say one", "say two"]);
    assert_eq!(input("-", "text,lang\na,b").template("{{lang}} {{text}}").texts(), ["b a"]);
    assert_eq!(input("a.csv", "id,t\n7,x").template("{{id}}{{t}}").texts(), ["7x"]);
}

#[test]
fn templates_are_parsed_strictly() {
    let fields =
        |text: &str| text.parse::<Template>().map(|template| template.fields().map(str::to_owned).collect());
    let cases: [(&str, Result<Vec<String>, &str>); 9] = [
        ("{{a}}{{ b c }}", Ok(vec!["a".to_owned(), "b c".to_owned()])),
        (r#"{"x": {"y": "{{a}}"}} }}"#, Ok(vec!["a".to_owned()])),
        (r"\{{a}} {{b}}", Ok(vec!["b".to_owned()])),
        ("no place", Err("the template has no {{field}}, so all prompts would be the same")),
        ("{text}", Err("the template has no {{field}}, so all prompts would be the same")),
        ("{{a", Err("`{{a` is not closed by `}}`")),
        ("{{}}", Err("`{{}}` is not a field: write {{name}}, or \\{{ for two braces as such")),
        (
            "{{a {{b}} }}",
            Err("`{{a {{b}} }}` is not a field: write {{name}}, or \\{{ for two braces as such"),
        ),
        ("{{{a}}}", Err("`{{{a}}}` is not a field: write {{name}}, or \\{{ for two braces as such")),
    ];
    for (text, expected) in cases {
        assert_eq!(fields(text), expected.map_err(str::to_owned), "{text}");
    }
    let literal: Template = r"\{{a}} {{b}}".parse().expect("a template");
    assert_eq!(literal.fill(|_| Some("x".to_owned())), Ok("{{a}} x".to_owned()));
}

#[test]
fn tables_keep_their_columns() {
    let content = "\u{feff}id,prompt, note \r\n1,\"a, \"\"b\"\"\r\nc\",x\r\n\r\n,,\r\n2,5\" pipe,\r\n";
    let (summary, lines) = input("a.csv", content).ok();
    assert_eq!((summary.form, summary.delimiter, summary.prompts), (Form::Csv, Some(b','), 2));
    let column = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = vec![column("id", "1"), column("prompt", "a, \"b\"\r\nc"), column("note", "x")];
    assert_eq!((lines[0].line, lines[0].columns.as_ref()), (2, Some(&expected)));
    let expected = vec![column("id", "2"), column("prompt", "5\" pipe"), column("note", "")];
    assert_eq!((lines[1].line, lines[1].columns.as_ref()), (6, Some(&expected)));
    assert_eq!(lines[1].custom_id.as_deref(), Some("2"));

    let (summary, lines) = input("a.csv", "system;prompt\ns;a,b\n").ok();
    assert_eq!(summary.delimiter, Some(b';'));
    assert_eq!(lines[0].body["messages"][0], json!({"role": "system", "content": "s"}));
    assert_eq!(input("a.tsv", "prompt\tx\na,b\t\"c\td\"").texts(), ["a,b"]);
    // A row larger than any buffer, and quotes that stand where they mean nothing.
    let long = "y".repeat(300_000);
    let content = format!("b,prompt\n1,{long}\n2,\"{long}\"\"\nx\"\n3,a\"\"b\"c\n");
    let texts = [long.clone(), format!("{long}\"\nx"), "a\"\"b\"c".to_owned()];
    assert!(input("a.csv", &content).texts() == texts, "long rows are read wrongly");
    assert_eq!(input("a.csv", "b,prompt\n1,\"x\"y\"\n2,z\n").texts(), ["xy\"", "z"]);
    // A head may be empty, and a file may end within its last row.
    assert_eq!(input("a.csv", ",prompt\n0,\"x\"").texts(), ["x"]);
}

#[test]
fn ids_that_repeat_are_a_fault_only_in_batch_lines() {
    let (summary, _) = input("a.csv", "id,prompt\n1,a\n1,b\n1,c\n2,d").ok();
    let expected = Duplicates { count: 2, id: "1".to_owned(), lines: (2, 3) };
    assert_eq!(summary.duplicates, Some(expected));
}
