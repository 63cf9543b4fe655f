//! Deletion: of ended jobs with everything that is their own.

use longhaul_queue::job::JobId;
use longhaul_queue::store::{Deleted, refusals};
use longhaul_queue::{Error, State};

use super::error::DbResult;
use super::rows::{JobRow, flag, jobs_by_id, read_id, uuids};
use super::tx::Tx;

/// Deletes ended jobs for good.
pub(super) async fn delete(tx: &mut Tx<'_>, ids: &[JobId]) -> DbResult<Deleted> {
    let mut rows = jobs_by_id(tx, ids).await?;
    let mut deleted = Deleted::default();
    let mut gone = Vec::with_capacity(rows.len());
    for id in ids {
        // Taken out: an id that is named twice is unknown the second time, or refused once more.
        let Some(row) = rows.remove(id) else { continue };
        let refusal = if row.state.is_terminal() {
            // What an earlier one of these held is blocked all the same.
            held_child(tx, &row).await?.map(|child| refusals::holds_child(row.id, row.state, child))
        } else {
            Some(Error::wrong_state(*id, row.state, "deleted"))
        };
        match refusal {
            Some(error) => {
                deleted.refused.push((*id, error));
                rows.insert(*id, row);
            }
            None => gone.push(row),
        }
    }
    deleted.deleted = gone.len() as u64;
    delete_rows(tx, &gone).await?;
    if !gone.is_empty() {
        forget_events(tx).await?;
    }
    tx.touch();
    Ok(deleted)
}

/// Whether an event names a job that exists.
macro_rules! names_a_job {
    () => {
        "EXISTS (SELECT 1 FROM json_array_elements(changes::json) AS c JOIN lh_ids i ON i.id = (c ->> 'job_id')::uuid)"
    };
}

/// Removes the events whose jobs are all gone. Those without a number go first: whoever numbers them meanwhile is waited for, and
/// what came of it is seen by the next. The newest stays, without its jobs: readers tell by the oldest whether they missed any.
async fn forget_events(tx: &Tx<'_>) -> DbResult<()> {
    tx.run(concat!("DELETE FROM lh_news WHERE NOT ", names_a_job!()), &[]).await?;
    let all =
        concat!("DELETE FROM lh_events WHERE id < (SELECT max(id) FROM lh_events) AND NOT ", names_a_job!());
    tx.run(all, &[]).await?;
    let newest = concat!(
        "UPDATE lh_events SET changes = '[]' WHERE id = (SELECT max(id) FROM lh_events) AND NOT ",
        names_a_job!()
    );
    tx.run(newest, &[]).await?;
    Ok(())
}

/// A blocked child that waits for this failed job to be retried.
pub(super) async fn held_child(tx: &Tx<'_>, row: &JobRow) -> DbResult<Option<JobId>> {
    if !row.has(flag::CHILDREN) || row.state == State::Succeeded {
        return Ok(None);
    }
    let sql = "SELECT j.id FROM lh_edges e JOIN lh_jobs j ON j.seq = e.child
               WHERE e.parent = $1 AND NOT e.satisfied AND e.on_failure = 2 AND j.state = 0 LIMIT 1";
    tx.one(sql, &[&row.seq]).await?.map(|row| read_id(&row, 0)).transpose()
}

/// Removes jobs with everything that is their own. The flags say where to look.
pub(super) async fn delete_rows(tx: &mut Tx<'_>, rows: &[JobRow]) -> DbResult<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let side_tables: [(i32, &[&'static str]); 5] = [
        (
            flag::TAGS,
            &[
                "DELETE FROM lh_tags USING unnest($2::text[]) AS t (t_tag) WHERE tag = t_tag AND seq = ANY ($1)",
            ],
        ),
        (flag::PARENTS, &["DELETE FROM lh_edges WHERE child = ANY ($1)"]),
        (flag::AFTER, &["DELETE FROM lh_waiters WHERE child = ANY ($1)"]),
        (flag::RUNS, &["DELETE FROM lh_runs WHERE seq = ANY ($1)"]),
        (
            flag::NOTES,
            &["DELETE FROM lh_progress WHERE seq = ANY ($1)", "DELETE FROM lh_logs WHERE seq = ANY ($1)"],
        ),
    ];
    for (flag, statements) in side_tables {
        let seqs: Vec<i64> = rows.iter().filter(|row| row.has(flag)).map(|row| row.seq).collect();
        if seqs.is_empty() {
            continue;
        }
        for sql in statements {
            if flag == flag::TAGS {
                tx.run(sql, &[&seqs, &tags_of(rows)?]).await?;
            } else {
                tx.run(sql, &[&seqs]).await?;
            }
        }
    }
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    tx.run("DELETE FROM lh_jobs WHERE seq = ANY ($1)", &[&seqs]).await?;
    let ids: Vec<JobId> = rows.iter().map(|row| row.id).collect();
    tx.run("DELETE FROM lh_ids WHERE id = ANY ($1)", &[&uuids(&ids)]).await?;
    for row in rows {
        tx.moved(row.subject(), Some(row.state), None);
    }
    tx.touch();
    Ok(())
}

fn tags_of(rows: &[JobRow]) -> DbResult<Vec<String>> {
    let mut tags = Vec::new();
    for row in rows.iter().filter(|row| row.has(flag::TAGS)) {
        tags.append(&mut row.options()?.tags);
    }
    tags.sort_unstable();
    tags.dedup();
    Ok(tags)
}
