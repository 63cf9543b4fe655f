//! Postgres for the tests: one server for most of them, each test with a schema of its own; and servers of a test's own.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use longhaul_stores::postgres::PostgresUrl;
use longhaul_stores::temporary::{self, Kind};

/// Makes an authority, and a server's certificate that it has signed. The shell's user may not have a home.
const CERTIFICATES: &str = r#"
set -e
umask 077
new() { openssl req -newkey rsa:2048 -nodes -batch "$@"; }
new -x509 -days 2 -keyout ca.key -out ca.crt -subj /CN=authority
new -keyout server.key -out server.csr -subj /CN=localhost
printf 'subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n' >server.ext
openssl x509 -req -days 2 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile server.ext -out server.crt
chmod a+r ca.crt server.crt
chmod a+x .
"#;

/// A running server.
pub(crate) struct Server {
    port: u16,
    server: Mutex<temporary::Server>,
}

/// The server that most tests share, each in a schema of its own. It does not wait for the disk: these tests check
/// rules, not disks.
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start("fsync=off"))
}

impl Server {
    /// Starts a server with some settings, such as `fsync=on`.
    pub(crate) fn start(settings: &str) -> Self {
        let all = "max_connections=300 shared_buffers=128MB".split(' ').chain(settings.split(' '));
        let settings: Vec<&str> = all.flat_map(|setting| ["-c", setting]).collect();
        let start = |kind| temporary::Server::start(kind, &settings);
        Self::of(super::start(Kind::Postgres, "postgresql", start))
    }

    fn of(server: temporary::Server) -> Self {
        Self { port: server.port(), server: Mutex::new(server) }
    }

    fn server(&self) -> MutexGuard<'_, temporary::Server> {
        self.server.lock().expect("no test has failed here")
    }

    /// Puts a rule before those by which the server lets clients in.
    pub(crate) async fn let_in(&self, rule: &str) {
        let path = self.server().folder().join("data/pg_hba.conf");
        let rules = std::fs::read_to_string(&path).expect("the rules");
        std::fs::write(&path, format!("{rule}\n{rules}")).expect("they are written");
        self.connect().await.batch_execute("SELECT pg_reload_conf()").await.expect("they are read again");
    }

    /// Lets it offer encryption, with a certificate for `localhost` that an authority of its own has signed. Returns the
    /// authority's certificate and the server's.
    pub(crate) async fn offer_tls(&self) -> (PathBuf, PathBuf) {
        let mut command = self.server().command("sh");
        let output =
            command.args(["-c", CERTIFICATES]).stdin(Stdio::null()).output().expect("a shell starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let client = self.connect().await;
        for (setting, value) in
            [("ssl_cert_file", "../server.crt"), ("ssl_key_file", "../server.key"), ("ssl", "on")]
        {
            client
                .batch_execute(&format!("ALTER SYSTEM SET {setting} = '{value}'"))
                .await
                .expect("it is set");
        }
        client.batch_execute("SELECT pg_reload_conf()").await.expect("it is read again");
        let folder = self.server().folder().to_owned();
        (folder.join("ca.crt"), folder.join("server.crt"))
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.server().log()
    }

    /// A standby that receives all that this one commits.
    pub(crate) fn standby(&self) -> Self {
        Self::of(self.server().standby().expect("a standby starts"))
    }

    /// Makes a standby the primary.
    pub(crate) async fn promote(&self) {
        let promoted = self.connect().await.query_one("SELECT pg_promote()", &[]).await.expect("it answers");
        assert!(promoted.get::<_, bool>(0), "{}", self.log());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a schema.
    pub(crate) fn url(&self, schema: &str) -> PostgresUrl {
        self.url_text(schema).parse().expect("a URL")
    }

    pub(crate) fn url_text(&self, schema: &str) -> String {
        let url = self.plain_url();
        format!("{url}?schema={schema}&connections=4&application_name={schema}")
    }

    /// A schema that nobody else uses.
    pub(crate) fn schema() -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        format!("t{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    /// The server, without a schema.
    pub(crate) fn plain_url(&self) -> String {
        format!("postgres://longhaul@127.0.0.1:{}/postgres", self.port)
    }

    /// A connection beside those of a store.
    pub(crate) async fn connect(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.plain_url(), tokio_postgres::NoTls)
            .await
            .expect("Postgres answers");
        tokio::spawn(connection);
        client
    }

    /// Stops the server as a crash does: nothing is flushed or closed.
    pub(crate) fn crash(&self) {
        self.server().crash().expect("the server ends");
    }

    /// Starts it again, which recovers what was committed.
    pub(crate) fn restart(&self) {
        self.server().restart().expect("the server starts");
    }
}
