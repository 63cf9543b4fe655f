//! The database: opening, migrations, and how a call becomes a transaction that is run again when it collides.
//!
//! Calls that touch nothing but their own rows (an enqueue of plain jobs, a claim, a settlement of jobs that nobody
//! waits for) run side by side, guarded by row locks and fences. Calls that reach into other jobs (dependencies,
//! processes that are waited for, unique keys, signals, sweeps, a person's verbs) run alone. An advisory lock of the
//! schema, shared for the former and exclusive for the latter, keeps them apart; so their rules need not consider what
//! others might be doing in between. A call that finds out on its way that it must run alone begins again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_queue::limits::Limits;
use longhaul_queue::store::Caps;
use longhaul_queue::{Clock, Error, Result, SystemClock, Timestamp};
use tokio::sync::watch;
use tokio_postgres::Client;
use tracing::debug;

use crate::insert_batcher::Gather;
use crate::io::Io;
use crate::server_clock::ServerClock;
use crate::settle_order::SettleOrder;

use super::error::{DbError, DbResult, from_sql, is_collision, is_connection_lost};
use super::listener::Listener;
use super::pool::{Door, Pool, Pooled};
use super::settle_fast::Habit;
use super::tx::Tx;
use super::url::PostgresUrl;
use super::{fold, server_time};

/// Forward migrations, in order. A new one is a new file; old ones are never edited.
const MIGRATIONS: [&str; 3] = [
    include_str!("migrations/0001_jobs.sql"),
    include_str!("migrations/0002_turns.sql"),
    include_str!("migrations/0003_ends.sql"),
];
/// How often a transaction is run at most.
const TRIES_MAX: u32 = 8;
/// How often a broken connection is replaced within one call.
const RECONNECTS_MAX: u32 = 2;
/// Counter rows that this store adds before it folds them.
const FOLD_AFTER_ROWS: usize = 1_000;
/// The oldest server whose SQL has all that is used here.
const SERVER_VERSION_MIN: i32 = 120_000;

/// How to open a store.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Make the schema when it is missing.
    pub create: bool,
    /// The clock that leases count by. In place of the system clock the server's time is taken.
    pub clock: Arc<dyn Clock>,
    /// What an enqueue inside a caller's transaction accepts.
    pub limits: Limits,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { create: true, clock: Arc::new(SystemClock), limits: Limits::default() }
    }
}

/// Who else may work while a transaction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One statement that only reads.
    Look,
    /// Several statements that read one state of things.
    Read,
    /// Others may work on other rows.
    Shared,
    /// Like `Shared`, and a crash of the server may undo it: for signs of life.
    Fleeting,
    /// Nobody else.
    Alone,
}

/// One call on its way to a commit.
pub(super) struct Call {
    pub(super) mode: Mode,
    pub(super) now: Timestamp,
    tries: u32,
    reconnects: u32,
}

impl Call {
    pub(super) fn new(mode: Mode, now: Timestamp) -> Self {
        Self { mode, now, tries: 0, reconnects: 0 }
    }
}

/// Runs a call's work in a transaction, again when it collides, and returns its answer.
macro_rules! transact {
    ($db:expr, $mode:expr, $now:expr, |$tx:ident| $work:expr) => {{
        let mut call = $crate::postgres::db::Call::new($mode, $now);
        loop {
            let mut opened = match $db.begin(&mut call).await {
                Ok(Some(opened)) => opened,
                Ok(None) => continue,
                Err(error) => break Err(error),
            };
            let outcome = {
                let $tx = &mut opened;
                $work.await
            };
            if let Some(answer) = $db.end(&mut call, opened, outcome).await {
                break answer;
            }
        }
    }};
}
pub(super) use transact;

/// Keys of the advisory locks, and the name of the channel, of one schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    base: i64,
}

impl Keys {
    fn of(schema: &str) -> Self {
        Self { base: hash(&["longhaul", schema]) }
    }

    pub(super) fn rows(self) -> i64 {
        self.base
    }

    pub(super) fn fold(self) -> i64 {
        self.base ^ 1
    }

    fn migrate(self) -> i64 {
        self.base ^ 2
    }

    pub(super) fn queue(self, queue: &str) -> i64 {
        hash(&[queue]) ^ self.base
    }

    pub(super) fn channel(self) -> String {
        format!("lh_{:016x}", self.base)
    }
}

/// FNV-1a: the same in every process and every version.
fn hash(parts: &[&str]) -> i64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in parts.iter().flat_map(|part| part.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.cast_signed()
}

/// What leases count by.
enum StoreClock {
    Server(Arc<ServerClock>),
    Given(Arc<dyn Clock>),
}

/// An open database.
pub(super) struct Db {
    pub(super) pool: Pool,
    pub(super) keys: Keys,
    clock: StoreClock,
    pub(super) limits: Limits,
    pub(super) gather: Gather,
    pub(super) habit: Habit,
    pub(super) settle_order: Arc<SettleOrder>,
    caps: Caps,
    listener: Arc<Listener>,
    unfolded: AtomicUsize,
    // Last, so that everything it serves has gone before.
    _io: Io,
}

impl Db {
    /// Connects and brings the schema up to date.
    pub(super) async fn open(url: &PostgresUrl, options: PostgresOptions) -> Result<Self> {
        let io = Io::start("longhaul-postgres")?;
        let door = Door::new(url)?;
        let pool = Pool::new(door.clone(), io.handle()?);
        let keys = Keys::of(url.schema());
        let mut pooled = pool.get().await?;
        let session = pooled.session().ok_or_else(gone)?;
        migrate(&session.client, url, keys, options.create).await?;
        let caps = caps(&session.client).await.map_err(|error| from_sql(&error))?;
        let clock = if options.clock.is_system() {
            StoreClock::Server(server_time::measure(&session.client).await?)
        } else {
            StoreClock::Given(options.clock)
        };
        pooled.rests();
        drop(pooled);
        if let StoreClock::Server(clock) = &clock {
            server_time::keep(&pool, clock);
        }
        let listener = Arc::new(Listener::start(door, keys.channel(), pool.io()).await);
        let limits = options.limits;
        Ok(Self {
            pool,
            keys,
            clock,
            limits,
            gather: Gather::default(),
            habit: Habit::default(),
            settle_order: Arc::default(),
            caps,
            listener,
            unfolded: AtomicUsize::new(0),
            _io: io,
        })
    }

    pub(super) fn caps(&self) -> &Caps {
        &self.caps
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.listener.watch()
    }

    /// The server's time as far as it is known, whatever a caller's clock says. A clock that the store was given is
    /// looked at again, so that waiting for a connection does not eat a lease.
    pub(super) fn time(&self, now: Timestamp) -> Timestamp {
        match &self.clock {
            StoreClock::Server(clock) => clock.now(),
            StoreClock::Given(clock) => now.max(clock.now()),
        }
    }

    /// The server's clock, unless the store was given another.
    pub(super) fn server_clock(&self) -> Option<Arc<dyn Clock>> {
        match &self.clock {
            StoreClock::Server(clock) => Some(Arc::clone(clock) as _),
            StoreClock::Given(_) => None,
        }
    }

    fn tx(&self, pooled: Pooled, call: &Call, alone: bool) -> Tx<'static> {
        Tx::own(pooled, &self.listener, self.keys, call.now, alone)
    }

    /// Opens a transaction for a call; `None` when that is worth another try.
    pub(super) async fn begin(&self, call: &mut Call) -> Result<Option<Tx<'static>>> {
        call.tries += 1;
        let pooled = self.pool.get().await?;
        let client = &pooled.session().ok_or_else(gone)?.client;
        let key = self.keys.rows();
        let lock = match call.mode {
            Mode::Look => return Ok(Some(self.tx(pooled, call, false))),
            Mode::Shared => Some(format!("BEGIN; SELECT pg_advisory_xact_lock_shared({key})")),
            Mode::Fleeting => {
                let begin = "BEGIN; SET LOCAL synchronous_commit = off";
                Some(format!("{begin}; SELECT pg_advisory_xact_lock_shared({key})"))
            }
            Mode::Read | Mode::Alone => None,
        };
        if let Some(lock) = lock {
            return Ok(Some(self.tx(pooled, call, false).opened_by(lock)));
        }
        let begun = if call.mode == Mode::Read {
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
        } else {
            client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({key})")).await
        };
        match begun {
            Ok(()) => Ok(Some(self.tx(pooled, call, call.mode == Mode::Alone))),
            Err(error) => match self.again(call, &error).await {
                true => Ok(None),
                false => Err(from_sql(&error)),
            },
        }
    }

    /// Ends a call's transaction; `None` when the call must be run again.
    pub(super) async fn end<T>(
        &self,
        call: &mut Call,
        mut tx: Tx<'static>,
        outcome: DbResult<T>,
    ) -> Option<Result<T>> {
        if call.mode == Mode::Look {
            return match outcome {
                Err(DbError::Sql(error)) if self.again(call, &error).await => None,
                Err(DbError::Sql(error)) => Some(Err(from_sql(&error))),
                other => {
                    tx.rests();
                    Some(other.map_err(Error::from))
                }
            };
        }
        let error = match outcome {
            Ok(value) => match tx.commit().await {
                Ok(told) => {
                    self.committed(told);
                    return Some(Ok(value));
                }
                // Whether the commit came through cannot be known then, so it is not for us to repeat it.
                Err(DbError::Sql(error)) if is_connection_lost(&error) => return Some(Err(from_sql(&error))),
                Err(error) => error,
            },
            Err(error) => error,
        };
        tx.roll_back().await;
        match error {
            DbError::Alone if call.mode == Mode::Shared => {
                call.mode = Mode::Alone;
                None
            }
            DbError::Sql(error) if self.again(call, &error).await => None,
            error => Some(Err(error.into())),
        }
    }

    /// Whether a call that failed so is worth another try; waits a little where others are in the way.
    async fn again(&self, call: &mut Call, error: &tokio_postgres::Error) -> bool {
        if call.tries >= TRIES_MAX {
            return false;
        }
        if is_connection_lost(error) {
            call.reconnects += 1;
            return call.reconnects <= RECONNECTS_MAX;
        }
        if is_collision(error) {
            debug!(%error, "a transaction collided and is run again");
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=5 << call.tries))).await;
            return true;
        }
        false
    }

    /// What follows a commit.
    fn committed(&self, told: Told) {
        if told.changed {
            self.listener.tell(told.notified);
        }
        if told.rows > 0
            && self.unfolded.fetch_add(told.rows, Ordering::Relaxed) + told.rows >= FOLD_AFTER_ROWS
        {
            self.unfolded.store(0, Ordering::Relaxed);
            let (pool, keys) = (self.pool.clone(), self.keys);
            self.pool.io().spawn(async move {
                if let Err(error) = fold::fold(&pool, keys).await {
                    debug!(%error, "counters were not folded; the next one does it");
                }
            });
        }
    }
}

/// What a commit has done that others should know.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// Others should look.
    pub(super) changed: bool,
    /// Other stores have been told.
    pub(super) notified: bool,
    /// Counter rows added.
    pub(super) rows: usize,
}

pub(super) fn gone() -> Error {
    Error::Unavailable("the connection to Postgres is gone; try again".to_owned())
}

/// Brings the schema up to date, one process at a time.
async fn migrate(client: &Client, url: &PostgresUrl, keys: Keys, create: bool) -> Result<()> {
    let sql = |error: tokio_postgres::Error| from_sql(&error);
    let version: String = client.query_one("SHOW server_version_num", &[]).await.map_err(sql)?.get(0);
    if version.parse::<i32>().unwrap_or(0) < SERVER_VERSION_MIN {
        return Err(Error::invalid(format!("{} is older than Postgres 12; upgrade the server", url.place())));
    }
    if found(client, url).await? == Some(MIGRATIONS.len()) {
        return Ok(());
    }
    if !create && found(client, url).await?.is_none() {
        let (place, schema) = (url.place(), url.schema());
        return Err(Error::not_found(format!("there is no store in schema {schema} of {place}")));
    }
    let key = keys.migrate();
    // An index of many jobs takes longer to make than any call may take.
    let begin = format!("BEGIN; SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({key})");
    client.batch_execute(&begin).await.map_err(sql)?;
    let schema = url.quoted_schema();
    // Somebody else may have been faster.
    let begun = found(client, url).await?;
    if begun.is_none() {
        let table =
            "CREATE TABLE lh_schema (version bigint NOT NULL); INSERT INTO lh_schema (version) VALUES (0)";
        client.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}; {table}")).await.map_err(sql)?;
    }
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(begun.unwrap_or(0)) {
        client.batch_execute(migration).await.map_err(sql)?;
        let version = i64::try_from(number + 1).unwrap_or(i64::MAX);
        client.execute("UPDATE lh_schema SET version = $1", &[&version]).await.map_err(sql)?;
    }
    client.batch_execute("COMMIT").await.map_err(sql)
}

/// The version of the schema; `None` when there is none. Refuses one that a newer program has made.
async fn found(client: &Client, url: &PostgresUrl) -> Result<Option<usize>> {
    let sql = |error: tokio_postgres::Error| from_sql(&error);
    // Asked of the catalogue's rows: names are cached, and somebody else may just have made this one.
    let exists = "SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = $1 AND c.relname = 'lh_schema')";
    let schema = url.schema();
    if !client.query_one(exists, &[&schema]).await.map_err(sql)?.get::<_, bool>(0) {
        return Ok(None);
    }
    let version = format!("SELECT version FROM {}.lh_schema", url.quoted_schema());
    let row = client.query_opt(version.as_str(), &[]).await.map_err(sql)?;
    let version = row.map_or(0, |row| row.get::<_, i64>(0));
    let known = MIGRATIONS.len();
    match usize::try_from(version) {
        Ok(version) if version <= known => Ok(Some(version)),
        _ => Err(Error::invalid(format!(
            "schema {schema} of {} has version {version}, this program knows up to {known}; upgrade longhaul",
            url.place()
        ))),
    }
}

/// What the server's own settings promise.
async fn caps(client: &Client) -> Result<Caps, tokio_postgres::Error> {
    let sql = "SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('server_version')";
    let row = client.query_one(sql, &[]).await?;
    let (commit, fsync, version): (String, String, String) = (row.get(0), row.get(1), row.get(2));
    let (promise, advice) = match (commit.as_str(), fsync.as_str()) {
        (_, "off") => (
            "a crash of the server's machine may lose or damage everything; set fsync = on",
            Some("set fsync = on in postgresql.conf"),
        ),
        ("off", _) => (
            "a crash of the server may lose what was answered in its last moments; set synchronous_commit = on",
            Some("set synchronous_commit = on in postgresql.conf"),
        ),
        ("local", _) => {
            ("what was answered survives a crash of the server, not the loss of its machine", None)
        }
        ("remote_write" | "remote_apply" | "on", _) => (
            "what was answered survives a crash of the server, and its loss where a synchronous standby is named",
            None,
        ),
        _ => ("see the server's documentation", None),
    };
    let durability = format!("Postgres {version}, synchronous_commit={commit}, fsync={fsync}: {promise}");
    Ok(Caps { name: "postgres", durability, advice, shared: true })
}
