//! What a listener hears of a run.

use longhaul_pipeline::testing::{Halt, Point, Side};
use std::sync::Mutex;

use longhaul_pipeline::{RunState, Status};
use longhaul_prompts::{Mode, NewRequest};
use longhaul_sim::SimOptions;
use serde_json::json;

use crate::stage::{Progress, Stage, prompts, settings};

#[derive(Default)]
struct Heard(Mutex<Vec<Status>>);

/// Runs requests while somebody listens.
async fn listened(stage: &Stage, mode: Mode, requests: &[NewRequest], heard: &Heard) {
    let id = stage.submit(&settings(mode, "heard"), requests).await;
    let run = stage.found(&id).await;
    let hears = |status: &Status| heard.0.lock().unwrap().push(status.clone());
    let (last, worker) = tokio::join!(run.watch(hears), async { stage.work(&[&id]) });
    worker.drain().await;
    let heard = heard.0.lock().unwrap();
    assert_eq!(heard.last(), Some(&last.unwrap()));
    assert!(heard.iter().all(|event| event.id == id.as_str()));
    assert!(heard.windows(2).all(|pair| pair[0] != pair[1]), "each event is news");
}

#[tokio::test(start_paused = true)]
async fn each_request_that_is_sent_alone_is_told_of_alone() {
    let stage = Stage::new(SimOptions::default());
    let mut requests = prompts(300);
    requests[4].body["messages"] = json!("none");
    let heard = Heard::default();
    listened(&stage, Mode::Sync, &requests, &heard).await;
    let heard = heard.0.into_inner().unwrap();
    let mut counts: Vec<u64> = heard.iter().map(|status| status.standing.units.ended()).collect();
    assert!(counts.is_sorted());
    counts.dedup();
    assert_eq!(counts, (0..=300).collect::<Vec<_>>(), "none is left out");
    let last = Progress::of(heard.last().unwrap().clone());
    assert_eq!((last.status, last.completed, last.failed), (RunState::PartlyFailed, 299, 1));
}

#[tokio::test(start_paused = true)]
async fn what_the_provider_says_of_a_batch_is_told() {
    let stage = Stage::new(SimOptions::default());
    let run = stage.submit(&settings(Mode::Batch, "heard"), &prompts(300)).await;
    stage.double.halt_at(Halt { point: Point::Poll, nth: 3, side: Side::Before });
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    stage.kill(worker).await;
    let said = stage.progress(&run).await.at_provider;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    assert!(said.is_some_and(|said| said.answered <= 300), "{said:?}");
    assert_eq!(stage.progress(&run).await.at_provider, None, "it has no more to say");
}
