//! Requests that are in order, for all families.

use std::fmt;

use longhaul_queue::{Json, NewJob};
use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::Stage;

/// A request.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) kind: Option<String>,
    /// A length other than that of the content.
    pub(super) length: Option<String>,
    pub(super) content: Content,
}

/// What it carries.
#[derive(Clone)]
pub(super) enum Content {
    Json(Value),
    Bytes(Vec<u8>),
}

impl Content {
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Json(value) => value.to_string().into_bytes(),
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

impl Case {
    /// The request as it goes over the wire.
    pub(super) fn bytes(&self, host: &str) -> Vec<u8> {
        let content = self.content.bytes();
        let length = self.length.clone().unwrap_or_else(|| content.len().to_string());
        let kind = self.kind.as_ref().map(|kind| format!("content-type: {kind}\r\n")).unwrap_or_default();
        let head = format!(
            "{} {} HTTP/1.1\r\nhost: {host}\r\nx-longhaul: 1\r\nconnection: close\r\n{kind}content-length: {length}\r\n\r\n",
            self.method, self.path
        );
        [head.into_bytes(), content].concat()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = self.content.bytes();
        let shown = content[..content.len().min(1_500)].escape_ascii();
        let path: String = self.path.chars().take(300).collect();
        write!(
            f,
            "{} {path} {:?} length {:?} of {}: {shown}",
            self.method,
            self.kind,
            self.length,
            content.len()
        )
    }
}

fn get(path: impl Into<String>) -> Case {
    Case { method: "GET", path: path.into(), kind: None, length: None, content: Content::Bytes(Vec::new()) }
}

fn with(method: &'static str, path: impl Into<String>, body: Value) -> Case {
    Case {
        method,
        path: path.into(),
        kind: Some("application/json".to_owned()),
        length: None,
        content: Content::Json(body),
    }
}

/// What is there for requests to be about.
pub(super) struct Things {
    job: String,
    lease: Value,
    run: String,
    file: String,
    batch: String,
    messages: String,
    table: String,
    sheet: String,
}

fn name(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

pub(super) async fn things(stage: &Stage) -> Things {
    let job =
        stage.ctx.queue().enqueue(NewJob::new("a", Json::null()).process("p")).await.expect("stored").id;
    let (_, claims) = stage.post("/api/v1/work/claim", &json!({"worker": "w", "queues": ["default"]})).await;
    let hook = json!({"url": "https://example.org/", "events": ["job.*"]});
    stage.send(Method::PUT, "/api/v1/webhooks/ops", Some(hook)).await;
    let (_, run) = stage.post("/api/v1/prompts", &run()).await;
    let file = name(&stage.upload(line(0)).await["id"]);
    let (_, batch) = stage.post("/v1/batches", &batch(&file)).await;
    let (_, messages) = stage.post("/v1/messages/batches", &message_batch()).await;
    let table = name(&stage.upload_as("t.csv", "text,cat\nfine,\n,\n\"a,b\",0.5\n".to_owned()).await["id"]);
    let (_, sheet) = stage.post("/api/v1/sheets", &sheet(&table)).await;
    Things {
        job: job.to_string(),
        lease: claims["jobs"][0]["lease"].clone(),
        run: name(&run["id"]),
        file,
        batch: name(&batch["id"]),
        messages: name(&messages["id"]),
        table,
        sheet: name(&sheet["id"]),
    }
}

/// A line of a batch.
pub(super) fn line(number: usize) -> String {
    request(number).to_string() + "\n"
}

/// A request of a batch.
pub(super) fn request(number: usize) -> Value {
    json!({"custom_id": format!("c-{number}"), "method": "POST", "url": "/v1/chat/completions", "body": chat()})
}

fn batch(file: &str) -> Value {
    json!({
        "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "metadata": {"who": "me"}, "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    })
}

/// A batch in Anthropic's form.
pub(super) fn message_batch() -> Value {
    let params =
        json!({"model": "sim-small", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]});
    json!({"requests": [{"custom_id": "a", "params": params}, {"custom_id": "b", "params": params}]})
}

fn run() -> Value {
    json!({
        "model": "sim-small", "requests": [{"custom_id": "c", "prompt": "Hi"}, {"body": chat()}], "mode": "sync",
        "max_cost_usd": 1.5, "tags": ["t"], "name": "n", "system": "s", "max_tokens": 9, "temperature": 0.5,
        "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "cache": "auto",
    })
}

fn sheet(table: &str) -> Value {
    json!({
        "file_id": table, "format": "csv", "layout": {"columns": {"text": "text"}}, "model": "sim-small", "mode": "scores",
        "categories": [{"name": "cat", "definition": "d", "detail": "e"}, {"name": "other"}], "instructions": "i", "range": [0, 1],
        "fallback_model": "sim-large", "existing": "keep", "limit": 9, "max_cost_usd": 1.5, "cache": "auto", "tags": ["t"],
        "work": {"chunk_rows": 50, "parallel_chunks": 2, "concurrency": 4, "block_categories": 1, "unit_retries": 1, "failed_share_max": 0.5},
    })
}

fn chat() -> Value {
    json!({
        "model": "sim-small", "max_tokens": 20, "temperature": 0.5, "stop": ["x"], "seed": 7,
        "messages": [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "t", "content": "9"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}],
        "tool_choice": "auto",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}},
    })
}

fn job() -> Value {
    json!({
        "kind": "b", "payload": {"a": [1, "x", null]}, "ref": "r", "queue": "q", "process_id": "p", "priority": 3,
        "delay_ms": 50_000, "webhook": "ops",
        "options": {
            "title": "t", "owner": "o", "tags": ["x"], "max_attempts": 3, "run_limit_ms": 1000,
            "retry": {"backoff": "exponential", "base_ms": 1000, "cap_ms": 3_600_000},
            "retention": {"retention": "keep", "succeeded_ms": 3_600_000, "failed_ms": 86_400_000},
        },
    })
}

fn tool(name: &str, arguments: &Value) -> Case {
    let params = json!({"name": name, "arguments": arguments});
    with("POST", "/mcp", json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}))
}

fn form(parts: &[(&str, &str)]) -> Case {
    let mut text = String::new();
    for (about, content) in parts {
        text += &format!("--b\r\nContent-Disposition: form-data; {about}\r\n\r\n{content}\r\n");
    }
    Case {
        kind: Some("multipart/form-data; boundary=b".to_owned()),
        content: Content::Bytes((text + "--b--\r\n").into_bytes()),
        ..with("POST", "/v1/files", Value::Null)
    }
}

/// All of them, about these things.
pub(super) fn cases(things: &Things) -> Vec<Case> {
    let mut cases = reads(things);
    cases.extend(own(things));
    cases.extend(sheets(things));
    cases.extend(compatible(things));
    cases.extend(tools(things));
    cases
}

/// What only looks.
pub(super) fn reads(things: &Things) -> Vec<Case> {
    let Things { job, run, file, batch, messages, sheet, .. } = things;
    let paths = [
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/api/v1/jobs",
        "/api/v1/jobs?state=ready&search=x",
        "/api/v1/processes",
        "/api/v1/processes/p",
        "/api/v1/processes/p/results",
        "/api/v1/queues",
        "/api/v1/queues/default",
        "/api/v1/schedules",
        "/api/v1/workers",
        "/api/v1/runs",
        "/api/v1/runs?pipeline=sheets",
        "/api/v1/costs",
        "/api/v1/events",
        "/api/v1/webhooks",
        "/api/v1/webhooks/ops",
        "/api/v1/webhooks/ops/deliveries",
        "/api/v1/jobs/actions/none",
        "/v1/files",
        "/v1/batches",
        "/v1/messages/batches",
        "/v1/models",
        "/v1/models/sim-small",
        "/v1/chat/completions",
        "/v1/chat/completions/x",
        "/v1/chat/completions/x/messages",
        "/v1/responses/x",
        "/v1/files?purpose=batch_output",
    ];
    let mut cases: Vec<Case> = paths.into_iter().map(get).collect();
    cases.extend([
        get(format!("/api/v1/jobs/{job}")),
        get(format!("/api/v1/jobs/{job}/explain")),
        get(format!("/api/v1/runs/{run}")),
        get(format!("/api/v1/runs/{run}/results")),
        get(format!("/api/v1/runs/{sheet}")),
        get(format!("/api/v1/runs/{sheet}/parts?limit=1")),
        get(format!("/api/v1/runs/{sheet}/results?limit=1")),
        get(format!("/api/v1/sheets/{sheet}/blanks?cursor=u1-0")),
        get(format!("/api/v1/sheets/{sheet}/output")),
        get(format!("/api/v1/sheets/{sheet}/output?format=xlsx")),
        get(format!("/v1/files/{file}")),
        get(format!("/v1/files/{file}/content")),
        get(format!("/v1/batches/{batch}")),
        get(format!("/v1/messages/batches/{messages}")),
        get(format!("/v1/messages/batches/{messages}/results")),
    ]);
    cases
}

fn own(things: &Things) -> Vec<Case> {
    let Things { job: id, run: run_id, lease, file, .. } = things;
    let graph = json!({"jobs": [{"kind": "a", "ref": "a"}, {"kind": "b", "depends_on": ["a", {"job": "a", "on_failure": "run"}]}]});
    let outcome =
        |outcome: Value| json!({"items": [{"lease": lease, "outcome": outcome, "usage": {"tokens": 3}}]});
    let schedule = json!({"cron": "0 8 * * 1-5", "timezone": "Europe/Berlin", "missed": "once", "job": {"kind": "a", "payload": {"x": 1}}});
    let queue = json!({"paused": false, "max_running": 3, "retention": {"retention": "keep", "succeeded_ms": 1_000, "failed_ms": 2_000}});
    let work = |verb: &str| format!("/api/v1/work/{verb}");
    let mut cases = vec![
        with("POST", "/api/v1/jobs", job()),
        with("POST", "/api/v1/jobs", json!({"kind": "a", "payload": {"deep": [1]}})),
        with("POST", "/api/v1/jobs", graph),
        with(
            "POST",
            "/api/v1/jobs/actions",
            json!({"action": "retry", "filter": {"state": ["failed"], "kind": "a", "search": "x"}, "keep_data": true}),
        ),
        with("DELETE", "/api/v1/jobs/actions/none", Value::Null),
        with("POST", "/api/v1/signals", json!({"key": "k", "signal": {"resume": {"x": 1}}})),
        with(
            "POST",
            work("claim"),
            json!({"worker": "w", "queues": ["q", "default"], "kinds": ["a"], "limit": 5, "lease_seconds": 30, "host": "h", "pid": 7}),
        ),
        with("POST", work("extend"), json!({"leases": [lease], "lease_seconds": 60})),
        with(
            "POST",
            work("save"),
            json!({"lease": lease, "data": {"page": 2}, "progress": {"done": 2, "total": 9, "message": "m"}, "log": ["half"]}),
        ),
        with("POST", work("settle"), outcome(json!({"done": {"x": 1}}))),
        with("POST", work("settle"), outcome(json!({"continue": {"after_seconds": 60, "data": {"n": 1}}}))),
        with(
            "POST",
            work("settle"),
            outcome(json!({"park": {"key": "k", "until": 4_000_000_000_000_i64, "on_timeout": "fail"}})),
        ),
        with("POST", work("settle"), outcome(json!({"retry": {"error": "no", "after_seconds": 9}}))),
        with("POST", work("settle"), outcome(json!({"throttle": {"after_seconds": 9}}))),
        with("POST", "/api/v1/prompts", run()),
        with("POST", "/api/v1/prompts", json!({"input_file": file, "mode": "sync"})),
        with("POST", "/api/v1/prompts/estimate", run()),
        with("POST", "/api/v1/processes/p/consume", json!({"ids": [id], "up_to_seq": 3})),
        with("PATCH", "/api/v1/queues/q", queue),
        with("PUT", "/api/v1/schedules/daily", schedule),
        with("POST", "/api/v1/schedules/daily/run", Value::Null),
        with(
            "PUT",
            "/api/v1/webhooks/ops",
            json!({"url": "https://example.org/", "events": ["job.*"], "allow_private": false}),
        ),
        with("POST", format!("/api/v1/webhooks/ops/deliveries/{id}/resend"), Value::Null),
        with("POST", format!("/api/v1/jobs/{id}/retry"), json!({"keep_data": true})),
        with("POST", format!("/api/v1/runs/{run_id}/resume"), json!({"max_cost_usd": 1.5})),
        with("POST", format!("/api/v1/runs/{run_id}/resolve"), json!({"decision": "wait"})),
    ];
    cases.extend(
        ["rotate", "test"].map(|verb| with("POST", format!("/api/v1/webhooks/ops/{verb}"), Value::Null)),
    );
    cases.extend(
        ["run-now", "unhold"].map(|verb| with("POST", format!("/api/v1/jobs/{id}/{verb}"), Value::Null)),
    );
    cases.extend(
        ["pause", "resume"].map(|verb| with("POST", format!("/api/v1/queues/q/{verb}"), Value::Null)),
    );
    cases.extend(
        ["pause", "retry"].map(|verb| with("POST", format!("/api/v1/runs/{run_id}/{verb}"), Value::Null)),
    );
    cases.push(with("POST", "/api/v1/processes/p/seal", Value::Null));
    cases
}

fn sheets(things: &Things) -> Vec<Case> {
    let Things { table, sheet: id, .. } = things;
    vec![
        with("POST", "/api/v1/sheets", sheet(table)),
        with("POST", "/api/v1/sheets/estimate", sheet(table)),
        with(
            "POST",
            "/api/v1/sheets/estimate",
            json!({"google": {"spreadsheet": "1AbC", "sheet": "A"}, "layout": {"sheet": {"text_column": 3, "first_row": 5}}, "model": "sim-small"}),
        ),
        with("POST", format!("/api/v1/runs/{id}/retry"), json!({"part": 1})),
        with("POST", format!("/api/v1/runs/{id}/resume"), json!({"max_cost_usd": 1.5})),
    ]
}

fn compatible(things: &Things) -> Vec<Case> {
    let Things { file, batch: batch_id, .. } = things;
    let messages = json!({
        "model": "sim-small", "max_tokens": 20, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "9"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"}, "metadata": {"user_id": "u"},
    });
    let response = json!({
        "model": "sim-small", "max_output_tokens": 20, "instructions": "s",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, {"type": "function_call_output", "call_id": "t", "output": "9"}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "reasoning": {"effort": "low"},
    });
    let plain = json!({"model": "sim-small", "messages": [{"role": "user", "content": "Hi"}], "stream": true, "stream_options": {"include_usage": true}});
    let content = line(0);
    vec![
        with("POST", "/v1/chat/completions", chat()),
        with("POST", "/v1/chat/completions", plain),
        with(
            "POST",
            "/v1/completions",
            json!({"model": "sim-small", "prompt": "Hi", "max_tokens": 9, "echo": true, "logprobs": 3}),
        ),
        with(
            "POST",
            "/v1/embeddings",
            json!({"model": "sim-embed", "input": ["one", "two"], "encoding_format": "base64", "dimensions": 8}),
        ),
        with("POST", "/v1/embeddings", json!({"model": "sim-embed", "input": [[1, 2, 3], [4]]})),
        with("POST", "/v1/messages", messages.clone()),
        with("POST", "/v1/messages/count_tokens", messages),
        with("POST", "/v1/responses", response.clone()),
        with("POST", "/v1/responses/compact", response),
        with("POST", "/v1/responses/x/cancel", Value::Null),
        with("POST", "/v1/batches", batch(file)),
        with("POST", "/v1/batches/batch_00000000000000000000000000000000/cancel", Value::Null),
        with("POST", format!("/v1/batches/{batch_id}"), Value::Null),
        with("POST", "/v1/messages/batches", message_batch()),
        form(&[("name=\"purpose\"", "batch"), ("name=\"file\"; filename=\"i.jsonl\"", &content)]),
        form(&[
            ("name=\"file\"; filename=\"../../x\"", &content),
            ("name=\"purpose\"", "batch"),
            ("name=\"expires_after[seconds]\"", "3600"),
        ]),
        form(&[("name=\"purpose\"", "batch")]),
        form(&[("name=\"file\"; filename=\"i.jsonl\"", &content)]),
        form(&[]),
    ]
}

fn tools(things: &Things) -> Vec<Case> {
    let Things { job: id, run, .. } = things;
    let prompts = json!({"model": "sim-small", "messages": [[{"role": "user", "content": "Hello?"}]]});
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}});
    let about = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}});
    vec![
        with("POST", "/mcp", json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})),
        with("POST", "/mcp", json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list", "params": meta})),
        with("POST", "/mcp", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})),
        tool("list_jobs", &json!({"limit": 5, "state": "ready"})),
        tool("get_job", &json!({"id": id})),
        tool("get_results", &json!({"id": run, "limit": 5})),
        tool("queue_stats", &json!({})),
        tool("list_job_kinds", &json!({})),
        tool("cost_report", &json!({"days": 3})),
        tool("estimate_cost", &prompts),
        tool("submit_batch", &prompts),
        tool("enqueue_job", &json!({"kind": "echo", "payload": {"x": 1}})),
        tool("cancel_job", &json!({"id": id})),
    ]
}
