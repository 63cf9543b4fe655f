//! A Google sheet, scored by the real binary against a server that speaks the real API. Its quota goes by the clock on the
//! wall, so these tests make few calls.

use longhaul_sheets::google::CallKind;
use longhaul_sheets::google::fake::{EMAIL, FakeSheets, SPREADSHEET, Sharing, SheetsFault};
use serde_json::Value;

use super::{Witness, count, right, start, status, stored, write_rubric};
use crate::llm::sim::{Desk, Sim};
use crate::workers::until;

const TITLE: &str = "Reviews";
const CATEGORIES: usize = 4;
/// More by this variable: the quota makes 50 kills take several minutes.
const KILLS_NAME: &str = "SHEET_KILLS";
const KILLS: u64 = 5;

fn text(row: u64) -> String {
    format!("Review {row}: the delivery was late")
}

/// A sheet with a head and so many texts, and a place whose settings lead to it.
async fn with_sheet(rows: u64, options: &str) -> (FakeSheets, Sim, Desk, String) {
    let (sim, mut desk) = start(options);
    let fake = FakeSheets::start().await.expect("the fake listens");
    let head = vec![Value::from("text"), Value::from("note")];
    let texts = (1..=rows).map(|row| vec![Value::from(text(row)), Value::from("kept")]);
    fake.add_sheet(TITLE, std::iter::once(head).chain(texts));
    let key = fake.key_file(&desk.place.path("")).expect("a key file");
    desk.set("LONGHAUL_GOOGLE__KEY_FILE", key.to_str().expect("a path"));
    desk.set("LONGHAUL_GOOGLE__BASE_URL", &fake.url());
    write_rubric(&desk, CATEGORIES);
    (fake, sim, desk, format!("sheets://{SPREADSHEET}/{TITLE}"))
}

/// Two categories a request: two units a row.
fn args(address: &str) -> [&str; 8] {
    ["score", address, "--text-column", "text", "--rubric", "rubric.toml", "--batch-size", "2"]
}

/// Column of each head.
fn column(values: &[Vec<Value>], head: &str) -> usize {
    values[0].iter().position(|found| found == head).unwrap_or_else(|| panic!("no {head} in {:?}", values[0]))
}

/// Demands all scores in a row, wherever their columns are by now.
fn row_is_right(desk: &Desk, values: &[Vec<Value>], row: u64) {
    let cells = right(&stored(desk), &text(row));
    for (target, cell) in cells.iter().enumerate() {
        let found = &values[row as usize][column(values, &super::name(target))];
        assert_eq!(found.as_f64(), cell.as_f64(), "row {row}, category {target}");
    }
    assert_eq!(values[row as usize][column(values, "note")], "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_lost_acknowledgements_leave_every_cell_right() {
    let kills = std::env::var(KILLS_NAME).ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let log = tempfile::NamedTempFile::new().expect("a file");
    // So many that the last kill still finds work.
    let rows = kills * 60;
    let (fake, sim, desk, address) = with_sheet(
        rows,
        &format!(
            r#","log":{:?},"latency":{{"base_ms":40}},
               "faults":{{"rate_5xx":0.02,"rate_schema_break":0.04,"rate_malformed":0.04,"calm_after":3}}"#,
            log.path()
        ),
    )
    .await;
    fake.fail_some(CallKind::Write, 0.3, SheetsFault::LostAnswer, seed);
    fake.fail_some(CallKind::Write, 0.1, SheetsFault::Status(503), seed);
    fake.fail_some(CallKind::Read, 0.05, SheetsFault::Status(500), seed);
    let args = [&args(&address)[..], &["--concurrency", "3"]].concat();
    let (mut witness, mut at_work, mut at_writes) = (Witness::default(), 0, 0);
    for _ in 0..kills {
        let (asked, written) = (sim.count("executed"), fake.calls(CallKind::Write));
        // Some kills hit the time of asking, some the moment of a write.
        let asks = random.bool().then(|| asked + random.u64(0..50));
        let mut run = desk.start(&args);
        until("the moment of a kill", || {
            let there = asks.is_some_and(|asks| sim.count("executed") >= asks);
            there || fake.calls(CallKind::Write) > written || run.has_ended()
        });
        at_work += u64::from(!run.has_ended());
        at_writes += u64::from(fake.calls(CallKind::Write) > written);
        run.kill();
        witness.look(&sim, &desk, text);
    }
    eprintln!("{} of {} units durable after the last kill", witness.durable.len(), rows * 2);
    let ran = desk.ok(&args);
    witness.look(&sim, &desk, text);
    assert_eq!(witness.durable.len() as u64, rows * 2, "every unit has one answer");
    let values = fake.values(TITLE);
    (1..=rows).for_each(|row| row_is_right(&desk, &values, row));
    assert_eq!(values[0].len(), 2 + CATEGORIES, "heads are written once");

    let status = status(&desk);
    let [unknown, lost] = [&status["spent"]["unknown_calls"], &status["details"]["lost_calls"]].map(count);
    let busiest = fake.busiest_minute(CallKind::Write);
    eprintln!(
        "{at_work} of {kills} kills at work, {at_writes} at a write; {} units, {} executed, {unknown} cut off, {lost} lost; \
         {} writes, {} reads, {busiest} writes in the busiest minute",
        rows * 2,
        sim.count("executed"),
        fake.calls(CallKind::Write),
        fake.calls(CallKind::Read)
    );
    assert_eq!((at_work, unknown), (kills, witness.under_way.len() as u64), "{status}");
    assert_eq!(unknown > 0, ran.stdout.contains("may have been billed"), "{ran:?}");
    assert!(sim.count("executed") <= count(&status["details"]["asked"]) + unknown + lost, "{status}");
    assert_eq!(fake.beyond_quota(), 0);
    assert!(busiest <= 60, "{busiest} writes in a minute");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_change_meanwhile_is_left_alone_and_found_again() {
    const ROWS: u64 = 120;
    let (fake, sim, desk, address) = with_sheet(ROWS, r#","latency":{"base_ms":30}"#).await;
    let args = [&args(&address)[..], &["--chunk-rows", "50", "--concurrency", "2"]].concat();
    let mut run = desk.start(&args);
    until("the first scores", || fake.values(TITLE)[0].iter().any(|head| head == "cat1"));
    // The text of a late row, a score of one's own in another, and a column that is somewhere else now.
    fake.set(TITLE, (110, 0), "Somebody changed this");
    let values = fake.values(TITLE);
    fake.set(TITLE, (111, column(&values, "cat1")), "mine");
    let last = values[0].len() - 1;
    fake.move_column(TITLE, 0, last);
    fake.insert_column(TITLE, 0);
    until("its end", || run.has_ended());
    let values = fake.values(TITLE);
    for row in (1..=ROWS).filter(|row| ![110, 111].contains(row)) {
        row_is_right(&desk, &values, row);
    }
    let blank = |row: usize, head: &str| {
        values[row].get(column(&values, head)).is_none_or(|cell| cell.is_null() || cell == "")
    };
    assert_eq!(values[110][column(&values, "text")], "Somebody changed this");
    assert!((0..CATEGORIES).all(|target| blank(110, &super::name(target))), "{:?}", values[110]);
    assert_eq!(values[111][column(&values, "cat1")], "mine");
    let status = status(&desk);
    assert_eq!(status["state"], "completed", "{status}");
    assert_eq!(
        count(&status["details"]["written"]) + count(&status["details"]["edited"]),
        ROWS * 2,
        "{status}"
    );
    assert!(count(&status["details"]["edited"]) >= 3, "{status}");
    assert_eq!((sim.count("executed"), fake.beyond_quota()), (ROWS * 2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sheet_that_nobody_shared_says_with_whom_to_share_it() {
    let (fake, sim, mut desk, address) = with_sheet(3, "").await;
    fake.share(Sharing::Nobody);
    desk.run(&args(&address)).fails(5, &[EMAIL]);
    fake.share(Sharing::Editor);
    desk.run(&args(&format!("sheets://{SPREADSHEET}/Gone"))).fails(5, &["Gone", TITLE]);
    let wrong = fake.wrong_key_file(&desk.place.path("")).expect("a key file");
    desk.set("LONGHAUL_GOOGLE__KEY_FILE", wrong.to_str().expect("a path"));
    desk.run(&args(&address)).fails(5, &["key"]);
    assert_eq!(sim.count("calls"), 0);
}
