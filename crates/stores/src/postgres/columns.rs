//! New jobs and edges as columns: many are written by one statement.

use longhaul_queue::Timestamp;
use uuid::Uuid;

use super::error::DbResult;
use super::tx::Tx;

/// New jobs, column by column.
#[derive(Default)]
pub(super) struct Jobs<'j> {
    pub(super) seq: Vec<i64>,
    pub(super) id: Vec<Uuid>,
    pub(super) queue: Vec<&'j str>,
    pub(super) kind: Vec<&'j str>,
    pub(super) state: Vec<i16>,
    pub(super) priority: Vec<i32>,
    pub(super) run_at: Vec<i64>,
    pub(super) flags: Vec<i32>,
    pub(super) process: Vec<Option<&'j str>>,
    pub(super) waits_for: Vec<i32>,
    pub(super) expires_at: Vec<Option<i64>>,
    pub(super) due_at: Vec<Option<i64>>,
    pub(super) options: Vec<Option<String>>,
    pub(super) payload: Vec<&'j str>,
}

const INSERT: &str = "INSERT INTO lh_jobs (seq, id, queue, kind, state, priority, run_at, flags, process, waits_for,
         expires_at, due_at, options, payload, created_at)
     SELECT u.*, $15 FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::smallint[], $6::integer[],
         $7::bigint[], $8::integer[], $9::text[], $10::integer[], $11::bigint[], $12::bigint[], $13::text[],
         $14::text[]) AS u";

impl Jobs<'_> {
    /// Writes the jobs and the highest place given.
    pub(super) async fn write(&self, tx: &Tx<'_>, last_seq: i64, now: Timestamp) -> DbResult<()> {
        let Self { seq, id, queue, kind, state, priority, run_at, flags, process, .. } = self;
        let Self { waits_for, expires_at, due_at, options, payload, .. } = self;
        let created_at = now.as_millis();
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 15] = [
            seq,
            id,
            queue,
            kind,
            state,
            priority,
            run_at,
            flags,
            process,
            waits_for,
            expires_at,
            due_at,
            options,
            payload,
            &created_at,
        ];
        let sql = "UPDATE lh_meta SET value = $1 WHERE key = 'seq'";
        let seq_params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&last_seq];
        let (rows, place) = tokio::join!(tx.run(INSERT, &params), tx.run(sql, &seq_params));
        rows?;
        place?;
        let mut processes: Vec<&str> = process.iter().flatten().copied().collect();
        processes.sort_unstable();
        processes.dedup();
        if !processes.is_empty() {
            let sql = "INSERT INTO lh_processes (id, sealed) SELECT unnest($1::text[]), true ON CONFLICT DO NOTHING";
            tx.run(sql, &[&processes]).await?;
        }
        Ok(())
    }
}

/// New edges, column by column.
#[derive(Default)]
pub(super) struct Edges<'j> {
    pub(super) child: Vec<i64>,
    pub(super) position: Vec<i32>,
    pub(super) parent: Vec<i64>,
    pub(super) parent_id: Vec<Uuid>,
    pub(super) on_failure: Vec<i16>,
    pub(super) satisfied: Vec<bool>,
    pub(super) ended: Vec<Option<i16>>,
    pub(super) result: Vec<Option<&'j str>>,
}

impl Edges<'_> {
    pub(super) async fn write(&self, tx: &Tx<'_>) -> DbResult<()> {
        if self.child.is_empty() {
            return Ok(());
        }
        let Self { child, position, parent, parent_id, on_failure, satisfied, ended, result } = self;
        tx.run(
            "INSERT INTO lh_edges (child, position, parent, parent_id, on_failure, satisfied, ended, result)
             SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::uuid[], $5::smallint[], $6::boolean[],
                 $7::smallint[], $8::text[])",
            &[child, position, parent, parent_id, on_failure, satisfied, ended, result],
        )
        .await?;
        Ok(())
    }
}
