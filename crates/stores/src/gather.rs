//! Group commit: enqueues that come while one is being committed go together in the next transaction. Places are given
//! to one transaction at a time anyway, so nothing is lost by waiting, and one commit serves all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_queue::store::Enqueued;
use longhaul_queue::{Error, NewJob, Result, Timestamp};
use tokio::sync::oneshot;

use super::db::{Db, Mode, gone, transact};
use super::error::{DbError, DbResult};
use super::tx::Tx;
use super::{insert, plain};

/// Jobs of a submission that may wait for others; a larger one is worth a transaction of its own.
pub(super) const SMALL_JOBS_MAX: usize = 20;
/// Jobs that go together.
const GROUP_JOBS_MAX: usize = 1_000;

/// Enqueues that wait for their turn.
#[derive(Default)]
pub(super) struct Gather(Mutex<Line>);

#[derive(Default)]
struct Line {
    waiting: Vec<Waiting>,
    /// Somebody serves those who wait.
    served: bool,
}

/// A submission of jobs that concern nobody else.
struct Part {
    jobs: Vec<NewJob>,
    now: Timestamp,
}

struct Waiting {
    part: Part,
    answer: oneshot::Sender<Result<Vec<Enqueued>>>,
}

/// Enqueues a submission, with those of others that wait. They are served on the store's own runtime: a caller that goes
/// away takes nobody else's along.
pub(super) async fn enqueue(db: &Arc<Db>, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>> {
    let (answer, answered) = oneshot::channel();
    if db.gather.join(Waiting { part: Part { jobs, now }, answer }) {
        db.pool.io().spawn(serve_all(Service { db: Arc::clone(db), ended: false }));
    }
    answered.await.unwrap_or_else(|_| Err(gone()))
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
struct Service {
    db: Arc<Db>,
    ended: bool,
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.ended {
            *self.db.gather.lock() = Line::default();
        }
    }
}

async fn serve_all(mut service: Service) {
    loop {
        let group = service.db.gather.next_group();
        if group.is_empty() {
            service.ended = true;
            return;
        }
        serve(&service.db, group).await;
    }
}

/// Stores a group and answers each. When it does not go together, each goes by itself: one of them may be refused.
async fn serve(db: &Db, group: Vec<Waiting>) {
    let parts: Vec<&Part> = group.iter().map(|waiting| &waiting.part).collect();
    let together = match &parts[..] {
        [] | [_] => None,
        [first, ..] => Some(transact!(db, Mode::Shared, first.now, |tx| insert_group(tx, &parts))),
    };
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
                let reply = enqueue_part(db, &waiting.part).await;
                let _ = waiting.answer.send(reply);
            }
        }
    }
}

async fn insert_group(tx: &mut Tx<'_>, parts: &[&Part]) -> DbResult<Vec<Vec<Enqueued>>> {
    if tx.is_alone() {
        return Err(DbError::Queue(Error::invalid("one of these enqueues must be looked at by itself")));
    }
    let parts: Vec<(&[NewJob], Timestamp)> =
        parts.iter().map(|part| (part.jobs.as_slice(), part.now)).collect();
    plain::insert(tx, &parts).await
}

async fn enqueue_part(db: &Db, part: &Part) -> Result<Vec<Enqueued>> {
    transact!(db, Mode::Shared, part.now, |tx| insert::insert(tx, &part.jobs, part.now))
}
