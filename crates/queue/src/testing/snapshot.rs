//! The whole visible state of a store as text, so that two stores, or one store before and after, can be compared.

use std::fmt::Write;

use serde::Serialize;

use super::invariants::all_details;
use crate::job::ProcessId;
use crate::limits::PAGE_MAX;
use crate::store::EngineStore;

/// Everything that the store shows of jobs, counts, queues, processes, schedules and the ledger. Panics when the
/// store fails: a test has no use for half a picture.
pub async fn snapshot(store: &dyn EngineStore) -> String {
    let mut text = String::new();
    for detail in all_details(store).await {
        let pretty = serde_json::to_string_pretty(&detail).expect("a job is JSON");
        let _ = writeln!(text, "job {} {pretty}", detail.job.seq);
    }
    lines(&mut text, "count", &store.counts().await.expect("counts answers"));
    lines(&mut text, "queue", &store.queues().await.expect("queues answers"));
    let mut after: Option<ProcessId> = None;
    loop {
        let page = store.processes(after.clone(), PAGE_MAX).await.expect("processes answers");
        lines(&mut text, "process", &page);
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
    }
    lines(&mut text, "schedule", &store.schedules().await.expect("schedules answers"));
    lines(&mut text, "ledger", &store.ledger().await.expect("ledger answers"));
    text
}

fn lines<T: Serialize>(text: &mut String, name: &str, rows: &[T]) {
    for row in rows {
        let _ = writeln!(text, "{name} {}", serde_json::to_string(row).expect("a row is JSON"));
    }
}
