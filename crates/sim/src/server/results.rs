//! Batches and their results in wire form.

use std::sync::Arc;

use axum::response::Response;
use serde_json::Value;

use super::body;
use crate::batches::{Batch, Lines};
use crate::content::model_name;
use crate::sim_core::{SimCore, bad_request};
use longhaul_llm::error::Error;
use longhaul_llm::provider::{BatchLine, BatchState};
use longhaul_llm::wire::batch::LineContext;
use longhaul_llm::wire::{BatchCounts, BatchObject};

/// A batch as the dialects write it; files and inline results are theirs to add.
pub(super) fn object(core: &SimCore, batch: &Batch) -> BatchObject {
    let view = core.view_batch(batch);
    let cancelled = view.state == BatchState::Cancelled;
    let first = batch.given.items.first();
    let endpoint = first.map(|item| item.request.endpoint()).unwrap_or_default();
    BatchObject {
        state: view.state,
        endpoint: endpoint.url().to_owned(),
        model: first.map(|item| model_name(item.request.model()).to_owned()),
        expires_at_s: Some(view.expires_ms / 1000),
        cancel_at_s: view.cancel_ms.map(|ms| ms / 1000),
        ended_at_s: view.ended_ms.map(|ms| ms / 1000),
        requests: Some(view.total),
        counts: Some(BatchCounts {
            completed: view.completed,
            failed: view.failed,
            cancelled: if cancelled { view.not_run } else { 0 },
            expired: if cancelled { 0 } else { view.not_run },
        }),
        input_file: batch.given.input_file.clone(),
        error: view.error.map(|(code, message)| format!("{code}: {message}")),
        metadata: batch.given.metadata.clone(),
        display_name: batch.given.display_name.clone(),
        ..BatchObject::new(batch.id.clone(), batch.created_ms / 1000)
    }
}

/// The results of a batch, or why there are none.
pub(super) fn lines_of(core: &Arc<SimCore>, batch: &Arc<Batch>) -> Result<Lines, Error> {
    core.batch_lines(batch).ok_or_else(|| bad_request(format!("batch {} has no results", batch.id)))
}

/// A response of all results that `write` has a line for.
pub(super) fn respond(
    core: &Arc<SimCore>,
    batch: &Arc<Batch>,
    write: impl Fn(&BatchLine, &LineContext<'_>) -> Option<Value> + Send + 'static,
) -> Result<Response, Error> {
    Ok(body::lines(texts(core, batch, write)?))
}

/// The results as lines of text.
pub(super) fn texts(
    core: &Arc<SimCore>,
    batch: &Arc<Batch>,
    write: impl Fn(&BatchLine, &LineContext<'_>) -> Option<Value> + Send + 'static,
) -> Result<impl Iterator<Item = String> + Send + 'static, Error> {
    let lines = lines_of(core, batch)?;
    let cancelled = core.view_batch(batch).state == BatchState::Cancelled;
    let (created_s, id) = (batch.created_ms / 1000, batch.id.clone());
    Ok(lines.enumerate().filter_map(move |(number, line)| {
        let request_id = format!("req_{id}_{number}");
        let context = LineContext { request_id: &request_id, created_s, cancelled };
        write(&line, &context).map(|value| value.to_string())
    }))
}

/// One page of a list that is sorted newest first.
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    pub(super) has_more: bool,
}

/// Cuts a page out of a list: what comes after one item, or before one.
pub(super) fn page<T>(
    items: Vec<T>,
    id: impl Fn(&T) -> &str,
    after: Option<&str>,
    before: Option<&str>,
    limit: usize,
) -> Page<T> {
    let place =
        |wanted: Option<&str>| wanted.and_then(|wanted| items.iter().position(|item| id(item) == wanted));
    let start = place(after).map_or(0, |place| place + 1);
    let end = place(before).unwrap_or(items.len());
    // The page before an item is the one that ends with it.
    let start = if before.is_some() { end.saturating_sub(limit) } else { start };
    let has_more = if before.is_some() { start > 0 } else { start + limit < end };
    let items = items.into_iter().skip(start).take(limit.min(end.saturating_sub(start))).collect();
    Page { items, has_more }
}
