//! What one page of an export weighs, and what is left in the file after an import.

use longhaul_queue::testing::bench::{done, id, invalid, job};
use longhaul_queue::testing::export::{as_lines, export_all, import_all};
use longhaul_queue::{EngineStore as _, Json, NewJob, State};

use crate::stage::{Stage, check_sound};

fn text_of(bytes: usize) -> Json {
    Json::of(&"x".repeat(bytes - 2)).expect("a string is JSON")
}

#[tokio::test]
async fn a_page_of_large_values_ends_at_about_8_mb() {
    let stage = Stage::new();
    let store = stage.open();
    let large = |number| NewJob { payload: text_of(900_000), ..job(number) };
    stage.bench(&store).add((1..=20).map(large)).await;
    let (mut sizes, mut after) = (Vec::new(), None);
    loop {
        let page = store.export(after, 500).await.expect("export answers");
        sizes.push(page.pieces.len());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [10, 9, 2], "nine jobs a page, and the first begins with the last place");
}

#[tokio::test]
async fn a_cursor_that_is_none_is_refused() {
    let store = Stage::new();
    let text = invalid(store.open().export(Some("yesterday".to_owned()), 9).await);
    assert!(text.contains("cursor"), "{text}");
}

#[tokio::test]
async fn an_imported_file_is_sound_and_can_be_emptied() {
    let (from, to) = (Stage::new(), Stage::new());
    let bench = from.bench(&from.open());
    bench
        .add([
            job(1).process("p").tag("red"),
            job(2).process("p").after(id(1)),
            job(3).after(id(2)).fair_key("a"),
            job(4).after(id(3)),
            NewJob { payload: text_of(5_000), ..job(5) },
        ])
        .await;
    for number in 1..=2 {
        bench.run(number, done("1")).await;
    }
    let pieces = export_all(bench.store.as_ref()).await;
    let store = to.open();
    import_all(store.as_ref(), pieces.clone()).await;
    check_sound(&store).await;
    assert_eq!(as_lines(&export_all(store.as_ref()).await), as_lines(&pieces));

    let bench = to.bench(&store);
    for number in [3, 4, 5] {
        bench.run(number, done("1")).await;
    }
    bench.expect(&[(4, State::Succeeded)]).await;
    assert_eq!(bench.delete(&[1, 2, 3, 4, 5]).await.deleted, 5);
    check_sound(&store).await;
    let side_tables =
        ["lh_jobs", "lh_bodies", "lh_edges", "lh_results", "lh_runs", "lh_tags", "lh_processes"];
    for table in side_tables {
        let sql = format!("SELECT count(*) FROM {table}");
        let left: i64 = to.connection().query_row(&sql, [], |row| row.get(0)).expect("a number");
        assert_eq!(left, 0, "{table}");
    }
}

/// A child may have been given its place before its parent, and come in an earlier call.
#[tokio::test]
async fn a_parent_that_comes_after_its_child_still_releases_it() {
    let (from, to) = (Stage::new(), Stage::new());
    let bench = from.bench(&from.open());
    bench.add([job(1).after(id(2)), job(2)]).await;
    let store = to.open();
    for piece in export_all(bench.store.as_ref()).await {
        store.import(vec![piece]).await.expect("import answers");
    }
    let bench = to.bench(&store);
    bench.run(2, done("2")).await;
    assert_eq!(bench.state(1).await, State::Ready);
    assert_eq!(bench.claim(1).await[0].parents[0].job_id, id(2));
    check_sound(&store).await;
}
