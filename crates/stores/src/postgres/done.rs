//! The common end: jobs that succeeded, spent nothing new, concern nobody else and are kept as usual. One statement checks all that and
//! writes them; whatever it leaves alone goes the general way.

use std::collections::{HashMap, HashSet};

use longhaul_queue::job::{JobId, Retention};
use longhaul_queue::state::RunOutcome;
use longhaul_queue::store::{SettleItem, Settled};
use longhaul_queue::{Json, State, Timestamp};

use super::error::DbResult;
use super::rows::{flag, millis, read_id, stored_count, stored_fence, uuid};
use super::settle::pruned_at;
use super::tx::Tx;
use crate::changes::Subject;

/// In the order of places, so that two settlements never wait for each other crosswise.
const FINISH: &str = "WITH ended AS (
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::integer[], $5::integer[], $6::integer[],
             $7::integer[], $8::integer[], $9::text[], $13::uuid[])
             AS u (u_seq, u_fence, u_worker, u_attempt, u_crashes, u_throttles, u_continues, u_parks, u_result, u_id))
     UPDATE lh_jobs SET state = 5, finished_at = $10, due_at = CASE WHEN process IS NULL THEN $11::bigint END,
         cancel = false, wake = NULL, error = NULL, result = u_result
     FROM ended
     WHERE seq = u_seq AND id = u_id AND fence = u_fence AND worker = u_worker AND state = 3 AND flags & $12 = 0
         AND attempt = u_attempt AND crashes = u_crashes AND throttles = u_throttles AND continues = u_continues
         AND parks = u_parks
         AND queue <> ALL (ARRAY(SELECT name FROM lh_queues WHERE retention IS NOT NULL))
         AND (process IS NULL OR NOT EXISTS (
             SELECT 1 FROM lh_waiters w WHERE w.process = lh_jobs.process AND NOT w.satisfied))
     RETURNING seq, id, queue, kind, process, flags";

/// What keeps a job from ending this way.
const SPECIAL: i32 = flag::CHILDREN | flag::UNIQUE | flag::RETENTION;

/// Settles what it can; an item without an answer is still to be settled.
pub(super) async fn finish(
    tx: &mut Tx<'_>,
    items: &[SettleItem],
    now: Timestamp,
) -> DbResult<Vec<Option<Settled>>> {
    let mut named: HashMap<i64, u32> = HashMap::with_capacity(items.len());
    for item in items {
        *named.entry(item.lease.seq).or_default() += 1;
    }
    // Of several for one job the first counts, whatever it says.
    let is_ours = |item: &SettleItem| is_plain(item) && named.get(&item.lease.seq) == Some(&1);
    let mut plain: Vec<&SettleItem> = items.iter().filter(|item| is_ours(item)).collect();
    if plain.is_empty() {
        return Ok(vec![None; items.len()]);
    }
    plain.sort_unstable_by_key(|item| item.lease.seq);
    let ended = write(tx, &plain, now).await?;
    let reply = |item: &SettleItem| {
        let settled = is_ours(item) && ended.contains(&item.lease.seq);
        settled.then_some(Settled::Applied(State::Succeeded))
    };
    Ok(items.iter().map(reply).collect())
}

fn is_plain(item: &SettleItem) -> bool {
    let settlement = &item.settlement;
    settlement.state == State::Succeeded
        && settlement.outcome == RunOutcome::Done
        && settlement.usage.is_none()
        && settlement.data.is_none()
        && settlement.run_at.is_none()
        && settlement.park.is_none()
        && item.follow_ups.is_empty()
}

async fn write(tx: &mut Tx<'_>, items: &[&SettleItem], now: Timestamp) -> DbResult<HashSet<i64>> {
    let column = |read: fn(&SettleItem) -> i32| items.iter().map(|item| read(item)).collect::<Vec<_>>();
    let seqs: Vec<i64> = items.iter().map(|item| item.lease.seq).collect();
    let fences: Vec<i64> = items.iter().map(|item| stored_fence(item.lease.fence)).collect();
    let workers: Vec<&str> = items.iter().map(|item| item.lease.worker.as_str()).collect();
    let ids: Vec<_> = items.iter().map(|item| uuid(item.lease.job_id)).collect();
    let results: Vec<Option<&str>> =
        items.iter().map(|item| item.settlement.result.as_ref().map(Json::as_str)).collect();
    let kept = millis(pruned_at(Retention::default_for(false).removal(State::Succeeded, now)));
    let rows = tx
        .all(
            FINISH,
            &[
                &seqs,
                &fences,
                &workers,
                &column(|item| stored_count(item.settlement.spent.attempt)),
                &column(|item| stored_count(item.settlement.spent.crashes)),
                &column(|item| stored_count(item.settlement.spent.throttles)),
                &column(|item| stored_count(item.settlement.spent.continues)),
                &column(|item| stored_count(item.settlement.spent.parks)),
                &results,
                &now.as_millis(),
                &kept,
                &SPECIAL,
                &ids,
            ],
        )
        .await?;
    let mut ended = HashSet::with_capacity(rows.len());
    for row in &rows {
        let (queue, kind, process): (&str, &str, Option<&str>) =
            (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        let helper = row.try_get::<_, i32>(5)? & flag::HELPER != 0;
        let id: JobId = read_id(row, 1)?;
        tx.moved(Subject { id, queue, kind, process, helper }, Some(State::Running), Some(State::Succeeded));
        ended.insert(row.try_get(0)?);
    }
    Ok(ended)
}
