//! What is wrong with a sheet is told by its field, and nothing of it stays.

use longhaul_pipeline::table_files::testing::bomb;

use super::*;

/// Changes one field; `null` takes it away.
fn with(mut wanted: Value, field: &str, value: Value) -> Value {
    match value {
        Value::Null => drop(wanted.as_object_mut().expect("fields").shift_remove(field)),
        value => wanted[field] = value,
    }
    wanted
}

/// Fields with values that do not fit, and the field that is told.
fn unfit() -> Vec<(&'static str, Value, &'static str)> {
    let columns = |text: &str| json!({"columns": {"text": text}});
    let twice = json!([{"name": "a"}, {"name": "a"}]);
    vec![
        ("file_id", Value::Null, "file_id"),
        ("file_id", json!("file-none"), "file_id"),
        ("file_id", json!("../../etc/passwd"), "file_id"),
        ("file_id", json!("/etc/passwd"), "file_id"),
        ("format", json!("ods"), "format"),
        ("sheet", json!("Sheet1"), "sheet"),
        ("google", json!({"spreadsheet": "abc", "sheet": "A"}), "google"),
        ("layout", columns("nope"), "layout.columns.text"),
        ("layout", json!({"columns": {}}), "layout.columns.text"),
        ("layout", json!({"sheet": {}}), "layout"),
        ("layout", json!({"grid": {}}), "layout"),
        ("categories", Value::Null, "categories"),
        ("categories", json!([]), "categories"),
        ("categories", twice, "categories"),
        ("categories", json!([{"name": "review"}]), "categories"),
        ("categories", json!([{"name": ""}]), "categories[0].name"),
        ("categories", json!([{"name": "a", "weight": 1}]), "categories[0].weight"),
        ("categories", (0..201).map(|number| json!({"name": number.to_string()})).collect(), "categories"),
        ("schema", json!({"type": "object"}), "categories"),
        ("mode", json!("fast"), "mode"),
        ("range", json!([1, 0]), "range"),
        ("model", Value::Null, "model"),
        ("profile", json!("none"), "profile"),
        ("fallback_model", json!("m".repeat(300)), "fallback_model"),
        ("fallback_profile", json!("sim"), "fallback_model"),
        ("existing", json!("forget"), "existing"),
        ("limit", json!(0), "limit"),
        ("max_cost_usd", json!(-1), "max_cost_usd"),
        ("cache", json!("sometimes"), "cache"),
        ("work", json!({"chunk_rows": 1}), "work.chunk_rows"),
        ("work", json!({"concurrency": 1_000}), "work.concurrency"),
        ("work", json!({"fill_rounds": 1_000}), "work.fill_rounds"),
        ("work", json!({"haste": 1}), "work.haste"),
        ("tags", json!([""]), "tags"),
        ("tags", json!(vec!["a"; 40]), "tags"),
        ("instructions", json!("x".repeat(100_001)), "instructions"),
        ("target", json!("/etc/passwd"), "target"),
        ("path", json!("/etc/passwd"), "path"),
    ]
}

#[tokio::test]
async fn what_is_wrong_with_a_sheet_is_told_by_its_field() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 5).await;
    let odd = stage.upload_as("reviews.txt", table(5)).await;
    let lines = stage.upload_as("reviews.jsonl", "{\"review\": \"fine\"}\nnonsense\n".to_owned()).await;
    let blank = stage.upload_as("blank.csv", "id,review\n1,\n".to_owned()).await;
    let empty = stage.upload_as("empty.csv", String::new()).await;
    let book = stage.upload_as("book.xlsx", "no workbook".to_owned()).await;
    let long = stage.upload_as("long.csv", table(60) + "60," + &"x".repeat(1_000_001) + "\n").await;
    let good = sheet_of(&file);
    let mut rows = unfit();
    rows.push(("file_id", odd["id"].clone(), "format"));
    rows.extend(
        [&lines, &blank, &empty, &book, &long].map(|file| ("file_id", file["id"].clone(), "file_id")),
    );
    for (field, value, expected) in rows {
        let body = with(good.clone(), field, value.clone());
        let shown: String = value.to_string().chars().take(80).collect();
        for path in [SHEETS.to_owned(), format!("{SHEETS}/estimate")] {
            // What a sheet may cost says nothing about what it would.
            if field == "max_cost_usd" && path != SHEETS {
                continue;
            }
            let (status, problem) = stage.post(&path, &body).await;
            // A table without texts can be estimated: at nothing.
            if body["file_id"] == blank["id"] && path != SHEETS {
                assert_eq!(problem["rows"], 0);
                continue;
            }
            assert!(status.is_client_error(), "{field} {shown}: {problem}");
            assert_eq!(problem["field"].as_str().unwrap_or_default(), expected, "{field} {shown}: {problem}");
            let text = problem.to_string();
            assert!(!text.contains("--") && !text.contains(&*stage.files().to_string_lossy()), "{text}");
        }
    }
    assert_eq!(stage.get(RUNS).await["items"], json!([]));
    assert_eq!(stage.get("/api/v1/jobs").await["items"], json!([]));
    let tables = std::fs::read_dir(stage.files().join("tables")).map_or(0, Iterator::count);
    assert_eq!(tables, 0, "nothing of them stays");
    stage.stop().await;
}

#[tokio::test]
async fn sheets_at_google_need_a_key_and_a_name_that_can_be_one() {
    let stage = Stage::new().await;
    let rows = [
        (json!({"spreadsheet": "1AbC-_9", "sheet": "Reviews"}), "google", "no_google_key"),
        (
            json!({"spreadsheet": "https://docs.google.com/spreadsheets/d/1AbC/edit#gid=0", "sheet": "A"}),
            "google",
            "no_google_key",
        ),
        (json!({"spreadsheet": "../other", "sheet": "A"}), "google.spreadsheet", "invalid"),
        (json!({"spreadsheet": "https://evil.example/d/1", "sheet": "A"}), "google.spreadsheet", "invalid"),
        (json!({"spreadsheet": "1AbC/Title", "sheet": "A"}), "google.spreadsheet", "invalid"),
        (json!({"spreadsheet": "1AbC", "sheet": ""}), "google.sheet", "invalid"),
        (json!({"spreadsheet": "1AbC"}), "google.sheet", "invalid"),
    ];
    for (google, field, code) in rows {
        let body = json!({"google": google, "layout": {"columns": {"text": "review"}}, "categories": categories(), "model": "sim-small"});
        let (status, problem) = stage.post(SHEETS, &body).await;
        assert_eq!(
            (status, &problem["field"], &problem["code"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(field), &json!(code)),
            "{google}: {problem}"
        );
    }
    stage.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_question_about_a_sheet_is_told() {
    let stage = Stage::new().await;
    let file = uploaded(&stage, 5).await;
    let id = made(&stage, &sheet_of(&file)).await;
    let rows = [
        (format!("{RUNS}?limit=0"), 400, "limit"),
        (format!("{RUNS}?cursor=x"), 400, "cursor"),
        (format!("{RUNS}/{id}?wait=never"), 400, "wait"),
        (format!("{RUNS}?pipeline=none"), 400, "pipeline"),
        (format!("{RUNS}/{id}/results?cursor=x"), 400, "cursor"),
        (format!("{RUNS}/{id}/results?limit=5000"), 400, "limit"),
        (format!("{RUNS}/{id}/parts?cursor=x"), 400, "cursor"),
        (format!("{RUNS}/{id}/parts?cursor=s-8000000000000000"), 400, "cursor"),
        (format!("{SHEETS}/{id}/blanks?cursor=s1"), 400, "cursor"),
        (format!("{SHEETS}/{id}/output?format=ods"), 400, "format"),
        (format!("{SHEETS}/{id}/output?path=/etc/passwd"), 400, "path"),
        (format!("{RUNS}/sheet-none"), 404, ""),
        (format!("{SHEETS}/..%2f..%2fetc/output"), 404, ""),
    ];
    for (path, expected, field) in rows {
        let (status, problem) = stage.send(Method::GET, &path, None).await;
        assert_eq!(
            (status.as_u16(), problem["field"].as_str().unwrap_or_default()),
            (expected, field),
            "{path}: {problem}"
        );
    }
    let request = stage.request(Method::POST, SHEETS).header("idempotency-key", "");
    let refused = request.body(sheet_of(&file).to_string()).send().await.expect("an answer");
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    stage.stop().await;
}

/// Memory of this process, now or at its peak, in mebibytes.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect(field);
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").trim().parse::<u64>().expect("a number")
        / 1024
}

#[tokio::test]
async fn a_workbook_that_unpacks_without_bound_is_refused_in_little_memory() {
    let stage = Stage::new().await;
    let file = stage.upload_as("bomb.xlsx", bomb(512)).await;
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux");
    let before = memory("VmHWM");
    for path in [SHEETS.to_owned(), format!("{SHEETS}/estimate")] {
        let (status, problem) = stage.post(&path, &sheet_of(&file)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
        let text = problem.to_string();
        assert!(text.contains("a cell of more than 1 MiB") && text.contains("save it as CSV"), "{text}");
    }
    // Other tests run beside it; the cell alone would take three times its size.
    let cost = memory("VmHWM") - before;
    assert!(cost < 400, "{cost} MiB");
}
