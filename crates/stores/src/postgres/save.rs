//! What the holder of a lease does before it settles: extend it, and save what must not be lost.

use longhaul_queue::job::LogLine;
use longhaul_queue::limits::LOG_LINES_MAX;
use longhaul_queue::store::{ExtendRequest, Renewal, Save};
use longhaul_queue::{Error, Json, Lease, State, Timestamp};
use std::collections::HashMap;

use super::error::{DbError, DbResult};
use super::rows::{
    JOB_COLUMNS, JobRow, flag, job_columns, read_json, stored_count, stored_fence, stored_limit, to_text,
    uuid,
};
use super::settle::is_held;
use super::tx::Tx;

/// Renews leases. Expiry alone revokes nothing: a renewal that comes before the rescue is good.
pub(super) async fn extend(tx: &Tx<'_>, request: &ExtendRequest, now: Timestamp) -> DbResult<Vec<Renewal>> {
    let until = now + request.lease_for;
    let seqs: Vec<i64> = request.leases.iter().map(|lease| lease.seq).collect();
    let fences: Vec<i64> = request.leases.iter().map(|lease| stored_fence(lease.fence)).collect();
    let workers: Vec<&str> = request.leases.iter().map(|lease| lease.worker.as_str()).collect();
    let ids: Vec<_> = request.leases.iter().map(|lease| uuid(lease.job_id)).collect();
    // Locked in the order of their places, as a statement that settles does.
    let sql = "WITH held AS (
             SELECT seq AS place FROM lh_jobs JOIN unnest($1::bigint[], $2::bigint[], $3::text[], $5::uuid[])
                 AS u (u_seq, u_fence, u_worker, u_id)
                 ON seq = u_seq AND id = u_id AND fence = u_fence AND worker = u_worker
             WHERE state = 3 ORDER BY seq FOR UPDATE OF lh_jobs)
         UPDATE lh_jobs SET due_at = $4 FROM held WHERE seq = place RETURNING seq, fence, cancel";
    let mut renewed = HashMap::with_capacity(seqs.len());
    for row in tx.all(sql, &[&seqs, &fences, &workers, &until.as_millis(), &ids]).await? {
        renewed.insert((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?), row.try_get::<_, bool>(2)?);
    }
    let renewal = |place: (&i64, &i64)| match renewed.get(&(*place.0, *place.1)) {
        Some(&cancel_requested) => Renewal::Extended { until, cancel_requested },
        None => Renewal::Lost,
    };
    Ok(seqs.iter().zip(&fences).map(renewal).collect())
}

/// What a running job stores on the way.
pub(super) async fn save(tx: &mut Tx<'_>, lease: &Lease, save: &Save) -> DbResult<()> {
    let sql = concat!("SELECT ", job_columns!(), ", data FROM lh_jobs WHERE seq = $1 FOR UPDATE");
    let found = tx.one(sql, &[&lease.seq]).await?;
    let found =
        found.map(|row| DbResult::Ok((JobRow::read(&row)?, read_json(&row, JOB_COLUMNS)?))).transpose()?;
    let Some((row, data)) = found.filter(|(row, _)| is_held(row, lease)) else {
        return Err(DbError::Queue(Error::LostLease(lease.job_id)));
    };
    let (mut flags, mut crashes) = (row.flags, row.spent.crashes);
    // Only new data is progress: a handler that saves the same again and again is no less poisonous.
    let new_data = save.data.as_ref().filter(|new| data.as_ref() != Some(new));
    if new_data.is_some() {
        crashes = 0;
    }
    if let Some(progress) = &save.progress {
        tx.run(
            "INSERT INTO lh_progress (seq, progress) VALUES ($1, $2)
             ON CONFLICT (seq) DO UPDATE SET progress = excluded.progress",
            &[&row.seq, &to_text("progress", progress)?],
        )
        .await?;
        tx.tell(row.subject(), State::Running, Some(progress.clone()));
        flags |= flag::NOTES;
    }
    if !save.log.is_empty() {
        write_log(tx, row.seq, &save.log).await?;
        flags |= flag::NOTES;
    }
    if new_data.is_some() || (flags, crashes) != (row.flags, row.spent.crashes) {
        tx.run(
            "UPDATE lh_jobs SET flags = $2, crashes = $3, data = coalesce($4, data) WHERE seq = $1",
            &[&row.seq, &flags, &stored_count(crashes), &new_data.map(Json::as_str)],
        )
        .await?;
    }
    tx.touch();
    Ok(())
}

async fn write_log(tx: &Tx<'_>, seq: i64, lines: &[LogLine]) -> DbResult<()> {
    // As JSON: a line may hold what Postgres does not take as text.
    let entries: Vec<String> =
        lines.iter().map(|line| to_text("a log line", line)).collect::<DbResult<_>>()?;
    tx.run(
        "WITH last AS (SELECT coalesce(max(line), 0) AS line FROM lh_logs WHERE seq = $1)
         INSERT INTO lh_logs (seq, line, entry)
         SELECT $1, last.line + place, entry FROM last, unnest($2::text[]) WITH ORDINALITY AS u (entry, place)",
        &[&seq, &entries],
    )
    .await?;
    tx.run(
        "DELETE FROM lh_logs WHERE seq = $1 AND line <= (SELECT max(line) FROM lh_logs WHERE seq = $1) - $2",
        &[&seq, &stored_limit(LOG_LINES_MAX)],
    )
    .await?;
    Ok(())
}
