//! The duties: each does what is due, and sleeps until more is.

use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::maintenance::{Duty, Maintenance, MaintenanceOptions, Promoter, Pruner, Rescuer};
use longhaul_queue::state::Reason;
use longhaul_queue::store::ClaimRequest;
use longhaul_queue::{Clock, Json, NewJob, State};

use crate::stage::{Stage, soon};

#[tokio::test]
async fn duties_move_what_time_moves_as_it_passes() {
    let stage = Stage::new();
    let maintenance = Maintenance::spawn(&stage.queue, MaintenanceOptions::default());
    let later = stage.clock.now() + Duration::from_secs(3);
    let scheduled = stage.enqueue_job(NewJob::new("job", Json::null()).run_at(later)).await;
    stage.clock.advance(Duration::from_secs(3));
    stage.until(scheduled, State::Ready).await;

    stage.store.claim(claim(&stage)).await.unwrap();
    stage.clock.advance(Duration::from_secs(61));
    let rescued = stage.until(scheduled, State::Scheduled).await.job;
    assert_eq!(rescued.error.unwrap().reason, Reason::Crash);
    stage.clock.advance(Duration::from_secs(1));
    stage.until(scheduled, State::Ready).await;
    soon(maintenance.stop()).await;
}

fn claim(stage: &Stage) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new("w-dead"),
        limit: 1,
        suspects_max: 1,
        lease_for: Duration::from_secs(60),
        now: stage.clock.now(),
    }
}

#[tokio::test]
async fn one_sweep_says_what_it_did_and_when_to_come_back() {
    let stage = Stage::new();
    let options = MaintenanceOptions::default();
    let at = stage.clock.now() + Duration::from_secs(5);
    stage.enqueue_job(NewJob::new("job", Json::null()).run_at(at)).await;
    let promoter = Promoter::new(stage.queue.clone(), options.promoter);
    let swept = promoter.run_once().await.unwrap();
    assert_eq!((swept.changed, swept.next_at), (0, Some(at)));
    stage.clock.advance(Duration::from_secs(5));
    assert_eq!(promoter.run_once().await.unwrap().changed, 1);
    assert_eq!(Rescuer::new(stage.queue.clone(), options.rescuer).run_once().await.unwrap().changed, 0);
    assert_eq!(Pruner::new(stage.queue.clone(), options.pruner).run_once().await.unwrap().changed, 0);
}
