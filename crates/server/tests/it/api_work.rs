//! Workers in any language, over a socket.

use std::time::Duration;

use longhaul_queue::{JobId, Json, NewJob, RetryPolicy, Timestamp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::Stage;

async fn enqueue(stage: &Stage, job: NewJob) -> JobId {
    stage.ctx.queue().enqueue(job).await.expect("stored").id
}

fn job() -> NewJob {
    NewJob::new("a", Json::null())
}

async fn post(stage: &Stage, path: &str, body: Value) -> Value {
    let (status, answer) = stage.send(Method::POST, &format!("/api/v1/work/{path}"), Some(body)).await;
    assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    answer
}

/// Claims one job, which must be there.
async fn claim(stage: &Stage) -> Value {
    let claims = post(stage, "claim", json!({"worker": "w", "queues": ["default"]})).await;
    claims["jobs"][0].clone()
}

async fn settle(stage: &Stage, lease: &Value, outcome: Value) -> Value {
    let answer = post(stage, "settle", json!({"items": [{"lease": lease, "outcome": outcome}]})).await;
    answer["items"][0].clone()
}

#[tokio::test]
async fn a_job_is_claimed_saved_renewed_and_settled() {
    let stage = Stage::new().await;
    let payload = Json::of(&json!({"api_key": "k"})).expect("JSON");
    let parent = enqueue(&stage, NewJob::new("a", payload)).await;
    let child = enqueue(&stage, job().after(parent)).await;
    let body = json!({"queues": ["none", "default"], "kinds": ["a"], "limit": 5, "lease_seconds": 30, "host": "h", "pid": 7});
    let claims = post(&stage, "claim", body).await;
    let worker = claims["worker"].as_str().expect("a name was drawn");
    assert_eq!(claims["jobs"].as_array().map(Vec::len), Some(1), "the child waits");
    let claimed = &claims["jobs"][0];
    assert_eq!(
        (&claimed["id"], &claimed["payload"]),
        (&json!(parent), &json!({"api_key": "k"})),
        "whole for workers"
    );
    let lease = &claimed["lease"];
    assert_eq!((&lease["fence"], &lease["worker"]), (&json!(1), &json!(worker)));

    let note =
        json!({"lease": lease, "data": {"page": 2}, "progress": {"done": 2, "total": 9}, "log": ["half"]});
    post(&stage, "save", note).await;
    let renewals = post(&stage, "extend", json!({"leases": [lease], "lease_seconds": 60})).await;
    let renewed = &renewals["leases"][0]["extended"];
    assert_eq!(renewed["cancel_requested"], false);
    assert!(renewed["until"].as_i64() > lease["until"].as_i64(), "{renewals}");
    let shown = stage.get(&format!("/api/v1/jobs/{parent}")).await;
    assert_eq!(
        (&shown["data"]["page"], &shown["progress"]["total"], &shown["log"][0]["text"]),
        (&json!(2), &json!(9), &json!("half"))
    );
    let workers = stage.get("/api/v1/workers").await;
    assert_eq!((&workers["items"][0]["id"], &workers["items"][0]["host"]), (&json!(worker), &json!("h")));

    let follow = json!({"kind": "next", "process_id": "p"});
    let items = json!({"items": [{"lease": lease, "outcome": {"done": {"x": 1}}, "follow_ups": [follow], "usage": {"tokens": 3}}]});
    let settled = post(&stage, "settle", items).await;
    assert_eq!(settled["items"][0], json!({"job_id": parent, "applied": "succeeded"}));
    let next = claim(&stage).await;
    assert_eq!((&next["id"], &next["parents"][0]["result"]), (&json!(child), &json!({"x": 1})));
    let followed = stage.get("/api/v1/jobs?process=p").await;
    assert_eq!(followed["items"][0]["options"]["parent_id"], json!(parent));
    stage.stop().await;
}

#[tokio::test]
async fn every_outcome_leads_where_the_queue_says() {
    let stage = Stage::new().await;
    let until = Timestamp::from_millis(stage.ctx.queue().clock().now().as_millis() + 60_000);
    let rows = [
        (json!({"done": null}), "succeeded"),
        (json!({"continue": {"data": {"n": 1}}}), "ready"),
        (json!({"continue": {"after_seconds": 60}}), "scheduled"),
        (json!({"park": {"key": "k", "until": until, "on_timeout": "fail"}}), "parked"),
        (json!({"retry": {"error": "no", "after_seconds": 9}}), "scheduled"),
        (json!({"throttle": {"after_seconds": 9}}), "scheduled"),
        (json!({"fail": {"error": "no"}}), "failed"),
        (json!("release"), "ready"),
        (json!("cancel"), "cancelled"),
    ];
    for (outcome, state) in rows {
        enqueue(&stage, job()).await;
        let claimed = claim(&stage).await;
        let settled = settle(&stage, &claimed["lease"], outcome.clone()).await;
        assert_eq!(settled["applied"], state, "{outcome}");
        let again = settle(&stage, &claimed["lease"], outcome.clone()).await;
        assert_eq!(again["lost_lease"], true, "{outcome}");
        if state == "ready" {
            let claimed = claim(&stage).await;
            settle(&stage, &claimed["lease"], json!({"done": 1})).await;
        }
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_retry_becomes_a_failure_by_the_jobs_own_policy() {
    let stage = Stage::new().await;
    let id = enqueue(&stage, job().max_attempts(2).retry(RetryPolicy::fixed(Duration::ZERO))).await;
    for expected in ["ready", "failed"] {
        let claimed = claim(&stage).await;
        let settled = settle(&stage, &claimed["lease"], json!({"retry": {"error": "no"}})).await;
        assert_eq!(settled["applied"], expected);
    }
    let shown = stage.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!((&shown["spent"]["attempt"], &shown["error"]["text"]), (&json!(2), &json!("no")));
    assert_eq!(shown["runs"].as_array().map(Vec::len), Some(2));
    stage.stop().await;
}

#[tokio::test]
async fn a_stale_lease_changes_nothing_and_is_told() {
    let stage = Stage::new().await;
    let id = enqueue(&stage, job()).await;
    let old = claim(&stage).await["lease"].clone();
    settle(&stage, &old, json!("release")).await;
    let new = claim(&stage).await["lease"].clone();
    assert_eq!(new["fence"], 2);
    let save = json!({"lease": old, "data": 1});
    let (status, problem) = stage.send(Method::POST, "/api/v1/work/save", Some(save)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::GONE, &json!("lost_lease")));
    let renewals = post(&stage, "extend", json!({"leases": [old, new]})).await;
    assert_eq!(renewals["leases"][0], json!({"job_id": id, "lost": true}));
    assert!(renewals["leases"][1]["extended"].is_object(), "{renewals}");
    let both = json!({"items": [{"lease": old, "outcome": {"fail": {"error": "x"}}}, {"lease": new, "outcome": {"done": 2}}]});
    let settled = post(&stage, "settle", both).await;
    assert_eq!(
        (&settled["items"][0]["lost_lease"], &settled["items"][1]["applied"]),
        (&json!(true), &json!("succeeded"))
    );
    stage.stop().await;
}

#[tokio::test]
async fn a_claim_waits_for_work_and_a_cancel_reaches_the_worker() {
    let stage = Stage::new().await;
    let body = json!({"worker": "w", "queues": ["default"], "wait_seconds": 120}).to_string();
    let request = stage.request(Method::POST, "/api/v1/work/claim");
    let waiting = tokio::spawn(request.header("content-type", "application/json").body(body).send());
    let id = enqueue(&stage, job()).await;
    let claims = crate::stage::json_of(waiting.await.expect("no panic").expect("an answer")).await;
    let lease = &claims["jobs"][0]["lease"];
    assert_eq!(lease["job_id"], json!(id));
    let (_, asked) = stage.send(Method::POST, &format!("/api/v1/jobs/{id}/cancel"), None).await;
    assert_eq!(asked["change"], "requested");
    let renewals = post(&stage, "extend", json!({"leases": [lease]})).await;
    assert_eq!(renewals["leases"][0]["extended"]["cancel_requested"], true);
    let settled = settle(&stage, lease, json!("cancel")).await;
    assert_eq!(settled["applied"], "cancelled");
    let none = post(&stage, "claim", json!({"queues": ["default"], "wait_seconds": 0.01})).await;
    assert_eq!(none["jobs"], json!([]));
    stage.stop().await;
}

#[tokio::test]
async fn a_parked_job_is_told_by_its_key_and_a_held_one_is_released() {
    let stage = Stage::new().await;
    let id = enqueue(&stage, job()).await;
    let lease = claim(&stage).await["lease"].clone();
    settle(&stage, &lease, json!({"park": {"key": "k"}})).await;
    let signal = |body: Value| stage.send(Method::POST, "/api/v1/signals", Some(body));
    let (_, told) = signal(json!({"key": "k", "signal": {"resume": {"ok": true}}})).await;
    assert_eq!(told, json!({"jobs": [id], "kept": false}));
    let claimed = claim(&stage).await;
    assert_eq!(claimed["wake"], json!({"signal": {"ok": true}}));
    settle(&stage, &claimed["lease"], json!({"park": {"key": "l"}})).await;
    let (_, told) = signal(json!({"key": "other", "ids": [id], "signal": {"fail": "not this"}})).await;
    assert_eq!(told, json!({"jobs": [], "kept": false}), "it waits for another key");
    let (_, told) = signal(json!({"key": "l", "ids": [id], "signal": {"fail": "no"}})).await;
    assert_eq!(told["jobs"], json!([id]));
    assert_eq!(stage.get(&format!("/api/v1/jobs/{id}")).await["error"]["text"], "no");
    let (_, told) = signal(json!({"key": "early", "signal": {"done": 1}})).await;
    assert_eq!(told, json!({"jobs": [], "kept": true}));
    for wrong in [json!({"signal": {"done": 1}}), json!({"ids": [id], "signal": {"done": 1}})] {
        assert_eq!(signal(wrong).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    }
    let child = enqueue(&stage, job().after_with(id, longhaul_queue::job::OnFailure::Hold)).await;
    let path = format!("/api/v1/jobs/{child}/unhold");
    let (_, released) = stage.send(Method::POST, &path, None).await;
    assert_eq!((&released["change"], &released["state"]), (&json!("released"), &json!("ready")));
    assert_eq!(stage.send(Method::POST, &path, None).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    stage.stop().await;
}

#[tokio::test]
async fn a_run_past_its_limit_is_taken_away_at_the_next_renewal() {
    let stage = Stage::new().await;
    let mut short = job();
    short.options.run_limit = Some(Duration::ZERO);
    let id = enqueue(&stage, short).await;
    let claimed = claim(&stage).await;
    let renewals = post(&stage, "extend", json!({"leases": [claimed["lease"]]})).await;
    assert_eq!(renewals["leases"][0]["lost"], true);
    let shown = stage.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!((&shown["state"], &shown["error"]["reason"]), (&json!("scheduled"), &json!("run_limit")));
    stage.stop().await;
}

#[tokio::test]
async fn what_a_worker_gets_wrong_is_told_by_its_field() {
    let stage = Stage::new().await;
    enqueue(&stage, job()).await;
    let lease = claim(&stage).await["lease"].clone();
    let long = "x".repeat(1_000_001);
    let rows = [
        ("claim", json!({"queues": []}), "queues"),
        ("claim", json!({"queues": ["default"], "limit": 0}), "limit"),
        ("claim", json!({"queues": ["default"], "lease_seconds": 0}), "lease_seconds"),
        ("claim", json!({"queues": ["default"], "wait_seconds": -1}), "wait_seconds"),
        ("claim", json!({"queues": ["default"], "worker": ""}), "worker"),
        ("extend", json!({"leases": [{"job_id": "x"}]}), "leases[0].job_id"),
        ("save", json!({"lease": lease, "data": long}), ""),
        ("save", json!({"lease": lease, "progress": {"done": -1}}), "progress.done"),
        ("settle", json!({"items": [{"lease": lease, "outcome": {"explode": 1}}]}), "items[0].outcome"),
    ];
    for (path, body, field) in rows {
        let (status, problem) = stage.send(Method::POST, &format!("/api/v1/work/{path}"), Some(body)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path} {field} {problem}");
        assert_eq!(problem["field"].as_str().unwrap_or_default(), field, "{problem}");
    }
    enqueue(&stage, job()).await;
    let other = claim(&stage).await["lease"].clone();
    for (item, reason) in [
        (json!({"lease": lease, "outcome": {"done": 1}, "follow_ups": [{"kind": ""}]}), "kind"),
        (json!({"lease": lease, "outcome": {"continue": {"after_seconds": -1}}}), "after_seconds is -1"),
    ] {
        let release = json!({"lease": other, "outcome": "release"});
        let answer = post(&stage, "settle", json!({"items": [item, release]})).await;
        assert!(answer["items"][0]["refused"].as_str().expect("a reason").contains(reason), "{answer}");
        assert!(answer["items"][1]["refused"].is_null(), "the others end: {answer}");
    }
    let settled = settle(&stage, &lease, json!({"done": long})).await;
    assert_eq!(
        settled["applied"], "failed",
        "a result that cannot be stored fails the job, as in any worker"
    );
    stage.stop().await;
}
