//! Jobs of the program's own kinds: nobody else enqueues, schedules, claims or settles them.

use std::time::Duration;

use longhaul_pipeline::webhooks;
use longhaul_queue::{Json, NewJob};
use longhaul_server::ServerOptions;
use longhaul_sim::SimOptions;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::Stage;

/// Nothing that should come at once takes longer than this.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Forged by somebody who may enqueue: a message that would be signed.
const FORGED: &str = "webhook.deliver";

/// Refused as unusable, with a text that names what is reserved.
fn refused(answer: &(StatusCode, Value)) {
    let (status, problem) = answer;
    let text = problem.to_string();
    assert_eq!(*status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
    assert!(text.contains("reserved") || text.contains("own workers"), "{text}");
}

#[tokio::test]
async fn every_kind_that_the_program_registers_is_reserved() {
    let stage = Stage::new().await;
    let working = stage.work().await;
    // A heartbeat changes no job, so there is no event to wait for.
    let looking = async {
        loop {
            let list = stage.get("/api/v1/workers").await;
            if list["items"][0].is_object() {
                return list;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let workers = tokio::time::timeout(PATIENCE, looking).await.expect("the worker is listed");
    let kinds = workers["items"][0]["kinds"].as_array().expect("a list").clone();
    assert!(kinds.len() >= 6, "{kinds:?}");
    for kind in kinds.iter().filter_map(Value::as_str) {
        assert!(crate::stage::names().is_own_kind(kind), "{kind}");
    }
    working.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn a_kind_of_the_program_is_refused_wherever_jobs_come_in() {
    let options = ServerOptions { mcp_allow_write: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    for kind in [FORGED, "llm.request", "llm.mine", "api.batch", "score.chunk", "verify.step", "demo.work"] {
        let job = json!({"kind": kind});
        refused(&stage.post("/api/v1/jobs", &json!({"jobs": [{"kind": "fine"}, job]})).await);
        let schedule = json!({"cron": "0 8 * * *", "job": job});
        refused(&stage.send(Method::PUT, "/api/v1/schedules/s", Some(schedule)).await);
        let params = json!({"name": "enqueue_job", "arguments": job});
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let (_, answer) = stage.post("/mcp", &call).await;
        let text = answer["result"]["content"][0]["text"].as_str().expect("a text");
        assert!(answer["result"]["isError"] == true && text.contains("reserved"), "{answer}");
    }
    assert_eq!(stage.get("/api/v1/jobs").await["items"], json!([]), "nothing was stored");
    assert_eq!(stage.get("/api/v1/schedules").await["items"], json!([]));
    stage.stop().await;
}

/// A foreign job in the process of a run would keep it from ending, and one with the id of a request from being stored.
#[tokio::test]
async fn nobody_gets_into_the_process_or_queue_of_a_run_or_takes_the_ids_of_its_requests() {
    let options = ServerOptions { mcp_allow_write: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    let (run, id) = ("run-b718fb38f983", "e09df33f-635f-8077-a2ac-000000000000");
    let batch = "run-b01a1e54b1c9779adb6db1b0802ac194b";
    for job in [
        json!({"kind": "a", "process_id": batch}),
        json!({"kind": "a", "process_id": run}),
        json!({"kind": "a", "process_id": "sheet-b718fb38f983"}),
        json!({"kind": "a", "id": id}),
    ] {
        refused(&stage.post("/api/v1/jobs", &json!({"jobs": [job]})).await);
        let params = json!({"name": "enqueue_job", "arguments": job});
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let (_, answer) = stage.post("/mcp", &call).await;
        assert!(answer["result"]["isError"] == true && answer.to_string().contains("reserved"), "{answer}");
    }
    for queue in ["webhooks", "batches", run, "run-1", "sheet-1"] {
        let job = json!({"kind": "a", "queue": queue});
        refused(&stage.post("/api/v1/jobs", &job).await);
        let params = json!({"name": "enqueue_job", "arguments": job});
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let (_, answer) = stage.post("/mcp", &call).await;
        assert!(answer["result"]["isError"] == true && answer.to_string().contains("reserved"), "{answer}");
        let schedule = json!({"cron": "0 8 * * *", "job": job});
        refused(&stage.send(Method::PUT, "/api/v1/schedules/s", Some(schedule)).await);
    }
    let schedule = json!({"cron": "0 8 * * *", "job": {"kind": "a", "process_id": run}});
    refused(&stage.send(Method::PUT, "/api/v1/schedules/s", Some(schedule)).await);
    // A name that only begins the same way is fine.
    let (status, answer) =
        stage.post("/api/v1/jobs", &json!({"kind": "a", "process_id": "run-nightly"})).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    stage.stop().await;
}

#[tokio::test]
async fn a_follow_up_of_a_remote_worker_cannot_be_of_a_kind_or_queue_of_the_program() {
    let stage = Stage::new().await;
    stage.ctx.queue().enqueue(NewJob::new("a", Json::null())).await.expect("stored");
    let (_, claims) = stage.post("/api/v1/work/claim", &json!({"queues": ["default"]})).await;
    let lease = &claims["jobs"][0]["lease"];
    for follow_up in [json!({"kind": FORGED}), json!({"kind": "a", "queue": "run-b718fb38f983"})] {
        let item = json!({"lease": lease, "outcome": {"done": 1}, "follow_ups": [follow_up]});
        let (status, answer) = stage.post("/api/v1/work/settle", &json!({"items": [item]})).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let refused = answer["items"][0]["refused"].as_str().unwrap_or_default();
        assert!(refused.starts_with("jobs[0].") && refused.contains("reserved"), "{answer}");
    }
    let listed = stage.get("/api/v1/jobs").await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["items"][0]["state"], "running", "the lease still holds");
    stage.stop().await;
}

#[tokio::test]
async fn a_remote_worker_gets_no_job_of_the_program() {
    let stage = Stage::new().await;
    let delivery = NewJob::new(FORGED, Json::null()).queue(webhooks::QUEUE);
    let id = stage.ctx.queue().enqueue(delivery).await.expect("stored").id;
    let queues = [webhooks::QUEUE, "batches", "run-1", "sheet-1"];
    for queue in queues {
        refused(&stage.post("/api/v1/work/claim", &json!({"queues": ["default", queue]})).await);
    }
    let named = json!({"queues": ["default"], "kinds": ["a", FORGED]});
    refused(&stage.post("/api/v1/work/claim", &named).await);

    // What a worker of the program holds is not ended, kept or overwritten by a lease that was made up from what is shown.
    let request = longhaul_queue::store::ClaimRequest {
        queues: vec![webhooks::QUEUE.to_owned()],
        kinds: None,
        worker: "own".into(),
        limit: 1,
        suspects_max: 1,
        lease_for: Duration::from_secs(60),
        now: stage.ctx.queue().clock().now(),
    };
    let held = stage.ctx.engine().store().claim(request).await.expect("claimed").remove(0).lease;
    let lease =
        json!({"job_id": id, "seq": held.seq, "fence": held.fence, "worker": "own", "until": held.until});
    let item = json!({"lease": lease, "outcome": {"done": "forged"}});
    refused(&stage.post("/api/v1/work/settle", &json!({"items": [item]})).await);
    refused(&stage.post("/api/v1/work/save", &json!({"lease": lease, "data": "forged"})).await);
    refused(&stage.post("/api/v1/work/extend", &json!({"leases": [lease]})).await);
    let shown = stage.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!((&shown["state"], &shown["data"]), (&json!("running"), &json!(null)), "{shown}");
    stage.stop().await;
}

/// What it carries is signed or paid for.
#[tokio::test]
async fn a_job_of_the_program_cannot_be_edited() {
    let options = ServerOptions { mcp_allow_write: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    let delivery = NewJob::new(FORGED, Json::null()).queue(webhooks::QUEUE);
    let id = stage.ctx.queue().enqueue(delivery).await.expect("stored").id;
    let change = json!({"payload": {"forged": true}});
    let (status, problem) = stage.send(Method::PATCH, &format!("/api/v1/jobs/{id}"), Some(change)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    let params = json!({"name": "edit_job", "arguments": {"id": id, "payload": {"forged": true}}});
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let (_, answer) = stage.post("/mcp", &call).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    for text in [problem.to_string(), answer.to_string()] {
        assert!(text.contains("belongs to Longhaul"), "{text}");
    }
    assert_eq!(stage.ctx.queue().get(id).await.expect("stored").payload, Json::null());
    stage.stop().await;
}
