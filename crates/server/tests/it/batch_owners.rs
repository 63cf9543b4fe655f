//! What stands behind a batch of an SDK (its job, its run, the run's jobs and answers) is as private as the batch.

use longhaul_prompts::sdk_batches::run_of;
use longhaul_queue::JobId;
use longhaul_server::Scope;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::owners::{guarded, sent, with};
use crate::stage::Stage;

/// Stands in the prompt of each batch.
const PROMPT: &str = "Xylophone";

/// A batch that has ended, made by a token with `enqueue`.
async fn batch(stage: &Stage, token: &str) -> JobId {
    let message = json!({"requests": [{"custom_id": "1", "params": {"model": "sim-small", "max_tokens": 9, "messages": [{"role": "user", "content": PROMPT}]}}]});
    let (_, created) = sent(with(stage.request(Method::POST, "/v1/messages/batches"), &message), token).await;
    let name = created["id"].as_str().expect("an id").to_owned();
    let working = stage.work().await;
    let mut changes = stage.ctx.queue().changes();
    loop {
        changes.mark_unchanged();
        let (_, shown) =
            sent(stage.request(Method::GET, &format!("/v1/messages/batches/{name}")), token).await;
        if shown["processing_status"] == "ended" {
            break;
        }
        changes.changed().await.expect("a living store");
    }
    working.drain().await;
    name.trim_start_matches("msgbatch_").parse().expect("an id")
}

async fn get(stage: &Stage, token: &str, path: &str) -> (StatusCode, Value) {
    let request = stage.request(Method::GET, path).header("accept", "application/json");
    sent(request, token).await
}

async fn tool(stage: &Stage, token: &str, name: &str, arguments: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    sent(with(stage.request(Method::POST, "/mcp"), &call), token).await.1["result"].clone()
}

#[tokio::test]
async fn jobs_runs_and_answers_behind_a_batch_are_its_owners_and_an_admins_only() {
    let stage = guarded().await;
    let token = |name: &str, scopes: &[Scope]| stage.ctx.tokens.add(name, scopes).expect("a token");
    let ann = token("ann", &[Scope::Enqueue]);
    let bob = token("bob", &[Scope::Enqueue, Scope::Work]);
    let admin = token("admin", &[Scope::Admin]);
    let id = batch(&stage, &ann).await;
    let run = run_of(id);
    let (request, manifest, run) = (run.job(0), run.manifest(), run.as_str());
    let short = run.strip_prefix("run-").expect("a run of prompts");
    let named = [
        format!("/api/v1/jobs/{id}"),
        format!("/api/v1/jobs/{request}"),
        format!("/api/v1/jobs/{request}/explain"),
        format!("/api/v1/jobs/{manifest}"),
        format!("/api/v1/processes/{run}"),
        format!("/api/v1/processes/{run}/results"),
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/results"),
        format!("/api/v1/runs/{short}/results"),
    ];
    for path in &named {
        let (status, problem) = get(&stage, &bob, path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {problem}");
        for may in [&ann, &admin] {
            assert_eq!(get(&stage, may, path).await.0, StatusCode::OK, "{path}");
        }
    }
    for (name, arguments) in [
        ("get_job", json!({"id": request})),
        ("get_job", json!({"id": run})),
        ("wait_job", json!({"id": id})),
        ("get_results", json!({"id": request, "part": "payload"})),
        ("get_results", json!({"id": run})),
        ("get_job", json!({"id": short})),
        ("get_run", json!({"id": run})),
        ("get_run", json!({"id": short})),
        ("get_results", json!({"id": short})),
        ("cost_report", json!({"run": run})),
    ] {
        let refused = tool(&stage, &bob, name, arguments.clone()).await;
        assert!(refused["isError"] == true && !refused.to_string().contains(PROMPT), "{refused}");
        for may in [&ann, &admin] {
            assert_eq!(
                tool(&stage, may, name, arguments.clone()).await["isError"],
                false,
                "{name} {arguments}"
            );
        }
    }
    stage.stop().await;
}

#[tokio::test]
async fn lists_searches_and_events_leave_out_what_stands_behind_batches() {
    let stage = guarded().await;
    let token = |name: &str, scopes: &[Scope]| stage.ctx.tokens.add(name, scopes).expect("a token");
    let (ann, bob) = (token("ann", &[Scope::Enqueue]), token("bob", &[Scope::Work]));
    let admin = token("admin", &[Scope::Admin]);
    let id = batch(&stage, &ann).await;
    let run = run_of(id).as_str().to_owned();
    let lists = [
        "/api/v1/jobs".to_owned(),
        format!("/api/v1/jobs?search={PROMPT}&limit=1"),
        format!("/api/v1/jobs?search=process:{run}"),
        format!("/api/v1/jobs?queue={run}"),
        "/api/v1/jobs?kind=api.batch".to_owned(),
        "/api/v1/runs".to_owned(),
        "/api/v1/processes".to_owned(),
    ];
    for path in &lists {
        let (_, list) = get(&stage, &bob, path).await;
        assert_eq!(list, json!({"items": []}), "{path}: nor a hint that there is more");
        let (_, list) = get(&stage, &admin, path).await;
        assert!(list["items"][0].is_object(), "{path}: {list}");
    }
    let (_, own) = get(&stage, &ann, &format!("/api/v1/jobs?process={run}")).await;
    assert!(own["items"][0].is_object(), "who owns it may ask for it: {own}");
    let shown = tool(&stage, &bob, "list_jobs", json!({"search": PROMPT})).await;
    assert_eq!(shown["structuredContent"]["jobs"], json!([]), "{shown}");
    let shown = tool(&stage, &bob, "list_runs", json!({})).await;
    assert_eq!(shown["structuredContent"], json!({"runs": []}), "{shown}");
    let shown = tool(&stage, &admin, "list_runs", json!({})).await;
    assert_eq!(shown["structuredContent"]["runs"][0]["id"], run, "{shown}");
    for query in ["after=0", &format!("after=0&process={run}")] {
        let (_, events) = get(&stage, &bob, &format!("/api/v1/events?{query}")).await;
        let text = events.to_string();
        assert!(events["events"].is_array() && !text.contains(&run) && !text.contains("api.batch"), "{text}");
        let (_, events) = get(&stage, &admin, &format!("/api/v1/events?{query}")).await;
        assert!(events.to_string().contains(&run), "{events}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn nobody_reads_a_foreign_answer_as_the_parent_of_a_job_of_theirs() {
    let stage = guarded().await;
    let token = |name: &str, scopes: &[Scope]| stage.ctx.tokens.add(name, scopes).expect("a token");
    let (ann, bob) = (token("ann", &[Scope::Enqueue]), token("bob", &[Scope::Enqueue, Scope::Work]));
    let run = run_of(batch(&stage, &ann).await);
    let request = run.job(0);
    let job = json!({"kind": "a", "depends_on": [request]});
    let post = |token: String, job: Value| {
        let request = with(stage.request(Method::POST, "/api/v1/jobs"), &job);
        async move { sent(request, &token).await }
    };
    let enqueue = |token: String, job: Value| {
        let posted = post(token, job);
        async move { posted.await.0 }
    };
    // It looks like one that does not exist.
    for (foreign, missing) in [
        (job.clone(), json!({"kind": "a", "depends_on": [JobId::from_bytes([7; 16])]})),
        (json!({"kind": "a", "after_process": run.as_str()}), json!({"kind": "a", "after_process": "none"})),
    ] {
        let ((status, refused), (missing_status, missing)) =
            (post(bob.clone(), foreign).await, post(bob.clone(), missing).await);
        assert_eq!((status, missing_status), (StatusCode::UNPROCESSABLE_ENTITY, status), "{refused}");
        let told = |answer: &Value| {
            let detail = answer["detail"].as_str().expect("a detail").to_owned();
            assert!(detail.ends_with(", which does not exist"), "{answer}");
            (answer["code"].clone(), answer["field"].clone())
        };
        assert_eq!(told(&refused), told(&missing));
    }
    assert_eq!(enqueue(ann, job.clone()).await, StatusCode::CREATED, "who owns it may wait for it");
    assert_eq!(enqueue(bob.clone(), json!({"kind": "b"})).await, StatusCode::CREATED);
    let claim = json!({"queues": ["default"], "kinds": ["b"]});
    let (_, claimed) = sent(with(stage.request(Method::POST, "/api/v1/work/claim"), &claim), &bob).await;
    let item = json!({"lease": claimed["jobs"][0]["lease"], "outcome": {"done": 1}, "follow_ups": [job]});
    let settle = with(stage.request(Method::POST, "/api/v1/work/settle"), &json!({"items": [item]}));
    let (_, settled) = sent(settle, &bob).await;
    let refused = settled["items"][0]["refused"].as_str().unwrap_or_default();
    assert!(refused.ends_with("which does not exist"), "{settled}");
    stage.stop().await;
}
