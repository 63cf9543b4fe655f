//! Texts to embed with the real binary, one by one and in batches.

use serde_json::{Value, json};

use crate::place::read;

use super::sim::{Desk, Sim};

/// A simulator whose batches take about a third of a second.
const QUICK: &str = r#"{"batch":{"queue_s":60,"run_s":200,"finalize_s":60,"time_scale":1000}}"#;

fn line(id: &str, input: &Value) -> String {
    let body = json!({"model": "sim-embed", "input": input, "dimensions": 8});
    json!({"custom_id": id, "method": "POST", "url": "/v1/embeddings", "body": body}).to_string()
}

/// OpenAI's batch form in and out, the same vectors either way.
#[test]
fn lines_for_embeddings_come_back_as_lists_of_vectors() {
    let sim = Sim::with(QUICK);
    let desk = Desk::at(&sim, 0);
    let lines =
        [line("z", &json!("one")), line("a", &json!(["two", "three"])), line("m", &json!([[1, 2], [3]]))];
    desk.place.write("batch.jsonl", &lines.join("\n"));
    let estimate = desk.json(&["estimate", "batch.jsonl"]);
    assert_eq!((&estimate["requests"], &estimate["output_tokens_max"]), (&3.into(), &0.into()), "{estimate}");
    let mut vectors = Vec::new();
    for (mode, out) in [("--sync", "sync.jsonl"), ("--batch", "batch-out.jsonl")] {
        desk.ok(&["run", "batch.jsonl", mode, "--cache", "off", "--out", out]);
        let answers = desk.answers(out);
        let ids: Vec<&Value> = answers.iter().map(|answer| &answer["custom_id"]).collect();
        assert_eq!(ids, ["z", "a", "m"], "in order of the file");
        for (answer, count) in answers.iter().zip([1, 2, 2]) {
            let body = &answer["response"]["body"];
            assert_eq!((&body["object"], &body["model"]), (&"list".into(), &"sim-embed".into()), "{answer}");
            assert_eq!(body["data"].as_array().map(Vec::len), Some(count), "{answer}");
            assert_eq!(body["data"][0]["embedding"].as_array().map(Vec::len), Some(8), "{answer}");
            assert!(body["usage"]["prompt_tokens"].as_u64() > Some(0), "{answer}");
            vectors.push(body["data"].clone());
        }
        desk.ok(&["runs", "rm", &desk.run_id(), "--yes"]);
    }
    assert_eq!(vectors[..3], vectors[3..]);
    assert_eq!((sim.count("calls"), sim.count("batches_created"), sim.count("tokens_out")), (3, 1, 0));
}

/// Plain texts with `--embed`, by each provider that embeds.
#[test]
fn texts_are_embedded_by_every_dialect_alone_and_in_batches() {
    let sim = Sim::with(QUICK);
    for (provider, path) in [("openai", "/v1"), ("gemini", "/v1beta")] {
        let mut desk = Desk::new(130, provider, &format!("{}{path}", sim.url()));
        desk.set("LONGHAUL_PROFILES__P__MODEL", "sim-embed");
        let mut written = Vec::new();
        for (mode, out) in [("--sync", "sync.jsonl"), ("--batch", "batch.jsonl")] {
            let args = ["run", "prompts.txt", "--embed", "--dimensions", "4", "--cache", "off", mode];
            desk.ok(&[&args[..], &["--out", out]].concat());
            let answers = desk.answers(out);
            assert_eq!(answers.len(), 130, "{provider} {mode}");
            for (index, answer) in answers.iter().enumerate() {
                assert_eq!(answer["index"], index, "{answer}");
                assert_eq!(answer["embedding"].as_array().map(Vec::len), Some(4), "{answer}");
                assert!(answer["cost_usd"].is_number() && answer["answer"].is_null(), "{answer}");
            }
            written.push(answers.iter().map(|answer| answer["embedding"].clone()).collect::<Vec<_>>());
            desk.ok(&["runs", "rm", &desk.run_id(), "--yes"]);
        }
        assert_eq!(written[0], written[1], "{provider}");
    }
    assert_eq!((sim.count("batches_created"), sim.count("lines_executed")), (2, 260));
}

#[test]
fn a_table_gains_a_column_of_vectors() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    desk.place.write("in.csv", "id,title,body\n7,a,b\n8,c,d\n");
    let args = ["run", "in.csv", "--embed", "-m", "sim-embed", "--template", "{{title}}: {{body}}"];
    desk.ok(&[&args[..], &["--dimensions", "2", "--out", "out.csv"]].concat());
    let table = read(&desk.place.path("out.csv"));
    assert!(table.starts_with("id,title,body,embedding,error\n7,a,b,\"["), "{table}");
    desk.ok(&["runs", "results", &desk.run_id()]);
}

#[test]
fn what_cannot_be_embedded_is_told_before_anything_is_stored_or_sent() {
    let sim = Sim::start(&[]);
    let desk = Desk::new(2, "anthropic", sim.url());
    let args = ["run", "prompts.txt", "--embed", "-m", "sim-embed"];
    desk.run(&args).fails(2, &["anthropic offers no embeddings"]);
    desk.run(&["estimate", "prompts.txt", "--embed"]).fails(2, &["anthropic offers no embeddings"]);
    let desk = Desk::at(&sim, 2);
    desk.run(&[&args[..], &["--schema", "schema.json"]].concat()).fails(2, &["cannot have a schema"]);
    desk.run(&["run", "prompts.txt", "--dimensions", "8"]).fails(2, &["only embeddings have dimensions"]);
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    let chat = json!({"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": chat});
    desk.place.write("mixed.jsonl", &format!("{}\n{chat}\n", line("a", &json!("x"))));
    desk.run(&["run", "mixed.jsonl"]).fails(2, &["line 2", "differs from that of line 1"]);
    let desk = Desk::new(0, "gemini", &format!("{}/v1beta", sim.url()));
    desk.place
        .write("two.jsonl", &format!("{}\n{}\n", line("a", &json!("x")), line("b", &json!(["x", "y"]))));
    desk.run(&["run", "two.jsonl", "--batch"]).fails(2, &["line 2", "at most 1 texts", "one by one"]);
    desk.place.write("tokens.jsonl", &line("a", &json!([[1, 2]])));
    desk.run(&["run", "tokens.jsonl"]).fails(2, &["line 1", "not tokens"]);
    assert_eq!(desk.json(&["runs", "ls"])["items"], json!([]));
    assert_eq!((sim.count("calls"), sim.count("batches_created")), (0, 0));
}
