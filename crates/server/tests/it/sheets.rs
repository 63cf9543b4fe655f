//! Sheets over a socket: a table is uploaded, scored by a worker with the simulator for a model, and downloaded.

use longhaul_sheets::prompt;
use longhaul_sheets::tables::StoredSheet;
use longhaul_sim::{SimOptions, answer_key};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::Stage;

mod life;
mod refused;

const SHEETS: &str = "/api/v1/sheets";
const RUNS: &str = "/api/v1/runs";

/// A table of texts, with a row without one among them.
fn table(rows: usize) -> String {
    let row = |number: usize| match number {
        3 => format!("{number},\n"),
        _ => format!("{number},\"Review {number}: late, but fine\"\n"),
    };
    "id,review\n".to_owned() + &(0..rows).map(row).collect::<String>()
}

/// Twelve categories make two requests a row.
fn categories() -> Value {
    let category =
        |number: u32| json!({"name": format!("cat{number}"), "definition": format!("topic {number}")});
    (1..=12).map(category).collect()
}

fn sheet_of(file: &Value) -> Value {
    json!({
        "file_id": file["id"], "layout": {"columns": {"text": "review"}}, "categories": categories(),
        "model": "sim-small", "work": {"chunk_rows": 50},
    })
}

async fn uploaded(stage: &Stage, rows: usize) -> Value {
    stage.upload_as("reviews.csv", table(rows)).await
}

/// Hands in a sheet, which must go well.
async fn made(stage: &Stage, wanted: &Value) -> String {
    let (status, sheet) = stage.post(SHEETS, wanted).await;
    assert_eq!(status, StatusCode::CREATED, "{sheet}");
    sheet["id"].as_str().expect("a name").to_owned()
}

async fn ended(stage: &Stage, id: &str) -> Value {
    stage.get(&format!("{RUNS}/{id}?wait=2m")).await
}

async fn post(stage: &Stage, id: &str, verb: &str, body: Option<Value>) -> (StatusCode, Value) {
    stage.send(Method::POST, &format!("{RUNS}/{id}/{verb}"), body).await
}

async fn stored(stage: &Stage, id: &str) -> StoredSheet {
    stage.ctx.sheets.as_ref().expect("the slice").tables().get(id).await.expect("a sheet")
}

/// The right cells of a text, by column.
fn right(sheet: &StoredSheet, text: &str) -> Value {
    let mut cells = serde_json::Map::new();
    for block in 0..sheet.blocks() {
        let key = answer_key(SimOptions::default().seed, &prompt::request(sheet, text, block));
        let answer: Value = serde_json::from_str(&key).expect("JSON");
        let scores = answer["scores"].as_array().expect("scores");
        for (target, score) in sheet.targets(block).zip(scores) {
            let score = (score.as_f64().expect("a number") * 100.0).round() / 100.0 + 0.0;
            cells.insert(sheet.plan.targets[target].name.clone(), json!(score));
        }
    }
    Value::Object(cells)
}

/// All rows, page by page.
async fn rows(stage: &Stage, id: &str, limit: usize) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = stage.get(&format!("{RUNS}/{id}/results?limit={limit}{cursor}")).await;
        rows.extend(page["items"].as_array().expect("rows").clone());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

#[tokio::test]
async fn a_table_is_uploaded_scored_read_and_downloaded() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 60).await;
    let wanted = sheet_of(&file);
    let (status, estimate) = stage.post(&format!("{SHEETS}/estimate"), &wanted).await;
    assert_eq!(
        (status, &estimate["rows"], &estimate["units"], &estimate["cells"]),
        (StatusCode::OK, &json!(59), &json!(118), &json!(708)),
        "{estimate}"
    );
    assert_eq!(stage.get(RUNS).await["items"], json!([]), "nothing was stored");
    let id = made(&stage, &wanted).await;
    let (status, again) = stage.post(SHEETS, &wanted).await;
    assert_eq!(
        (status, &again["id"], &again["resumed"], &again["chunks"]),
        (StatusCode::OK, &json!(id), &json!(true), &json!(2))
    );
    assert_eq!(estimate["id"], json!(id));
    // The sheet has its table: the upload may go.
    let path = format!("/v1/files/{}", file["id"].as_str().expect("a name"));
    assert_eq!(stage.send(Method::DELETE, &path, None).await.0, StatusCode::OK);
    let working = stage.work().await;
    let sheet = ended(&stage, &id).await;
    let status = &sheet;
    assert_eq!(
        (&status["state"], &status["details"]["written"], &status["details"]["chunks"]["completed"]),
        (&json!("completed"), &json!(118), &json!(2)),
        "{sheet}"
    );
    assert_eq!(sheet["settings"]["source"]["file"]["name"], "reviews.csv");
    let place = stage.files().display().to_string();
    assert!(!sheet.to_string().contains(&place), "no place of the server is told: {sheet}");
    let stored = stored(&stage, &id).await;
    let found = rows(&stage, &id, 25).await;
    assert_eq!(
        (found.len(), &found[0]["row"], &found[3]["row"]),
        (59, &json!(2), &json!(6)),
        "one has no text"
    );
    for row in &found {
        assert_eq!(row["cells"], right(&stored, row["text"].as_str().expect("a text")), "{row}");
    }
    let first = stage.get(&format!("{RUNS}/{id}/parts?limit=1")).await;
    assert_eq!(
        (&first["items"][0]["name"], &first["items"][0]["details"]["first_row"]),
        (&json!("chunk-0001"), &json!(2))
    );
    let path = format!("{RUNS}/{id}/parts?limit=1&cursor={}", first["next"].as_str().expect("a cursor"));
    assert_eq!(stage.get(&path).await["items"][0]["details"]["chunk"], 2);
    outputs(&stage, &id, &found).await;
    working.drain().await;
    stage.stop().await;
}

/// Downloads the sheet in all formats, and finds its scores in it.
async fn outputs(stage: &Stage, id: &str, rows: &[Value]) {
    for (format, kind) in [
        ("", "text/csv; charset=utf-8"),
        ("?format=tsv", "text/tab-separated-values; charset=utf-8"),
        ("?format=jsonl", "application/jsonl"),
        ("?format=xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ] {
        let request = stage.request(Method::GET, &format!("{SHEETS}/{id}/output{format}"));
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        let end = format.strip_prefix("?format=").unwrap_or("csv");
        assert_eq!(header("content-type"), kind);
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("content-disposition"), format!("attachment; filename=\"reviews-scored.{end}\""));
        let content = response.bytes().await.expect("a file");
        let text = String::from_utf8_lossy(&content).into_owned();
        let score = &rows[0]["cells"]["cat1"];
        match end {
            "xlsx" => assert!(content.starts_with(b"PK"), "a workbook"),
            "jsonl" => {
                let line: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
                assert_eq!((&line["review"], &line["cat1"]), (&rows[0]["text"], score));
            }
            _ => {
                let separator = if end == "csv" { "," } else { "\t" };
                assert_eq!(text.lines().count(), 61);
                assert!(text.starts_with(&["id", "review", "cat1", "cat2"].join(separator)), "{text}");
                let first = text.lines().nth(1).expect("a row");
                let cells: Vec<&str> = first.split(separator).collect();
                assert!(cells.contains(&score.to_string().as_str()), "{first}");
            }
        }
    }
    let left = std::fs::read_dir(stage.files())
        .expect("the uploads")
        .map(|entry| entry.expect("a file").file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["tables"], "outputs are gone once they were read");
}

#[tokio::test]
async fn a_model_says_why_or_fills_a_schema() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 3).await;
    let mut why = sheet_of(&file);
    why["mode"] = json!("rationale");
    why["tags"] = json!(["night"]);
    let schema = json!({"type": "object", "properties": {"mood": {"type": "string"}, "stars": {"type": "integer"}}, "required": ["mood", "stars"], "additionalProperties": false});
    let free = json!({"file_id": file["id"], "layout": {"columns": {"text": "review"}}, "schema": schema, "model": "sim-small"});
    let (why, free) = (made(&stage, &why).await, made(&stage, &free).await);
    let working = stage.work().await;
    let sheet = ended(&stage, &why).await;
    assert_eq!(
        (&sheet["state"], &sheet["details"]["columns"][1]),
        (&json!("completed"), &json!("cat1 reason")),
        "{sheet}"
    );
    assert!(rows(&stage, &why, 10).await[0]["cells"]["cat1 reason"].is_string());
    let sheet = ended(&stage, &free).await;
    assert_eq!(sheet["state"], "completed", "{sheet}");
    assert!(rows(&stage, &free, 10).await.iter().all(|row| row["cells"]["stars"].is_i64()));
    let first = stage.get(&format!("{RUNS}?limit=1")).await;
    let path = format!("{RUNS}?limit=1&cursor={}", first["next"].as_str().expect("a cursor"));
    let second = stage.get(&path).await;
    assert_eq!(
        (&first["items"][0]["id"], &second["items"][0]["id"]),
        (&json!(free), &json!(why)),
        "newest first"
    );
    working.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn a_table_with_its_categories_in_its_heads_needs_no_more_than_a_model() {
    let stage = Stage::new().await;
    let table = ",,,\n,,text,late,kind\n,,,how late,how kind\n,,,,\n1,,It came late,,0.5\n2,,Thanks,,\n";
    let file = stage.upload_as("heads.csv", table.to_owned()).await;
    let id = made(&stage, &json!({"file_id": file["id"], "model": "sim-small"})).await;
    let working = stage.work().await;
    let sheet = ended(&stage, &id).await;
    assert_eq!(
        (&sheet["state"], &sheet["details"]["columns"]),
        (&json!("completed"), &json!(["late", "kind"])),
        "{sheet}"
    );
    let request = stage.request(Method::GET, &format!("{SHEETS}/{id}/output"));
    let text = request.send().await.expect("an answer").text().await.expect("text");
    let kept = text.lines().nth(4).expect("a row");
    assert!(
        kept.starts_with("1,,It came late,") && kept.ends_with(",0.5"),
        "what had a value keeps it: {kept}"
    );
    working.drain().await;
    stage.stop().await;
}
