//! One random sequence of calls for several stores at once. They must answer alike and look alike: the memory store
//! is the specification, and whatever differs from it is wrong, or shows that the specification is.
//!
//! The same seed gives the same run. What stores may decide for themselves is not compared: the text of an error,
//! the order in which woken jobs are named, the hint when to sweep again, and events.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use crate::clock::{Clock, ManualClock, Timestamp};
use crate::error::Result;
use crate::job::{Claimed, JobId, NewJob, WorkerId};
use crate::limits::SWEEP_MAX;
use crate::store::{
    ClaimRequest, EngineStore, ExtendRequest, ListRequest, QueueChange, RetryRequest, Save, UnparkRequest,
    UnparkTarget,
};
use crate::testing::bench::{LEASE_FOR, days, id, json, secs};
use crate::testing::export::{as_lines, export_all, lasts_at};
use crate::testing::{invariants, snapshot};

mod draw;

/// Snapshots are compared after so many steps.
const SNAPSHOT_STEPS: usize = 50;
/// Claimed jobs remembered, most of them stale after a while.
const LEASES_KEPT_MAX: usize = 24;

/// Runs `steps` random calls on all stores, which must be empty and at least one; panics with the seed and the step
/// at the first difference.
pub async fn run(seed: u64, steps: usize, stores: &[Arc<dyn EngineStore>], clock: &ManualClock) {
    let rng = Rng::with_seed(seed);
    let mut run =
        Run { seed, step: 0, rng, stores, clock, last_id: 0, submitted: Vec::new(), claimed: Vec::new() };
    for step in 0..steps {
        run.step = step;
        run.act().await;
        if step % SNAPSHOT_STEPS == SNAPSHOT_STEPS - 1 || step == steps - 1 {
            run.compare_snapshots().await;
        }
    }
    run.compare_exports().await;
}

struct Run<'a> {
    seed: u64,
    step: usize,
    rng: Rng,
    stores: &'a [Arc<dyn EngineStore>],
    clock: &'a ManualClock,
    /// The highest number that a job was made with.
    last_id: u64,
    /// Jobs handed in, to hand some in again.
    submitted: Vec<NewJob>,
    claimed: Vec<Claimed>,
}

impl Run<'_> {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Makes the same call on all stores and returns the common answer.
    async fn all<T: Debug>(
        &self,
        what: &str,
        call: impl AsyncFn(&dyn EngineStore) -> Result<T>,
    ) -> Result<T> {
        let mut replies = Vec::new();
        for store in self.stores {
            replies.push(call(store.as_ref()).await);
        }
        let texts: Vec<String> =
            replies.iter().map(|reply| without_error_texts(&format!("{reply:#?}"))).collect();
        self.check_alike(what, &texts);
        replies.swap_remove(0)
    }

    async fn compare_snapshots(&self) {
        let mut texts = Vec::new();
        for store in self.stores {
            texts.push(snapshot(store.as_ref()).await);
        }
        self.check_alike("snapshot", &texts);
        let (seed, step) = (self.seed, self.step);
        // What is true of the first is true of all: they look alike.
        if let Err(problem) = invariants::check(self.stores[0].as_ref()).await {
            panic!("seed {seed}, step {step}: {problem}");
        }
    }

    /// What lasts is the same everywhere, and an import gives it back.
    async fn compare_exports(&self) {
        let mut texts = Vec::new();
        for store in self.stores {
            let mut pieces = export_all(store.as_ref()).await;
            // When a key or a signal past its time goes is the store's own business.
            pieces.retain(|piece| lasts_at(piece, self.now()));
            texts.push(as_lines(&pieces));
        }
        self.check_alike("export", &texts);
    }

    fn check_alike(&self, what: &str, texts: &[String]) {
        for (number, text) in texts.iter().enumerate() {
            let (seed, step) = (self.seed, self.step);
            let differs =
                || format!("seed {seed}, step {step}: store {number} differs from store 0 in {what}");
            assert!(*text == texts[0], "{}\n{}", differs(), difference(&texts[0], text));
        }
    }

    async fn act(&mut self) {
        match self.rng.u32(0..100) {
            0..15 => self.insert().await,
            15..30 => self.claim().await,
            30..50 => self.settle().await,
            50..56 => self.pass_time(),
            56..62 => self.save_or_extend().await,
            62..67 => self.unpark().await,
            67..71 => self.cancel().await,
            71..76 => self.retry_unhold_edit_or_run_now().await,
            76..81 => self.delete().await,
            81..92 => self.sweep().await,
            92..95 => self.set_queue_or_seal().await,
            _ => self.look().await,
        }
    }

    async fn insert(&mut self) {
        let count = self.rng.usize(1..=5);
        let jobs = self.draw_jobs(count);
        let now = self.now();
        if self
            .all(&format!("insert {jobs:#?}"), async |store| store.insert(jobs.clone(), now).await)
            .await
            .is_ok()
        {
            self.submitted.extend(jobs);
        }
    }

    async fn claim(&mut self) {
        let mut queues = vec!["a".to_owned(), "b".to_owned()];
        self.rng.shuffle(&mut queues);
        let request = ClaimRequest {
            queues,
            kinds: self.maybe(20).then(|| vec!["x".to_owned()]),
            worker: WorkerId::new(*self.pick(&["w1", "w2"])),
            limit: self.rng.usize(0..5),
            suspects_max: self.rng.usize(0..3),
            lease_for: LEASE_FOR,
            now: self.now(),
        };
        let claimed = self.all("claim", async |store| store.claim(request.clone()).await).await;
        self.claimed.extend(claimed.unwrap_or_default());
        while self.claimed.len() > LEASES_KEPT_MAX {
            let index = self.rng.usize(..self.claimed.len());
            self.claimed.swap_remove(index);
        }
    }

    async fn settle(&mut self) {
        let count = self.rng.usize(1..=3);
        let items: Vec<_> = (0..count).filter_map(|_| self.draw_settlement()).collect();
        let now = self.now();
        let what = format!("settle {items:#?}");
        let _ = self.all(&what, async |store| store.settle(items.clone(), now).await).await;
        // Most settled leases are forgotten; some stay to be tried again in vain.
        let stale = self.maybe(20);
        self.claimed.retain(|claimed| stale || items.iter().all(|item| item.lease != claimed.lease));
    }

    fn pass_time(&mut self) {
        let by = match self.rng.u32(0..20) {
            0 => days(8),
            1 => days(1),
            2..5 => LEASE_FOR,
            _ => Duration::from_millis(self.rng.u64(0..4_000)),
        };
        if self.maybe(10) {
            self.clock.set(self.now() - secs(10));
        } else {
            self.clock.advance(by);
        }
    }

    async fn save_or_extend(&mut self) {
        let now = self.now();
        if self.maybe(50) {
            let Some(claimed) = self.draw_claimed() else { return };
            let data = self.maybe(70).then(|| json(&self.rng.u32(0..3).to_string()));
            let save = Save { data, progress: self.draw_progress(), log: self.draw_log() };
            let _ = self
                .all("save", async |store| store.save(claimed.lease.clone(), save.clone(), now).await)
                .await;
        } else {
            let leases = self.claimed.iter().map(|claimed| claimed.lease.clone()).collect();
            let request = ExtendRequest { leases, lease_for: LEASE_FOR, now };
            let _ = self.all("extend", async |store| store.extend(request.clone()).await).await;
        }
    }

    async fn unpark(&mut self) {
        let target = match self.rng.u32(..10) {
            0..6 => UnparkTarget::Key(self.draw_key()),
            6..8 => UnparkTarget::Ids(self.draw_ids(4)),
            _ => UnparkTarget::Waiting { key: self.draw_key(), ids: self.draw_ids(8) },
        };
        let (signal, now, jitter) = (self.draw_signal(), self.now(), self.rng.f64());
        let request = UnparkRequest { target, signal, now, jitter };
        let what = format!("{request:?}");
        let call = async |store: &dyn EngineStore| {
            let mut unparked = store.unpark(request.clone()).await?;
            unparked.jobs.sort_unstable();
            Ok(unparked)
        };
        let _ = self.all(&what, call).await;
    }

    async fn cancel(&mut self) {
        let (ids, now) = (self.draw_ids(3), self.now());
        let _ =
            self.all(&format!("cancel {ids:?}"), async |store| store.cancel(ids.clone(), now).await).await;
    }

    async fn retry_unhold_edit_or_run_now(&mut self) {
        let now = self.now();
        if self.maybe(80) {
            let request = RetryRequest { ids: self.draw_ids(4), keep_data: self.maybe(50), now };
            let what = format!("{request:?}");
            let _ = self.all(&what, async |store| store.retry(request.clone()).await).await;
        } else if self.maybe(50) {
            let id = self.draw_id();
            let _ = self.all(&format!("unhold {id}"), async |store| store.unhold(id, now).await).await;
        } else if self.maybe(50) {
            let (id, change) = (self.draw_id(), self.draw_change());
            let what = format!("edit {id}: {change:?}");
            let _ = self.all(&what, async |store| store.edit(id, change.clone(), now).await).await;
        } else {
            let id = self.draw_id();
            let _ = self.all(&format!("run now {id}"), async |store| store.run_now(id, now).await).await;
        }
    }

    async fn delete(&mut self) {
        let ids = self.draw_ids(4);
        let _ = self.all(&format!("delete {ids:?}"), async |store| store.delete(ids.clone()).await).await;
    }

    async fn sweep(&mut self) {
        let now = self.now();
        let limit = if self.maybe(20) { 1 } else { SWEEP_MAX };
        let _ = match self.rng.u32(0..10) {
            0..5 => self.all("promote", async |store| Ok(store.promote_due(now, limit).await?.changed)).await,
            5..8 => {
                self.all("rescue", async |store| Ok(store.rescue_expired(now, limit).await?.changed)).await
            }
            // How many rows other than jobs go is the store's own business.
            _ => self.all("prune", async |store| store.prune(now, SWEEP_MAX).await.map(|_| 0)).await,
        };
    }

    async fn set_queue_or_seal(&mut self) {
        let now = self.now();
        if self.maybe(50) {
            let change = QueueChange {
                name: (*self.pick(&["a", "b"])).to_owned(),
                paused: self.maybe(50).then(|| self.maybe(30)),
                max_running: self.maybe(50).then(|| self.maybe(50).then(|| self.rng.u32(0..4))),
                max_running_per_key: self.maybe(50).then(|| self.maybe(50).then(|| self.rng.u32(0..3))),
                ageing: self.maybe(50).then(|| self.maybe(50).then(|| secs(self.rng.u64(1..20)))),
                retention: self.maybe(30).then(|| self.draw_retention()),
            };
            let _ = self.all("set_queue", async |store| store.set_queue(change.clone()).await).await;
        } else {
            let (process, sealed) = (*self.pick(&["p", "q"]), self.maybe(60));
            let what = format!("seal {process} {sealed}");
            let _ = self.all(&what, async |store| store.seal(process.into(), sealed, now).await).await;
        }
    }

    async fn look(&mut self) {
        let request = ListRequest {
            filter: self.draw_filter(),
            newest_first: self.maybe(50),
            cursor: self.maybe(50).then(|| self.rng.i64(0..60)),
            limit: self.rng.usize(0..8),
        };
        let what = format!("list {request:?}");
        let _ = self.all(&what, async |store| store.list(request.clone()).await).await;
        let after = self.rng.i64(0..60);
        let _ = self.all("results", async |store| store.results("p".into(), after, 3).await).await;
        let _ = self.all("cancelling", async |store| store.cancelling("w1".into()).await).await;
    }

    /// An id of a job that was handed in lately, or by chance of one that never was.
    pub(super) fn draw_id(&mut self) -> JobId {
        let oldest = self.last_id.saturating_sub(30);
        id(self.rng.u64(oldest..=self.last_id + 1))
    }

    fn draw_ids(&mut self, most: usize) -> Vec<JobId> {
        let count = self.rng.usize(1..=most);
        (0..count).map(|_| self.draw_id()).collect()
    }
}

/// Blanks the texts of errors in debug output: stores word them as they like.
fn without_error_texts(text: &str) -> String {
    let mut lines = Vec::new();
    let mut in_error = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if in_error && trimmed.starts_with('"') {
            continue;
        }
        in_error = ["Invalid(", "NotFound(", "Unavailable(", "Corrupt("].contains(&trimmed);
        lines.push(line);
    }
    lines.join("\n")
}

/// The first lines that differ, with what stands before them.
fn difference(expected: &str, found: &str) -> String {
    let same = expected.lines().zip(found.lines()).take_while(|(left, right)| left == right).count();
    let part =
        |text: &str| text.lines().skip(same.saturating_sub(30)).take(50).collect::<Vec<_>>().join("\n");
    format!("--- store 0\n{}\n--- other\n{}", part(expected), part(found))
}
