//! Reads where jobs stand without their contents. Only the first look asks by id, which brings payload, checkpoint and
//! log along; later ones list the stretch of the submission order that the jobs lie in.

use std::collections::HashMap;

use anyhow::Result;
use longhaul_queue::job::Job;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{JobId, Queue};

use crate::exit::{Code, Failure};

/// A stretch in which fewer than one of so many jobs is waited for is asked by id.
const SPARSE: usize = 16;

/// Where a job lies in the submission order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) seq: i64,
    pub(super) id: JobId,
}

/// All of these jobs; an error names one that does not exist.
pub(super) async fn first(queue: &Queue, ids: &[JobId]) -> Result<HashMap<JobId, Job>> {
    let mut found = HashMap::with_capacity(ids.len());
    for ids in ids.chunks(PAGE_MAX) {
        by_id(queue, ids.to_vec(), &mut found).await?;
    }
    if let Some(id) = ids.iter().find(|id| !found.contains_key(id)) {
        return Err(Failure::new(Code::NothingMatched, format!("there is no job {id}"))
            .hint("list jobs with: longhaul jobs ls")
            .into());
    }
    Ok(found)
}

/// Those of these jobs that still exist; `open` is in order.
pub(super) async fn again(queue: &Queue, open: &[Place]) -> Result<HashMap<JobId, Job>> {
    let mut found = HashMap::with_capacity(open.len());
    for stretch in stretches(open) {
        let (Some(from), Some(to)) = (stretch.first(), stretch.last()) else { continue };
        let length = usize::try_from(to.seq - from.seq + 1).unwrap_or(usize::MAX);
        if length > SPARSE * stretch.len() {
            by_id(queue, ids(stretch), &mut found).await?;
            continue;
        }
        let request = ListRequest {
            filter: Filter::default(),
            newest_first: false,
            cursor: Some(from.seq - 1),
            limit: length,
        };
        let page = queue.list(request).await?;
        let wanted = |job: &Job| stretch.binary_search(&Place { seq: job.seq, id: job.id }).is_ok();
        found.extend(page.items.into_iter().filter(wanted).map(|job| (job.id, job)));
    }
    Ok(found)
}

async fn by_id(queue: &Queue, ids: Vec<JobId>, found: &mut HashMap<JobId, Job>) -> Result<()> {
    let details = queue.store().get(ids).await?;
    found.extend(details.into_iter().map(|detail| (detail.job.id, detail.job)));
    Ok(())
}

fn ids(stretch: &[Place]) -> Vec<JobId> {
    stretch.iter().map(|place| place.id).collect()
}

/// Cuts places into stretches that fit on one page.
fn stretches(mut open: &[Place]) -> Vec<&[Place]> {
    let mut stretches = Vec::new();
    while let Some(first) = open.first() {
        let count = open.partition_point(|place| place.seq < first.seq + PAGE_MAX as i64);
        let (stretch, rest) = open.split_at(count);
        stretches.push(stretch);
        open = rest;
    }
    stretches
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longhaul_queue::memory::MemoryStore;
    use longhaul_queue::{Json, NewJob, State};

    use super::*;

    fn place(seq: i64) -> Place {
        Place { seq, id: JobId::from_bytes([1; 16]) }
    }

    #[test]
    fn no_stretch_is_longer_than_a_page() {
        let open: Vec<Place> = [1, 2, 1000, 1001, 5000].map(place).to_vec();
        let lengths: Vec<usize> = stretches(&open).iter().map(|stretch| stretch.len()).collect();
        assert_eq!(lengths, [3, 1, 1]);
    }

    /// Waits for some of 40 jobs, of which the last one goes and the first one ends meanwhile.
    async fn check_looks(indexes: &[usize]) {
        let queue = Queue::new(Arc::new(MemoryStore::new()));
        let job = |_| NewJob::new("echo", Json::null());
        let enqueued = queue.enqueue_many((0..40).map(job).collect()).await.expect("valid jobs");
        let place = |index: &usize| Place { seq: enqueued[*index].seq, id: enqueued[*index].id };
        let open: Vec<Place> = indexes.iter().map(place).collect();
        let seen = first(&queue, &ids(&open)).await.expect("all are there");
        assert_eq!(again(&queue, &open).await.expect("a look"), seen);
        let last = open[open.len() - 1].id;
        for id in [open[0].id, last] {
            queue.cancel(id).await.expect("it waits");
        }
        queue.consume(vec![last]).await.expect("it has ended");
        let found = again(&queue, &open).await.expect("a look");
        assert_eq!(found.len(), open.len() - 1, "one is gone");
        assert_eq!(found[&open[0].id].state, State::Cancelled);
    }

    #[tokio::test]
    async fn later_looks_see_the_same_as_the_first_whether_they_list_or_ask() {
        check_looks(&[0, 1, 3, 7]).await;
        check_looks(&[0, 39]).await;
    }
}
