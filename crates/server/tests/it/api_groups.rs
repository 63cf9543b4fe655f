//! Processes, queues, schedules and workers over a socket.

use longhaul_queue::{JobId, Json, NewJob};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::Stage;

/// Jobs of a process, the first `ended` of them cancelled.
async fn process(stage: &Stage, name: &str, jobs: usize, ended: usize) -> Vec<JobId> {
    let queue = stage.ctx.queue();
    let jobs = (0..jobs).map(|_| NewJob::new("a", Json::null()).process(name)).collect();
    let ids: Vec<JobId> =
        queue.enqueue_many(jobs).await.expect("stored").into_iter().map(|job| job.id).collect();
    queue.store().cancel(ids[..ended].to_vec(), queue.clock().now()).await.expect("cancelled");
    ids
}

#[tokio::test]
async fn results_are_read_in_order_by_page_or_by_line_and_then_consumed() {
    let stage = Stage::new().await;
    let ids = process(&stage, "p", 2_345, 2_345).await;
    let shown = stage.get("/api/v1/processes/p").await;
    assert_eq!((&shown["total"], &shown["ended"]), (&json!(2_345), &json!(true)), "{shown}");
    assert_eq!(shown["counts"]["cancelled"], 2_345);

    let mut read = Vec::new();
    let mut cursor = String::new();
    let last = loop {
        let page = stage.get(&format!("/api/v1/processes/p/results?limit=1000{cursor}")).await;
        let items = page["items"].as_array().expect("items").clone();
        read.extend(items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break items.last().expect("one")["seq"].as_i64().expect("a place"),
        }
    };
    let expected: Vec<String> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(read, expected);

    let request =
        stage.request(Method::GET, "/api/v1/processes/p/results").header("accept", "application/jsonl");
    let response = request.send().await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "application/jsonl");
    let text = response.text().await.expect("lines");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let told: Vec<&str> = lines.iter().map(|line| line["id"].as_str().expect("an id")).collect();
    assert_eq!(told, expected);

    let consume = |body: Value| stage.send(Method::POST, "/api/v1/processes/p/consume", Some(body));
    let (_, first) = consume(json!({"ids": expected[..10]})).await;
    assert_eq!(first["changed"], 10);
    let (_, most) = consume(json!({"up_to_seq": last - 5})).await;
    assert_eq!(most["changed"], 2_345 - 10 - 5);
    let (_, rest) = stage.send(Method::POST, "/api/v1/processes/p/consume", None).await;
    assert_eq!(rest["changed"], 5);
    let (status, _) = stage.send(Method::GET, "/api/v1/processes/p", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "no row is left");
    stage.stop().await;
}

#[tokio::test]
async fn nothing_unread_is_consumed() {
    let stage = Stage::new().await;
    let ids = process(&stage, "p", 3, 2).await;
    let others = process(&stage, "other", 1, 1).await;
    let refused = [
        (None, "wrong_state"),
        (Some(json!({"up_to_seq": 99})), "wrong_state"),
        (Some(json!({"ids": [ids[2]]})), "wrong_state"),
        (Some(json!({"ids": [others[0]]})), "invalid"),
        (Some(json!({"ids": [], "up_to_seq": 1})), "invalid"),
    ];
    for (body, code) in refused {
        let (status, problem) = stage.send(Method::POST, "/api/v1/processes/p/consume", body).await;
        assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!(code)), "{problem}");
    }
    let results = stage.get("/api/v1/processes/p/results").await;
    assert_eq!((&results["unfinished"], results["items"].as_array().map(Vec::len)), (&json!(1), Some(2)));
    let (status, done) =
        stage.send(Method::POST, "/api/v1/processes/p/consume", Some(json!({"ids": [ids[0]]}))).await;
    assert_eq!((status, &done["changed"]), (StatusCode::OK, &json!(1)), "what is named was read");
    stage.stop().await;
}

#[tokio::test]
async fn a_process_is_waited_for_sealed_and_cancelled() {
    let stage = Stage::new().await;
    let (_, opened) = stage.send(Method::POST, "/api/v1/processes/p/open", None).await;
    assert_eq!((&opened["sealed"], &opened["total"]), (&json!(false), &json!(0)));
    process(&stage, "p", 2, 0).await;
    let waiting = tokio::spawn(stage.request(Method::GET, "/api/v1/processes/p/results?wait=2m").send());
    let (_, cancelled) = stage.send(Method::POST, "/api/v1/processes/p/cancel", None).await;
    assert_eq!(cancelled["changed"], 2);
    let (_, sealed) = stage.send(Method::POST, "/api/v1/processes/p/seal", None).await;
    assert_eq!((&sealed["sealed"], &sealed["ended"]), (&json!(true), &json!(true)));
    let results = crate::stage::json_of(waiting.await.expect("no panic").expect("an answer")).await;
    assert_eq!(results["items"].as_array().map(Vec::len), Some(2), "{results}");
    process(&stage, "q", 1, 1).await;
    let first = stage.get("/api/v1/processes?limit=1").await;
    assert_eq!(first["items"][0]["id"], "p");
    let next = first["next"].as_str().expect("more");
    let second = stage.get(&format!("/api/v1/processes?limit=1&cursor={next}")).await;
    assert_eq!(second["items"][0]["id"], "q");
    for verb in ["cancel", "seal", "consume"] {
        let (status, _) = stage.send(Method::POST, &format!("/api/v1/processes/none/{verb}"), None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{verb}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn queues_are_paused_and_limited() {
    let stage = Stage::new().await;
    stage.ctx.queue().enqueue(NewJob::new("a", Json::null()).queue("q")).await.expect("stored");
    let (_, paused) = stage.send(Method::POST, "/api/v1/queues/q/pause", None).await;
    assert_eq!((&paused["paused"], &paused["counts"]["ready"]), (&json!(true), &json!(1)));
    let keep = json!({"retention": "keep", "succeeded_ms": 1_000, "failed_ms": 2_000});
    let change = json!({"paused": false, "max_running": 3, "retention": keep});
    let (_, changed) = stage.send(Method::PATCH, "/api/v1/queues/q", Some(change)).await;
    assert_eq!(
        (&changed["paused"], &changed["max_running"], &changed["retention"]),
        (&json!(false), &json!(3), &keep)
    );
    let change = json!({"max_running_per_key": 2, "ageing_ms": 60_000});
    let (_, changed) = stage.send(Method::PATCH, "/api/v1/queues/q", Some(change)).await;
    assert_eq!((&changed["max_running_per_key"], &changed["ageing_ms"]), (&json!(2), &json!(60_000)));
    let (status, _) = stage.send(Method::PATCH, "/api/v1/queues/q", Some(json!({"ageing_ms": 0}))).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let (_, lifted) = stage.send(Method::PATCH, "/api/v1/queues/q", Some(json!({"max_running": null}))).await;
    assert_eq!((&lifted["max_running"], &lifted["retention"]), (&Value::Null, &keep), "the others stay");
    let (status, problem) = stage.send(Method::PATCH, "/api/v1/queues/q", Some(json!({"limit": 3}))).await;
    assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("limit")));
    assert_eq!(stage.get("/api/v1/queues").await["items"].as_array().map(Vec::len), Some(1));
    let (status, _) = stage.send(Method::GET, "/api/v1/queues/none", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (_, resumed) = stage.send(Method::POST, "/api/v1/queues/new/resume", None).await;
    assert_eq!((&resumed["name"], &resumed["paused"]), (&json!("new"), &json!(false)));
    stage.stop().await;
}

#[tokio::test]
async fn schedules_are_kept_fired_and_removed() {
    let stage = Stage::new().await;
    let wanted = json!({
        "cron": "0 8 * * 1-5", "timezone": "Europe/Berlin", "missed": "skip",
        "job": {"kind": "report", "queue": "nightly", "payload": {"token": "x"}},
    });
    let (status, kept) = stage.send(Method::PUT, "/api/v1/schedules/daily", Some(wanted)).await;
    assert_eq!(status, StatusCode::OK, "{kept}");
    assert_eq!(kept["next_runs"].as_array().map(Vec::len), Some(3));
    let listed = stage.get("/api/v1/schedules").await;
    assert_eq!(listed["items"][0]["job"]["payload"], json!({"token": "[redacted]"}));
    let (status, fired) = stage.send(Method::POST, "/api/v1/schedules/daily/run", None).await;
    assert_eq!((status, &fired["how"]), (StatusCode::CREATED, &json!("inserted")));
    let rows = [
        (json!({"cron": "often", "job": {"kind": "a"}}), "cron"),
        (json!({"cron": "* * * * *", "timezone": "Moon/Base", "job": {"kind": "a"}}), "cron"),
        (json!({"cron": "* * * * *", "job": {"kind": "a", "delay_ms": 1}}), "job.delay_ms"),
        (json!({"cron": "* * * * *", "job": {"kind": ""}}), "kind"),
    ];
    for (wrong, field) in rows {
        let (status, problem) = stage.send(Method::PUT, "/api/v1/schedules/daily", Some(wrong)).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(field)),
            "{problem}"
        );
    }
    let (status, _) = stage.send(Method::DELETE, "/api/v1/schedules/daily", None).await;
    assert_eq!(status, StatusCode::OK);
    for (method, path) in
        [(Method::DELETE, "/api/v1/schedules/daily"), (Method::POST, "/api/v1/schedules/daily/run")]
    {
        assert_eq!(stage.send(method, path, None).await.0, StatusCode::NOT_FOUND);
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_list_is_not_taken_for_the_fields_of_an_object() {
    let stage = Stage::new().await;
    for (method, path) in [(Method::PATCH, "/api/v1/queues/q"), (Method::POST, "/api/v1/jobs")] {
        let (status, problem) = stage.send(method, path, Some(json!([true, 1]))).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("is a list")), "{problem}");
    }
    assert_eq!(stage.send(Method::GET, "/api/v1/queues/q", None).await.0, StatusCode::NOT_FOUND);
    stage.stop().await;
}
