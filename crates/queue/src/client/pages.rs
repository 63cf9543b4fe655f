//! Walks over all jobs that match a filter, without holding more than a page of them.

use super::Queue;
use crate::error::Result;
use crate::job::JobId;
use crate::limits::PAGE_MAX;
use crate::store::{Filter, ListRequest};

/// Ids that match a filter, page by page in `seq` order, so that a change of the rows repeats none.
pub(super) struct Pages<'a> {
    queue: &'a Queue,
    filter: Filter,
    cursor: Option<i64>,
    /// The last job to walk to; `None` also takes those that come on the way.
    last_seq: Option<i64>,
    done: bool,
}

impl<'a> Pages<'a> {
    pub(super) fn new(queue: &'a Queue, filter: Filter) -> Self {
        Self::up_to(queue, filter, None)
    }

    pub(super) fn up_to(queue: &'a Queue, filter: Filter, last_seq: Option<i64>) -> Self {
        Self { queue, filter, cursor: None, last_seq, done: false }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Vec<JobId>>> {
        if self.done {
            return Ok(None);
        }
        let request = ListRequest {
            filter: self.filter.clone(),
            newest_first: false,
            cursor: self.cursor,
            limit: PAGE_MAX,
        };
        let page = self.queue.store.list(request).await?;
        let last_seq = self.last_seq.unwrap_or(i64::MAX);
        self.cursor = page.next;
        self.done = page.next.is_none_or(|next| next >= last_seq);
        let within = page.items.into_iter().take_while(|job| job.seq <= last_seq);
        Ok(Some(within.map(|job| job.id).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::job::NewJob;
    use crate::json::Json;
    use crate::memory::MemoryStore;

    /// The gap between the check and the deletion of `consume_process`.
    #[tokio::test]
    async fn job_that_ends_after_the_bound_was_taken_is_not_deleted() {
        let queue = Queue::new(Arc::new(MemoryStore::new()));
        let mut enqueued = Vec::new();
        for _ in 0..2 {
            let job =
                queue.enqueue(NewJob::new("job", Json::null()).process("p")).await.expect("a valid job");
            queue.cancel(job.id).await.expect("a job that waits");
            enqueued.push(job);
        }
        let filter = Filter { process_id: Some("p".into()), ..Filter::default() };
        let deleted = queue.delete_up_to(filter, Some(enqueued[0].seq)).await.expect("ended jobs");
        assert_eq!(deleted, 1);
        assert!(queue.get(enqueued[0].id).await.is_err(), "the one that was checked is gone");
        assert!(queue.get(enqueued[1].id).await.is_ok(), "the one that nobody has read is there");
    }
}
