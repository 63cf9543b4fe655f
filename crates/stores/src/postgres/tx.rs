//! One transaction: statements, and the bookkeeping that every change of a job carries along. It is written once a
//! transaction, not once a job, and together with the commit.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use longhaul_queue::job::Progress;
use longhaul_queue::store::QueueSettings;
use longhaul_queue::{State, Timestamp};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, CopyInSink, Row};

use super::db::{Keys, Told, gone};
use super::error::{DbResult, corrupt};
use super::listener::Listener;
use super::pool::{Pooled, Statements};
use super::rows::{from_text, state_number, to_text};
use super::{process, totals};
use crate::changes::{Changes, JobKey};
use crate::queue_row::QueueRow;

/// What a statement is given.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The transaction that a call runs in.
pub(super) struct Tx<'a> {
    link: Link<'a>,
    /// Opens the transaction; sent together with its first statement.
    opening: Mutex<Option<String>>,
    keys: Keys,
    now: Timestamp,
    alone: bool,
    queues: HashMap<String, QueueRow>,
    changes: Changes,
    /// Processes that may be empty though none of their jobs moved.
    recheck: BTreeSet<String>,
    changed: bool,
    /// Set by the statement that took the commit along.
    committed: Option<Told>,
}

enum Link<'a> {
    Own(Pooled, Arc<Listener>),
    /// A caller's transaction: committing it is the caller's business.
    Caller(&'a Client, Statements),
}

/// The columns of [`read_queue`].
macro_rules! queue_columns {
    () => {
        "paused, max_running, retention, max_running_per_key, ageing, last_key IS NOT NULL"
    };
}
pub(super) use queue_columns;

/// Reads the columns of `queue_columns!` from the start of a row.
pub(super) fn read_queue(row: &Row) -> DbResult<QueueRow> {
    let limit = |index: usize| -> DbResult<Option<u32>> {
        let limit: Option<i64> = row.try_get(index)?;
        Ok(limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)))
    };
    let ageing: Option<i64> = row.try_get(4)?;
    let settings = QueueSettings {
        paused: row.try_get(0)?,
        max_running: limit(1)?,
        max_running_per_key: limit(3)?,
        ageing: ageing.map(|millis| Duration::from_millis(millis.unsigned_abs())),
        retention: from_text("a queue's retention", row.try_get(2)?)?,
    };
    Ok(QueueRow { settings, keyed: row.try_get(5)? })
}

impl Tx<'static> {
    pub(super) fn own(
        pooled: Pooled,
        listener: &Arc<Listener>,
        keys: Keys,
        now: Timestamp,
        alone: bool,
    ) -> Self {
        Self::new(Link::Own(pooled, Arc::clone(listener)), keys, now, alone)
    }

    /// Will be opened by `opening`, on the same trip as its first statement.
    pub(super) fn opened_by(mut self, opening: String) -> Self {
        self.opening = Mutex::new(Some(opening));
        self
    }
}

impl<'a> Tx<'a> {
    /// In a transaction that a caller has begun.
    pub(super) fn of_caller(client: &'a Client, keys: Keys, now: Timestamp, alone: bool) -> Self {
        Self::new(Link::Caller(client, Statements::default()), keys, now, alone)
    }

    fn new(link: Link<'a>, keys: Keys, now: Timestamp, alone: bool) -> Self {
        Self {
            link,
            opening: Mutex::new(None),
            keys,
            now,
            alone,
            queues: HashMap::new(),
            changes: Changes::default(),
            recheck: BTreeSet::new(),
            changed: false,
            committed: None,
        }
    }

    /// Whether nobody else works on the store meanwhile.
    pub(super) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether the whole transaction may be run again when it turns out that it went the wrong way.
    pub(super) fn may_restart(&self) -> bool {
        !self.alone && matches!(self.link, Link::Own(..))
    }

    pub(super) fn keys(&self) -> Keys {
        self.keys
    }

    fn parts(&self) -> DbResult<(&Client, &Statements)> {
        match &self.link {
            Link::Own(pooled, _) => {
                let session = pooled.session().ok_or_else(gone)?;
                Ok((&session.client, &session.statements))
            }
            Link::Caller(client, statements) => Ok((client, statements)),
        }
    }

    pub(super) fn client(&self) -> DbResult<&Client> {
        Ok(self.parts()?.0)
    }

    fn take_opening(&self) -> Option<String> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Runs a statement and says how many rows it changed.
    pub(super) async fn run(&self, sql: &'static str, params: Params<'_>) -> DbResult<u64> {
        let (client, statements) = self.parts()?;
        let statement = statements.get(client, sql).await?;
        let Some(opening) = self.take_opening() else { return Ok(client.execute(&statement, params).await?) };
        let (opened, changed) =
            tokio::join!(client.batch_execute(&opening), client.execute(&statement, params));
        opened?;
        Ok(changed?)
    }

    /// The first row, if any.
    pub(super) async fn one(&self, sql: &'static str, params: Params<'_>) -> DbResult<Option<Row>> {
        Ok(self.all(sql, params).await?.into_iter().next())
    }

    /// All rows.
    pub(super) async fn all(&self, sql: &'static str, params: Params<'_>) -> DbResult<Vec<Row>> {
        let (client, statements) = self.parts()?;
        let statement = statements.get(client, sql).await?;
        let Some(opening) = self.take_opening() else { return Ok(client.query(&statement, params).await?) };
        let (opened, rows) = tokio::join!(client.batch_execute(&opening), client.query(&statement, params));
        opened?;
        Ok(rows?)
    }

    /// A statement for rows that are copied in.
    pub(super) async fn copy_in(&self, sql: &'static str) -> DbResult<CopyInSink<Bytes>> {
        let (client, statements) = self.parts()?;
        Ok(client.copy_in(&statements.get(client, sql).await?).await?)
    }

    /// A queue's settings, read once a transaction.
    pub(super) async fn queue(&mut self, name: &str) -> DbResult<QueueRow> {
        if let Some(queue) = self.queues.get(name) {
            return Ok(*queue);
        }
        let sql = concat!("SELECT ", queue_columns!(), " FROM lh_queues WHERE name = $1");
        let row = self.one(sql, &[&name]).await?;
        let queue = row.map_or_else(|| Ok(QueueRow::default()), |row| read_queue(&row))?;
        self.queues.insert(name.to_owned(), queue);
        Ok(queue)
    }

    /// Books a job's move: `None` is "not stored".
    pub(super) fn moved(&mut self, subject: JobKey<'_>, from: Option<State>, to: Option<State>) {
        self.changes.moved(subject, from, to);
    }

    /// Books a job that comes as it is, from elsewhere: it is counted, and no news.
    pub(super) fn came(&mut self, subject: JobKey<'_>, state: State) {
        self.changes.came(subject, state);
    }

    /// Adds an event.
    pub(super) fn tell(&mut self, subject: JobKey<'_>, state: State, progress: Option<Progress>) {
        self.changes.tell(subject, state, progress);
    }

    /// Says that something else changed that others may wait for.
    pub(super) fn touch(&mut self) {
        self.changed = true;
    }

    /// Looks before the commit whether a process is empty, though none of its jobs moved.
    pub(super) fn recheck_process(&mut self, process: &str) {
        self.recheck.insert(process.to_owned());
    }

    /// Jobs of a process that are booked but not written, by state; helpers apart.
    pub(super) fn booked(&self, process: &str) -> [[i64; 8]; 2] {
        self.changes.processes.get(process).copied().unwrap_or_default()
    }

    /// Jobs of a queue in a state that are booked but not written.
    pub(super) fn booked_in_queue(&self, queue: &str, state: State) -> i64 {
        self.changes.counts.in_queue(queue, state).map(|(_, jobs)| jobs).sum()
    }

    /// Begins a part of the transaction that the queue's rules may refuse.
    pub(super) async fn attempt(&mut self) -> DbResult<Changes> {
        self.client()?.batch_execute("SAVEPOINT attempt").await?;
        Ok(self.changes.clone())
    }

    /// Ends that part: with `before`, nothing of it remains.
    pub(super) async fn attempted(&mut self, before: Option<Changes>) -> DbResult<()> {
        let Some(before) = before else {
            return Ok(self.client()?.batch_execute("RELEASE attempt").await?);
        };
        self.client()?.batch_execute("ROLLBACK TO attempt; RELEASE attempt").await?;
        self.changes = before;
        self.queues.clear();
        Ok(())
    }

    /// Writes all bookkeeping, in a transaction that a caller will commit.
    pub(super) async fn write_bookkeeping(&mut self) -> DbResult<Told> {
        self.drop_empty_processes().await?;
        let Some(books) = Books::of(&self.changes, self.now)? else {
            return Ok(Told { changed: self.changed, ..Told::default() });
        };
        books.write(self).await?;
        Ok(Told { changed: self.changed || books.news.is_some(), rows: books.what.len(), notified: false })
    }

    async fn drop_empty_processes(&mut self) -> DbResult<()> {
        if !self.alone {
            return Ok(());
        }
        // It can only be empty now if jobs went, or if what came went again.
        let lost = self.changes.processes.iter().filter(|(_, delta)| {
            let sum: i64 = delta.iter().flatten().sum();
            sum < 0 || delta.iter().flatten().all(|jobs| *jobs == 0)
        });
        let mut checked: BTreeSet<String> = lost.map(|(process, _)| process.clone()).collect();
        checked.append(&mut self.recheck);
        for process in checked {
            process::drop_if_empty(self, &process).await?;
        }
        Ok(())
    }

    /// Runs the last statements of a call, with all that goes before and after them on the same trip to the server: the
    /// opening of the transaction, the bookkeeping, the commit and the word to other stores. When one fails, the commit
    /// that follows undoes everything. When the connection is lost, the call is run again though this may be committed: a claim then
    /// takes other jobs, and an enqueue finds its own. Answers the rows of each.
    pub(super) async fn last(
        &mut self,
        statements: &[(&'static str, Params<'_>)],
    ) -> DbResult<Vec<Vec<Row>>> {
        let (rows, told) = self.send_commit(statements).await?;
        self.rests();
        self.committed = Some(told);
        Ok(rows)
    }

    /// Says what a last statement has booked by itself.
    pub(super) fn booked_by_last(&mut self, rows: usize) {
        self.committed = Some(Told { changed: rows > 0, rows, notified: false });
    }

    /// Writes the bookkeeping, commits and tells other stores, in one trip to the server.
    pub(super) async fn commit(&mut self) -> DbResult<Told> {
        if let Some(told) = self.committed {
            return Ok(told);
        }
        if self.take_opening().is_some() {
            // Nothing was done, so there is nothing to commit.
            self.rests();
            return Ok(Told::default());
        }
        self.drop_empty_processes().await?;
        let (_, told) = self.send_commit(&[]).await?;
        self.rests();
        Ok(told)
    }

    async fn send_commit(&self, last: &[(&'static str, Params<'_>)]) -> DbResult<(Vec<Vec<Row>>, Told)> {
        let books = Books::of(&self.changes, self.now)?;
        let changed = self.changed || books.as_ref().is_some_and(|books| books.news.is_some());
        let (client, statements) = self.parts()?;
        // Prepared beforehand, or the commit would overtake the statements.
        let mut prepared = Vec::with_capacity(last.len());
        for (sql, params) in last {
            prepared.push((statements.get(client, sql).await?, *params));
        }
        if books.is_some() {
            statements.get(client, BOOK).await?;
        }
        let opening = self.take_opening();
        let open = async {
            match &opening {
                Some(opening) => client.batch_execute(opening).await,
                None => Ok(()),
            }
        };
        let run = try_join_all(prepared.iter().map(|(statement, params)| client.query(statement, params)));
        let book = async {
            match &books {
                Some(books) => books.write(self).await,
                None => Ok(()),
            }
        };
        let (opened, rows, written, committed) =
            tokio::join!(open, run, book, self.commit_and_notify(client, changed));
        let told =
            |notified| Told { changed, notified, rows: books.as_ref().map_or(0, |books| books.what.len()) };
        opened?;
        let rows = rows?;
        written?;
        Ok((rows, told(committed?)))
    }

    /// Commits, and sends the word to other stores right behind without waiting for what becomes of it: whoever is not
    /// told finds out by polling. Says whether it was sent.
    async fn commit_and_notify(&self, client: &Client, changed: bool) -> Result<bool, tokio_postgres::Error> {
        let notice = match &self.link {
            Link::Own(_, listener) if changed => listener.notice(),
            Link::Own(..) | Link::Caller(..) => None,
        };
        let Some(notice) = notice else { return client.batch_execute("COMMIT").await.map(|()| false) };
        let notified = client.batch_execute(notice);
        tokio::select! {
            biased;
            committed = client.batch_execute("COMMIT") => committed.map(|()| true),
            // Polled once, which sends it.
            never = async { let _ = notified.await; std::future::pending().await } => never,
        }
    }

    /// The connection is free for others.
    pub(super) fn rests(&mut self) {
        if let Link::Own(pooled, _) = &mut self.link {
            pooled.rests();
        }
    }

    /// Undoes everything. When that fails, the connection is closed, which does it too.
    pub(super) async fn roll_back(mut self) {
        let undone = match self.client() {
            _ if self.take_opening().is_some() => true,
            Ok(client) => client.batch_execute("ROLLBACK").await.is_ok(),
            Err(_) => false,
        };
        if undone {
            self.rests();
        }
    }
}

const BOOK: &str = "WITH counted AS (
         INSERT INTO lh_deltas (what, name, part, state, kind, jobs)
         SELECT * FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::smallint[], $5::text[], $6::bigint[]))
     INSERT INTO lh_news (at, changes, more) SELECT $7, $8::text, $9 WHERE $8::text IS NOT NULL";

/// A transaction's bookkeeping, ready to be written.
#[derive(Default)]
struct Books {
    what: Vec<i16>,
    name: Vec<String>,
    part: Vec<i64>,
    state: Vec<i16>,
    kind: Vec<String>,
    jobs: Vec<i64>,
    at: i64,
    news: Option<String>,
    more: i64,
}

impl Books {
    fn of(changes: &Changes, now: Timestamp) -> DbResult<Option<Self>> {
        let mut books = Self { at: now.as_millis(), ..Self::default() };
        for (queue, kind, state, jobs) in changes.counts.iter() {
            books.add(totals::QUEUE, queue, 0, state, kind, jobs);
        }
        for (queue, kind, state, jobs) in changes.ledger.iter() {
            books.add(totals::LEDGER, queue, now.day(), state, kind, jobs);
        }
        for (process, delta) in &changes.processes {
            for (helper, by_state) in (0..).zip(delta) {
                for (state, jobs) in State::ALL.into_iter().zip(*by_state).filter(|(_, jobs)| *jobs != 0) {
                    books.add(totals::PROCESS, process, helper, state, "", jobs);
                }
            }
        }
        if !changes.events.is_empty() {
            books.news = Some(to_text("an event", &changes.events)?);
            books.more = i64::try_from(changes.more_events).map_err(|error| corrupt("an event", error))?;
        }
        Ok((!books.what.is_empty() || books.news.is_some()).then_some(books))
    }

    fn add(&mut self, what: i16, name: &str, part: i64, state: State, kind: &str, jobs: i64) {
        self.what.push(what);
        self.name.push(name.to_owned());
        self.part.push(part);
        self.state.push(state_number(state));
        self.kind.push(kind.to_owned());
        self.jobs.push(jobs);
    }

    async fn write(&self, tx: &Tx<'_>) -> DbResult<()> {
        let Self { what, name, part, state, kind, jobs, at, news, more } = self;
        tx.run(BOOK, &[what, name, part, state, kind, jobs, at, news, more]).await?;
        Ok(())
    }
}
