//! What stands under the name of a secret: neither shown nor found, on any way out.

use longhaul_queue::remote::{self, Ended};
use longhaul_queue::state::{Event, JobError, Outcome, Reason};
use longhaul_queue::store::{ClaimRequest, Save};
use longhaul_queue::{JobId, Json, NewJob};
use longhaul_server::{Scope, ServerOptions};
use longhaul_sim::SimOptions;
use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::{Stage, json_of};

const SECRET: &str = "hunter2";

async fn guarded() -> Stage {
    let options = ServerOptions { token_required: true, ..ServerOptions::default() };
    Stage::with(options, SimOptions::default()).await
}

fn token(stage: &Stage, scope: Scope) -> String {
    stage.ctx.tokens.add(scope.as_str(), &[scope]).expect("a token")
}

async fn get(stage: &Stage, path: &str, token: &str) -> Value {
    json_of(stage.request(Method::GET, path).bearer_auth(token).send().await.expect("an answer")).await
}

async fn text(stage: &Stage, path: &str, token: &str) -> String {
    let request = stage.request(Method::GET, path).bearer_auth(token).header("accept", "application/jsonl");
    request.send().await.expect("an answer").text().await.expect("a body")
}

async fn tool(stage: &Stage, name: &str, arguments: Value, token: &str) -> String {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
    let request = stage.request(Method::POST, "/mcp").bearer_auth(token);
    let request = request.header("content-type", "application/json").body(call.to_string());
    request.send().await.expect("an answer").text().await.expect("a body")
}

/// A job with the secret in each of its values, run and ended.
async fn ended_job(stage: &Stage, payload: &str, outcome: impl Fn(Json) -> Outcome) -> JobId {
    let queue = stage.ctx.queue();
    let value = Json::parse(payload).expect("JSON");
    let id = queue.enqueue(NewJob::new("a", value.clone()).process("p")).await.expect("stored").id;
    let now = queue.clock().now();
    let request = ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: "w".into(),
        limit: 1,
        suspects_max: 1,
        lease_for: std::time::Duration::from_secs(60),
        now,
    };
    let claimed = stage.ctx.engine().store().claim(request).await.expect("claimed").remove(0);
    let line = longhaul_queue::job::LogLine { at: now, text: format!("sent password={SECRET}") };
    let save = Save { data: Some(value.clone()), progress: None, log: vec![line] };
    stage.ctx.engine().store().save(claimed.lease.clone(), save, now).await.expect("saved");
    let event = Event::Outcome(outcome(value.clone()));
    let ended = Ended { lease: claimed.lease, event, follow_ups: Vec::new(), usage: Some(value) };
    let item = remote::settle(&claimed.job, ended, &queue.limits(), now, 0.5).expect("settled");
    stage.ctx.engine().store().settle(vec![item], now).await.expect("stored");
    id
}

#[tokio::test]
async fn no_way_out_shows_a_secret_to_one_who_may_only_look() {
    let stage = guarded().await;
    // The second name hides the object from readers who keep the last of two.
    let payload = format!(r#"{{"a":{{"password":"{SECRET}"}},"a":1,"api_key":["{SECRET}"]}}"#);
    let done = ended_job(&stage, &payload, Outcome::Done).await;
    let fail = |_| Outcome::Fail(JobError::new(Reason::Failure, format!("401: api_key={SECRET} is wrong")));
    let failed = ended_job(&stage, &payload, fail).await;
    let (reader, worker) = (token(&stage, Scope::Read), token(&stage, Scope::Work));
    let paths = [
        "/api/v1/jobs".to_owned(),
        format!("/api/v1/jobs/{done}"),
        format!("/api/v1/jobs/{failed}"),
        format!("/api/v1/jobs/{failed}/explain"),
        "/api/v1/processes/p/results".to_owned(),
        "/api/v1/events".to_owned() + "?after=0",
    ];
    for path in &paths {
        let shown = match path.starts_with("/api/v1/events") {
            true => stage.request(Method::GET, path).header("accept", "application/json"),
            false => stage.request(Method::GET, path),
        };
        let shown = shown.bearer_auth(&reader).send().await.expect("an answer");
        assert!(shown.status().is_success(), "{path}");
        let shown = shown.text().await.expect("a body");
        assert!(!shown.contains(SECRET), "{path}: {shown}");
    }
    let lines = text(&stage, "/api/v1/processes/p/results", &reader).await;
    assert!(lines.lines().count() == 2 && !lines.contains(SECRET), "{lines}");
    for (name, arguments) in [
        ("get_job", json!({"id": done})),
        ("get_job", json!({"id": failed})),
        ("get_results", json!({"id": done})),
        ("get_results", json!({"id": done, "part": "payload"})),
        ("get_results", json!({"id": "p"})),
        ("list_jobs", json!({})),
    ] {
        let shown = tool(&stage, name, arguments, &reader).await;
        assert!(shown.contains("redacted") && !shown.contains(SECRET), "{name}: {shown}");
    }
    // Who may work sees all of it, and who stores results before they are deleted can ask for it.
    let whole = get(&stage, "/api/v1/processes/p/results?secrets=true", &worker).await;
    assert_eq!(whole["items"][0]["result"]["api_key"], json!([SECRET]));
    assert!(get(&stage, &format!("/api/v1/jobs/{done}"), &worker).await.to_string().contains(SECRET));
    let refused = get(&stage, "/api/v1/processes/p/results?secrets=true", &reader).await;
    assert_eq!(refused["code"], "scope_missing", "{refused}");
    stage.stop().await;
}

#[tokio::test]
async fn what_is_hidden_is_not_found() {
    let stage = guarded().await;
    let payload = format!(r#"{{"user":"ann","password":"{SECRET}"}}"#);
    let fail = |_| Outcome::Fail(JobError::new(Reason::Failure, format!("refused: password={SECRET}")));
    ended_job(&stage, &payload, fail).await;
    let (reader, worker) = (token(&stage, Scope::Read), token(&stage, Scope::Work));
    let rows = [
        ("hunter", 0, 1),
        ("password:hunter2", 0, 1),
        ("%22%5C%22hunter%22", 0, 1),
        ("ann", 1, 1),
        ("user:ann", 1, 1),
        ("refused", 1, 1),
    ];
    for (search, for_reader, for_worker) in rows {
        let found = async |token: &str| {
            let list = get(&stage, &format!("/api/v1/jobs?search={search}"), token).await;
            assert!(list.get("next").is_none(), "{list}");
            list["items"].as_array().map(Vec::len)
        };
        assert_eq!(found(&reader).await, Some(for_reader), "{search}");
        assert_eq!(found(&worker).await, Some(for_worker), "{search}");
    }
    let listed = tool(&stage, "list_jobs", json!({"search": "hunter"}), &worker).await;
    assert!(listed.contains(r#""jobs":[]"#), "{listed}");
    // An action tells how many jobs it matched, so it looks at what is shown too.
    let admin = token(&stage, Scope::Admin);
    let body = json!({"action": "retry", "filter": {"search": "hunter"}}).to_string();
    let request = stage.request(Method::POST, "/api/v1/jobs/actions").bearer_auth(&admin);
    let request = request.header("content-type", "application/json").body(body);
    let action = json_of(request.send().await.expect("an answer")).await;
    let path = format!("/api/v1/jobs/actions/{}", action["id"].as_str().expect("an id"));
    // Each look is a round trip through the server, which the action shares.
    let ended = loop {
        let shown = get(&stage, &path, &admin).await;
        if shown["done"] == true {
            break shown;
        }
    };
    assert_eq!(ended["matched_so_far"], 0, "{ended}");
    stage.stop().await;
}
