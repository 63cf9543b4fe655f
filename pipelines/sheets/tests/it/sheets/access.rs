//! Who may come in, and what sheets are found and read.

use std::time::Duration;

use longhaul_sheets::google::fake::{EMAIL, SPREADSHEET, Sharing};
use longhaul_sheets::google::{CallKind, ServiceKey, SheetAddress, SheetPages};
use longhaul_sheets::places::{Pages as _, Sink as _};
use serde_json::{Value, json};

use super::{Stage, TITLE, refused, row};

fn address(text: &str) -> SheetAddress {
    text.replace("ID", SPREADSHEET).parse().unwrap()
}

#[tokio::test]
async fn a_token_is_got_once_and_renewed_a_minute_before_its_end() {
    let stage = Stage::new().await;
    stage.texts(&["text"], &["a"]);
    let find = async || stage.google.find(&address("sheets://ID")).await.unwrap();
    for (after_seconds, tokens) in [(0, 1), (1, 1), (3538, 1), (2, 2), (3000, 2)] {
        stage.clock.advance(Duration::from_secs(after_seconds));
        find().await;
        assert_eq!(stage.fake.tokens_given(), tokens, "after {after_seconds} s more");
    }
}

#[tokio::test]
async fn calls_at_once_share_one_token() {
    let stage = Stage::new().await;
    stage.texts(&["text"], &["a"]);
    let asked = address("sheets://ID");
    let (one, two, three) =
        tokio::join!(stage.google.find(&asked), stage.google.find(&asked), stage.google.find(&asked));
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    assert_eq!(stage.fake.tokens_given(), 1);
}

#[tokio::test]
async fn a_token_that_was_taken_back_is_replaced() {
    let stage = Stage::new().await;
    stage.texts(&["text"], &["a"]);
    stage.google.find(&address("sheets://ID")).await.unwrap();
    stage.fake.end_tokens();
    stage.google.find(&address("sheets://ID")).await.unwrap();
    assert_eq!(stage.fake.tokens_given(), 2);
}

#[tokio::test]
async fn a_wrong_key_is_refused_by_the_name_of_its_file() {
    let stage = Stage::new().await;
    let file = stage.fake.wrong_key_file(stage.folder.path()).unwrap();
    let google = stage.google(|options| options.key = ServiceKey::read(&file).unwrap());
    let text = refused(google.find(&address("sheets://ID")).await);
    for want in ["wrong-google-key.json", EMAIL, "Invalid JWT Signature", "make a new key"] {
        assert!(text.contains(want), "{text}");
    }
    let pem: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for line in pem["private_key"].as_str().unwrap().lines().skip(2) {
        assert!(!text.contains(line), "{text}");
    }
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text"], &["a"]);
    let sink = stage.sink(&sheet, &["Joy"]);
    let rows = [row(1, "a", &[0.5])];

    stage.fake.share(Sharing::Nobody);
    let text = refused(stage.google.find(&address("sheets://ID")).await);
    assert!(text.contains(EMAIL) && text.contains("share the spreadsheet with this address"), "{text}");

    stage.fake.share(Sharing::Viewer);
    stage.google.find(&address("sheets://ID")).await.unwrap();
    let text = refused(sink.write(&rows).await);
    assert!(text.contains(EMAIL) && text.contains("as an editor"), "{text}");

    stage.fake.share(Sharing::Editor);
    let text = refused(stage.google.find(&"sheets://1Other/Sheet1".parse().unwrap()).await);
    assert!(text.contains("there is no spreadsheet 1Other"), "{text}");

    stage.fake.rename(TITLE, "New");
    let text = refused(sink.write(&rows).await);
    assert!(text.contains("renamed or deleted"), "{text}");
}

#[tokio::test]
async fn sheets_are_found_by_title_by_number_or_as_the_first() {
    let stage = Stage::new().await;
    stage.fake.add_sheet("First", [vec!["text"]]);
    stage.fake.add_sheet("A 'second'", [vec!["a", "b"], vec!["c"], vec!["d"]]);
    for (text, title, size) in [
        ("sheets://ID", "First", (1, 1)),
        ("sheets://ID/A 'second'", "A 'second'", (3, 2)),
        ("https://docs.google.com/spreadsheets/d/ID/edit#gid=1001", "A 'second'", (3, 2)),
        ("https://docs.google.com/spreadsheets/d/ID/edit#gid=0", "First", (1, 1)),
    ] {
        let found = stage.google.find(&address(text)).await.unwrap();
        assert_eq!((found.sheet.sheet.as_str(), (found.rows, found.columns)), (title, size), "{text}");
    }
    let text = refused(stage.google.find(&address("sheets://ID/Third")).await);
    assert!(text.contains("\"Third\"") && text.contains("\"First\""), "{text}");
    let text = refused(stage.google.find(&address("https://docs.google.com/spreadsheets/d/ID#gid=9")).await);
    assert!(text.contains("gid=9"), "{text}");
}

#[tokio::test]
async fn pages_have_every_row_to_the_end_of_the_sheet() {
    let stage = Stage::new().await;
    let rows = [
        vec![json!("text"), json!("n")],
        vec![json!(" a "), json!(3)],
        vec![],
        vec![json!(true), json!(0.5)],
    ];
    let sheet = stage.fake.add_sheet(TITLE, rows);
    stage.fake.grow(TITLE, 2, 0);
    let pages = SheetPages::new(stage.google.clone(), sheet);
    let all: [(u64, &[&str]); 6] =
        [(0, &["text", "n"]), (1, &[" a ", "3"]), (2, &[]), (3, &["TRUE", "0.5"]), (4, &[]), (5, &[])];
    for (first, count) in
        [(0, 6), (0, 100), (1, 2), (2, 1), (3, 3), (4, 100), (5, 1), (6, 10), (1_000_000, 5), (0, 0)]
    {
        let rows = pages.rows(first, count).await.unwrap();
        let want = all.iter().filter(|(number, _)| (first..first + count).contains(number));
        let found: Vec<(u64, Vec<&str>)> =
            rows.iter().map(|row| (row.number, row.cells.iter().map(String::as_str).collect())).collect();
        let want: Vec<(u64, Vec<&str>)> = want.map(|(number, cells)| (*number, cells.to_vec())).collect();
        assert_eq!(found, want, "{count} rows from {first}");
    }
}

#[tokio::test]
async fn many_rows_take_few_calls() {
    let stage = Stage::new().await;
    let rows = (0..12_000).map(|number| vec![format!("text {number}")]);
    let sheet = stage.fake.add_sheet(TITLE, rows);
    let pages = SheetPages::new(stage.google.clone(), sheet);
    let rows = pages.rows(0, 12_000).await.unwrap();
    assert_eq!((rows.len(), rows[11_999].cell(0)), (12_000, "text 11999"));
    assert_eq!(stage.fake.calls(CallKind::Read), 3);
}
