//! What callers are told: refusals name the thing and what to do.

use longhaul_queue::job::ProcessId;
use longhaul_queue::{Json, NewJob};

use crate::stage::Stage;

#[tokio::test]
async fn open_process_is_not_consumed_before_its_seal() {
    let stage = Stage::new();
    let process = ProcessId::from("p");
    stage.queue.open_process(process.clone()).await.unwrap();
    let id = stage.enqueue_job(NewJob::new("job", Json::null()).process("p")).await;
    let error = stage.queue.consume_process(&process).await.unwrap_err().to_string();
    assert!(error.contains("1 unfinished"), "{error}");
    stage.queue.cancel(id).await.unwrap();
    let error = stage.queue.consume_process(&process).await.unwrap_err().to_string();
    assert!(error.contains("open for more jobs") && error.contains("seal"), "{error}");
    stage.queue.seal(process.clone()).await.unwrap();
    assert_eq!(stage.queue.consume_process(&process).await.unwrap(), 1);
    assert_eq!(stage.queue.consume_process(&process).await.unwrap(), 0);
}
