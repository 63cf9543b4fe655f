//! Small enqueues that come while one is under way go together in the next call to the server: one commit, or one function, serves
//! all of them. Who comes alone waits for nobody.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use longhaul_queue::store::Enqueued;
use longhaul_queue::{Error, NewJob, Result, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Jobs of a submission that may wait for others; a larger one is worth a call of its own.
const SMALL_JOBS_MAX: usize = 20;
/// Jobs that go together.
const GROUP_JOBS_MAX: usize = 1_000;

/// Whether a submission may go with others: it is small, and concerns nobody else.
pub(crate) fn is_small(jobs: &[NewJob]) -> bool {
    jobs.len() <= SMALL_JOBS_MAX && !jobs.iter().any(reaches_out)
}

/// Whether a job concerns others than itself.
pub(crate) fn reaches_out(job: &NewJob) -> bool {
    !job.depends_on.is_empty() || job.after_process.is_some() || job.options.unique.is_some()
}

/// A submission.
pub(crate) struct Part {
    pub(crate) jobs: Vec<NewJob>,
    pub(crate) now: Timestamp,
}

/// Who stores them.
#[async_trait]
pub(crate) trait Inserts: Send + Sync + 'static {
    /// Where they wait.
    fn gather(&self) -> &Gather;

    /// Stores all of them or none, and answers for each.
    async fn together(&self, parts: &[&Part]) -> Result<Vec<Vec<Enqueued>>>;

    /// Stores one.
    async fn alone(&self, part: &Part) -> Result<Vec<Enqueued>>;
}

/// Enqueues that wait for their turn.
#[derive(Default)]
pub(crate) struct Gather(Mutex<Line>);

#[derive(Default)]
struct Line {
    waiting: Vec<Waiting>,
    /// Somebody serves those who wait.
    served: bool,
}

struct Waiting {
    part: Part,
    answer: oneshot::Sender<Result<Vec<Enqueued>>>,
}

/// Enqueues a submission, with those of others that wait. They are served on the store's own runtime: a caller that goes
/// away takes nobody else's along.
pub(crate) async fn enqueue<S: Inserts>(
    store: &Arc<S>,
    runtime: &Handle,
    part: Part,
) -> Result<Vec<Enqueued>> {
    let (answer, answered) = oneshot::channel();
    if store.gather().join(Waiting { part, answer }) {
        runtime.spawn(serve_all(Service { store: Arc::clone(store), ended: false }));
    }
    answered.await.unwrap_or_else(|_| Err(Error::Unavailable("the store was closed".to_owned())))
}

impl Gather {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether somebody must begin to serve.
    fn join(&self, waiting: Waiting) -> bool {
        let mut line = self.lock();
        line.waiting.push(waiting);
        !std::mem::replace(&mut line.served, true)
    }

    /// The first that wait, as many as go together; none when nobody is left, and then nobody serves any more. Those
    /// whose caller has gone are left out.
    fn next_group(&self) -> Vec<Waiting> {
        let mut line = self.lock();
        line.waiting.retain(|waiting| !waiting.answer.is_closed());
        let mut jobs = 0;
        let fits = |next: &&Waiting| {
            jobs += next.part.jobs.len();
            jobs <= GROUP_JOBS_MAX
        };
        let count = line.waiting.iter().take_while(fits).count().max(1).min(line.waiting.len());
        line.served = count > 0;
        line.waiting.drain(..count).collect()
    }
}

/// Whoever serves. Should it break off, those who wait are told, and the next one to come begins anew.
struct Service<S: Inserts> {
    store: Arc<S>,
    ended: bool,
}

impl<S: Inserts> Drop for Service<S> {
    fn drop(&mut self) {
        if !self.ended {
            *self.store.gather().lock() = Line::default();
        }
    }
}

async fn serve_all<S: Inserts>(mut service: Service<S>) {
    loop {
        let group = service.store.gather().next_group();
        if group.is_empty() {
            service.ended = true;
            return;
        }
        serve(service.store.as_ref(), group).await;
    }
}

/// Stores a group and answers each. When it does not go together, each goes by itself: one of them may be refused.
async fn serve(store: &impl Inserts, group: Vec<Waiting>) {
    let parts: Vec<&Part> = group.iter().map(|waiting| &waiting.part).collect();
    let together = if parts.len() > 1 { Some(store.together(&parts).await) } else { None };
    match together {
        Some(Ok(replies)) => {
            for (waiting, reply) in group.into_iter().zip(replies) {
                // Its caller may have gone meanwhile.
                let _ = waiting.answer.send(Ok(reply));
            }
        }
        Some(Err(Error::Unavailable(reason))) => {
            for waiting in group {
                let _ = waiting.answer.send(Err(Error::Unavailable(reason.clone())));
            }
        }
        Some(Err(_)) | None => {
            for waiting in group {
                let reply = store.alone(&waiting.part).await;
                let _ = waiting.answer.send(reply);
            }
        }
    }
}
