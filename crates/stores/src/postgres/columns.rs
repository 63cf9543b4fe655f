//! New jobs and edges as columns: many are written by one statement.

use std::pin::pin;

use bytes::Bytes;
use tokio_postgres::CopyInSink;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::error::{DbResult, corrupt};
use super::settings;
use super::tx::{Params, Tx};

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
    pub(super) created_at: Vec<i64>,
    pub(super) fair_key: Vec<Option<&'j str>>,
}

const INSERT: &str =
    "INSERT INTO lh_jobs (seq, id, queue, kind, state, priority, run_at, flags, process, waits_for,
         expires_at, due_at, options, payload, created_at, fair_key)
     SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::smallint[], $6::integer[],
         $7::bigint[], $8::integer[], $9::text[], $10::integer[], $11::bigint[], $12::bigint[], $13::text[],
         $14::text[], $15::bigint[], $16::text[])";

/// Takes as many places as there are jobs and writes these to them. The row of the counter stays locked until the
/// commit: see the migration.
const PLACE: &str = "WITH last AS (
         UPDATE lh_meta SET value = value + cardinality($1::uuid[]) WHERE key = 'seq'
         RETURNING value - cardinality($1::uuid[]) AS seq),
     named AS (
         INSERT INTO lh_ids (id, seq)
         SELECT u_id, last.seq + place FROM last, unnest($1::uuid[]) WITH ORDINALITY AS u (u_id, place)),
     placed AS (
         INSERT INTO lh_jobs (seq, id, queue, kind, state, priority, run_at, flags, process, waits_for, expires_at,
             due_at, options, payload, created_at, fair_key)
         SELECT last.seq + place, u_id, u_queue, u_kind, u_state, u_priority, u_run_at, u_flags, u_process,
             u_waits_for, u_expires_at, u_due_at, u_options, u_payload, u_created_at, u_fair_key
         FROM last, unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::bigint[],
             $7::integer[], $8::text[], $9::integer[], $10::bigint[], $11::bigint[], $12::text[], $13::text[],
             $14::bigint[], $15::text[])
             WITH ORDINALITY AS u (u_id, u_queue, u_kind, u_state, u_priority, u_run_at, u_flags, u_process,
                 u_waits_for, u_expires_at, u_due_at, u_options, u_payload, u_created_at,
                 u_fair_key, place))
     SELECT last.seq + 1 FROM last";

const COPY: &str = "COPY lh_jobs (seq, id, queue, kind, state, priority, run_at, flags, process, waits_for,
         expires_at, due_at, options, payload, created_at, fair_key) FROM STDIN BINARY";
const COPY_TYPES: [Type; 16] = [
    Type::INT8,
    Type::UUID,
    Type::TEXT,
    Type::TEXT,
    Type::INT2,
    Type::INT4,
    Type::INT8,
    Type::INT4,
    Type::TEXT,
    Type::INT4,
    Type::INT8,
    Type::INT8,
    Type::TEXT,
    Type::TEXT,
    Type::INT8,
    Type::TEXT,
];

impl Jobs<'_> {
    /// Writes the jobs to the places they have, and the highest place given.
    pub(super) async fn write(&self, tx: &Tx<'_>, last_seq: i64) -> DbResult<()> {
        let Self { seq, id, queue, kind, state, priority, run_at, flags, process, .. } = self;
        let Self { waits_for, expires_at, due_at, options, payload, created_at, fair_key, .. } = self;
        tx.run(
            INSERT,
            &[
                seq, id, queue, kind, state, priority, run_at, flags, process, waits_for, expires_at, due_at,
                options, payload, created_at, fair_key,
            ],
        )
        .await?;
        let sql = "INSERT INTO lh_ids (id, seq) SELECT * FROM unnest($1::uuid[], $2::bigint[])";
        tx.run(sql, &[id, seq]).await?;
        write_last_seq(tx, last_seq).await?;
        self.write_groups(tx).await
    }

    /// Gives the jobs their places and writes them; returns the first place. With `last`, nothing follows in this
    /// transaction, which is then committed on the same trip.
    pub(super) async fn place(&self, tx: &mut Tx<'_>, last: bool) -> DbResult<i64> {
        self.write_groups(tx).await?;
        let Self { id, queue, kind, state, priority, run_at, flags, process, .. } = self;
        let Self { waits_for, expires_at, due_at, options, payload, created_at, fair_key, .. } = self;
        let params: Params<'_> = &[
            id, queue, kind, state, priority, run_at, flags, process, waits_for, expires_at, due_at, options,
            payload, created_at, fair_key,
        ];
        let placed = if last {
            tx.last(&[(PLACE, params)]).await?.into_iter().flatten().next()
        } else {
            tx.one(PLACE, params).await?
        };
        let placed = placed.ok_or_else(|| corrupt("lh_meta", "seq is missing"))?;
        Ok(placed.try_get(0)?)
    }

    /// Copies the jobs in.
    pub(super) async fn copy(&self, tx: &Tx<'_>) -> DbResult<()> {
        let sink: CopyInSink<Bytes> = tx.copy_in(COPY).await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &COPY_TYPES));
        for row in 0..self.id.len() {
            writer
                .as_mut()
                .write(&[
                    &self.seq[row],
                    &self.id[row],
                    &self.queue[row],
                    &self.kind[row],
                    &self.state[row],
                    &self.priority[row],
                    &self.run_at[row],
                    &self.flags[row],
                    &self.process[row],
                    &self.waits_for[row],
                    &self.expires_at[row],
                    &self.due_at[row],
                    &self.options[row],
                    &self.payload[row],
                    &self.created_at[row],
                    &self.fair_key[row],
                ])
                .await?;
        }
        writer.finish().await?;
        Ok(())
    }

    /// Writes what belongs to jobs that were copied in after the place `last`: their ids, and the highest place given.
    pub(super) async fn write_places(&self, tx: &Tx<'_>, last: i64) -> DbResult<()> {
        let sql = "WITH counted AS (UPDATE lh_meta SET value = $2 WHERE key = 'seq')
             INSERT INTO lh_ids (id, seq) SELECT id, seq FROM lh_jobs WHERE seq > $1 ORDER BY seq";
        tx.run(sql, &[&last, &self.seq.last().copied().unwrap_or(last)]).await?;
        self.write_groups(tx).await
    }

    /// What their processes and queues need.
    async fn write_groups(&self, tx: &Tx<'_>) -> DbResult<()> {
        let keyed = self.queue.iter().zip(&self.fair_key).filter(|(_, key)| key.is_some());
        settings::have_keys(tx, keyed.map(|(queue, _)| *queue).collect()).await?;
        let mut processes: Vec<&str> = self.process.iter().flatten().copied().collect();
        processes.sort_unstable();
        processes.dedup();
        if !processes.is_empty() {
            let sql = "INSERT INTO lh_processes (id, sealed) SELECT unnest($1::text[]), true ON CONFLICT DO NOTHING";
            tx.run(sql, &[&processes]).await?;
        }
        Ok(())
    }
}

async fn write_last_seq(tx: &Tx<'_>, last_seq: i64) -> DbResult<()> {
    tx.run("UPDATE lh_meta SET value = $1 WHERE key = 'seq'", &[&last_seq]).await?;
    Ok(())
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
            "INSERT INTO lh_edges (child, position, parent, parent_id, on_failure, satisfied, ended, result, error)
             SELECT u.*, (SELECT j.error FROM lh_jobs j WHERE j.seq = u_parent AND u_ended IS NOT NULL)
             FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::uuid[], $5::smallint[], $6::boolean[],
                 $7::smallint[], $8::text[])
                 AS u (u_child, u_position, u_parent, u_parent_id, u_on_failure, u_satisfied, u_ended, u_result)",
            &[child, position, parent, parent_id, on_failure, satisfied, ended, result],
        )
        .await?;
        Ok(())
    }
}
