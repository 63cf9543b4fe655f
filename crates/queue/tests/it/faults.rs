//! A worker on a store that fails: whatever call it is, the job ends as it should.

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::{Fault, FaultyStore, Started, soon};
use longhaul_queue::{Clock, Engine, Failure, JobContext, Json, State, Worker, WorkerOptions};

use crate::stage::Stage;

/// More calls than the life of one job makes.
const CALLS: u64 = 12;

#[tokio::test]
async fn job_ends_well_whichever_call_fails() {
    for fault in [Fault::Before, Fault::After] {
        for call in 1..=CALLS {
            one_life(call, fault).await;
        }
    }
}

async fn one_life(call: u64, fault: Fault) {
    let stage = Stage::new();
    let faulty = Arc::new(FaultyStore::new(Arc::clone(&stage.store)));
    faulty.fail_call(call, fault);
    let engine = Engine::new(faulty).with_clock(Arc::clone(&stage.clock) as Arc<dyn Clock>);
    let mut worker = Worker::new(engine, WorkerOptions { maintenance: None, ..WorkerOptions::default() });
    worker.handle("job", |context: JobContext, (): ()| async move {
        context.log("here");
        context.save(&1).await?;
        Ok::<_, Failure>("done")
    });
    let control = worker.control();
    let id = stage.enqueue("job").await;
    let started = Started::new(worker);
    let detail = soon(async {
        loop {
            let detail = stage.get(id).await;
            match detail.job.state {
                State::Succeeded => return detail,
                // The claim took place but its reply was lost: nobody runs the job, until the rescuer finds it.
                State::Running if control.running() == 0 => stage.pass(Duration::from_secs(60)).await,
                State::Scheduled => stage.pass(Duration::from_secs(1)).await,
                State::Ready | State::Running => tokio::task::yield_now().await,
                State::Blocked | State::Parked | State::Failed | State::Cancelled => {
                    panic!("call {call} failed ({fault:?}), and then: {detail:?}")
                }
            }
        }
    })
    .await;
    assert_eq!((detail.result, detail.job.spent.attempt), (Some(Json::parse("\"done\"").unwrap()), 0));
    soon(started.drain()).await;
}

#[tokio::test]
async fn results_wait_for_a_store_that_is_away_for_long() {
    let stage = Stage::with_store(Arc::new(MemoryStore::new()));
    let faulty = Arc::new(FaultyStore::new(Arc::clone(&stage.store)));
    let engine = Engine::new(Arc::clone(&faulty) as _).with_clock(Arc::clone(&stage.clock) as Arc<dyn Clock>);
    let mut worker = Worker::new(engine, WorkerOptions { maintenance: None, ..WorkerOptions::default() });
    let outage = Arc::clone(&faulty);
    worker.handle("job", move |_: JobContext, (): ()| {
        // From here on the store is away for the next calls.
        let calls = outage.calls();
        (1..=4).for_each(|call| outage.fail_call(calls + call, Fault::Before));
        async { Ok::<_, Failure>("kept") }
    });
    let id = stage.enqueue("job").await;
    let started = Started::new(worker);
    let detail = stage.until(id, State::Succeeded).await;
    assert_eq!((detail.job.fence, detail.result), (1, Some(Json::parse("\"kept\"").unwrap())));
    assert_eq!(started.drain().await.done, 1);
}
