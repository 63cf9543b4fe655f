//! Group commit: enqueues that come while one is being committed go together in the next transaction. Places are given
//! to one transaction at a time anyway, so nothing is lost by waiting, and one commit serves all.

use std::sync::{Arc, Mutex, PoisonError};

use longhaul_queue::store::Enqueued;
use longhaul_queue::{Error, NewJob, Result, Timestamp};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::db::{Db, Mode, transact};
use super::error::{DbError, DbResult};
use super::tx::Tx;
use super::{insert, plain};

/// Jobs of a submission that may wait for others; a larger one is worth a transaction of its own.
pub(super) const SMALL_JOBS_MAX: usize = 20;
/// Jobs that go together.
const GROUP_JOBS_MAX: usize = 1_000;

/// Enqueues that wait for their turn.
#[derive(Default)]
pub(super) struct Gather {
    waiting: Mutex<Vec<Waiting>>,
    turn: tokio::sync::Mutex<()>,
}

/// A submission of jobs that concern nobody else.
struct Part {
    jobs: Vec<NewJob>,
    now: Timestamp,
}

struct Waiting {
    part: Arc<Part>,
    answer: oneshot::Sender<Result<Vec<Enqueued>>>,
}

/// Enqueues a submission, with those of others that wait.
pub(super) async fn enqueue(db: &Db, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>> {
    let part = Arc::new(Part { jobs, now });
    let (answer, mut answered) = oneshot::channel();
    db.gather.lock().push(Waiting { part: Arc::clone(&part), answer });
    let _turn = db.gather.turn.lock().await;
    loop {
        match answered.try_recv() {
            Ok(reply) => return reply,
            // Who had it in hand was cut off; to repeat an enqueue is harmless.
            Err(TryRecvError::Closed) => return enqueue_part(db, &part).await,
            Err(TryRecvError::Empty) => serve(db, db.gather.next_group()).await,
        }
    }
}

impl Gather {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first that wait, as many as go together. Those whose caller has gone are left out.
    fn next_group(&self) -> Vec<Waiting> {
        let mut waiting = self.lock();
        waiting.retain(|waiting| !waiting.answer.is_closed());
        let mut jobs = 0;
        let fits = |next: &&Waiting| {
            jobs += next.part.jobs.len();
            jobs <= GROUP_JOBS_MAX
        };
        let count = waiting.iter().take_while(fits).count().max(1).min(waiting.len());
        waiting.drain(..count).collect()
    }
}

/// Stores a group and answers each. When it does not go together, each goes by itself: one of them may be refused.
async fn serve(db: &Db, group: Vec<Waiting>) {
    let parts: Vec<Arc<Part>> = group.iter().map(|waiting| Arc::clone(&waiting.part)).collect();
    let together = match &parts[..] {
        [] | [_] => None,
        [first, ..] => transact!(db, Mode::Shared, first.now, |tx| insert_group(tx, &parts)).ok(),
    };
    if let Some(replies) = together {
        for (waiting, reply) in group.into_iter().zip(replies) {
            // Its caller may have gone meanwhile.
            let _ = waiting.answer.send(Ok(reply));
        }
        return;
    }
    for waiting in group {
        let reply = enqueue_part(db, &waiting.part).await;
        let _ = waiting.answer.send(reply);
    }
}

async fn insert_group(tx: &mut Tx<'_>, parts: &[Arc<Part>]) -> DbResult<Vec<Vec<Enqueued>>> {
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
