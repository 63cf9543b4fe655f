//! `/api/v1/jobs` over a socket.

use longhaul_queue::{NewJob, State};
use longhaul_server::{Scope, ServerOptions};
use longhaul_sim::SimOptions;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Stage, json_of};

async fn enqueue(stage: &Stage, body: Value) -> Vec<Value> {
    let (status, answer) = stage.send(Method::POST, "/api/v1/jobs", Some(body)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    answer.as_array().expect("a list").clone()
}

fn id_of(job: &Value) -> &str {
    job["id"].as_str().expect("an id")
}

#[tokio::test]
async fn one_many_or_a_graph_are_stored_all_or_none() {
    let stage = Stage::new().await;
    let one = enqueue(&stage, json!({"kind": "echo", "payload": {"a": 1}})).await;
    assert_eq!((one.len(), &one[0]["state"], &one[0]["how"]), (1, &json!("ready"), &json!("inserted")));
    let graph = json!({"jobs": [
        {"kind": "join", "depends_on": ["left", {"job": "right", "on_failure": "run"}], "process_id": "p"},
        {"kind": "part", "ref": "left", "process_id": "p", "options": {"tags": ["t"], "max_attempts": 1}},
        {"kind": "part", "ref": "right", "process_id": "p", "delay_ms": 60_000},
    ]});
    let jobs = enqueue(&stage, graph).await;
    let states: Vec<&Value> = jobs.iter().map(|job| &job["state"]).collect();
    assert_eq!(states, ["blocked", "ready", "scheduled"]);
    let join = stage.get(&format!("/api/v1/jobs/{}", id_of(&jobs[0]))).await;
    assert_eq!(join["depends_on"][0]["job_id"], jobs[1]["id"]);
    assert_eq!(join["depends_on"][1]["on_failure"], "run");
    let explained = stage.get(&format!("/api/v1/jobs/{}/explain", id_of(&jobs[0]))).await;
    assert!(explained["reason"].as_str().expect("a reason").contains("waits for job"), "{explained}");

    let unknown = json!({"jobs": [{"kind": "a", "ref": "a"}, {"kind": "b", "depends_on": ["c"]}]});
    let cycle = json!({"jobs": [
        {"kind": "a", "ref": "a", "depends_on": ["b"]}, {"kind": "b", "ref": "b", "depends_on": ["a"]},
    ]});
    for (body, field) in [(unknown, json!("jobs[1].depends_on")), (cycle, json!("depends_on"))] {
        let (status, problem) = stage.send(Method::POST, "/api/v1/jobs", Some(body)).await;
        assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &field), "{problem}");
    }
    assert_eq!(
        stage.get("/api/v1/jobs").await["items"].as_array().map(Vec::len),
        Some(4),
        "nothing of those"
    );
    stage.stop().await;
}

#[tokio::test]
async fn a_call_with_a_key_may_be_sent_again() {
    let stage = Stage::new().await;
    let send = |key: &'static str, body: Value| {
        let request = stage.request(Method::POST, "/api/v1/jobs").header("idempotency-key", key);
        let request = request.header("content-type", "application/json").body(body.to_string());
        async move {
            let response = request.send().await.expect("an answer");
            (response.status(), json_of(response).await)
        }
    };
    let two = json!({"jobs": [{"kind": "a", "ref": "x"}, {"kind": "b", "depends_on": ["x"]}]});
    let (status, first) = send("k1", two.clone()).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, again) = send("k1", two.clone()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!([&first[0]["id"], &first[1]["id"]], [&again[0]["id"], &again[1]["id"]]);
    assert_eq!([&again[0]["how"], &again[1]["how"]], ["duplicate", "duplicate"]);
    let others = [
        json!({"jobs": [{"kind": "a", "ref": "x"}, {"kind": "c", "depends_on": ["x"]}]}),
        json!({"kind": "a"}),
        json!({"jobs": [{"kind": "a", "ref": "x"}, {"kind": "b", "depends_on": ["x"]}, {"kind": "c"}]}),
    ];
    for other in others {
        let (status, problem) = send("k1", other.clone()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{other}");
        assert_eq!(problem["code"], "idempotency_mismatch", "{other}");
    }
    let (status, problem) = send("k2", json!({"kind": "a", "delay_ms": 5})).await;
    assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("jobs[0].delay_ms")));
    let (status, third) = send("k2", two).await;
    assert_eq!(status, StatusCode::CREATED, "another key is another call");
    assert_ne!(third[0]["id"], first[0]["id"]);
    stage.stop().await;
}

#[tokio::test]
async fn lists_are_filtered_ordered_and_paged() {
    let stage = Stage::new().await;
    let jobs: Vec<Value> = (0..5)
        .map(|number| {
            json!({
                "kind": if number % 2 == 0 { "even" } else { "odd" },
                "queue": "q",
                "payload": {"number": format!("n{number}")},
                "options": {"tags": [format!("t{number}")]},
            })
        })
        .collect();
    let jobs = enqueue(&stage, json!({"jobs": jobs})).await;
    stage.send(Method::POST, &format!("/api/v1/jobs/{}/cancel", id_of(&jobs[4])), None).await;
    let rows: [(String, &[usize]); 11] = [
        (String::new(), &[4, 3, 2, 1, 0]),
        ("order=oldest".to_owned(), &[0, 1, 2, 3, 4]),
        ("kind=odd".to_owned(), &[3, 1]),
        ("state=cancelled".to_owned(), &[4]),
        ("state=cancelled,ready&kind=even".to_owned(), &[4, 2, 0]),
        ("state=cancelled&state=ready&order=oldest".to_owned(), &[0, 1, 2, 3, 4]),
        ("queue=other".to_owned(), &[]),
        ("tag=t1".to_owned(), &[1]),
        ("search=n3".to_owned(), &[3]),
        (format!("search={}", id_of(&jobs[2])), &[2]),
        ("process=p".to_owned(), &[]),
    ];
    for (query, expected) in rows {
        let mut found = Vec::new();
        let mut path = format!("/api/v1/jobs?limit=2&{query}");
        loop {
            let page = stage.get(&path).await;
            found.extend(page["items"].as_array().expect("items").iter().map(|job| job["id"].clone()));
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/api/v1/jobs?limit=2&{query}&cursor={next}");
        }
        let expected: Vec<Value> = expected.iter().map(|index| jobs[*index]["id"].clone()).collect();
        assert_eq!(found, expected, "{query}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_told_by_its_field() {
    let options = ServerOptions { json_bytes_max: 2_000, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    let rows = [
        ("GET", "/api/v1/jobs?stat=ready", "", 400, "stat"),
        ("GET", "/api/v1/jobs?state=happy", "", 400, "state"),
        ("GET", "/api/v1/jobs?limit=0", "", 400, "limit"),
        ("GET", "/api/v1/jobs?limit=1001", "", 400, "limit"),
        ("GET", "/api/v1/jobs?limit=x", "", 400, "limit"),
        ("GET", "/api/v1/jobs?cursor=12", "", 400, "cursor"),
        ("GET", "/api/v1/jobs?order=up", "", 400, "order"),
        ("GET", "/api/v1/jobs/12", "", 400, "id"),
        ("POST", "/api/v1/jobs", "", 422, ""),
        ("POST", "/api/v1/jobs", "{", 400, ""),
        ("POST", "/api/v1/jobs", r#"{"kind":"a"} {}"#, 400, ""),
        ("POST", "/api/v1/jobs", "{}", 422, "kind"),
        ("POST", "/api/v1/jobs", r#"{"kind":1}"#, 422, "kind"),
        ("POST", "/api/v1/jobs", r#"{"kind":"a","pay":1}"#, 422, "pay"),
        ("POST", "/api/v1/jobs", r#"{"kind":""}"#, 422, "kind"),
        (
            "POST",
            "/api/v1/jobs",
            r#"{"jobs":[{"kind":"a"},{"kind":"b","options":{"max_attempts":"x"}}]}"#,
            422,
            "jobs[1].options.max_attempts",
        ),
        ("POST", "/api/v1/jobs/actions", r#"{"action":"retry"}"#, 422, "filter"),
        ("POST", "/api/v1/jobs/actions", r#"{"action":"burn","all":true}"#, 422, "action"),
        ("PUT", "/api/v1/jobs", "", 405, ""),
        ("GET", "/api/v1/jobs/0198c5a2-0000-7000-8000-000000000000", "", 404, ""),
        ("DELETE", "/api/v1/jobs/0198c5a2-0000-7000-8000-000000000000", "", 404, ""),
        ("GET", "/api/v1/jobs/actions/act_1", "", 404, ""),
    ];
    for (method, path, body, status, field) in rows {
        let request = stage.request(method.parse().expect("a method"), path);
        let request = request.header("content-type", "application/json").body(body);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status().as_u16(), status, "{method} {path} {body}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let problem = json_of(response).await;
        assert_eq!(problem["field"].as_str().unwrap_or_default(), field, "{method} {path} {body}: {problem}");
    }
    let long = json!({"kind": "a", "payload": "x".repeat(3_000)});
    let (status, problem) = stage.send(Method::POST, "/api/v1/jobs", Some(long)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("too_large")));
    stage.stop().await;
}

#[tokio::test]
async fn a_look_that_waits_ends_with_the_job_or_with_the_server() {
    let stage = Stage::new().await;
    let jobs = enqueue(&stage, json!({"jobs": [{"kind": "a"}, {"kind": "a"}]})).await;
    let look =
        |job: &Value| stage.request(Method::GET, &format!("/api/v1/jobs/{}?wait=2m", id_of(job))).send();
    let (cancelled, never) = (tokio::spawn(look(&jobs[0])), tokio::spawn(look(&jobs[1])));
    stage.send(Method::POST, &format!("/api/v1/jobs/{}/cancel", id_of(&jobs[0])), None).await;
    let shown = json_of(cancelled.await.expect("no panic").expect("an answer")).await;
    assert_eq!(shown["state"], "cancelled");
    let brief = stage.get(&format!("/api/v1/jobs/{}?wait=10ms", id_of(&jobs[1]))).await;
    assert_eq!(brief["state"], "ready", "the time has passed");
    stage.ctx.draining.send_replace(true);
    let shown = json_of(never.await.expect("no panic").expect("an answer")).await;
    assert_eq!(shown["state"], "ready", "the server ends, and says how things stand");
    stage.stop().await;
}

#[tokio::test]
async fn verbs_change_one_job_and_say_what_they_did() {
    let stage = Stage::new().await;
    let job = enqueue(&stage, json!({"kind": "a"})).await.remove(0);
    let path = format!("/api/v1/jobs/{}", id_of(&job));
    let verb = |method: Method, end: &'static str| {
        let path = format!("{path}{end}");
        let stage = &stage;
        async move {
            let (status, answer) = stage.send(method, &path, None).await;
            (status.as_u16(), answer["change"].as_str().unwrap_or_default().to_owned())
        }
    };
    assert_eq!(verb(Method::DELETE, "").await, (422, String::new()), "it has not ended");
    assert_eq!(verb(Method::POST, "/retry").await, (422, String::new()), "it has not failed");
    assert_eq!(verb(Method::POST, "/run-now").await, (422, String::new()), "it does not wait for a time");
    let later = enqueue(&stage, json!({"kind": "a", "delay_ms": 60_000})).await.remove(0);
    let now = format!("/api/v1/jobs/{}/run-now", id_of(&later));
    assert_eq!(stage.send(Method::POST, &now, None).await.1["state"], "ready");
    assert_eq!(verb(Method::POST, "/cancel").await, (200, "cancelled".to_owned()));
    assert_eq!(verb(Method::POST, "/cancel").await, (200, "ended".to_owned()));
    assert_eq!(verb(Method::POST, "/retry").await, (200, "retried".to_owned()));
    assert_eq!(stage.get(&path).await["state"], "ready");
    assert_eq!(verb(Method::POST, "/cancel").await, (200, "cancelled".to_owned()));
    assert_eq!(verb(Method::DELETE, "").await, (200, "deleted".to_owned()));
    assert_eq!(verb(Method::DELETE, "").await, (404, String::new()));
    stage.stop().await;
}

#[tokio::test]
async fn a_job_is_changed_in_what_is_named() {
    let stage = Stage::new().await;
    let job = enqueue(&stage, json!({"kind": "a", "payload": {"n": 1}, "options": {"title": "old"}}))
        .await
        .remove(0);
    let path = format!("/api/v1/jobs/{}", id_of(&job));
    let edit = |body: Value| {
        let (stage, path) = (&stage, &path);
        async move {
            let (status, answer) = stage.send(Method::PATCH, path, Some(body)).await;
            (status.as_u16(), answer)
        }
    };
    let (status, answer) = edit(json!({"priority": -3, "payload": null})).await;
    assert_eq!((status, &answer["change"], &answer["state"]), (200, &json!("edited"), &json!("ready")));
    let shown = stage.get(&path).await;
    assert_eq!((&shown["priority"], &shown["payload"]), (&json!(-3), &Value::Null));
    assert_eq!(shown["options"]["title"], "old");
    for (body, text) in [
        (json!({}), "nothing to change"),
        (json!({"queue": "b"}), "queue"),
        (json!({"title": "x".repeat(2_000)}), "title"),
        (json!({"priority": "high"}), "priority"),
        (json!({"payload": {"n": 2, "api_key": "[redacted]"}}), "in place of a secret"),
    ] {
        let (status, problem) = edit(body).await;
        assert_eq!(status, 422, "{problem}");
        assert_ne!(problem["code"], "wrong_state", "{problem}");
        assert!(problem.to_string().contains(text), "{problem}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn an_action_walks_over_all_that_match() {
    let stage = Stage::new().await;
    let many = |kind: &str, count: usize| {
        let jobs = (0..count).map(|_| NewJob::new(kind, longhaul_queue::Json::null())).collect();
        stage.ctx.queue().enqueue_many(jobs)
    };
    many("mine", 2_500).await.expect("stored");
    many("other", 10).await.expect("stored");
    let act = |body: Value| {
        let stage = &stage;
        async move {
            let (status, action) = stage.send(Method::POST, "/api/v1/jobs/actions", Some(body)).await;
            assert_eq!(status, StatusCode::ACCEPTED, "{action}");
            let path = format!("/api/v1/jobs/actions/{}", id_of(&action));
            // Each look is a round trip through the server, which the action shares.
            loop {
                let action = stage.get(&path).await;
                if action["done"] == true {
                    break action;
                }
            }
        }
    };
    let count = async |state: State| {
        let counts = stage.ctx.queue().store().counts().await.expect("counts");
        counts.iter().filter(|count| count.state == state).map(|count| count.jobs).sum::<u64>()
    };
    let cancelled = act(json!({"action": "cancel", "filter": {"kind": "mine"}})).await;
    assert_eq!((&cancelled["matched_so_far"], &cancelled["changed"]), (&json!(2_500), &json!(2_500)));
    assert_eq!((count(State::Cancelled).await, count(State::Ready).await), (2_500, 10));
    let retried = act(json!({"action": "retry", "all": true})).await;
    assert_eq!(retried["matched_so_far"], 0, "cancelled jobs come back only when named");
    let retried = act(json!({"action": "retry", "filter": {"state": ["cancelled"]}})).await;
    assert_eq!((&retried["changed"], &retried["error"]), (&json!(2_500), &Value::Null));
    act(json!({"action": "cancel", "all": true})).await;
    let deleted = act(json!({"action": "delete", "filter": {"kind": "mine"}})).await;
    assert_eq!(deleted["changed"], 2_500);
    assert_eq!(count(State::Cancelled).await, 10);
    let (status, action) =
        stage.send(Method::DELETE, &format!("/api/v1/jobs/actions/{}", id_of(&deleted)), None).await;
    assert_eq!((status, &action["aborted"]), (StatusCode::OK, &json!(true)));
    stage.stop().await;
}

#[tokio::test]
async fn secrets_in_payloads_are_shown_to_workers_only() {
    let options = ServerOptions { token_required: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    let job = NewJob::new("a", longhaul_queue::Json::of(&json!({"url": "u", "api_key": "k"})).expect("JSON"));
    let id = stage.ctx.queue().enqueue(job).await.expect("stored").id;
    let rows = [(Scope::Read, "[redacted]"), (Scope::Admin, "[redacted]"), (Scope::Work, "k")];
    for (scope, expected) in rows {
        let token = stage.ctx.tokens.add(scope.as_str(), &[scope]).expect("a token");
        let request = stage.request(Method::GET, &format!("/api/v1/jobs/{id}")).bearer_auth(token);
        let shown = json_of(request.send().await.expect("an answer")).await;
        assert_eq!(shown["payload"], json!({"url": "u", "api_key": expected}), "{scope:?}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_webhook_waits_for_the_end_of_a_job_and_once_only() {
    let stage = Stage::new().await;
    let hook = json!({"url": "https://example.org/", "events": ["job.*"]});
    let (status, _) = stage.send(Method::PUT, "/api/v1/webhooks/ops", Some(hook)).await;
    assert!(status.is_success());
    let job = json!({"kind": "a", "webhook": "ops"}).to_string();
    for status in [StatusCode::CREATED, StatusCode::OK] {
        let request = stage.request(Method::POST, "/api/v1/jobs").header("idempotency-key", "k");
        let request = request.header("content-type", "application/json").body(job.clone());
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), status);
        assert_eq!(
            json_of(response).await.as_array().map(Vec::len),
            Some(1),
            "the delivery is not the client's"
        );
    }
    let waiting = stage.get("/api/v1/jobs?queue=webhooks").await;
    let states: Vec<&Value> =
        waiting["items"].as_array().expect("items").iter().map(|job| &job["state"]).collect();
    assert_eq!(states, ["blocked"]);
    let wrong = [
        json!({"kind": "a", "webhook": "none"}),
        json!({"kind": "a", "webhook": "ops", "options": {"unique": {"key": "u"}}}),
    ];
    for job in wrong {
        let (status, problem) = stage.send(Method::POST, "/api/v1/jobs", Some(job)).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("jobs[0].webhook"))
        );
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_job_belongs_to_the_trace_of_whoever_hands_it_in() {
    let stage = Stage::new().await;
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let own = "00-11111111111111111111111111111111-2222222222222222-01";
    let rows = [(json!({"kind": "a"}), caller), (json!({"kind": "a", "options": {"trace": own}}), own)];
    for (job, expected) in rows {
        let request = stage.request(Method::POST, "/api/v1/jobs").header("traceparent", caller);
        let request = request.header("content-type", "application/json").body(job.to_string());
        let enqueued = json_of(request.send().await.expect("an answer")).await;
        let id = enqueued[0]["id"].as_str().expect("an id");
        assert_eq!(stage.get(&format!("/api/v1/jobs/{id}")).await["options"]["trace"], expected);
    }
    stage.stop().await;
}
