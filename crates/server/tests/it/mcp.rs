//! `/mcp` over a socket: who may do what, headers, statuses, and bounds of answers.

use longhaul_queue::{Json, NewJob};
use longhaul_server::{Scope, ServerOptions};
use longhaul_sim::SimOptions;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Stage, json_of};

const MODERN: &str = "2026-07-28";

/// Sends a message with these headers and answers status and body.
async fn send(stage: &Stage, message: &Value, headers: &[(&str, &str)]) -> (StatusCode, Value) {
    let mut request = stage.request(Method::POST, "/mcp").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.body(message.to_string()).send().await.expect("an answer");
    (response.status(), json_of(response).await)
}

fn message(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

/// Calls a tool and answers its result.
async fn call(stage: &Stage, tool: &str, arguments: &Value, headers: &[(&str, &str)]) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    let (status, answer) = send(stage, &message("tools/call", &params), headers).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer["result"].clone()
}

async fn tools(stage: &Stage, headers: &[(&str, &str)]) -> Vec<String> {
    let (_, answer) = send(stage, &message("tools/list", &json!({})), headers).await;
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn on_loopback_it_looks_only_unless_the_server_says_otherwise() {
    let stage = Stage::new().await;
    assert_eq!(tools(&stage, &[]).await.len(), 8);
    let refused = call(&stage, "enqueue_job", &json!({"kind": "echo"}), &[]).await;
    let text = refused["content"][0]["text"].as_str().expect("a text");
    assert!(refused["isError"] == true && text.contains("server.mcp_write"), "{refused}");
    stage.stop().await;

    let options = ServerOptions { mcp_allow_write: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    assert_eq!(tools(&stage, &[]).await.len(), 13);
    let working = stage.work().await;
    let prompts = json!({"model": "sim-small", "messages": [[{"role": "user", "content": "Hello?"}]]});
    let run = call(&stage, "submit_batch", &prompts, &[]).await["structuredContent"]["run"].clone();
    let mut waited = json!(null);
    for _ in 0..5 {
        waited = call(&stage, "wait_job", &json!({"id": run, "timeout_seconds": 60}), &[]).await;
        if waited["structuredContent"]["ended"] == true {
            break;
        }
    }
    assert_eq!(waited["structuredContent"]["units"]["done"], 1, "{waited}");
    let results = call(&stage, "get_results", &json!({"id": run}), &[]).await;
    assert!(results["structuredContent"]["results"][0]["value"].is_string(), "{results}");
    working.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn the_scopes_of_a_token_decide_what_is_listed_and_done() {
    // What the option allows on loopback, it allows nobody who needs a token.
    let options = ServerOptions { token_required: true, mcp_allow_write: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    let (status, _) = send(&stage, &message("tools/list", &json!({})), &[]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let rows = [(Scope::Read, 8), (Scope::Work, 8), (Scope::Enqueue, 10), (Scope::Admin, 11)];
    for (scope, count) in rows {
        let token = stage.ctx.tokens.add(scope.as_str(), &[scope]).expect("a token");
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        assert_eq!(tools(&stage, &headers).await.len(), count, "{scope:?}");
        let job = call(&stage, "enqueue_job", &json!({"kind": "echo"}), &headers).await;
        assert_eq!(job["isError"], scope != Scope::Enqueue, "{scope:?}: {job}");
        let id = stage.ctx.queue().enqueue(NewJob::new("echo", Json::null())).await.expect("stored").id;
        let edited = call(&stage, "edit_job", &json!({"id": id, "payload": {"n": 2}}), &headers).await;
        assert_eq!(edited["isError"], scope != Scope::Admin, "{scope:?}: {edited}");
        let payload = stage.ctx.queue().get(id).await.expect("stored").payload;
        assert_eq!(payload.as_str(), if scope == Scope::Admin { r#"{"n":2}"# } else { "null" });
        let cancelled = call(&stage, "cancel_job", &json!({"id": id}), &headers).await;
        assert_eq!(cancelled["isError"], scope != Scope::Admin, "{scope:?}: {cancelled}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn foreign_pages_forms_and_streams_are_refused() {
    let stage = Stage::new().await;
    let list = message("tools/list", &json!({}));
    for (name, value, status) in [
        ("origin", "https://evil.example", StatusCode::FORBIDDEN),
        ("host", "evil.example", StatusCode::MISDIRECTED_REQUEST),
    ] {
        assert_eq!(send(&stage, &list, &[(name, value)]).await.0, status, "{name}");
    }
    let text =
        stage.request(Method::POST, "/mcp").header("content-type", "text/plain").body(list.to_string());
    assert_eq!(text.send().await.expect("an answer").status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    for method in [Method::GET, Method::DELETE] {
        let response = stage.request(method, "/mcp").send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let told = stage.request(Method::POST, "/mcp").header("content-type", "application/json").body(told);
    assert_eq!(told.send().await.expect("an answer").status(), StatusCode::ACCEPTED);
    stage.stop().await;
}

#[tokio::test]
async fn clients_of_the_newest_revision_are_told_by_status_and_headers_must_agree() {
    let stage = Stage::new().await;
    let meta = |version: &str| json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}});
    let version = ("mcp-protocol-version", MODERN);
    let list = ("mcp-method", "tools/list");
    let mut named = meta(MODERN);
    named["name"] = json!("queue_stats");
    let calls = ("mcp-method", "tools/call");
    let rows = [
        ("tools/list", meta(MODERN), vec![version, list], 200, 0),
        ("tools/list", meta(MODERN), vec![version], 400, -32020),
        ("tools/list", meta(MODERN), vec![list], 400, -32020),
        ("tools/list", meta(MODERN), vec![version, calls], 400, -32020),
        ("tools/list", meta("1900-01-01"), vec![("mcp-protocol-version", "1900-01-01"), list], 400, -32022),
        ("tools/list", json!({}), vec![version, list], 400, -32602),
        ("tools/call", named.clone(), vec![version, calls, ("mcp-name", "queue_stats")], 200, 0),
        (
            "tools/call",
            named.clone(),
            vec![version, calls, ("mcp-name", "=?base64?cXVldWVfc3RhdHM=?=")],
            200,
            0,
        ),
        ("tools/call", named, vec![version, calls, ("mcp-name", "get_job")], 400, -32020),
        ("prompts/list", meta(MODERN), vec![version, ("mcp-method", "prompts/list")], 404, -32601),
        ("prompts/list", json!({}), vec![], 200, -32601),
        ("tools/list", json!({}), vec![("mcp-protocol-version", "1900-01-01")], 400, -32022),
    ];
    for (method, params, headers, status, code) in rows {
        let (found, answer) = send(&stage, &message(method, &params), &headers).await;
        let error = answer["error"]["code"].as_i64().unwrap_or_default();
        assert_eq!((found.as_u16(), error), (status, code), "{method} {headers:?}: {answer}");
        assert_eq!(answer["id"], 7);
    }
    let (status, answer) = send(&stage, &json!("no message"), &[]).await;
    assert!(status == StatusCode::BAD_REQUEST && answer["error"]["code"] == -32600, "{answer}");
    stage.stop().await;
}

#[tokio::test]
async fn long_values_are_cut_and_read_piece_by_piece() {
    let stage = Stage::new().await;
    let long = "ä".repeat(60_000);
    let payload = Json::of(&json!({"text": long, "password": "hunter2"})).expect("JSON");
    let id = stage.ctx.queue().enqueue(NewJob::new("echo", payload).process("p")).await.expect("stored").id;
    let job = call(&stage, "get_job", &json!({"id": id}), &[]).await;
    let text = job["content"][0]["text"].as_str().expect("a text");
    assert!(text.len() < 20_000 && !text.contains("hunter2"), "{}", text.len());
    let cut = job["structuredContent"]["cut"][0].as_str().expect("a word");
    assert!(cut.contains("get_results") && cut.contains("\"offset\""), "{cut}");
    let (mut whole, mut offset, mut calls) = (String::new(), 0, 0);
    loop {
        let asked = json!({"id": id, "part": "payload", "offset": offset});
        let piece = call(&stage, "get_results", &asked, &[]).await["structuredContent"].clone();
        whole.push_str(piece["json_text"].as_str().expect("a piece"));
        calls += 1;
        match piece["next_offset"].as_u64() {
            Some(next) => offset = next,
            None => break,
        }
    }
    let whole: Value = serde_json::from_str(&whole).expect("the whole value");
    assert_eq!((whole["text"].as_str(), &whole["password"]), (Some(long.as_str()), &json!("[redacted]")));
    assert!(calls > 3, "{calls}");
    let wrong =
        call(&stage, "get_results", &json!({"id": id, "part": "payload", "offset": 9_000_000}), &[]).await;
    assert!(wrong["isError"] == true && wrong["structuredContent"]["field"] == "offset", "{wrong}");
    stage.stop().await;
}

#[tokio::test]
async fn an_argument_that_does_not_exist_is_answered_with_those_that_do() {
    let stage = Stage::new().await;
    let refused = call(&stage, "get_job", &json!({"job_id": "1"}), &[]).await;
    let text = refused["content"][0]["text"].as_str().expect("a text");
    assert!(refused["isError"] == true && text.contains(r#"no argument "job_id"; there are id"#), "{text}");
    stage.stop().await;
}
