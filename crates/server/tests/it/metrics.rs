//! What is told to Prometheus.

use longhaul_queue::{Json, NewJob};
use reqwest::Method;

use crate::stage::Stage;

#[tokio::test]
async fn metrics_tell_of_jobs_waits_calls_of_the_store_and_streams() {
    let stage = Stage::new().await;
    let jobs = (0..3).map(|_| NewJob::new("note", Json::null()).queue("mail")).collect();
    stage.ctx.queue().enqueue_many(jobs).await.expect("stored");
    stage.ctx.queue().enqueue(NewJob::new("note", Json::null()).queue("run-1")).await.expect("stored");
    stage.ctx.queue().enqueue(NewJob::new("note", Json::null()).queue("run-2")).await.expect("stored");
    let text =
        stage.request(Method::GET, "/metrics").send().await.expect("an answer").text().await.expect("text");
    for line in [
        "longhaul_jobs{queue=\"mail\",state=\"ready\"} 3",
        "longhaul_jobs{queue=\"prompts\",state=\"ready\"} 2",
        "longhaul_jobs_enqueued_total 5",
        "longhaul_queue_paused{queue=\"mail\"} 0",
        "longhaul_store_op_seconds_count{op=\"insert\"} 3",
        "longhaul_sse_clients 0",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is missing from {text}");
    }
    assert!(text.contains("longhaul_queue_oldest_ready_seconds{queue=\"mail\"}"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("longhaul_store_bytes ") && !line.ends_with(" 0")),
        "{text}"
    );
}
