//! How fast the Postgres store is on this machine, beside the raw limit of the same server measured in the same run: one
//! table, one index, no engine. Read the ratios: the machine's own speed changes from minute to minute.
//!
//! ```text
//! cargo run --release -p longhaul-stores --example postgres_bench [JOBS] [REPETITIONS] [DEPTH] [rates|drain|pickup|depth] [SETTINGS]
//! ```
//!
//! It starts a server of its own, with its usual durable commits, in the temporary folder (`TMPDIR`): use a real disk. Settings
//! of the server may be added: with `commit_delay=2000 commit_siblings=0` each commit takes 2 ms more, for raw and store alike,
//! as on a slower disk.

#[path = "../tests/it/servers/postgres.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_queue::job::Retention;
use longhaul_queue::{
    Clock, Failure, JobContext, Json, NewJob, Queue, Shutdown, SystemClock, Worker, WorkerOptions,
};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};
use server::Server;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, NoTls};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PAYLOAD_BYTES: usize = 200;
const BULK: usize = 1_000;
const RAW_CLAIM: usize = 500;
/// Jobs of a worker that run at once: as many as raw claims at a time, and as many as a claim may get.
const CONCURRENCIES: [usize; 2] = [500, 1_000];
/// What becomes of a job that succeeded: it stays for a day, or it goes, as raw's do.
const RULES: [(&str, Option<Retention>); 2] = [("kept", None), ("deleted", Some(Retention::DeleteOnSuccess))];
const CALLERS: usize = 64;
const PICKUPS: usize = 200;
/// Jobs that are drained from a long and from a short queue.
const DEPTH_DRAINED: usize = 20_000;
/// Between two jobs of a pickup: long enough that the queue is idle again.
const GAP: Duration = Duration::from_millis(20);

const RAW_TABLE: &str =
    "CREATE TABLE raw_jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL,
         priority integer NOT NULL, run_at bigint NOT NULL, state smallint NOT NULL, payload text NOT NULL);
     CREATE INDEX raw_ready ON raw_jobs (queue, priority, run_at, id) WHERE state = 0";
const RAW_CLAIM_SQL: &str = "UPDATE raw_jobs SET state = 1 WHERE id IN (
         SELECT id FROM raw_jobs WHERE queue = $1 AND state = 0 ORDER BY priority, run_at, id LIMIT $2
         FOR UPDATE SKIP LOCKED)
     RETURNING id, payload";

#[tokio::main]
async fn main() -> Outcome<()> {
    let argument = |index: usize| std::env::args().nth(index);
    let number =
        |index: usize, default: usize| argument(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (jobs, repetitions, depth) = (number(1, 50_000), number(2, 5), number(3, 0));
    let part = argument(4);
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    let settings = argument(5).unwrap_or_default();
    let server = Server::start(&format!("max_wal_size=4GB shared_buffers=512MB {settings}"));
    println!(
        "{jobs} jobs of {PAYLOAD_BYTES} bytes, {repetitions} repetitions: medians, and the ratios from least to most"
    );
    if wanted("rates") {
        rates(&server, jobs, repetitions).await?;
    }
    if wanted("drain") {
        drains(&server, jobs, repetitions).await?;
    }
    if wanted("pickup") {
        pickups(&server, repetitions).await?;
    }
    if depth > 0 && wanted("depth") {
        at_depth(&server, depth, repetitions).await?;
    }
    Ok(())
}

/// Figures of the store beside raw ones, taken by turns.
#[derive(Default)]
struct Pairs {
    ours: Vec<f64>,
    raw: Vec<f64>,
}

impl Pairs {
    fn add(&mut self, ours: f64, raw: f64) {
        self.ours.push(ours);
        self.raw.push(raw);
    }

    fn tell(&self, name: &str, goal: &str) {
        let mut ratios: Vec<f64> = self.ours.iter().zip(&self.raw).map(|(ours, raw)| ours / raw).collect();
        let (ours, raw, ratio) = (median(&self.ours), median(&self.raw), median(&ratios));
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios.first().unwrap_or(&0.0), ratios.last().unwrap_or(&0.0));
        println!("{name:<24} {ours:>9.0}/s   raw {raw:>9.0}/s   {ratio:.2} ({least:.2} to {most:.2}){goal}");
    }
}

async fn rates(server: &Server, jobs: usize, repetitions: usize) -> Outcome<()> {
    let rows =
        [("bulk, 1000 a call", "   goal 0.50"), ("enqueue, 1 caller", ""), ("enqueue, 64 callers", "")];
    let mut pairs = rows.map(|_| Pairs::default());
    for _ in 0..repetitions {
        let (raw, ours) = (raw_rates(server, jobs).await?, our_rates(server, jobs).await?);
        for ((pairs, raw), ours) in pairs.iter_mut().zip(raw).zip(ours) {
            pairs.add(ours, raw);
        }
    }
    for ((name, goal), pairs) in rows.iter().zip(&pairs) {
        pairs.tell(name, goal);
    }
    Ok(())
}

async fn drains(server: &Server, jobs: usize, repetitions: usize) -> Outcome<()> {
    for (rule, retention) in RULES {
        for concurrency in CONCURRENCIES {
            let mut pairs = Pairs::default();
            for _ in 0..repetitions {
                let (ours, raw) = one_drain(server, (jobs, jobs), concurrency, retention).await?;
                pairs.add(ours, raw);
            }
            pairs.tell(&format!("drain {rule}, {concurrency} slots"), "   goal 0.50");
        }
    }
    Ok(())
}

async fn pickups(server: &Server, repetitions: usize) -> Outcome<()> {
    let (mut raw, mut same, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repetitions {
        raw.append(&mut raw_pickups(server).await?);
        same.append(&mut our_pickups(server, true).await?);
        other.append(&mut our_pickups(server, false).await?);
    }
    for (name, ours) in [("same store", &same), ("other store", &other)] {
        for (percent, goal) in [(50, "goal at most 2.00"), (99, "goal below 10 ms")] {
            let (ours, raw) = (percentile(ours, percent), percentile(&raw, percent));
            let ratio = ours / raw;
            println!(
                "pickup, {name}, p{percent}: {ours:.2} ms   raw NOTIFY {raw:.2} ms   {ratio:.2}   {goal}"
            );
        }
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

fn per_second(jobs: usize, since: Instant) -> f64 {
    f64::from(u32::try_from(jobs).unwrap_or(u32::MAX)) / since.elapsed().as_secs_f64()
}

fn payload() -> Outcome<Json> {
    Ok(Json::of(&"x".repeat(PAYLOAD_BYTES - 2))?)
}

// Raw.

async fn raw_table(server: &Server) -> Outcome<Client> {
    let client = server.connect().await;
    client.batch_execute(&format!("DROP TABLE IF EXISTS raw_jobs; {RAW_TABLE}")).await?;
    Ok(client)
}

async fn raw_rates(server: &Server, jobs: usize) -> Outcome<[f64; 3]> {
    let bulk = raw_bulk(&raw_table(server).await?, jobs).await?;
    Ok([bulk, raw_singles(server, 1).await?, raw_singles(server, CALLERS).await?])
}

async fn raw_bulk(client: &Client, jobs: usize) -> Outcome<f64> {
    let payload = payload()?;
    let types = [Type::TEXT, Type::INT4, Type::INT8, Type::INT2, Type::TEXT];
    let since = Instant::now();
    for first in (0..jobs).step_by(BULK) {
        let sink = client
            .copy_in("COPY raw_jobs (queue, priority, run_at, state, payload) FROM STDIN BINARY")
            .await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
        for _ in first..jobs.min(first + BULK) {
            writer.as_mut().write(&[&"bulk", &0_i32, &1_i64, &0_i16, &payload.as_str()]).await?;
        }
        writer.finish().await?;
    }
    Ok(per_second(jobs, since))
}

async fn raw_drain(client: &Client, jobs: usize) -> Outcome<f64> {
    let claim = client.prepare(RAW_CLAIM_SQL).await?;
    let delete = client.prepare("DELETE FROM raw_jobs WHERE id = ANY ($1)").await?;
    let since = Instant::now();
    let mut drained = 0;
    let limit = i64::try_from(RAW_CLAIM)?;
    while drained < jobs {
        let rows = client.query(&claim, &[&"bulk", &limit]).await?;
        let ids: Vec<i64> = rows
            .iter()
            .map(|row| row.get::<_, &str>(1).len())
            .zip(&rows)
            .map(|(_, row)| row.get(0))
            .collect();
        if ids.is_empty() {
            break;
        }
        client.execute(&delete, &[&ids]).await?;
        drained += ids.len();
    }
    Ok(per_second(drained, since))
}

async fn raw_singles(server: &Server, callers: usize) -> Outcome<f64> {
    let each = 2_000 / callers;
    let payload = payload()?;
    let mut clients = Vec::new();
    for _ in 0..callers {
        clients.push(server.connect().await);
    }
    let since = Instant::now();
    let callers: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let payload = payload.clone();
            tokio::spawn(async move {
                let sql = "INSERT INTO raw_jobs (queue, priority, run_at, state, payload) VALUES ('single', 0, 1, 0, $1)";
                let insert = client.prepare(sql).await?;
                for _ in 0..each {
                    client.execute(&insert, &[&payload.as_str()]).await?;
                }
                Ok::<_, tokio_postgres::Error>(())
            })
        })
        .collect();
    let count = callers.len() * each;
    for caller in callers {
        caller.await??;
    }
    Ok(per_second(count, since))
}

/// From just before the insert to the committed claim of whoever was notified.
async fn raw_pickups(server: &Server) -> Outcome<Vec<f64>> {
    let (mut heard_sender, mut heard) = tokio::sync::mpsc::channel::<()>(16);
    let (listener, mut connection) = tokio_postgres::connect(&server.plain_url(), NoTls).await?;
    let hearing = tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) && heard_sender.send(()).await.is_err() {
                return;
            }
            heard_sender = heard_sender.clone();
        }
    });
    let producer = raw_table(server).await?;
    listener.batch_execute("LISTEN raw").await?;
    let claim = listener.prepare(RAW_CLAIM_SQL).await?;
    let payload = payload()?;
    let mut waits = Vec::new();
    for _ in 0..PICKUPS {
        tokio::time::sleep(GAP).await;
        let since = Instant::now();
        let text = format!(
            "BEGIN; INSERT INTO raw_jobs (queue, priority, run_at, state, payload) VALUES ('bulk', 0, 1, 0, '{}'); NOTIFY raw; COMMIT",
            payload.as_str()
        );
        let produce = producer.batch_execute(&text);
        let consume = async {
            heard.recv().await;
            listener.query(&claim, &[&"bulk", &1_i64]).await
        };
        let (produced, claimed) = tokio::join!(produce, async {
            let rows = consume.await;
            (rows, since.elapsed())
        });
        produced?;
        claimed.0?;
        waits.push(claimed.1.as_secs_f64() * 1000.0);
    }
    hearing.abort();
    Ok(waits)
}

// Ours.

async fn open(server: &Server, schema: &str) -> Outcome<Queue> {
    let store = PostgresStore::open(&server.url(schema), PostgresOptions::default()).await?;
    Ok(Queue::new(Arc::new(store)))
}

async fn our_rates(server: &Server, jobs: usize) -> Outcome<[f64; 3]> {
    let schema = Server::schema();
    let queue = open(server, &schema).await?;
    let bulk = our_bulk(&queue, jobs, None).await?;
    let rates = [bulk, our_singles(&queue, 1).await?, our_singles(&queue, CALLERS).await?];
    drop_schema(server, &schema).await?;
    Ok(rates)
}

async fn drop_schema(server: &Server, schema: &str) -> Outcome<()> {
    server.connect().await.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    Ok(())
}

async fn our_bulk(queue: &Queue, jobs: usize, retention: Option<Retention>) -> Outcome<f64> {
    let payload = payload()?;
    let since = Instant::now();
    for first in (0..jobs).step_by(BULK) {
        let new = (first..jobs.min(first + BULK)).map(|_| {
            let job = NewJob::new("noop", payload.clone());
            match retention {
                None => job,
                Some(retention) => job.retention(retention),
            }
        });
        queue.enqueue_many(new.collect()).await?;
    }
    Ok(per_second(jobs, since))
}

/// Claims, runs a no-op and settles with the result stored, until nothing is left or `limit` jobs have run.
async fn our_drain(queue: &Queue, limit: Option<usize>, concurrency: usize) -> Outcome<f64> {
    let shutdown = Shutdown::new();
    let options = WorkerOptions {
        concurrency,
        until_empty: limit.is_none(),
        // Nothing here waits for a time; the sweeps would be measured as well.
        maintenance: None,
        ..WorkerOptions::default()
    };
    let mut worker = Worker::new(queue.clone(), options);
    let (count, stop) = (Arc::new(AtomicUsize::new(0)), shutdown.clone());
    worker.handle("noop", move |_context: JobContext, _payload: Json| {
        if limit.is_some_and(|limit| count.fetch_add(1, Ordering::Relaxed) + 1 == limit) {
            stop.drain();
        }
        async move { Ok::<_, Failure>(()) }
    });
    let since = Instant::now();
    let report = worker.run(shutdown).await?;
    Ok(per_second(usize::try_from(report.done)?, since))
}

async fn our_singles(queue: &Queue, callers: usize) -> Outcome<f64> {
    let each = 2_000 / callers;
    let payload = payload()?;
    let since = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (queue, payload) = (queue.clone(), payload.clone());
            tokio::spawn(async move {
                for _ in 0..each {
                    queue.enqueue(NewJob::new("noop", payload.clone())).await?;
                }
                Ok::<_, longhaul_queue::Error>(())
            })
        })
        .collect();
    let count = callers.len() * each;
    for caller in callers {
        caller.await??;
    }
    Ok(per_second(count, since))
}

/// From just before the enqueue to the start of the handler, in milliseconds.
async fn our_pickups(server: &Server, same: bool) -> Outcome<Vec<f64>> {
    let schema = Server::schema();
    let queue = open(server, &schema).await?;
    let producer = if same { queue.clone() } else { open(server, &schema).await? };
    let starts = Arc::new(Mutex::new(Vec::new()));
    let shutdown = Shutdown::new();
    let options = WorkerOptions { concurrency: 10, maintenance: None, ..WorkerOptions::default() };
    let mut worker = Worker::new(queue, options);
    let seen = Arc::clone(&starts);
    worker.handle("noop", move |_context: JobContext, _payload: Json| {
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        async move { Ok::<_, Failure>(()) }
    });
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(shutdown).await });
    let payload = payload()?;
    let mut stamps = Vec::new();
    for number in 0..PICKUPS {
        tokio::time::sleep(GAP).await;
        stamps.push(Instant::now());
        producer.enqueue(NewJob::new("noop", payload.clone())).await?;
        let deadline = SystemClock.now() + Duration::from_secs(10);
        while starts.lock().unwrap_or_else(PoisonError::into_inner).len() <= number
            && SystemClock.now() < deadline
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    stop.drain();
    running.await??;
    let starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(starts
        .iter()
        .zip(&stamps)
        .map(|(start, stamp)| start.duration_since(*stamp).as_secs_f64() * 1000.0)
        .collect())
}

/// The first `drained` of `queued` jobs, ours and raw. Both tables are loaded, analysed and written out before: a planner
/// that takes a million rows for none reads all of them, and writing out a load is no part of a drain.
async fn one_drain(
    server: &Server,
    (queued, drained): (usize, usize),
    concurrency: usize,
    retention: Option<Retention>,
) -> Outcome<(f64, f64)> {
    let client = raw_table(server).await?;
    raw_bulk(&client, queued).await?;
    client.batch_execute("ANALYZE raw_jobs; CHECKPOINT").await?;
    let raw = raw_drain(&client, drained).await?;
    let schema = Server::schema();
    let queue = open(server, &schema).await?;
    our_bulk(&queue, queued, retention).await?;
    client.batch_execute(&format!("ANALYZE {schema}.lh_jobs; CHECKPOINT")).await?;
    let ours = our_drain(&queue, (queued > drained).then_some(drained), concurrency).await?;
    if queued > drained {
        let size = format!("SELECT pg_total_relation_size('{schema}.lh_jobs')");
        let bytes: i64 = client.query_one(&size, &[]).await?.get(0);
        println!(
            "  {queued} queued: {ours:.0}/s   raw {raw:.0}/s   {} bytes a job",
            bytes / i64::try_from(queued)?
        );
    }
    drop_schema(server, &schema).await?;
    Ok((ours, raw))
}

/// The first jobs of a long queue, against the first of a short one.
async fn at_depth(server: &Server, depth: usize, repetitions: usize) -> Outcome<()> {
    let mut kept = Vec::new();
    for _ in 0..repetitions {
        let (ours_short, raw_short) =
            one_drain(server, (DEPTH_DRAINED + 1, DEPTH_DRAINED), CONCURRENCIES[0], None).await?;
        let (ours_long, raw_long) = one_drain(server, (depth, DEPTH_DRAINED), CONCURRENCIES[0], None).await?;
        let (ours, raw) = (ours_long / ours_short, raw_long / raw_short);
        kept.push(ours / raw);
        println!("drain at {depth} against {DEPTH_DRAINED}: {ours:.2}   raw {raw:.2}   {:.2}", ours / raw);
    }
    println!("depth, median            {:.2}   goal 0.80", median(&kept));
    Ok(())
}
