//! What is written where, with how many calls, and how many a minute.

use longhaul_sheets::google::fake::QUOTA;
use longhaul_sheets::google::{CALLS_PER_MINUTE, CallKind, SheetsSink, UNITS_AT_ONCE, UNITS_AT_ONCE_MAX};
use longhaul_sheets::places::{Fate, Sink as _, SinkRow};
use longhaul_sheets::settings::Existing;
use serde_json::{Value, json};

use super::{Stage, TITLE, outage, row, write};

#[tokio::test]
async fn a_write_is_one_look_and_one_call() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy", "Fear"], &["a", "b", "c"]);
    let sink = stage.sink(&sheet, &["Joy", "Fear"]);
    let rows = [row(1, "a", &[0.1, 0.2]), row(2, " b ", &[0.3, 1.0]), row(3, "c", &[0.5])];
    assert_eq!(write(&sink, &rows).await, [Fate::Written; 3]);
    assert_eq!(stage.lines(), ["text|Joy|Fear", "a|0.1|0.2", "b|0.3|1.0", "c|0.5"]);
    assert_eq!((stage.fake.calls(CallKind::Read), stage.fake.calls(CallKind::Write)), (1, 1));
    assert_eq!(write(&sink, &[]).await, []);
}

#[tokio::test]
async fn columns_that_are_not_there_yet_get_their_heads_behind_the_last() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy", "note"], &["a", "b"]);
    let setup = stage.setup(&sheet, &layout(), &["Fear", "Joy", "Rage"], Existing::Overwrite);
    let sink = SheetsSink::new(stage.google.clone(), setup.clone());
    write(&sink, &[row(1, "a", &[0.1, 0.2, 0.3])]).await;
    write(&sink, &[row(2, "b", &[0.4, 0.5, 0.6])]).await;
    assert_eq!(stage.lines(), ["text|Joy|note|Fear|Rage", "a|0.2||0.1|0.3", "b|0.5||0.4|0.6"]);
    assert_eq!(stage.fake.calls(CallKind::Write), 2);
    // A new process finds the columns that the old one made, though its plan is from before.
    let again = SheetsSink::new(stage.google(|_| {}), setup);
    write(&again, &[row(1, "a", &[0.7, 0.8, 0.9])]).await;
    assert_eq!(stage.lines()[..2], ["text|Joy|note|Fear|Rage", "a|0.8||0.7|0.9"]);
}

fn layout() -> longhaul_sheets::Layout {
    longhaul_sheets::Layout::Columns { text: "text".to_owned() }
}

#[tokio::test]
async fn new_columns_keep_clear_of_values_without_a_head_and_get_room() {
    let stage = Stage::new().await;
    let sheet = stage.fake.add_sheet(TITLE, [vec!["text"], vec!["a"], vec!["b", "", "somebody's"]]);
    let sink = stage.sink(&sheet, &["Joy", "Fear"]);
    write(&sink, &[row(1, "a", &[0.1, 0.2])]).await;
    assert_eq!(stage.lines(), ["text|||Joy|Fear", "a|||0.1|0.2", "b||somebody's"]);
}

#[tokio::test]
async fn values_of_all_kinds_become_cells() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "A", "B", "C", "D"], &["a"]);
    let sink = stage.sink(&sheet, &["A", "B", "C", "D"]);
    let values = [json!("=1+1"), json!(true), json!(["x", 1]), json!("y".repeat(60_000))];
    let cells: Vec<(usize, Value)> = values.into_iter().enumerate().collect();
    let rows = [SinkRow { number: 1, text: "a".to_owned(), cells }];
    for _ in 0..2 {
        assert_eq!(write(&sink, &rows).await, [Fate::Written]);
    }
    assert_eq!(stage.fake.cell(TITLE, 1, 1), "=1+1");
    assert_eq!(stage.fake.cell(TITLE, 1, 2), true);
    assert_eq!(stage.fake.cell(TITLE, 1, 3), r#"["x",1]"#);
    assert!(
        stage
            .fake
            .cell(TITLE, 1, 4)
            .as_str()
            .is_some_and(|text| text.ends_with("(cut: a cell holds no more)"))
    );
    assert_eq!(stage.fake.calls(CallKind::Write), 1, "the second time all of it was there");
}

#[tokio::test]
async fn blanks_never_overwrite() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy", "Fear"], &["a"]);
    stage.fake.set(TITLE, (1, 1), 0.9);
    let sink = stage.sink_with(&sheet, &["Joy", "Fear"], Existing::Overwrite);
    let cells = vec![(0, Value::Null), (1, json!(0.2))];
    write(&sink, &[SinkRow { number: 1, text: "a".to_owned(), cells }]).await;
    assert_eq!(stage.lines()[1], "a|0.9|0.2");
}

#[tokio::test]
async fn a_large_write_is_parted() {
    let stage = Stage::new().await;
    let texts: Vec<String> = (0..2_400).map(|number| format!("text {number}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let sheet = stage.texts(&["text", "Joy"], &texts);
    let sink = stage.sink(&sheet, &["Joy"]);
    // Every other row: no two of them make one range.
    let rows: Vec<SinkRow> =
        (1..2_400).step_by(2).map(|number| row(number, texts[number as usize - 1], &[0.5])).collect();
    assert_eq!(write(&sink, &rows).await.len(), 1_200);
    assert_eq!((stage.fake.calls(CallKind::Read), stage.fake.calls(CallKind::Write)), (1, 3));
    let reasons: Vec<SinkRow> = (1..=100)
        .map(|number: u64| {
            let cells = vec![(0, Value::from("why ".repeat(10_000)))];
            SinkRow { number, text: texts[number as usize - 1].to_owned(), cells }
        })
        .collect();
    let sink = stage.sink_with(&sheet, &["Joy"], Existing::Overwrite);
    write(&sink, &reasons).await;
    assert!(stage.fake.calls(CallKind::Write) >= 3 + 3, "4 MB are at least three calls");
    assert!(
        (1..=100).all(|row| stage.fake.cell(TITLE, row, 1).as_str().is_some_and(|text| text.len() == 40_000))
    );
}

#[tokio::test]
async fn more_are_taken_at_once_when_more_wait() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let sink = stage.sink_with(&sheet, &["Joy"], Existing::Overwrite);
    for (waiting, want) in [(0, 50), (50, 50), (51, 51), (700, 700), (1_000_000, UNITS_AT_ONCE_MAX)] {
        assert_eq!(sink.units_at_once(waiting), want);
    }
    let long = vec![(0, Value::from("x".repeat(49_000)))];
    write(&sink, &[SinkRow { number: 1, text: "a".to_owned(), cells: long }]).await;
    assert_eq!(sink.units_at_once(1_000_000), UNITS_AT_ONCE, "long answers fill a request early");
}

#[tokio::test]
async fn two_processes_together_never_exceed_the_quota() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let setup = stage.setup(&sheet, &layout(), &["Joy"], Existing::Overwrite);
    let start = stage.clock.0.lock().unwrap().as_millis();
    let writes = 100;
    for restart in 0..3 {
        let sinks =
            [stage.google(|_| {}), stage.google(|_| {})].map(|google| SheetsSink::new(google, setup.clone()));
        for number in 0..writes {
            for sink in &sinks {
                write(sink, &[row(1, "a", &[f64::from(restart * writes + number)])]).await;
                // Each writes another value than the other, so that there is always something to write.
                stage.fake.set(TITLE, (1, 1), "typed over");
            }
        }
    }
    let calls = stage.fake.calls(CallKind::Write);
    assert_eq!((calls, stage.fake.beyond_quota()), (600, 0));
    for kind in [CallKind::Read, CallKind::Write] {
        let busiest = stage.fake.busiest_minute(kind);
        assert!(busiest <= QUOTA, "{busiest} {kind:?}");
        assert!(busiest >= CALLS_PER_MINUTE as usize - 1, "what Google gives is used: {busiest} {kind:?}");
    }
    let minutes = (stage.clock.0.lock().unwrap().as_millis() - start) as f64 / 60_000.0;
    assert!(calls as f64 / minutes > 50.0, "{calls} calls in {minutes} minutes");
}

#[tokio::test]
async fn one_process_writes_evenly_and_not_in_bursts() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let sink = stage.sink_with(&sheet, &["Joy"], Existing::Overwrite);
    for number in 0..200 {
        write(&sink, &[row(1, "a", &[f64::from(number)])]).await;
    }
    let times = stage.fake.call_times(CallKind::Write);
    let longest = times.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
    assert!(longest.as_secs() < 3, "a pause of {longest:?}: models would wait for it");
    assert_eq!(stage.fake.beyond_quota(), 0);
}

#[tokio::test]
async fn clients_that_do_not_count_together_are_stopped_by_the_server() {
    let stage = Stage::new().await;
    let other = stage.stranger().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let setup = stage.setup(&sheet, &layout(), &["Joy"], Existing::Overwrite);
    let sinks = [stage.google.clone(), other].map(|google| SheetsSink::new(google, setup.clone()));
    let mut stopped = 0;
    for number in 0..60 {
        for sink in &sinks {
            match sink.write(&[row(1, "a", &[f64::from(number)])]).await {
                Ok(_) => stage.fake.set(TITLE, (1, 1), "typed over"),
                error => {
                    let (message, _) = outage(error);
                    assert!(message.contains("429"), "{message}");
                    stopped += 1;
                }
            }
        }
    }
    assert!(stopped > 0 && stage.fake.beyond_quota() == stopped, "{stopped} stopped");
    assert!(stage.fake.busiest_minute(CallKind::Read) <= QUOTA);
}
