//! The connection. One, shared by all calls; it is made again when it breaks, with a growing wait. A call that was under
//! way when it broke may or may not have taken effect, and says so by [`Error::Unavailable`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_queue::{Error, Result, Timestamp};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinError;

use super::codec::millis;
use super::encode::Args;
use super::scripts::{Function, Library};

/// Waits between tries to connect: from this, doubled each time.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(20);
/// And at most this.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);
/// Tries of one call to get a connection: about four seconds where it is refused, longer where nobody answers; then the
/// caller waits as it thinks best.
const RECONNECT_TRIES: usize = 8;
/// A server that does not accept a connection within this time is not there.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that a call waits for its answer; enqueueing 50,000 jobs takes about a quarter of a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A wait for a connection that is no part of a lease.
const WAIT_TOLD: Duration = Duration::from_secs(1);

/// The way to the server.
pub(super) struct Link {
    route: Arc<Route>,
    /// The prefix of all keys, with the cluster's hash tag.
    prefix: String,
    library: Arc<Library>,
    io: Handle,
}

/// The connection of the moment.
struct Route {
    client: Client,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// How often a connection was made or given up; who waited for the last try shares its failure.
    tries: u64,
    failure: Option<RedisError>,
}

impl Route {
    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// The connection, made again if need be, and its number.
    async fn connection(&self) -> RedisResult<(u64, MultiplexedConnection)> {
        let waiting = self.current.try_lock().is_err();
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok((current.tries, connection.clone()));
        }
        if let Some(failure) = current.failure.clone().filter(|_| waiting) {
            return Err(failure);
        }
        current.tries += 1;
        match self.connect_patiently().await {
            Ok(connection) => {
                current.connection = Some(connection.clone());
                current.failure = None;
                Ok((current.tries, connection))
            }
            Err(error) => {
                current.failure = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn connect_patiently(&self) -> RedisResult<MultiplexedConnection> {
        let mut delay = RECONNECT_DELAY_MIN;
        for _ in 1..RECONNECT_TRIES {
            match self.connect().await {
                // A refused password stays refused; who corrects it is heard by the next call.
                Err(error) if matches!(failed(&error), Error::Unavailable(_)) => {}
                answer => return answer,
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RECONNECT_DELAY_MAX);
        }
        self.connect().await
    }

    /// Gives up a connection that no longer leads to a server that serves.
    async fn give_up(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.tries == number {
            current.connection = None;
        }
    }

    /// Makes a call; a connection that breaks is not used again.
    async fn call<T, F: Future<Output = RedisResult<T>>>(
        &self,
        call: impl FnOnce(MultiplexedConnection) -> F,
    ) -> RedisResult<T> {
        let (number, connection) = self.connection().await?;
        let answer = call(connection).await;
        if let Err(error) = &answer
            && is_broken(error)
        {
            self.give_up(number).await;
        }
        answer
    }
}

/// Whether another connection might serve better: this one is cut, nobody answers on it, or its server has become a replica.
fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || error.is_timeout()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

impl Link {
    pub(super) async fn open(client: Client, prefix: String, io: Handle) -> Result<Self> {
        let route = Arc::new(Route { client, current: Mutex::default() });
        let opening = Arc::clone(&route);
        // Who opens a store wants to know at once whether the server is there; later calls are more patient.
        let connecting = io.spawn(async move {
            let connection = opening.connect().await?;
            opening.current.lock().await.connection = Some(connection);
            Ok(())
        });
        connecting.await.map_err(ended)?.map_err(|error| failed(&error))?;
        Ok(Self { route, prefix, library: Arc::new(Library::new()), io })
    }

    /// Waits for a connection, and says how long that took if it was long enough to matter: a lease counts from when
    /// the server can be reached, not from when somebody first tried.
    pub(super) async fn ready(&self) -> Result<Duration> {
        // Nearly always; and a trip to the connection's thread would be felt.
        if self.route.current.try_lock().is_ok_and(|current| current.connection.is_some()) {
            return Ok(Duration::ZERO);
        }
        let started = Instant::now();
        self.served(|_| async { Ok(()) }).await?;
        Ok(Some(started.elapsed()).filter(|waited| *waited >= WAIT_TOLD).unwrap_or_default())
    }

    /// That of the connection.
    pub(super) fn runtime(&self) -> &Handle {
        &self.io
    }

    /// The name of a key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    /// Has the server run a function, which it is taught first if it does not know it.
    pub(super) async fn run(&self, function: Function, now: Timestamp, args: Args) -> Result<Value> {
        let mut call = redis::cmd("FCALL");
        call.arg(self.library.name_of(function)).arg(1).arg(&self.prefix).arg(millis(now));
        for arg in args {
            call.arg(arg);
        }
        let library = Arc::clone(&self.library);
        self.served(move |mut connection| async move {
            match call.query_async(&mut connection).await {
                Err(error) if is_unknown_function(&error) => {}
                answer => return answer,
            }
            let mut load = redis::cmd("FUNCTION");
            load.arg("LOAD").arg("REPLACE").arg(&library.source);
            load.query_async::<()>(&mut connection).await?;
            call.query_async(&mut connection).await
        })
        .await
    }

    /// Runs a command.
    pub(super) async fn ask<T: FromRedisValue + Send + 'static>(&self, command: &Cmd) -> Result<T> {
        let command = command.clone();
        self.served(move |mut connection| async move { command.query_async(&mut connection).await }).await
    }

    /// Runs commands.
    pub(super) async fn ask_all<T: FromRedisValue + Send + 'static>(&self, commands: &Pipeline) -> Result<T> {
        let commands = commands.clone();
        self.served(move |mut connection| async move { commands.query_async(&mut connection).await }).await
    }

    /// Has a call made by the thread of the connection: the caller's runtime may be blocked, or know no sockets, and whoever sees
    /// a connection break is the one that makes it again.
    async fn served<T: Send + 'static, F: Future<Output = RedisResult<T>> + Send>(
        &self,
        call: impl FnOnce(MultiplexedConnection) -> F + Send + 'static,
    ) -> Result<T> {
        let route = Arc::clone(&self.route);
        let answer = self.io.spawn(async move { route.call(call).await });
        answer.await.map_err(ended)?.map_err(|error| failed(&error))
    }
}

fn is_unknown_function(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.contains("Function not found"))
}

fn ended(_: JoinError) -> Error {
    Error::Unavailable("the connection to Redis was closed with its store".to_owned())
}

/// What a failure means for the caller.
pub(super) fn failed(error: &RedisError) -> Error {
    let later = [
        ServerErrorKind::BusyLoading,
        ServerErrorKind::TryAgain,
        ServerErrorKind::ClusterDown,
        ServerErrorKind::MasterDown,
        ServerErrorKind::ReadOnly,
        // A transaction that was refused as a whole.
        ServerErrorKind::ExecAbort,
    ];
    match error.kind() {
        ErrorKind::Io | ErrorKind::Client => {
            return Error::Unavailable(format!("Redis cannot be reached: {error}"));
        }
        ErrorKind::Server(kind) if later.contains(&kind) => {
            return Error::Unavailable(format!("Redis cannot serve this now: {error}"));
        }
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
            return Error::Denied(format!(
                "Redis refuses this user: {error}; check user and password of the store URL, and its rights"
            ));
        }
        _ => {}
    }
    if error.is_connection_dropped() || error.is_timeout() || error.is_connection_refusal() {
        return Error::Unavailable(format!("Redis cannot be reached: {error}"));
    }
    match error.code() {
        Some("BUSY" | "OOM" | "MISCONF" | "NOREPLICAS" | "UNKILLABLE") => {
            Error::Unavailable(format!("Redis cannot serve this now: {error}"))
        }
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => Error::Denied(format!(
            "Redis refuses this user: {error}; check user and password of the store URL, and its rights"
        )),
        _ if error.to_string().contains("max number of clients") => {
            Error::Unavailable(format!("Redis has no room for another connection: {error}; raise maxclients"))
        }
        _ if error.to_string().contains("OOM") => {
            Error::Unavailable(format!("Redis is out of memory: {error}; raise maxmemory or consume results"))
        }
        _ => Error::Corrupt(format!("Redis answered with an error: {error}")),
    }
}
