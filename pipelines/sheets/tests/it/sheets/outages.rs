//! Bad days of Google, and what a repetition does after them.

use std::time::Duration;

use longhaul_sheets::google::fake::{SPREADSHEET, SheetsFault};
use longhaul_sheets::google::{CallKind, SheetPages, SheetsSink};
use longhaul_sheets::places::{Fate, Pages as _, Sink as _, SinkError, SinkRow};
use longhaul_sheets::settings::Existing;

use super::{Stage, TITLE, outage, row, write};

#[tokio::test]
async fn a_write_whose_acknowledgement_is_lost_is_repeated_to_the_same_sheet() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text"], &["a", "b"]);
    let sink = stage.sink(&sheet, &["Joy", "Fear"]);
    let rows = [row(1, "a", &[0.1, 0.2]), row(2, "b", &[0.3, 0.4])];
    stage.fake.fail_at(CallKind::Write, 1, SheetsFault::LostAnswer);
    let (message, retry_after) = outage(sink.write(&rows).await);
    assert!(message.contains("cannot reach Google Sheets") && retry_after.is_none(), "{message}");
    let after_the_first = stage.lines();
    assert_eq!(after_the_first, ["text|Joy|Fear", "a|0.1|0.2", "b|0.3|0.4"], "it was done all the same");

    assert_eq!(write(&sink, &rows).await, [Fate::Written; 2]);
    let again = stage.sink(&sheet, &["Joy", "Fear"]);
    assert_eq!(write(&again, &rows).await, [Fate::Written; 2]);
    assert_eq!(stage.lines(), after_the_first);
    assert_eq!(stage.fake.calls(CallKind::Write), 1);
}

#[tokio::test]
async fn what_time_heals_is_told_with_the_time_it_takes() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let sink = stage.sink(&sheet, &["Joy"]);
    let rows = [row(1, "a", &[0.1])];
    let wait = Some(Duration::from_secs(7));
    for (kind, fault, want, want_wait) in [
        (CallKind::Write, SheetsFault::TooMany(wait), "429", wait),
        (CallKind::Read, SheetsFault::TooMany(None), "429", None),
        (CallKind::Write, SheetsFault::Status(503), "503", None),
        (CallKind::Read, SheetsFault::Status(500), "500", None),
        (CallKind::Read, SheetsFault::LostAnswer, "cannot reach", None),
    ] {
        stage.fake.fail_at(kind, 1, fault);
        let (message, retry_after) = outage(sink.write(&rows).await);
        assert!(message.contains(want), "{message}");
        assert_eq!(retry_after, want_wait, "{message}");
    }
    assert_eq!(stage.lines()[1], "a");
    assert_eq!(write(&sink, &rows).await, [Fate::Written]);
}

#[tokio::test]
async fn a_call_that_hangs_ends_in_time() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let google = stage.google(|options| options.answer_wait = Duration::from_millis(300));
    let setup =
        stage.setup(&sheet, &super::Layout::Columns { text: "text".to_owned() }, &["Joy"], Existing::Keep);
    let sink = SheetsSink::new(google, setup);
    stage.fake.fail_at(CallKind::Write, 1, SheetsFault::Hang);
    let (message, _) = outage(sink.write(&[row(1, "a", &[0.1])]).await);
    assert!(message.contains("did not answer in time"), "{message}");
}

#[tokio::test]
async fn nobody_listening_is_an_outage() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let sink = stage.sink(&sheet, &["Joy"]);
    let Stage { fake, .. } = stage;
    drop(fake);
    let (message, _) = outage(sink.write(&[row(1, "a", &[0.1])]).await);
    assert!(message.contains("token service"), "{message}");
}

#[tokio::test]
async fn through_many_faults_every_cell_ends_right() {
    let stage = Stage::new().await;
    let texts: Vec<String> = (0..300).map(|number| format!("text {number}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let sheet = stage.texts(&["text", "Joy"], &texts);
    for (seed, fault) in
        (1..).zip([SheetsFault::LostAnswer, SheetsFault::Status(502), SheetsFault::TooMany(None)])
    {
        stage.fake.fail_some(CallKind::Write, 0.2, fault, seed);
        stage.fake.fail_some(CallKind::Read, 0.1, fault, seed + 10);
    }
    let mut outages = 0;
    for part in 0..30_u64 {
        // Each part by another process, as after a crash.
        let sink = stage.sink(&sheet, &["Joy", "Fear"]);
        let rows: Vec<SinkRow> = (part * 10 + 1..=part * 10 + 10)
            .map(|number| row(number, texts[number as usize - 1], &[number as f64, 0.5]))
            .collect();
        loop {
            match sink.write(&rows).await {
                Ok(fates) => break assert_eq!(fates, [Fate::Written; 10]),
                Err(SinkError::Outage { .. }) => outages += 1,
                Err(SinkError::Refused(text)) => panic!("{text}"),
            }
        }
    }
    assert!(outages > 10, "{outages} outages");
    let lines = stage.lines();
    assert_eq!(lines[0], "text|Joy|Fear");
    for (number, line) in lines.iter().enumerate().skip(1) {
        assert_eq!(*line, format!("{}|{number}.0|0.5", texts[number - 1]));
    }
    assert_eq!((lines.len(), stage.fake.beyond_quota()), (301, 0));
}

/// One bad answer among the pages of a large sheet is no reason to begin anew.
#[tokio::test]
async fn a_read_that_somebody_waits_for_is_tried_again() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text"], &["a", "b"]);
    stage.fake.fail_at(CallKind::Read, 1, SheetsFault::Status(503));
    stage.fake.fail_at(CallKind::Read, 3, SheetsFault::Status(500));
    let found = stage.google.find(&format!("sheets://{SPREADSHEET}/{TITLE}").parse().unwrap()).await.unwrap();
    assert_eq!(found.sheet, sheet);
    let rows = SheetPages::new(stage.google.clone(), sheet).rows(0, 3).await.unwrap();
    assert_eq!((rows.len(), stage.fake.calls(CallKind::Read)), (3, 4));
}
