//! The connection. One, shared by all calls; it is made again when it breaks, with a growing wait. A call that was under
//! way when it broke may or may not have taken effect, and says so by [`Error::Unavailable`].

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::{Error, Result, Timestamp};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use tokio::runtime::Handle;
use tokio::task::JoinError;

use super::codec::millis;
use super::encode::Args;
use super::scripts::{Function, Library};

/// Waits between tries to connect: from this, doubled each time.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(20);
/// And at most this.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);
/// Tries of one call to get a connection: about four seconds, then the caller waits as it thinks best.
const RECONNECT_TRIES: usize = 8;
/// A server that does not accept a connection within this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that a call waits for its answer; enqueueing 50,000 jobs takes about a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The way to the server.
pub(super) struct Link {
    connection: ConnectionManager,
    /// The prefix of all keys, with the cluster's hash tag.
    prefix: String,
    library: Arc<Library>,
    io: Handle,
}

impl Link {
    pub(super) async fn open(client: Client, prefix: String, io: Handle) -> Result<Self> {
        let config = ConnectionManagerConfig::new()
            .set_min_delay(RECONNECT_DELAY_MIN)
            .set_max_delay(RECONNECT_DELAY_MAX)
            .set_number_of_retries(RECONNECT_TRIES)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let connecting = io.spawn(async move {
            // Who opens a store wants to know at once whether the server is there; later calls are more patient.
            let once = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT));
            client.get_multiplexed_async_connection_with_config(&once).await?;
            ConnectionManager::new_with_config(client, config).await
        });
        let connection = connecting.await.map_err(ended)?.map_err(|error| failed(&error))?;
        Ok(Self { connection, prefix, library: Arc::new(Library::new()), io })
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
        let (library, mut connection) = (Arc::clone(&self.library), self.connection.clone());
        self.served(async move {
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
        let (command, mut connection) = (command.clone(), self.connection.clone());
        self.served(async move { command.query_async(&mut connection).await }).await
    }

    /// Runs commands.
    pub(super) async fn ask_all<T: FromRedisValue + Send + 'static>(&self, commands: &Pipeline) -> Result<T> {
        let (commands, mut connection) = (commands.clone(), self.connection.clone());
        self.served(async move { commands.query_async(&mut connection).await }).await
    }

    /// Has a call made by the thread of the connection: the caller's runtime may be blocked, or know no sockets, and whoever sees
    /// a connection break is the one that makes it again.
    async fn served<T: Send + 'static>(
        &self,
        call: impl Future<Output = RedisResult<T>> + Send + 'static,
    ) -> Result<T> {
        self.io.spawn(call).await.map_err(ended)?.map_err(|error| failed(&error))
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
            return Error::invalid(format!(
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
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => Error::invalid(format!(
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
