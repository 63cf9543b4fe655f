//! A lease belongs to the token that claimed the job: everybody can read what a lease says, so that alone does not open the job.

use longhaul_queue::{JobId, Json, NewJob};
use longhaul_server::Scope;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::owners::{guarded, sent, with};
use crate::stage::Stage;

async fn post(stage: &Stage, token: &str, path: &str, body: Value) -> (StatusCode, Value) {
    sent(with(stage.request(Method::POST, &format!("/api/v1/work/{path}")), &body), token).await
}

async fn enqueue(stage: &Stage) -> JobId {
    stage.ctx.queue().enqueue(NewJob::new("a", Json::null())).await.expect("stored").id
}

/// Every verb that takes a lease, each of which must tell that it is lost.
async fn is_lost(stage: &Stage, token: &str, lease: &Value) {
    let item = json!({"lease": lease, "outcome": {"done": "forged"}});
    let (_, settled) = post(stage, token, "settle", json!({"items": [item]})).await;
    assert_eq!(settled["items"][0]["lost_lease"], true, "{settled}");
    let (status, saved) = post(stage, token, "save", json!({"lease": lease, "data": "forged"})).await;
    assert_eq!(status, StatusCode::GONE, "{saved}");
    let (_, renewed) = post(stage, token, "extend", json!({"leases": [lease], "lease_seconds": 3600})).await;
    assert_eq!(renewed["leases"][0]["lost"], true, "{renewed}");
}

/// What a reader can put together from the job that it is shown.
async fn forged(stage: &Stage, token: &str, id: JobId, worker: Option<&str>) -> Value {
    let (_, job) = sent(stage.request(Method::GET, &format!("/api/v1/jobs/{id}")), token).await;
    let worker = worker.map_or_else(|| job["worker"].clone(), |worker| json!(worker));
    json!({"job_id": id, "seq": job["seq"], "fence": job["fence"], "worker": worker, "until": job["lease_until"]})
}

#[tokio::test]
async fn a_lease_put_together_from_what_is_shown_is_lost_for_another_token() {
    let stage = guarded().await;
    let token = |name: &str| stage.ctx.tokens.add(name, &[Scope::Work, Scope::Admin]).expect("a token");
    let (ann, bob) = (token("ann"), token("bob"));
    let id = enqueue(&stage).await;
    let claim = json!({"worker": "w", "queues": ["default"]});
    let (_, claimed) = post(&stage, &ann, "claim", claim).await;
    assert_eq!(claimed["worker"], "ann/w");
    for worker in [None, Some("bob/w"), Some("w")] {
        is_lost(&stage, &bob, &forged(&stage, &bob, id, worker).await).await;
    }
    let (_, job) = sent(stage.request(Method::GET, &format!("/api/v1/jobs/{id}")), &bob).await;
    let lease = &claimed["jobs"][0]["lease"];
    let untouched = (&job["state"], &job["data"], &job["lease_until"]);
    assert_eq!(untouched, (&json!("running"), &json!(null), &lease["until"]), "{job}");
    let item = json!({"lease": lease, "outcome": {"done": 1}});
    let (_, settled) = post(&stage, &ann, "settle", json!({"items": [item]})).await;
    assert_eq!(settled["items"][0]["applied"], "succeeded", "{settled}");
    stage.stop().await;
}

#[tokio::test]
async fn a_job_of_a_worker_in_the_program_is_no_remote_workers_to_settle() {
    let stage = guarded().await;
    let bob = stage.ctx.tokens.add("bob", &[Scope::Work]).expect("a token");
    let id = enqueue(&stage).await;
    let request = longhaul_queue::store::ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: "own".into(),
        limit: 1,
        suspects_max: 1,
        lease_for: std::time::Duration::from_secs(60),
        now: stage.ctx.queue().clock().now(),
    };
    stage.ctx.engine().store().claim(request).await.expect("claimed");
    for worker in [None, Some("bob/own")] {
        is_lost(&stage, &bob, &forged(&stage, &bob, id, worker).await).await;
    }
    stage.stop().await;
}

#[tokio::test]
async fn workers_of_one_token_share_its_jobs_by_name_and_mixed_leases_are_told_apart() {
    let stage = guarded().await;
    let token = |name: &str| stage.ctx.tokens.add(name, &[Scope::Work]).expect("a token");
    let (ann, bob) = (token("ann"), token("bob"));
    let mut leases = Vec::new();
    for (token, worker) in [(&ann, "w"), (&bob, "w"), (&ann, "v")] {
        enqueue(&stage).await;
        let (_, claimed) =
            post(&stage, token, "claim", json!({"worker": worker, "queues": ["default"]})).await;
        leases.push(claimed["jobs"][0]["lease"].clone());
    }
    // The name as it was told is the same worker.
    let (_, again) = post(&stage, &ann, "claim", json!({"worker": "ann/w", "queues": ["default"]})).await;
    assert_eq!(again["worker"], "ann/w");
    let (_, renewed) = post(&stage, &ann, "extend", json!({"leases": leases})).await;
    let kept: Vec<bool> = renewed["leases"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|renewal| renewal["extended"].is_object())
        .collect();
    assert_eq!(kept, [true, false, true], "{renewed}");
    let items: Vec<Value> =
        leases.iter().map(|lease| json!({"lease": lease, "outcome": {"done": 1}})).collect();
    let (_, settled) = post(&stage, &ann, "settle", json!({"items": items})).await;
    let lost: Vec<bool> =
        settled["items"].as_array().expect("a list").iter().map(|item| item["lost_lease"] == true).collect();
    assert_eq!(lost, [false, true, false], "{settled}");
    stage.stop().await;
}
