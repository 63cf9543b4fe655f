//! The common ends: jobs that succeeded, spent nothing new and concern nobody else. One statement checks all that and writes
//! those that are kept as usual, another removes those that go with their success; whatever both leave alone goes the general
//! way.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_queue::job::{JobId, Retention};
use longhaul_queue::state::{RunOutcome, Spent};
use longhaul_queue::store::{SettleItem, Settled};
use longhaul_queue::{Json, State, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::error::DbResult;
use super::rows::{JobRow, flag, millis, read_id, stored_count, stored_fence, to_text, uuid};
use super::tx::{Params, Tx};
use crate::changes::JobKey;

/// What has ended, in the order of places. Several statements of one settlement may still wait crosswise for a renewal of
/// its leases; the server ends one of both, which is then run again.
macro_rules! ended {
    () => {
        "WITH ended AS (
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[]) AS u (u_seq, u_fence, u_id, u_result))"
    };
}

/// Whose lease it still is, with nothing spent that is not in the row.
macro_rules! held {
    () => {
        "seq = u_seq AND id = u_id AND fence = u_fence AND worker = $5 AND state = 3 AND attempt = $6
         AND crashes = $7 AND throttles = $8 AND continues = $9 AND parks = $10"
    };
}

const KEEP: &str = concat!(
    ended!(),
    " UPDATE lh_jobs SET state = 5, finished_at = $11, due_at = CASE WHEN process IS NULL THEN $12::bigint END,
         cancel = false, wake = NULL, error = NULL, result = u_result
     FROM ended
     WHERE ",
    held!(),
    " AND flags & $13 = 0
         AND queue <> ALL (ARRAY(SELECT name FROM lh_queues WHERE retention IS NOT NULL))
         AND (process IS NULL OR NOT EXISTS (
             SELECT 1 FROM lh_waiters w WHERE w.process = lh_jobs.process AND NOT w.satisfied))
     RETURNING seq, id, queue, kind, process, flags"
);

/// What keeps a job from being kept as usual.
const NOT_USUAL: i32 = flag::CHILDREN | flag::UNIQUE | flag::RETENTION;

/// A job of a process may be its last, and take it along.
const REMOVE: &str = concat!(
    ended!(),
    ", gone AS (
         DELETE FROM lh_jobs USING ended
         WHERE ",
    held!(),
    " AND flags & $11 = 0 AND process IS NULL
             AND (flags & $12 <> 0
                 OR flags & $13 = 0 AND queue = ANY (ARRAY(SELECT name FROM lh_queues WHERE retention = $14)))
         RETURNING seq, id, queue, kind, process, flags),
     forgotten AS (DELETE FROM lh_ids USING gone WHERE lh_ids.id = gone.id)
     SELECT seq, id, queue, kind, process, flags FROM gone"
);

/// What a removal would have to look after.
const NOT_ALONE: i32 =
    flag::CHILDREN | flag::PARENTS | flag::AFTER | flag::UNIQUE | flag::RUNS | flag::NOTES | flag::TAGS;

/// Groups of ends that get statements of their own.
const GROUPS_MAX: usize = 4;

/// Whether jobs went with their success in the last settlement; then they most likely do in the next.
#[derive(Default)]
pub(super) struct Habit(AtomicBool);

impl Habit {
    /// From a removal that went the general way.
    pub(super) fn learn_from(&self, item: &SettleItem, removed: &JobRow) {
        let rule = removed.has(flag::DELETE_ON_SUCCESS) || !removed.has(flag::RETENTION);
        if is_plain(item) && rule && !removed.has(NOT_ALONE) {
            self.learn(true);
        }
    }

    fn learn(&self, removed: bool) {
        self.0.store(removed, Ordering::Relaxed);
    }

    fn removes(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Settles what it can; an item without an answer is still to be settled.
pub(super) async fn finish(
    tx: &mut Tx<'_>,
    items: &[SettleItem],
    now: Timestamp,
    habit: &Habit,
) -> DbResult<Vec<Option<Settled>>> {
    let mut named: HashMap<i64, u32> = HashMap::with_capacity(items.len());
    for item in items {
        *named.entry(item.lease.seq).or_default() += 1;
    }
    // Of several for one job the first counts, whatever it says.
    let is_ours = |item: &SettleItem| is_plain(item) && named.get(&item.lease.seq) == Some(&1);
    let mut ended = HashSet::with_capacity(items.len());
    for mut alike in groups(items.iter().filter(|item| is_ours(item))) {
        if habit.removes() {
            let before = ended.len();
            remove(tx, &alike, &mut ended).await?;
            habit.learn(ended.len() > before);
            alike.items.retain(|item| !ended.contains(&item.lease.seq));
        }
        if !alike.items.is_empty() {
            keep(tx, &alike, now, &mut ended).await?;
        }
    }
    let reply = |item: &SettleItem| {
        let settled = is_ours(item) && ended.contains(&item.lease.seq);
        settled.then_some(Settled::Applied(State::Succeeded))
    };
    Ok(items.iter().map(reply).collect())
}

/// Whether the job succeeded and says nothing but its result.
pub(super) fn is_plain(item: &SettleItem) -> bool {
    let settlement = &item.settlement;
    settlement.state == State::Succeeded
        && settlement.outcome == RunOutcome::Done
        && settlement.usage.is_none()
        && settlement.data.is_none()
        && settlement.run_at.is_none()
        && settlement.park.is_none()
        && item.follow_ups.is_empty()
}

/// Ends of one worker's jobs that have spent the same: mostly nothing.
struct Alike<'i> {
    worker: &'i str,
    spent: Spent,
    items: Vec<&'i SettleItem>,
}

/// The largest groups, in the order of places; the rest is few, and cheaper all at once.
fn groups<'i>(items: impl Iterator<Item = &'i SettleItem>) -> Vec<Alike<'i>> {
    let mut places: HashMap<(&str, Spent), usize> = HashMap::new();
    let mut groups: Vec<Alike<'i>> = Vec::new();
    for item in items {
        let (worker, spent) = (item.lease.worker.as_str(), item.settlement.spent);
        let place = *places.entry((worker, spent)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.items.push(item),
            None => groups.push(Alike { worker, spent, items: vec![item] }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.items.len()));
    groups.truncate(GROUPS_MAX);
    for group in &mut groups {
        group.items.sort_unstable_by_key(|item| item.lease.seq);
    }
    groups
}

impl Alike<'_> {
    /// Runs a statement that begins with [`ended`] and [`held`], with what it needs beside.
    async fn end(
        &self,
        tx: &Tx<'_>,
        sql: &'static str,
        results: &[Option<&str>],
        more: Params<'_>,
    ) -> DbResult<Vec<Row>> {
        let seqs: Vec<i64> = self.items.iter().map(|item| item.lease.seq).collect();
        let fences: Vec<i64> = self.items.iter().map(|item| stored_fence(item.lease.fence)).collect();
        let ids: Vec<Uuid> = self.items.iter().map(|item| uuid(item.lease.job_id)).collect();
        let Spent { attempt, crashes, throttles, continues, parks } = self.spent;
        let spent = [attempt, crashes, throttles, continues, parks].map(stored_count);
        let [attempt, crashes, throttles, continues, parks] = &spent;
        let params: [&(dyn ToSql + Sync); 10] =
            [&seqs, &fences, &ids, &results, &self.worker, attempt, crashes, throttles, continues, parks];
        tx.all(sql, &[&params, more].concat()).await
    }
}

async fn keep(tx: &mut Tx<'_>, alike: &Alike<'_>, now: Timestamp, ended: &mut HashSet<i64>) -> DbResult<()> {
    let results: Vec<Option<&str>> =
        alike.items.iter().map(|item| item.settlement.result.as_ref().map(Json::as_str)).collect();
    let kept = millis(Retention::default_for(false).removal(State::Succeeded, now).pruned_at());
    let rows = alike.end(tx, KEEP, &results, &[&now.as_millis(), &kept, &NOT_USUAL]).await?;
    for row in &rows {
        let (seq, subject) = read(row)?;
        tx.moved(subject, Some(State::Running), Some(State::Succeeded));
        ended.insert(seq);
    }
    Ok(())
}

async fn remove(tx: &mut Tx<'_>, alike: &Alike<'_>, ended: &mut HashSet<i64>) -> DbResult<()> {
    // Nobody will read them.
    let results = vec![None; alike.items.len()];
    let rule = to_text("a retention", &Retention::DeleteOnSuccess)?;
    let more: Params<'_> = &[&NOT_ALONE, &flag::DELETE_ON_SUCCESS, &flag::RETENTION, &rule];
    let rows = alike.end(tx, REMOVE, &results, more).await?;
    for row in &rows {
        let (seq, subject) = read(row)?;
        tx.moved(subject, Some(State::Running), Some(State::Succeeded));
        tx.moved(subject, Some(State::Succeeded), None);
        ended.insert(seq);
    }
    if !rows.is_empty() {
        tx.touch();
    }
    Ok(())
}

fn read(row: &Row) -> DbResult<(i64, JobKey<'_>)> {
    let id: JobId = read_id(row, 1)?;
    let helper = row.try_get::<_, i32>(5)? & flag::HELPER != 0;
    let (queue, kind, process) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
    Ok((row.try_get(0)?, JobKey { id, queue, kind, process, helper }))
}
