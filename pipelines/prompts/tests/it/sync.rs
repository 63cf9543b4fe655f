//! Runs whose requests are sent one by one.

use longhaul_pipeline::RunState;
use longhaul_pipeline::testing::{Halt, Point, Side};
use longhaul_prompts::{Mode, Submission};
use longhaul_sim::{Faults, SimOptions};
use serde_json::json;

use crate::stage::{Stage, prompts, settings};

fn trouble() -> SimOptions {
    let faults = Faults {
        rate_429: 0.05,
        rate_5xx: 0.05,
        // Low enough that no request has three broken answers in a row, after which it would fail.
        rate_malformed: 0.02,
        rate_fenced: 0.05,
        rate_schema_break: 0.03,
        retry_after_ms: 5,
        ..Faults::default()
    };
    SimOptions { faults, ..SimOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn every_request_is_answered_once_and_in_order_on_a_bad_day() {
    let stage = Stage::new(trouble());
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "size": { "type": "integer" } },
        "required": ["name", "size"],
        "additionalProperties": false
    });
    let settings = longhaul_prompts::RunSettings { schema: Some(schema), ..settings(Mode::Sync, "bad day") };
    let requests = prompts(300);
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    for fault in ["throttled", "status_5xx", "malformed", "fenced", "schema_break"] {
        assert!(stats.faults.get(fault).is_some_and(|count| *count > 0), "no {fault} in {stats:?}");
    }
    // A turn that complains is another request: none was sent twice.
    assert_eq!(stats.paid_twice, 0, "{stats:?}");
    let spent = stage.spent(&run).await;
    assert_eq!((spent.calls, spent.open_calls, spent.unknown_calls), (stats.executed, 0, 0));
    assert_eq!(spent.usage.total(), stats.tokens_in + stats.tokens_out);
    assert!(spent.repaired > 0 && spent.throttled > 0, "{spent:?}");
    let progress = stage.progress(&run).await;
    assert_eq!((progress.status, progress.completed, progress.total), (RunState::Completed, 300, 300));
}

#[tokio::test(start_paused = true)]
async fn submitting_again_stores_and_pays_nothing() {
    for mode in [Mode::Sync, Mode::Batch] {
        let stage = Stage::new(SimOptions::default());
        let (settings, requests) = (settings(mode, "again"), prompts(50));
        let mut halfway = Submission::begin(&stage.pipeline, settings.clone()).await.unwrap();
        assert!(!halfway.is_resumed());
        for request in &requests[..20] {
            halfway.push(request.clone()).await.unwrap();
        }
        drop(halfway);
        let run = stage.submit(&settings, &requests).await;
        assert_eq!(run, settings.run_id(), "a run is named by its input and settings");
        let again = stage.submit(&settings, &requests).await;
        assert_eq!((run.clone(), 50), (again, stage.process(&run).await.total()));
        let worker = stage.work(&[&run]);
        stage.ended(&run).await;
        let before = stage.stats();
        stage.submit(&settings, &requests).await;
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        assert_eq!(stage.stats(), before, "{mode}");
        assert!(Submission::begin(&stage.pipeline, settings).await.unwrap().is_complete().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_died_with_its_worker_stays_booked_as_unknown() {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Sync, "killed"), prompts(5));
    let run = stage.submit(&settings, &requests).await;
    stage.double.halt_at(Halt { point: Point::Complete, nth: 3, side: Side::After });
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    stage.until(&run, |info| info.counts[5] == 4).await;
    stage.kill(worker).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let spent = stage.spent(&run).await;
    assert_eq!((spent.calls, spent.unknown_calls, spent.open_calls), (5, 1, 0), "{spent:?}");
    assert!(spent.unknown_ceiling.0 > 0, "it counts at the most it can have cost");
    assert_eq!(stage.stats().paid_twice, 1, "the price of a death in the middle of a call");
}
