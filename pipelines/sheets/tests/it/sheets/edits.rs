//! People who work in a sheet while it is scored.

use longhaul_sheets::Layout;
use longhaul_sheets::google::{CallKind, SheetsSink};
use longhaul_sheets::places::{Fate, Sink as _};
use longhaul_sheets::settings::Existing;

use super::{Stage, TITLE, refused, row, write};

#[tokio::test]
async fn a_row_whose_text_was_edited_is_left_alone() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a", "b", "c"]);
    let sink = stage.sink(&sheet, &["Joy"]);
    stage.fake.set(TITLE, (2, 0), "b, but better");
    let rows = [row(1, "a", &[0.1]), row(2, "b", &[0.2]), row(3, "c", &[0.3])];
    assert_eq!(write(&sink, &rows).await, [Fate::Written, Fate::Edited, Fate::Written]);
    assert_eq!(stage.lines(), ["text|Joy", "a|0.1", "b, but better", "c|0.3"]);
}

#[tokio::test]
async fn a_score_that_somebody_typed_is_kept() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy", "Fear"], &["a", "b", "c"]);
    let rows = [row(1, "a", &[0.1, 0.2]), row(2, "b", &[0.3, 0.4]), row(3, "c", &[0.5, 0.6])];
    stage.fake.set(TITLE, (1, 2), "mine");
    // The very value that would be written is no reason to stop.
    stage.fake.set(TITLE, (2, 1), "0.3");
    let sink = stage.sink(&sheet, &["Joy", "Fear"]);
    assert_eq!(write(&sink, &rows).await, [Fate::Edited, Fate::Written, Fate::Written]);
    assert_eq!(stage.lines(), ["text|Joy|Fear", "a||mine", "b|0.3|0.4", "c|0.5|0.6"]);

    let sink = stage.sink_with(&sheet, &["Joy", "Fear"], Existing::Overwrite);
    assert_eq!(write(&sink, &rows).await, [Fate::Written; 3]);
    assert_eq!(stage.lines()[1], "a|0.1|0.2");
}

#[tokio::test]
async fn a_write_with_nothing_to_write_makes_no_call() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text"], &["a"]);
    let sink = stage.sink(&sheet, &["Joy"]);
    stage.fake.set(TITLE, (1, 0), "z");
    assert_eq!(write(&sink, &[row(1, "a", &[0.1])]).await, [Fate::Edited]);
    assert_eq!(stage.fake.calls(CallKind::Write), 0);
    assert_eq!(stage.lines(), ["text", "z"], "and no head either");
}

#[tokio::test]
async fn a_column_that_was_inserted_or_moved_does_not_shift_writes() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy", "Fear"], &["a", "b", "c", "d"]);
    let sink = stage.sink(&sheet, &["Joy", "Fear"]);
    write(&sink, &[row(1, "a", &[0.1, 0.2])]).await;
    stage.fake.insert_column(TITLE, 0);
    stage.fake.set(TITLE, (2, 0), "note");
    write(&sink, &[row(2, "b", &[0.3, 0.4])]).await;
    stage.fake.move_column(TITLE, 3, 1);
    write(&sink, &[row(3, "c", &[0.5, 0.6])]).await;
    stage.fake.insert_column(TITLE, 2);
    write(&sink, &[row(4, "d", &[0.7, 0.8])]).await;
    assert_eq!(
        stage.lines(),
        ["|Fear||text|Joy", "|0.2||a|0.1", "note|0.4||b|0.3", "|0.6||c|0.5", "|0.8||d|0.7"]
    );
    assert_eq!((stage.fake.calls(CallKind::Read), stage.fake.calls(CallKind::Write)), (7, 4));
}

#[tokio::test]
async fn a_head_that_is_gone_stops_and_is_named() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a"]);
    let sink = stage.sink(&sheet, &["Joy"]);
    stage.fake.set(TITLE, (0, 1), "Glee");
    let text = refused(sink.write(&[row(1, "a", &[0.1])]).await);
    assert!(text.contains("\"Joy\"") && text.contains("text, Glee"), "{text}");
    stage.fake.set(TITLE, (0, 1), "Joy");
    stage.fake.set(TITLE, (0, 0), "words");
    let text = refused(sink.write(&[row(1, "a", &[0.1])]).await);
    assert!(text.contains("\"text\""), "{text}");
    assert_eq!(stage.lines()[1], "a");
}

#[tokio::test]
async fn inserted_and_deleted_rows_are_never_written_over() {
    let stage = Stage::new().await;
    let sheet = stage.texts(&["text", "Joy"], &["a", "b", "c"]);
    let sink = stage.sink(&sheet, &["Joy"]);
    let rows = [row(1, "a", &[0.1]), row(2, "b", &[0.2]), row(3, "c", &[0.3])];
    stage.fake.insert_row(TITLE, 2);
    assert_eq!(write(&sink, &rows).await, [Fate::Written, Fate::Edited, Fate::Edited]);
    assert_eq!(stage.lines(), ["text|Joy", "a|0.1", "", "b", "c"]);
    // Rows at the end of the grid are gone altogether.
    for _ in 0..3 {
        stage.fake.delete_row(TITLE, 2);
    }
    assert_eq!(write(&sink, &rows).await, [Fate::Written, Fate::Edited, Fate::Edited]);
    assert_eq!(stage.lines(), ["text|Joy", "a|0.1"]);
}

#[tokio::test]
async fn the_layout_with_heads_in_the_sheet_finds_its_columns_too() {
    let stage = Stage::new().await;
    let sheet = stage.fake.add_sheet(
        TITLE,
        [
            vec!["", "", "", "", ""],
            vec!["", "", "", "Joy", "Fear"],
            vec!["", "", "", "is glad", "is afraid"],
            vec!["", "", "", "", ""],
            vec!["1", "x", "a"],
            vec!["2", "x", "b"],
            vec!["3", "x", "c"],
        ],
    );
    let setup = stage.setup(&sheet, &Layout::sheet(), &[], Existing::Keep);
    let sink = SheetsSink::new(stage.google.clone(), setup);
    write(&sink, &[row(4, "a", &[0.1, 0.2])]).await;
    assert_eq!(stage.lines()[4], "1|x|a|0.1|0.2");
    // The column of the text has no name: it is known by its texts.
    stage.fake.insert_column(TITLE, 1);
    assert_eq!(write(&sink, &[row(5, "b", &[0.3, 0.4])]).await, [Fate::Written]);
    stage.fake.move_column(TITLE, 3, 0);
    assert_eq!(write(&sink, &[row(6, "c", &[0.5, 0.6])]).await, [Fate::Written]);
    assert_eq!(stage.lines()[4..], ["a|1||x|0.1|0.2", "b|2||x|0.3|0.4", "c|3||x|0.5|0.6"]);
    stage.fake.set(TITLE, (5, 0), "B");
    assert_eq!(write(&sink, &[row(5, "b", &[0.9, 0.9])]).await, [Fate::Edited]);
}
