//! Redis for the tests: one server for all of them, each test with a key prefix of its own; and servers of a test's own,
//! which it may kill.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use longhaul_stores::redis::{RedisStore, RedisUrl};

use super::{free_port, need, wait_for_port};

/// A running server. It ends with this value, and with this process however that ends: the shell that started it waits
/// for the end of its input, and then removes its folder too.
pub(crate) struct RedisServer {
    pub(crate) port: u16,
    folder: PathBuf,
    settings: Vec<String>,
    /// How it is told its port.
    port_setting: &'static str,
    shell: Child,
}

impl RedisServer {
    /// A server with these settings on top, such as `--appendonly yes`.
    pub(crate) fn start(settings: &[&str]) -> Self {
        Self::start_on(free_port(), "--port", settings)
    }

    /// The same over TLS alone.
    pub(crate) fn start_tls(settings: &[&str]) -> Self {
        Self::start_on(free_port(), "--tls-port", &[settings, &["--port", "0"]].concat())
    }

    fn start_on(port: u16, port_setting: &'static str, settings: &[&str]) -> Self {
        need("redis-server", "redis-server");
        let made = tempfile::Builder::new().prefix("longhaul-redis-").tempdir();
        let folder = made.expect("a temporary folder").keep();
        let settings: Vec<String> = settings.iter().map(|&text| text.to_owned()).collect();
        let shell = spawn((port_setting, port), &folder, &settings);
        Self { port, folder, settings, port_setting, shell }
    }

    /// Ends the server like a power cut of the process: SIGKILL, no last words. Its files stay for a restart.
    pub(crate) fn kill(&mut self) {
        let stdin = self.shell.stdin.as_mut().expect("the server runs");
        stdin.write_all(b"keep\n").expect("its shell listens");
        self.shell.wait().expect("the server ends");
    }

    /// Starts it again on the same port with what its files hold.
    pub(crate) fn restart(&mut self) {
        self.shell = spawn((self.port_setting, self.port), &self.folder, &self.settings);
    }

    /// The URL of an installation of its own on this server.
    pub(crate) fn url(&self, parameters: &str) -> RedisUrl {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let url = format!("redis://127.0.0.1:{}?name=test-{number}{parameters}", self.port);
        url.parse().expect("a Redis URL")
    }

    /// A connection beside the store's.
    pub(crate) async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("a URL");
        // A busy machine may keep an answer waiting for longer than the client does by itself.
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&patient).await.expect("the server answers")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
        // The shell of a server that was killed has left it.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn((port_setting, port): (&str, u16), folder: &Path, settings: &[String]) -> Child {
    let script = r#"
"$@" >/dev/null 2>&1 &
server=$!
read -r _ && keep=1
kill -9 $server
wait $server 2>/dev/null
[ -n "$keep" ] || rm -rf "$FOLDER"
"#;
    let mut command = Command::new("sh");
    // Ctrl-C is for the tests: the shell outlives them for the moment that it needs.
    command.process_group(0).env("FOLDER", folder);
    command.args(["-c", script, "sh", "redis-server", "--bind", "127.0.0.1", "--save", ""]);
    command.arg(port_setting).arg(port.to_string()).arg("--dir").arg(folder).args(settings);
    let shell = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a shell starts");
    wait_for_port(port);
    shell
}

/// The server that all tests share.
pub(crate) fn shared() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(|| RedisServer::start(&["--appendonly", "no"]))
}

/// A store on the shared server, empty.
pub(crate) async fn store() -> RedisStore {
    connect(&shared().url("")).await
}

/// A store that must open.
pub(crate) async fn connect(url: &RedisUrl) -> RedisStore {
    RedisStore::connect(url).await.expect("the store opens")
}
