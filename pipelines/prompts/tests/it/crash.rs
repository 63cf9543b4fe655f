//! Batch runs whose worker dies: wherever it happens, the provider gets one batch, every request has one answer, and what
//! it cost is booked once.

use longhaul_pipeline::testing::{Halt, Point, Side};
use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::Totals;
use longhaul_prompts::Mode;
use longhaul_queue::testing::{Fault, FaultyStore};
use longhaul_queue::{EngineStore, WorkerOptions};
use longhaul_sim::SimOptions;

use crate::stage::{Stage, prompts, settings, work};

const REQUESTS: usize = 12;

/// What a batch run costs when nothing happens.
async fn undisturbed() -> Totals {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Batch, "undisturbed"), prompts(REQUESTS));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let (stats, spent) = (stage.stats(), stage.spent(&run).await);
    assert_eq!((stats.batches_created, stats.lines_executed, stats.calls), (1, REQUESTS as u64, 0));
    assert_eq!((spent.calls, spent.answers, spent.open_calls), (REQUESTS as u64, REQUESTS as u64, 0));
    assert!(spent.cost.0 > 0);
    spent
}

#[tokio::test(start_paused = true)]
async fn a_batch_brings_every_answer_at_half_the_price() {
    let spent = undisturbed().await;
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Sync, "undisturbed"), prompts(REQUESTS));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    let alone = stage.spent(&run).await;
    assert_eq!(alone.usage, spent.usage);
    assert_eq!(spent.cost.0 * 2, alone.cost.0, "{spent:?} {alone:?}");
}

/// Lives through a run whose worker dies at `halt`; true when it was reached.
async fn dies_at(halt: Halt, expected: &Totals) -> bool {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Batch, "dies"), prompts(REQUESTS));
    let run = stage.submit(&settings, &requests).await;
    stage.double.halt_at(halt);
    let worker = stage.work(&[&run]);
    tokio::select! {
        () = stage.double.halted() => {}
        () = stage.ended(&run) => return false,
    }
    stage.kill(worker).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    let (lines, calls) = (stats.lines_executed, stats.calls);
    assert_eq!((stats.batches_created, lines, calls), (1, REQUESTS as u64, 0), "{halt:?}");
    assert_eq!(stage.spent(&run).await, *expected, "{halt:?}");
    true
}

#[tokio::test(start_paused = true)]
async fn a_worker_may_die_at_any_call_of_the_provider() {
    let expected = undisturbed().await;
    let mut reached = 0;
    for point in [Point::Upload, Point::Create, Point::Poll, Point::Results, Point::Line] {
        for nth in 1.. {
            let mut here = false;
            for side in [Side::Before, Side::After] {
                here |= dies_at(Halt { point, nth, side }, &expected).await;
            }
            if !here {
                assert!(nth > 1, "{point:?} was never reached");
                break;
            }
            reached += 1;
        }
    }
    assert!(reached > 2 * REQUESTS, "{reached}");
}

#[tokio::test(start_paused = true)]
async fn a_store_may_fail_at_any_call() {
    for number in 1.. {
        let mut calls = 0;
        for fault in [Fault::Before, Fault::After] {
            let stage = Stage::new(SimOptions::default());
            let faulty = Arc::new(FaultyStore::new(Arc::clone(&stage.store)));
            let stage = stage.seen_through(Arc::clone(&faulty) as Arc<dyn EngineStore>);
            let (settings, requests) = (settings(Mode::Batch, "faulty"), prompts(4));
            let run = stage.submit(&settings, &requests).await;
            let before = faulty.calls();
            faulty.fail_call(before + number, fault);
            // Short, because a claim whose reply is lost must run out although its worker lives on.
            let lease = Duration::from_secs(3600);
            let options = WorkerOptions { lease, ..WorkerOptions::default() };
            let worker = work((&stage.engine(), &stage.pipeline), &[&run], options);
            stage.ended(&run).await;
            calls = faulty.calls() - before;
            worker.drain().await;
            stage.all_right(&run, &settings, &requests).await;
            let (stats, spent) = (stage.stats(), stage.spent(&run).await);
            let seen = (stats.batches_created, stats.lines_executed, stats.calls);
            assert_eq!(seen, (1, 4, 0), "call {number}, {fault:?}");
            assert_eq!((spent.calls, spent.answers, spent.open_calls, spent.unknown_calls), (4, 4, 0, 0));
        }
        if number > calls {
            break;
        }
    }
}
