//! Redis for the tests: one server for all of them, each test with a key prefix of its own; and servers of a test's own,
//! which it may kill.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use longhaul_stores::redis::{RedisStore, RedisUrl};
use longhaul_stores::temporary::{Kind, Server, free_port};

/// A running server.
pub(crate) struct RedisServer {
    pub(crate) port: u16,
    server: Server,
}

impl RedisServer {
    /// A server with these settings on top, such as `--appendonly yes`: most tests check rules, not disks.
    pub(crate) fn start(settings: &[&str]) -> Self {
        let settings = [&["--appendonly", "no"], settings].concat();
        let server = super::start(Kind::Redis, "redis-server", |kind| Server::start(kind, &settings));
        Self { port: server.port(), server }
    }

    /// The same over TLS alone.
    pub(crate) fn start_tls(settings: &[&str]) -> Self {
        let port = free_port().expect("a free port");
        let number = port.to_string();
        let settings = [&["--appendonly", "no", "--port", "0", "--tls-port", &number], settings].concat();
        let start = |kind| Server::start_at(port, kind, &settings);
        Self { port, server: super::start(Kind::Redis, "redis-server", start) }
    }

    /// Ends the server like a power cut of the process: SIGKILL, no last words. Its files stay for a restart.
    pub(crate) fn kill(&mut self) {
        self.server.crash().expect("the server ends");
    }

    /// Starts it again on the same port with what its files hold.
    pub(crate) fn restart(&mut self) {
        self.server.restart().expect("the server starts");
    }

    /// The URL of an installation of its own on this server.
    pub(crate) fn url(&self, parameters: &str) -> RedisUrl {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}?name=test-{number}{parameters}", self.server.url());
        url.parse().expect("a Redis URL")
    }

    /// A connection beside the store's.
    pub(crate) async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.server.url()).expect("a URL");
        // A busy machine may keep an answer waiting for longer than the client does by itself.
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&patient).await.expect("the server answers")
    }
}

/// The server that all tests share.
pub(crate) fn shared() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(|| RedisServer::start(&[]))
}

/// A store on the shared server, empty.
pub(crate) async fn store() -> RedisStore {
    connect(&shared().url("")).await
}

/// A store that must open.
pub(crate) async fn connect(url: &RedisUrl) -> RedisStore {
    RedisStore::connect(url).await.expect("the store opens")
}
