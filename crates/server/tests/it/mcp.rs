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
    assert_eq!(tools(&stage, &[]).await.len(), 10);
    let refused = call(&stage, "enqueue_job", &json!({"kind": "echo"}), &[]).await;
    let text = refused["content"][0]["text"].as_str().expect("a text");
    assert!(refused["isError"] == true && text.contains("server.mcp_write"), "{refused}");
    stage.stop().await;

    let stage = writable().await;
    assert_eq!(tools(&stage, &[]).await.len(), 20);
    let working = stage.work().await;
    let body = json!({"messages": [{"role": "user", "content": "Hello?"}]});
    let prompts = json!({"model": "sim-small", "requests": [{"custom_id": "a", "body": body}]});
    let run = call(&stage, "submit_batch", &prompts, &[]).await["structuredContent"]["id"].clone();
    let mut waited = json!(null);
    for _ in 0..5 {
        waited = call(&stage, "wait_job", &json!({"id": run, "timeout_seconds": 60}), &[]).await;
        if waited["structuredContent"]["ended"] == true {
            break;
        }
    }
    assert_eq!(waited["structuredContent"]["units"]["done"], 1, "{waited}");
    let results = call(&stage, "get_results", &json!({"id": run}), &[]).await;
    let item = &results["structuredContent"]["results"][0];
    assert!(item["custom_id"] == "a" && item["result"]["text"].is_string(), "{results}");
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
    let rows = [(Scope::Read, 10), (Scope::Work, 10), (Scope::Enqueue, 12), (Scope::Admin, 18)];
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
        for verb in ["pause_run", "resume_run", "cancel_run", "retry_run", "remove_run"] {
            let told = call(&stage, verb, &json!({"id": "run-none"}), &headers).await;
            let code = if scope == Scope::Admin { "not_found" } else { "not_allowed" };
            assert_eq!(told["structuredContent"]["code"], code, "{scope:?} {verb}: {told}");
        }
    }
    stage.stop().await;
}

/// A server whose tools may change things.
async fn writable() -> Stage {
    let options = ServerOptions { mcp_allow_write: true, ..ServerOptions::default() };
    Stage::with(options, SimOptions::default()).await
}

/// Calls a tool, which must go well.
async fn done(stage: &Stage, tool: &str, arguments: Value) -> Value {
    let result = call(stage, tool, &arguments, &[]).await;
    assert_eq!(result["isError"], false, "{tool}: {result}");
    result["structuredContent"].clone()
}

#[tokio::test]
async fn a_run_of_any_pipeline_is_listed_steered_read_and_removed_as_over_http() {
    let stage = writable().await;
    let prompts = json!({"model": "sim-small", "requests": ["One?", "Two?"], "mode": "sync"});
    let run = done(&stage, "submit_batch", prompts.clone()).await;
    assert_eq!((&run["requests"], &run["resumed"]), (&json!(2), &json!(false)), "{run}");
    assert_eq!(stage.post("/api/v1/prompts", &prompts).await.1["id"], run["id"], "the same over HTTP");
    let run = &run["id"];
    let file = stage.upload_as("reviews.csv", "id,review\n1,Late but fine\n2,Good\n".to_owned()).await;
    let sheet = json!({
        "file_id": file["id"], "layout": {"columns": {"text": "review"}}, "model": "sim-small",
        "categories": [{"name": "speed", "definition": "how fast"}],
    });
    let sheet = stage.post("/api/v1/sheets", &sheet).await.1["id"].clone();

    let listed = done(&stage, "list_runs", json!({"limit": 1})).await;
    assert_eq!((&listed["runs"][0]["id"], listed["next_cursor"].is_string()), (&sheet, true), "{listed}");
    let listed = done(&stage, "list_runs", json!({"limit": 1, "cursor": listed["next_cursor"]})).await;
    assert_eq!(&listed["runs"][0]["id"], run, "{listed}");
    let listed = done(&stage, "list_runs", json!({"pipeline": "sheets"})).await;
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1), "{listed}");
    let wrong = call(&stage, "list_runs", &json!({"pipeline": "poems"}), &[]).await;
    assert_eq!(wrong["structuredContent"]["field"], "pipeline", "{wrong}");

    assert_eq!(done(&stage, "pause_run", json!({"id": run})).await["state"], "paused");
    let resumed = done(&stage, "resume_run", json!({"id": run, "max_cost_usd": 2.5})).await;
    assert_eq!(resumed, json!({"changed": 0}));
    assert_eq!(done(&stage, "get_run", json!({"id": run})).await["state"], "running");
    let refused = call(&stage, "remove_run", &json!({"id": run}), &[]).await;
    assert_eq!(refused["structuredContent"]["code"], "wrong_state", "{refused}");

    let working = stage.work().await;
    for id in [run, &sheet] {
        let ended = done(&stage, "get_run", json!({"id": id, "wait_s": 60})).await;
        assert_eq!((&ended["state"], &ended["units"]["done"]), (&json!("completed"), &json!(2)), "{ended}");
        let id = id.as_str().expect("a name");
        let over_http = stage.get(&format!("/api/v1/runs/{id}")).await;
        assert_eq!(over_http["parts"], ended["parts"], "{ended}");
        let results = done(&stage, "get_results", json!({"id": id})).await;
        let all = stage.get(&format!("/api/v1/runs/{id}/results")).await;
        assert_eq!(results["results"].as_array().map(Vec::len), Some(2), "{results}");
        for (shown, whole) in
            results["results"].as_array().into_iter().flatten().zip(all["items"].as_array().expect("results"))
        {
            let whole = whole.as_object().expect("an object").iter().filter(|(_, value)| !value.is_null());
            assert_eq!(
                shown,
                &Value::Object(whole.map(|(name, value)| (name.clone(), value.clone())).collect())
            );
        }
        let page = done(&stage, "get_results", json!({"id": id, "limit": 1})).await;
        let page =
            done(&stage, "get_results", json!({"id": id, "limit": 1, "cursor": page["next_cursor"]})).await;
        assert_eq!(page["results"][0], results["results"][1], "{page}");
        assert_eq!(
            done(&stage, "get_results", json!({"id": id, "failed_only": true})).await["results"],
            json!([])
        );
    }
    working.drain().await;

    assert_eq!(done(&stage, "retry_run", json!({"id": run})).await, json!({"changed": 0}));
    let wrong = call(&stage, "retry_run", &json!({"id": run, "part": 0}), &[]).await;
    assert_eq!(wrong["structuredContent"]["field"], "part", "{wrong}");
    assert_eq!(done(&stage, "cancel_run", json!({"id": run})).await, json!({"changed": 0}));
    for id in [run, &sheet] {
        assert!(done(&stage, "remove_run", json!({"id": id})).await["changed"].as_u64() > Some(0));
    }
    assert_eq!(done(&stage, "list_runs", json!({})).await, json!({"runs": []}));
    stage.stop().await;
}

#[tokio::test]
async fn a_job_is_spelled_as_over_http_without_what_is_not_there() {
    let stage = Stage::new().await;
    let payload = Json::of(&json!({"n": 1})).expect("JSON");
    let id = stage.ctx.queue().enqueue(NewJob::new("echo", payload)).await.expect("stored").id;
    let mut job = done(&stage, "get_job", json!({"id": id})).await;
    let explanation = job.as_object_mut().expect("an object").shift_remove("explanation");
    let there = |value: Value| match value {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    };
    assert_eq!(job, there(stage.get(&format!("/api/v1/jobs/{id}")).await));
    assert_eq!(explanation, Some(there(stage.get(&format!("/api/v1/jobs/{id}/explain")).await)));
    let listed = done(&stage, "list_jobs", json!({})).await;
    assert_eq!(listed["jobs"][0], there(stage.get("/api/v1/jobs").await["items"][0].clone()));
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
