//! Raw Postgres: one table, one partial index in the order of claims, COPY, SKIP LOCKED and NOTIFY.

use std::pin::pin;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::super::per_second;
use super::super::pickup::GAP;
use super::{BULK, Raw};

const CLAIM: i64 = 500;
const COLUMNS: [Type; 5] = [Type::TEXT, Type::INT4, Type::INT8, Type::INT2, Type::TEXT];
const INSERT: &str =
    "INSERT INTO raw_jobs (queue, priority, run_at, state, payload) VALUES ('single', 0, 1, 0, $1)";
/// Index raw_ready holds the order, as ours does.
const CLAIM_SQL: &str = "UPDATE raw_jobs SET state = 1 WHERE id IN (
         SELECT id FROM raw_jobs WHERE queue = $1 AND state = 0 ORDER BY priority, run_at, id LIMIT $2
         FOR UPDATE SKIP LOCKED)
     RETURNING id, payload";

/// A bare queue.
pub(in super::super) struct Postgres {
    url: String,
    schema: String,
    client: Client,
}

impl Postgres {
    pub(in super::super) async fn open(url: &str, schema: &str) -> Result<Self> {
        let raw =
            Self { url: url.to_owned(), schema: schema.to_owned(), client: connect(url, schema).await?.0 };
        let table = format!(
            "CREATE SCHEMA {schema};
             CREATE TABLE raw_jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL,
                 priority integer NOT NULL, run_at bigint NOT NULL, state smallint NOT NULL, payload text NOT NULL);
             CREATE INDEX raw_ready ON raw_jobs (queue, priority, run_at, id) WHERE state = 0"
        );
        raw.client.batch_execute(&table).await?;
        Ok(raw)
    }
}

/// A connection whose tables are those of the schema; and what it is told of notices.
async fn connect(url: &str, schema: &str) -> Result<(Client, mpsc::UnboundedReceiver<()>)> {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await?;
    let (heard, notices) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        // Whoever asks a connection that has ended is told why.
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                let _ = heard.send(());
            }
        }
    });
    client.batch_execute(&format!("SET search_path = {schema}")).await?;
    Ok((client, notices))
}

/// After a load. A planner that takes a million rows for none reads all of them, and writing out the load is no part of what is
/// measured next.
pub(in super::super) async fn come_to_rest(client: &Client, table: &str) -> Result<()> {
    client.batch_execute(&format!("ANALYZE {table}")).await?;
    // Not everybody may; the load is then written out beside the measurement.
    let _ = client.batch_execute("CHECKPOINT").await;
    Ok(())
}

#[async_trait]
impl Raw for Postgres {
    async fn bulk(&mut self, jobs: usize, payload: &str) -> Result<f64> {
        let started = Instant::now();
        for first in (0..jobs).step_by(BULK) {
            let copy = "COPY raw_jobs (queue, priority, run_at, state, payload) FROM STDIN BINARY";
            let mut writer = pin!(BinaryCopyInWriter::new(self.client.copy_in(copy).await?, &COLUMNS));
            for _ in first..jobs.min(first + BULK) {
                writer.as_mut().write(&[&"bulk", &0_i32, &1_i64, &0_i16, &payload]).await?;
            }
            writer.finish().await?;
        }
        Ok(per_second(jobs, started.elapsed().as_secs_f64()))
    }

    async fn singles(&mut self, callers: usize, jobs: usize, payload: &str) -> Result<f64> {
        let mut clients = Vec::new();
        for _ in 0..callers {
            let client = connect(&self.url, &self.schema).await?.0;
            let insert = client.prepare(INSERT).await?;
            // The first statement of a connection costs it more than all others.
            client.execute(&insert, &[&payload]).await?;
            clients.push((client, insert));
        }
        let started = Instant::now();
        let mut all = JoinSet::new();
        for (client, insert) in clients {
            let payload = payload.to_owned();
            all.spawn(async move {
                for _ in 0..jobs / callers {
                    client.execute(&insert, &[&payload]).await?;
                }
                Ok::<_, tokio_postgres::Error>(())
            });
        }
        while let Some(ended) = all.join_next().await {
            ended??;
        }
        Ok(per_second(jobs / callers * callers, started.elapsed().as_secs_f64()))
    }

    async fn drain(&mut self, jobs: usize) -> Result<f64> {
        come_to_rest(&self.client, "raw_jobs").await?;
        let claim = self.client.prepare(CLAIM_SQL).await?;
        let delete = self.client.prepare("DELETE FROM raw_jobs WHERE id = ANY ($1)").await?;
        let started = Instant::now();
        let mut drained = 0;
        while drained < jobs {
            let rows = self.client.query(&claim, &[&"bulk", &CLAIM]).await?;
            if rows.is_empty() {
                break;
            }
            let claimed: Vec<(i64, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            let ids: Vec<i64> = claimed.iter().map(|(id, _)| *id).collect();
            self.client.execute(&delete, &[&ids]).await?;
            drained += ids.len();
        }
        Ok(per_second(drained, started.elapsed().as_secs_f64()))
    }

    async fn pickups(&mut self, jobs: usize) -> Result<Vec<(&'static str, Vec<f64>)>> {
        let (listener, mut notices) = connect(&self.url, &self.schema).await?;
        listener.batch_execute(&format!("LISTEN {}", self.schema)).await?;
        let claim = listener.prepare(CLAIM_SQL).await?;
        let insert = format!(
            "BEGIN; INSERT INTO raw_jobs (queue, priority, run_at, state, payload) VALUES ('pickup', 0, 1, 0, '0');
             NOTIFY {}; COMMIT",
            self.schema
        );
        let mut waits = Vec::new();
        for _ in 0..jobs {
            tokio::time::sleep(GAP).await;
            let started = Instant::now();
            let (inserted, claimed) = tokio::join!(self.client.batch_execute(&insert), async {
                notices.recv().await.context("the listening connection ended")?;
                let claimed = listener.query(&claim, &[&"pickup", &1_i64]).await?;
                ensure!(claimed.len() == 1, "a raw reader of Postgres found nothing");
                Ok(started.elapsed())
            });
            inserted?;
            waits.push(claimed?.as_secs_f64() * 1e3);
        }
        Ok(vec![("notice and claim", waits)])
    }
}
