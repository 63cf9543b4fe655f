//! Runs, estimates and costs over a socket, answered by the simulator.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::Stage;

const EMBED: &str = "/v1/embeddings";

fn prompts(count: usize) -> Value {
    let requests: Vec<Value> = (0..count)
        .map(|number| json!({"custom_id": format!("c{number}"), "prompt": format!("say {number}")}))
        .collect();
    json!({"model": "sim-small", "requests": requests, "mode": "sync", "max_tokens": 16})
}

/// Waits by the run's process, which is what ends.
async fn ended(stage: &Stage, id: &str) -> Value {
    stage.get(&format!("/api/v1/processes/{id}?wait=2m")).await;
    stage.get(&format!("/api/v1/runs/{id}")).await
}

#[tokio::test]
async fn a_run_is_handed_in_answered_read_and_deleted() {
    let stage = Stage::new().await;
    let (status, estimate) = stage.send(Method::POST, "/api/v1/prompts/estimate", Some(prompts(5))).await;
    assert_eq!(
        (status, &estimate["requests"], &estimate["simulated"]),
        (StatusCode::OK, &json!(5), &json!(true))
    );
    assert_eq!(stage.get("/api/v1/runs").await["items"], json!([]), "nothing was stored");
    let (status, run) = stage.send(Method::POST, "/api/v1/prompts", Some(prompts(5))).await;
    assert_eq!(
        (status, &run["resumed"], &run["mode"]),
        (StatusCode::CREATED, &json!(false), &json!("sync")),
        "{run}"
    );
    assert_eq!(run["estimate_usd"], estimate["cost_usd"]);
    let id = run["id"].as_str().expect("a name");
    let (status, again) = stage.send(Method::POST, "/api/v1/prompts", Some(prompts(5))).await;
    assert_eq!((status, &again["id"], &again["resumed"]), (StatusCode::OK, &json!(id), &json!(true)));
    let (status, _) = stage.send(Method::DELETE, &format!("/api/v1/runs/{id}"), None).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "it is unfinished");

    let working = stage.work().await;
    let shown = ended(&stage, id).await;
    assert_eq!((&shown["units"]["done"], &shown["settings"]["model"]), (&json!(5), &json!("sim-small")));
    let first = stage.get(&format!("/api/v1/runs/{id}/results?limit=3")).await;
    let next = first["next"].as_str().expect("more");
    let second = stage.get(&format!("/api/v1/runs/{id}/results?limit=3&cursor={next}")).await;
    let names: Vec<&Value> = [&first, &second]
        .into_iter()
        .flat_map(|page| page["items"].as_array().expect("items"))
        .map(|item| &item["custom_id"])
        .collect();
    assert_eq!(names, ["c0", "c1", "c2", "c3", "c4"]);
    let costs = stage.get("/api/v1/costs").await;
    assert_eq!(
        (&costs["items"][0]["model"], &costs["items"][0]["calls"]),
        (&json!("sim-small"), &json!(5)),
        "{costs}"
    );
    working.drain().await;
    let (status, gone) = stage.send(Method::DELETE, &format!("/api/v1/runs/{id}"), None).await;
    assert_eq!((status, &gone["changed"]), (StatusCode::OK, &json!(6)), "five requests and the run");
    assert_eq!(stage.send(Method::GET, &format!("/api/v1/runs/{id}"), None).await.0, StatusCode::NOT_FOUND);
    stage.stop().await;
}

#[tokio::test]
async fn a_run_is_paused_resumed_and_cancelled() {
    let stage = Stage::new().await;
    let (_, run) = stage.send(Method::POST, "/api/v1/prompts", Some(prompts(3))).await;
    let id = run["id"].as_str().expect("a name");
    let post = |verb: &'static str, body: Option<Value>| {
        let path = format!("/api/v1/runs/{id}/{verb}");
        let stage = &stage;
        async move {
            let (status, answer) = stage.send(Method::POST, &path, body).await;
            assert_eq!(status, StatusCode::OK, "{verb}: {answer}");
            answer
        }
    };
    assert_eq!(post("pause", None).await["state"], "paused");
    assert_eq!(post("resume", Some(json!({"max_cost_usd": 1.5}))).await["changed"], 0);
    assert_eq!(post("cancel", None).await["changed"], 3);
    assert_eq!(post("retry", None).await["changed"], 3, "what was cancelled goes on too");
    assert_eq!(post("cancel", None).await["changed"], 3);
    assert_eq!(post("resolve", Some(json!({"decision": "wait"}))).await["changed"], 0);
    let shown = ended(&stage, id).await;
    assert_eq!(shown["units"]["cancelled"], 3);
    let (status, problem) = stage.send(Method::POST, &format!("/api/v1/runs/{id}/pause"), None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("wrong_state")));
    let results = stage.get(&format!("/api/v1/runs/{id}/results")).await;
    assert_eq!(results["items"][1]["custom_id"], "c1", "also one without an answer has its name");
    stage.stop().await;
}

#[tokio::test]
async fn a_batch_at_the_provider_is_not_cancelled_without_its_run() {
    let stage = Stage::new().await;
    let mut wanted = prompts(2);
    wanted["mode"] = json!("batch");
    let (_, run) = stage.send(Method::POST, "/api/v1/prompts", Some(wanted)).await;
    assert_eq!(run["mode"], "batch", "{run}");
    let id = run["id"].as_str().expect("a name");
    let shown = stage.get(&format!("/api/v1/runs/{id}")).await;
    let batch = shown["parts"][0]["details"]["job_id"].as_str().expect("a batch");
    let (status, problem) = stage.send(Method::POST, &format!("/api/v1/jobs/{batch}/cancel"), None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("cancelled_with_run")));
    let (_, action) = stage
        .send(Method::POST, "/api/v1/jobs/actions", Some(json!({"action": "cancel", "all": true})))
        .await;
    let path = format!("/api/v1/jobs/actions/{}", action["id"].as_str().expect("an id"));
    while stage.get(&path).await["done"] == false {}
    assert_eq!(stage.get(&format!("/api/v1/jobs/{batch}")).await["state"], "ready", "all others are");
    let (status, _) = stage.send(Method::POST, &format!("/api/v1/processes/{id}/cancel"), None).await;
    assert_eq!(status, StatusCode::OK, "a run's process is cancelled as the run");
    assert_eq!(stage.get(&format!("/api/v1/jobs/{batch}")).await["state"], "cancelled");
    stage.stop().await;
}

#[tokio::test]
async fn a_run_can_be_made_of_an_uploaded_file() {
    let stage = Stage::new().await;
    let line = |number: usize| {
        let body =
            json!({"model": "sim-small", "messages": [{"role": "user", "content": number.to_string()}]});
        json!({"custom_id": format!("c{number}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
            .to_string() + "\n"
    };
    let good = stage.upload((0..4).map(line).collect()).await["id"].clone();
    let bad = stage.upload(line(0) + "nonsense\n").await["id"].clone();
    let (status, problem) =
        stage.send(Method::POST, "/api/v1/prompts", Some(json!({"input_file": bad}))).await;
    assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("input_file")));
    assert!(problem["detail"].as_str().expect("text").starts_with("line 2:"), "{problem}");
    let (_, estimate) =
        stage.send(Method::POST, "/api/v1/prompts/estimate", Some(json!({"input_file": good}))).await;
    assert_eq!(estimate["requests"], 4);
    let body = json!({"input_file": good, "mode": "sync"});
    let (status, run) = stage.send(Method::POST, "/api/v1/prompts", Some(body)).await;
    assert_eq!((status, &run["requests"]), (StatusCode::CREATED, &json!(4)), "{run}");
    let working = stage.work().await;
    let shown = ended(&stage, run["id"].as_str().expect("a name")).await;
    assert_eq!(
        (&shown["units"]["done"], &shown["settings"]["source"]["name"]),
        (&json!(4), &json!("input.jsonl"))
    );
    working.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn a_file_may_hold_requests_as_a_call_does_and_is_asked_again_on_request() {
    let stage = Stage::new().await;
    let lines = "\"plain text\"\n{\"prompt\": \"two\"}\n\n{\"custom_id\": \"c\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"three\"}]}}\n";
    let file = stage.upload(lines.to_owned()).await["id"].clone();
    let wanted = json!({"input_file": file, "model": "sim-small", "profile": "sim", "name": "mine"});
    let (_, estimate) = stage.send(Method::POST, "/api/v1/prompts/estimate", Some(wanted.clone())).await;
    assert_eq!(estimate["requests"], 3, "{estimate}");
    let (status, run) = stage.send(Method::POST, "/api/v1/prompts", Some(wanted.clone())).await;
    assert_eq!((status, &run["requests"]), (StatusCode::CREATED, &json!(3)), "{run}");
    let id = run["id"].as_str().expect("a name").to_owned();
    let (_, cancelled) = stage.send(Method::POST, &format!("/api/v1/runs/{id}/cancel"), None).await;
    assert_eq!(cancelled["changed"], 3, "{cancelled}");
    let (status, again) = stage.send(Method::POST, "/api/v1/prompts", Some(wanted.clone())).await;
    assert_eq!((status, &again["asked_again"]), (StatusCode::OK, &json!(0)), "not unless it is asked for");
    let mut wanted = wanted;
    wanted["ask_again"] = json!(true);
    let (_, again) = stage.send(Method::POST, "/api/v1/prompts", Some(wanted)).await;
    assert_eq!((&again["id"], &again["asked_again"]), (&json!(id), &json!(3)));
    let working = stage.work().await;
    let shown = ended(&stage, &id).await;
    assert_eq!((&shown["units"]["done"], &shown["title"]), (&json!(3), &json!("mine")), "{shown}");
    working.drain().await;

    for (lines, told) in [
        ("\"a\"\n{\"promt\": \"b\"}\n", "line 2: unknown field"),
        ("{}\n", "line 1: a request has a body or a prompt"),
        ("", "no requests"),
    ] {
        let file = stage.upload(lines.to_owned()).await["id"].clone();
        let body = json!({"input_file": file, "model": "sim-small"});
        let (status, problem) = stage.send(Method::POST, "/api/v1/prompts", Some(body)).await;
        let field = problem["field"].as_str();
        assert_eq!((status, field), (StatusCode::UNPROCESSABLE_ENTITY, Some("input_file")), "{problem}");
        assert!(problem["detail"].as_str().expect("text").contains(told), "{problem}");
    }
    let batch =
        json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}).to_string();
    let file = stage.upload(batch).await["id"].clone();
    let body = json!({"input_file": file, "model": "sim-small"});
    let (_, problem) = stage.send(Method::POST, "/api/v1/prompts", Some(body)).await;
    assert_eq!(problem["field"], "model", "lines of batches name their models: {problem}");
    stage.stop().await;
}

#[tokio::test]
async fn texts_are_embedded_as_they_are_given_and_from_a_file() {
    let stage = Stage::new().await;
    let requests = json!([
        {"custom_id": "one", "prompt": "a text"},
        {"custom_id": "two", "body": {"input": ["a", "b"], "dimensions": 4}},
    ]);
    let wanted = json!({"model": "sim-embed", "endpoint": EMBED, "dimensions": 8, "mode": "sync", "requests": requests});
    let (status, estimate) = stage.send(Method::POST, "/api/v1/prompts/estimate", Some(wanted.clone())).await;
    assert_eq!((status, &estimate["requests"]), (StatusCode::OK, &json!(2)), "{estimate}");
    let (status, given) = stage.send(Method::POST, "/api/v1/prompts", Some(wanted)).await;
    assert_eq!(status, StatusCode::CREATED, "{given}");
    let body = json!({"model": "sim-embed", "input": "a text", "dimensions": 8});
    let line = json!({"custom_id": "three", "method": "POST", "url": EMBED, "body": body});
    let file = stage.upload(line.to_string()).await["id"].clone();
    let (_, problem) = stage.send(Method::POST, "/api/v1/prompts", Some(json!({"input_file": file}))).await;
    assert_eq!(problem["field"], "input_file", "its lines are no chats: {problem}");
    let wanted = json!({"input_file": file, "endpoint": EMBED, "mode": "sync"});
    let (status, filed) = stage.send(Method::POST, "/api/v1/prompts", Some(wanted)).await;
    assert_eq!(status, StatusCode::CREATED, "{filed}");
    let working = stage.work().await;
    let mut vectors = Vec::new();
    for run in [&given, &filed] {
        let id = run["id"].as_str().expect("a name");
        ended(&stage, id).await;
        let results = stage.get(&format!("/api/v1/runs/{id}/results")).await;
        for item in results["items"].as_array().expect("items") {
            vectors.extend(item["result"]["vectors"].as_array().expect("vectors").clone());
        }
    }
    let lengths: Vec<usize> =
        vectors.iter().map(|vector| vector.as_array().expect("numbers").len()).collect();
    assert_eq!(lengths, [8, 4, 4, 8]);
    assert_eq!(vectors[0], vectors[3], "the same text");
    working.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_run_is_told_by_its_field() {
    let stage = Stage::new().await;
    let ask = json!([{"prompt": "x"}]);
    let rows = [
        (json!({}), "requests"),
        (json!({"model": "sim-small", "requests": []}), "requests"),
        (json!({"requests": ask}), "model"),
        (json!({"model": "sim-small", "requests": [{}]}), "requests[0]"),
        (json!({"model": "sim-small", "requests": ["x", 1]}), "requests[1]"),
        (json!({"model": "sim-small", "requests": [{"promt": "x"}]}), "requests[0].promt"),
        (json!({"model": "simm/sim-small", "requests": ask}), "model"),
        (json!({"model": "sim-small", "requests": [{"prompt": "x", "body": {}}]}), "requests[0]"),
        (json!({"model": "sim-small", "requests": [{"body": {"messages": 1}}]}), "requests[0].body"),
        (json!({"model": "m", "profile": "none", "requests": ask}), "profile"),
        (json!({"model": "m".repeat(300), "profile": "sim", "requests": ask}), "model"),
        (json!({"model": "sim-small", "fallback_model": "m".repeat(300), "requests": ask}), "fallback_model"),
        (json!({"profile": "sim", "requests": ask}), "model"),
        (json!({"model": "sim-embed", "endpoint": "/v1/images", "requests": ask}), "endpoint"),
        (json!({"model": "sim-small", "dimensions": 8, "requests": ask}), "dimensions"),
        (json!({"model": "sim-embed", "endpoint": EMBED, "max_tokens": 8, "requests": ask}), "max_tokens"),
        (json!({"model": "sim-embed", "endpoint": EMBED, "schema": {}, "requests": ask}), "schema"),
        (json!({"model": "sim-embed", "endpoint": EMBED, "requests": [{"body": {}}]}), "requests[0].body"),
        (json!({"model": "sim-small", "requests": ask, "mode": "fast"}), "mode"),
        (json!({"model": "sim-small", "requests": ask, "max_cost_usd": -1}), "max_cost_usd"),
        (json!({"model": "sim-small", "requests": ask, "schema": {"type": 1}}), "schema"),
        (json!({"input_file": "file-none"}), "input_file"),
        (json!({"input_file": "file-none", "requests": ask}), "input_file"),
        (json!({"input_file": "file-none", "model": "m"}), "input_file"),
    ];
    for (body, field) in rows {
        let (status, problem) = stage.send(Method::POST, "/api/v1/prompts", Some(body.clone())).await;
        assert!(status.is_client_error(), "{body}: {problem}");
        assert_eq!(problem["field"].as_str().unwrap_or_default(), field, "{body}: {problem}");
    }
    assert_eq!(stage.get("/api/v1/runs").await["items"], json!([]));
    stage.stop().await;
}

#[tokio::test]
async fn prompts_may_be_bare_texts_and_go_one_by_one_unless_told_otherwise() {
    let stage = Stage::new().await;
    let wanted = json!({"model": "sim-small", "requests": ["one", {"prompt": "two", "custom_id": "b"}]});
    let (status, run) = stage.send(Method::POST, "/api/v1/prompts", Some(wanted)).await;
    assert_eq!((status, &run["mode"]), (StatusCode::CREATED, &json!("sync")), "{run}");
    let working = stage.work().await;
    let id = run["id"].as_str().expect("a name");
    assert_eq!(ended(&stage, id).await["units"]["done"], 2);
    let results = stage.get(&format!("/api/v1/runs/{id}/results")).await;
    assert_eq!(results["items"][1]["custom_id"], "b", "{results}");
    let (_, problem) = stage
        .send(Method::POST, "/api/v1/prompts", Some(json!({"model": "sim-small", "requests": [1]})))
        .await;
    let text = problem["detail"].as_str().unwrap_or_default();
    assert!(text.contains("a prompt as a string, or an object") && !text.contains("struct"), "{problem}");
    working.drain().await;
    stage.stop().await;
}
