//! An application's own row and its job commit together, or neither does. `cargo run --example transactional_enqueue`

use std::sync::Arc;

use longhaul_queue::{Engine, Failure, JobContext, Json, NewJob, Shutdown, Worker, WorkerOptions};
use longhaul_stores::sqlite::{Db, DbError, DbResult, SqliteOptions, SqliteStore, Transaction};

/// One order and the job that bills it. There is no moment at which one exists without the other.
fn place_order(tx: &mut Transaction<'_, '_>, id: i64, cents: i64) -> DbResult<()> {
    tx.connection().execute("INSERT INTO orders (id, cents, billed) VALUES (?1, ?2, 0)", [id, cents])?;
    tx.enqueue(vec![NewJob::new("bill", Json::of(&id)?)])?;
    if cents < 0 {
        // Too late? No: an error takes the row and the job back.
        return Err(DbError::caller(format!("order {id} costs less than nothing")));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The application's tables and the queue's (they begin with lh_) live in one file.
    let folder = tempfile::tempdir()?;
    let db = Db::open(&folder.path().join("shop.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(SqliteStore::on(db.clone())));
    db.transaction(|tx| {
        let table = "CREATE TABLE orders (id INTEGER PRIMARY KEY, cents INTEGER, billed INTEGER)";
        Ok(tx.connection().execute_batch(table)?)
    })
    .await?;

    db.transaction(|tx| place_order(tx, 1, 4200)).await?;
    let refused = db.transaction(|tx| place_order(tx, 2, -1)).await.expect_err("a negative price");
    println!("refused: {refused}");

    let options = WorkerOptions { until_empty: true, ..WorkerOptions::default() };
    let mut worker = Worker::new(engine, options);
    let shop = db.clone();
    worker.handle("bill", move |_context: JobContext, order: i64| {
        let shop = shop.clone();
        async move {
            // A job may run more than once, so its effect is written such that a repetition changes nothing.
            let bill = "UPDATE orders SET billed = 1 WHERE id = ?1";
            shop.transaction(move |tx| Ok(tx.connection().execute(bill, [order])?)).await?;
            Ok::<_, Failure>(order)
        }
    });
    let report = worker.run(Shutdown::new()).await?;

    let (orders, billed): (i64, i64) = db
        .read(|connection| {
            let sql = "SELECT count(*), sum(billed) FROM orders";
            Ok(connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?)
        })
        .await?;
    println!("{orders} order, {billed} billed, {} job run", report.total());
    assert_eq!((orders, billed, report.total()), (1, 1, 1));
    Ok(())
}
