//! Blanks, retries, money, cancellation, deletion, metrics.

use longhaul_pipeline::RunId;
use longhaul_server::Scope;
use longhaul_sheets::ChunkScheduler;
use longhaul_sheets::settings::Source;

use super::*;
use crate::stage::Setup;

#[tokio::test]
async fn what_failed_is_told_with_its_reason_and_is_all_that_is_tried_again() {
    let stage = Stage::new().await;
    let table = table(20) + "20,[[sim:refuse]] Nobody answers this\n";
    let file = stage.upload_as("reviews.csv", table).await;
    let id = made(&stage, &sheet_of(&file)).await;
    let working = stage.work().await;
    let sheet = ended(&stage, &id).await;
    assert_eq!((&sheet["state"], &sheet["units"]["failed"]), (&json!("partly_failed"), &json!(2)), "{sheet}");
    let first = stage.get(&format!("{SHEETS}/{id}/blanks?limit=1")).await;
    let blank = &first["items"][0];
    assert_eq!((&blank["row"], &blank["columns"][0]), (&json!(22), &json!("cat1")));
    assert!(blank["reason"].as_str().expect("a reason").contains("refused"), "{blank}");
    let path = format!("{SHEETS}/{id}/blanks?limit=1&cursor={}", first["next"].as_str().expect("a cursor"));
    assert_eq!(stage.get(&path).await["items"][0]["columns"], json!(["cat11", "cat12"]));
    let last = rows(&stage, &id, 1_000).await.pop().expect("a row");
    assert_eq!((&last["row"], &last["cells"]["cat1"]), (&json!(22), &Value::Null));
    let before = stage.core.stats().executed;
    let (status, retried) = post(&stage, &id, "retry", None).await;
    assert_eq!((status, retried), (StatusCode::OK, json!({"changed": 2})));
    let sheet = ended(&stage, &id).await;
    assert_eq!((&sheet["state"], &sheet["units"]["failed"]), (&json!("partly_failed"), &json!(2)), "{sheet}");
    assert_eq!(stage.core.stats().executed - before, 2, "exactly what failed");
    for (body, field) in [
        (json!({"part": 0}), json!("part")),
        (json!({"part": 9}), Value::Null),
        (json!({"all": true}), json!("all")),
    ] {
        let (status, problem) = post(&stage, &id, "retry", Some(body.clone())).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &field),
            "{body}: {problem}"
        );
    }
    working.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn a_budget_holds_a_sheet_until_more_is_allowed() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 20).await;
    let mut wanted = sheet_of(&file);
    wanted["max_cost_usd"] = json!(0.000_001);
    let id = made(&stage, &wanted).await;
    let working = stage.work().await;
    let sheet = ended(&stage, &id).await;
    assert_eq!((&sheet["state"], &sheet["hold"]), (&json!("held"), &json!("budget")), "{sheet}");
    let (_, problem) = post(&stage, &id, "resume", Some(json!({"max_cost_usd": -1}))).await;
    assert_eq!(problem["field"], "max_cost_usd");
    let (status, resumed) = post(&stage, &id, "resume", Some(json!({"max_cost_usd": 5}))).await;
    assert!(status.is_success() && resumed["changed"].as_u64() > Some(0), "{resumed}");
    assert_eq!(ended(&stage, &id).await["state"], "completed");
    working.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn a_cancelled_sheet_keeps_what_it_has_and_a_deleted_one_leaves_nothing() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 120).await;
    let id = made(&stage, &sheet_of(&file)).await;
    let (status, problem) = stage.send(Method::DELETE, &format!("{RUNS}/{id}"), None).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("wrong_state")),
        "{problem}"
    );
    let (status, problem) = post(&stage, &id, "retry", None).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("wrong_state")),
        "{problem}"
    );
    let (_, cancelled) = post(&stage, &id, "cancel", None).await;
    assert_eq!(cancelled["changed"], 4, "three chunks and what ends the sheet: {cancelled}");
    assert_eq!(ended(&stage, &id).await["state"], "cancelled");
    let output =
        stage.request(Method::GET, &format!("{SHEETS}/{id}/output")).send().await.expect("an answer");
    assert_eq!(output.text().await.expect("text").lines().count(), 121, "the table as it is so far");
    // One chunk of it after all.
    let (_, retried) = post(&stage, &id, "retry", Some(json!({"part": 2}))).await;
    assert_eq!(retried, json!({"changed": 1}));
    let working = stage.work().await;
    let sheet = ended(&stage, &id).await;
    assert_eq!(
        (&sheet["details"]["written"], &sheet["details"]["chunks"]["completed"]),
        (&json!(100), &json!(1)),
        "{sheet}"
    );
    working.drain().await;
    let (status, deleted) = stage.send(Method::DELETE, &format!("{RUNS}/{id}"), None).await;
    assert_eq!((status, &deleted["changed"]), (StatusCode::OK, &json!(4)), "{deleted}");
    assert_eq!(stage.send(Method::GET, &format!("{RUNS}/{id}"), None).await.0, StatusCode::NOT_FOUND);
    assert_eq!(stage.get("/api/v1/jobs").await["items"], json!([]));
    let spent = stage.ctx.llm().ledger().totals(&longhaul_llm::Scope::run(&id)).await.expect("totals");
    assert_eq!(spent.calls, 0);
    let tables = std::fs::read_dir(stage.files().join("tables")).expect("a folder").count();
    assert_eq!(tables, 0, "its table is gone, and the upload is not");
    stage.get(&format!("/v1/files/{}", file["id"].as_str().expect("a name"))).await;
    stage.stop().await;
}

#[tokio::test]
async fn a_sheet_whose_reading_broke_off_is_shown_and_deleted() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 5).await;
    let whole = stored(&stage, &made(&stage, &sheet_of(&file)).await).await;
    // The second chunk of another one cannot be read: a text is too long.
    let path = stage.files().join("long.csv");
    let long = table(60) + &format!("61,{}\n", "x".repeat(1_000_001));
    std::fs::write(&path, long).expect("written");
    let mut settings = whole.settings;
    if let Source::File { path: source, sha256, .. } = &mut settings.source {
        (*source, *sha256) = (path, "long".to_owned());
    }
    let sheets = stage.ctx.sheets.as_ref().expect("the pipeline");
    let error = ChunkScheduler::make(sheets, settings).await.expect_err("a text that is too long");
    assert!(error.to_string().contains("the text has 1000001 bytes"), "{error}");
    let list = stage.get(RUNS).await;
    let (id, state) = (&list["items"][0]["id"], &list["items"][0]["state"]);
    assert_eq!(state, &json!("running"), "{list}");
    let path = format!("{RUNS}/{}", id.as_str().expect("a name"));
    assert_eq!(stage.send(Method::POST, &format!("{path}/cancel"), None).await.0, StatusCode::OK);
    let (status, deleted) = stage.send(Method::DELETE, &path, None).await;
    assert_eq!(status, StatusCode::OK, "{deleted}");
    assert_eq!(stage.get(RUNS).await["items"].as_array().map(Vec::len), Some(1));
    stage.stop().await;
}

#[tokio::test]
async fn a_sheet_goes_whole_when_its_process_is_consumed() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 5).await;
    let id = made(&stage, &sheet_of(&file)).await;
    let path = format!("/api/v1/processes/{id}");
    assert_eq!(stage.send(Method::POST, &format!("{path}/cancel"), None).await.1["changed"], 2);
    let (status, consumed) = stage.send(Method::POST, &format!("{path}/consume"), None).await;
    assert_eq!((status, &consumed["changed"]), (StatusCode::OK, &json!(2)), "{consumed}");
    assert_eq!(stage.get(RUNS).await["items"], json!([]));
    stage.stop().await;
}

#[tokio::test]
async fn metrics_tell_of_the_stages() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 11).await;
    let id = made(&stage, &sheet_of(&file)).await;
    let working = stage.work().await;
    assert_eq!(ended(&stage, &id).await["state"], "completed");
    // The same texts in another sheet are known already.
    let mut wanted = sheet_of(&file);
    wanted["limit"] = json!(4);
    assert_eq!(ended(&stage, &made(&stage, &wanted).await).await["details"]["cached"], 8);
    working.drain().await;
    let text =
        stage.request(Method::GET, "/metrics").send().await.expect("an answer").text().await.expect("text");
    for line in [
        "longhaul_score_queue_units{stage=\"invoke\"} 0",
        "longhaul_score_queue_units{stage=\"validation\"} 0",
        "longhaul_score_queue_units{stage=\"writer\"} 0",
        "longhaul_score_invoking_units 0",
        "longhaul_score_cache_requests_total{result=\"hit\"} 8",
        "longhaul_score_cache_requests_total{result=\"miss\"} 20",
        "longhaul_score_cache_written_total 20",
        "longhaul_score_cache_expired_total 0",
        "longhaul_jobs{queue=\"sheets\",state=\"succeeded\"} 4",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is missing from {text}");
    }
    assert!(text.contains("longhaul_score_writer_lag_seconds "), "{text}");
    stage.stop().await;
}

#[tokio::test]
async fn a_token_does_with_sheets_what_its_scopes_allow() {
    let options = longhaul_server::ServerOptions { token_required: true, ..Default::default() };
    let stage = Stage::of(Setup { options, ..Setup::default() }).await;
    let id = RunId::named("sheet-000000000000");
    let rows = [
        (Scope::Read, Method::GET, format!("{RUNS}/{id}"), 404),
        (Scope::Read, Method::GET, format!("{SHEETS}/{id}/output"), 404),
        (Scope::Read, Method::POST, SHEETS.to_owned(), 403),
        (Scope::Work, Method::POST, format!("{SHEETS}/estimate"), 403),
        (Scope::Enqueue, Method::POST, SHEETS.to_owned(), 400),
        (Scope::Enqueue, Method::POST, format!("{RUNS}/{id}/cancel"), 403),
        (Scope::Enqueue, Method::DELETE, format!("{RUNS}/{id}"), 403),
        (Scope::Admin, Method::POST, format!("{RUNS}/{id}/retry"), 404),
        (Scope::Admin, Method::DELETE, format!("{RUNS}/{id}"), 404),
    ];
    for (scope, method, path, expected) in rows {
        let token = stage.ctx.tokens.add("t", &[scope]).expect("a token");
        let request = stage.request(method.clone(), &path).bearer_auth(token);
        let request = if expected == 400 { request.body("{}") } else { request };
        let status = request.send().await.expect("an answer").status();
        assert_eq!(status, expected, "{} {method} {path}", scope.as_str());
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_server_without_a_store_in_a_file_says_what_to_do() {
    let stage = Stage::of(Setup { sheets: false, ..Setup::default() }).await;
    let rows = [
        (Method::POST, "", Some(json!({}))),
        (Method::POST, "/estimate", Some(json!({}))),
        (Method::GET, "/sheet-1/blanks", None),
        (Method::GET, "/sheet-1/output", None),
    ];
    for (method, path, body) in rows {
        let (status, problem) = stage.send(method, &format!("{SHEETS}{path}"), body).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_IMPLEMENTED, &json!("no_data_store")),
            "{problem}"
        );
        assert!(problem["detail"].as_str().expect("text").contains("--store sqlite://"), "{problem}");
    }
    stage.stop().await;
}
