//! Messages and schemas, without a server.

use longhaul_pipeline::RunId;
use longhaul_queue::Json;
use serde_json::{Value, json};

use super::Access;
use super::results::run_item;
use super::rpc::{Message, RpcError, is_known, parse};
use super::tools::{Tool, result};
use crate::problem::Problem;
use crate::tokens::Scope;

#[test]
fn messages_are_told_apart() {
    let rows = [
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "request"),
        (r#"{"jsonrpc":"2.0","id":"a","method":"ping","params":null}"#, "request"),
        (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, "notification"),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "response"),
        (r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}"#, "response"),
        (r#"{"jsonrpc":"2.0","id":1}"#, "-32600"),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, "-32600"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "-32600"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#, "-32600"),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "-32600"),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, "-32600"),
        (r#"{"jsonrpc":"#, "-32700"),
        ("\u{feff}{}", "-32700"),
    ];
    for (text, expected) in rows {
        let found = match parse(text.as_bytes()) {
            Ok(Message::Request(_)) => "request".to_owned(),
            Ok(Message::Notification { .. }) => "notification".to_owned(),
            Ok(Message::Response) => "response".to_owned(),
            Err(RpcError { code, .. }) => code.to_string(),
        };
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn a_request_tells_its_era() {
    let version = |version: &str| json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version}});
    let rows = [
        ("tools/list", json!({}), false),
        ("tools/list", version("2026-07-28"), true),
        ("tools/list", version("2025-11-25"), false),
        ("tools/list", version("1900-01-01"), true),
        ("server/discover", json!({}), true),
        ("initialize", json!({"protocolVersion": "2026-07-28"}), false),
    ];
    for (method, params, modern) in rows {
        let text = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let Ok(Message::Request(request)) = parse(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(request.is_modern(), modern, "{text}");
    }
    assert!(is_known("2024-11-05") && !is_known("2024-11-06"));
}

#[test]
fn every_tool_is_described_by_a_schema_that_says_what_each_field_means() {
    for tool in Tool::ALL {
        let shown = tool.described();
        let schema = &shown["inputSchema"];
        longhaul_llm::schema::Compiled::new(schema)
            .unwrap_or_else(|error| panic!("{}: {error}", tool.name()));
        assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
        for choice in ["oneOf", "anyOf", "allOf", "not"] {
            assert!(schema[choice].is_null(), "{}: {choice}", tool.name());
        }
        let text = schema.to_string();
        assert!(!text.contains("\"$ref\"") && !text.contains("\"null\""), "{}: {text}", tool.name());
        for (name, field) in schema["properties"].as_object().expect("fields") {
            assert!(
                field["description"].as_str().is_some_and(|text| text.len() > 5),
                "{}.{name}",
                tool.name()
            );
        }
        assert_eq!(shown["annotations"]["readOnlyHint"], tool.needs() == Scope::Read);
        assert_eq!(Tool::named(tool.name()), Some(tool));
    }
}

#[test]
fn who_only_looks_sees_only_what_looks() {
    let names = |access: Access| -> Vec<&str> {
        let allowed = Tool::ALL.into_iter().filter(|tool| access.allows(tool.needs()));
        allowed.map(Tool::name).collect()
    };
    assert_eq!(names(Access::WRITE).len(), Tool::ALL.len());
    let writing = [
        "enqueue_job",
        "submit_batch",
        "edit_job",
        "cancel_job",
        "retry_job",
        "pause_run",
        "resume_run",
        "cancel_run",
        "retry_run",
        "remove_run",
    ];
    assert!(writing.iter().all(|name| !names(Access::READ).contains(name)));
    assert_eq!(names(Access::READ).len() + writing.len(), Tool::ALL.len());
    let hands_in = names(Access { enqueue: true, ..Access::READ });
    assert!(hands_in.contains(&"submit_batch") && !hands_in.contains(&"cancel_job"));
}

#[test]
fn a_problem_is_told_to_the_model_with_its_field() {
    let told = result(Err(Problem::invalid("limit is too large").at("limit")));
    assert_eq!(told["isError"], true);
    assert_eq!(told["structuredContent"]["field"], "limit");
    let text = told["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("too large") && text.contains("field limit"), "{text}");
    let done = result(Ok(json!({"a": 1})));
    assert_eq!(
        done["content"][0]["text"].as_str().map(serde_json::from_str::<Value>).expect("text").expect("JSON"),
        done["structuredContent"]
    );
}

#[test]
fn results_of_runs_are_cut_and_redacted_but_for_the_answers_of_models() {
    let long = "x".repeat(5_000);
    let error = json!({"reason": "failed", "text": "login with password=hunter2 failed"});
    let item =
        json!({"job_id": "7", "result": {"api_key": "k1"}, "text": long, "error": error, "none": null});
    let item = Json::of(&item).expect("JSON");
    let run = RunId::named("run-1");
    let shown = |is_answer| run_item(is_answer, &run, &item).expect("an object");
    let (answer, row) = (shown(true), shown(false));
    assert_eq!(
        (&answer["result"]["api_key"], &row["result"]["api_key"]),
        (&json!("k1"), &json!("[redacted]"))
    );
    for shown in [answer, row] {
        let text = shown.to_string();
        assert!(!text.contains("hunter2") && text.len() < 4_500, "{text}");
        let cut = shown["cut"][0].as_str().expect("a word");
        assert!(cut.contains("4000 of 5002 bytes") && cut.contains("get_results"), "{cut}");
        assert!(shown.get("none").is_none(), "{shown}");
    }
}
