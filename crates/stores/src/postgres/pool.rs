//! Connections: a few of them, each with its prepared statements. One that is given back in the middle of something is
//! closed, and the server undoes what it had begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_queue::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, Connection, Socket, Statement};
use tracing::debug;

use super::error::{is_connection_lost, told};
use super::tls::{Tls, TlsStream};
use super::url::{CONNECT_WAIT, PostgresUrl};

/// How long a call waits for a free connection.
const CONNECTION_WAIT: Duration = Duration::from_secs(30);
/// How long a statement waits for a lock, and how long it may take at all, in milliseconds.
const LOCK_WAIT_MS: u32 = 20_000;
const STATEMENT_MS: u32 = 120_000;
/// How long a peer that does not answer any more goes unnoticed.
const PEER_SILENT: Duration = Duration::from_secs(30);

/// A connection with its prepared statements.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) statements: Statements,
}

/// Statements that were prepared on one connection, by their text.
#[derive(Default)]
pub(super) struct Statements(Mutex<HashMap<&'static str, Statement>>);

impl Statements {
    pub(super) async fn get(
        &self,
        client: &Client,
        sql: &'static str,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = client.prepare(sql).await?;
        self.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Statement>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections of a store.
#[derive(Clone)]
pub(super) struct Pool {
    door: Door,
    io: Handle,
    idle: Arc<Mutex<Vec<Session>>>,
    slots: Arc<Semaphore>,
}

impl Pool {
    /// Connections are served on `io`, whatever runtime asks for them: callers come from several, and one that is
    /// busy, or has ended, must not take along what others use.
    pub(super) fn new(door: Door, io: Handle) -> Self {
        let slots = Arc::new(Semaphore::new(door.url.connections()));
        Self { door, io, idle: Arc::default(), slots }
    }

    pub(super) fn io(&self) -> &Handle {
        &self.io
    }

    pub(super) fn url(&self) -> &PostgresUrl {
        &self.door.url
    }

    /// A connection that was alive a moment ago, or a new one.
    pub(super) async fn get(&self) -> Result<Pooled> {
        let permit = tokio::time::timeout(CONNECTION_WAIT, Arc::clone(&self.slots).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(Error::Unavailable(format!(
                "all {} connections of this store are busy; raise connections= in the store URL",
                self.url().connections()
            )));
        };
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let session = loop {
            match idle() {
                Some(session) if session.client.is_closed() => {}
                Some(session) => break session,
                None => break self.connect().await?,
            }
        };
        Ok(Pooled { session: Some(session), idle: Arc::clone(&self.idle), at_rest: false, _permit: permit })
    }

    async fn connect(&self) -> Result<Session> {
        let door = self.door.clone();
        let connecting = self.io.spawn(async move {
            let (client, connection) = open(&door).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    debug!(%error, "a connection to Postgres ended");
                }
            });
            Ok::<_, Error>(client)
        });
        let client = connecting.await.map_err(|_| super::db::gone())??;
        Ok(Session { client, statements: Statements::default() })
    }
}

/// How to come by a connection.
#[derive(Clone)]
pub(super) struct Door {
    url: Arc<PostgresUrl>,
    tls: Tls,
}

impl Door {
    pub(super) fn new(url: &PostgresUrl) -> Result<Self> {
        Ok(Self { url: Arc::new(url.clone()), tls: Tls::new(url.tls())? })
    }
}

/// Opens a connection with the settings that the statements of this store count on.
pub(super) async fn open(door: &Door) -> Result<(Client, Connection<Socket, TlsStream<Socket>>)> {
    let url = &door.url;
    let mut config = url.config().clone();
    // Every statement has an index to go by. A table that has grown since the last ANALYZE must not tempt the planner
    // into reading all of it, so the other ways are closed; where there is no index they are still taken.
    let options = format!(
        "{} -c search_path={} -c lock_timeout={LOCK_WAIT_MS} -c statement_timeout={STATEMENT_MS} -c jit=off -c plan_cache_mode=force_generic_plan \
         -c idle_in_transaction_session_timeout={STATEMENT_MS} -c tcp_keepalives_idle=10 \
         -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 \
         -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
         -c max_parallel_workers_per_gather=0 -c default_transaction_isolation=read\\ committed",
        config.get_options().unwrap_or(""),
        url.quoted_schema()
    );
    config.options(options.trim());
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(PEER_SILENT);
    }
    config.keepalives_idle(PEER_SILENT);
    // For all of it: the library counts only until the socket is open, and what listens there may be mute.
    let wait = config.get_connect_timeout().copied().unwrap_or(CONNECT_WAIT);
    let connected = tokio::time::timeout(wait, config.connect(door.tls.clone())).await.map_err(|_| {
        let (place, seconds) = (url.place(), wait.as_secs());
        Error::Unavailable(format!("{place} does not answer within {seconds} s; is it a Postgres server?"))
    })?;
    connected.map_err(|error| match super::error::from_sql(&error) {
        Error::Invalid(text) => Error::Invalid(format!("{}: {text}", url.place())),
        Error::Denied(text) => Error::Denied(format!("{}: {text}", url.place())),
        // Neither the server's word nor a broken socket: what the URL gives is not enough to log in, and time does not
        // heal that.
        _ if error.code().is_none() && !is_connection_lost(&error) => Error::Denied(format!(
            "{}: {}; check user, password and sslmode in the store URL",
            url.place(),
            told(&error)
        )),
        other => Error::Unavailable(format!("{} cannot be reached: {other}", url.place())),
    })
}

/// A connection on loan.
pub(super) struct Pooled {
    session: Option<Session>,
    idle: Arc<Mutex<Vec<Session>>>,
    at_rest: bool,
    _permit: OwnedSemaphorePermit,
}

impl Pooled {
    /// No transaction is open on it any more, so that others may have it.
    pub(super) fn rests(&mut self) {
        self.at_rest = true;
    }

    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(session) =
            self.session.take().filter(|session| self.at_rest && !session.client.is_closed())
        {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
    }
}
