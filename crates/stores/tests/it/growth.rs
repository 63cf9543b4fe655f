//! A file that is filled and emptied again and again stays as large as one round makes it.

use longhaul_queue::EngineStore as _;
use longhaul_queue::Store as _;
use longhaul_queue::testing::bench::{done, job, secs};

use crate::stage::{Stage, check_sound, on_writer};

const ROUNDS: u64 = 20;
const JOBS: u64 = 50;

#[tokio::test]
async fn rounds_of_work_that_is_consumed_do_not_grow_the_file() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    let mut sizes = Vec::new();
    for round in 0..ROUNDS {
        let numbers: Vec<u64> = (round * JOBS..(round + 1) * JOBS).collect();
        bench.add(numbers.iter().map(|number| job(*number).process(format!("p{round}")))).await;
        loop {
            let claimed = bench.claim(5).await;
            if claimed.is_empty() {
                break;
            }
            let items = claimed.iter().map(|claimed| bench.item(claimed, done("1"), Vec::new())).collect();
            store.settle(items, bench.now()).await.expect("settle answers");
            // Events that wait for a later commit are written for a reader.
            store.events(None, 1).await.expect("events answers");
        }
        assert_eq!(bench.delete(&numbers).await.deleted, JOBS);
        bench.pass(secs(1));
        sizes.push(on_writer(&store, "SELECT page_count FROM pragma_page_count").await);
    }
    assert_eq!(sizes[2], sizes[sizes.len() - 1], "pages after each round: {sizes:?}");
    assert_eq!(on_writer(&store, "SELECT count(*) FROM lh_events").await, 1, "the newest, for its number");
    check_sound(&store).await;
}
