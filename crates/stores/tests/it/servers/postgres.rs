//! A Postgres server of its own in a temporary folder. Postgres refuses to run as root, so root runs it as the user
//! `postgres`. A shell stands between: it stops the server and removes the folder when the test process has gone,
//! however that came about.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use longhaul_stores::postgres::PostgresUrl;

/// Starts a server, tells that it is ready, waits for the end of its input and cleans up.
const GUARD: &str = r#"
set -e
cd "$FOLDER"
if [ -n "$PRIMARY" ]; then
    "$BIN/pg_basebackup" -D data -R -X stream -c fast -h 127.0.0.1 -p "$PRIMARY" -U longhaul >init.log 2>&1
else
    "$BIN/initdb" -D data -U longhaul --auth=trust -E UTF8 --locale=C --no-sync >init.log 2>&1
fi
"$BIN/pg_ctl" -D data -o "$OPTIONS" -l server.log -w -t 60 start >start.log 2>&1
echo ready
read -r _ || true
"$BIN/pg_ctl" -D data -m immediate stop >/dev/null 2>&1 || true
cd /
rm -rf "$FOLDER"
"#;

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
    folder: PathBuf,
    port: u16,
    options: String,
    /// Its input is open as long as this process lives.
    _guard: Child,
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
        Self::start_from(settings, None)
    }

    /// Starts a new server, or a standby of the one at this port.
    fn start_from(settings: &str, primary: Option<u16>) -> Self {
        let bin = bin();
        let folder =
            tempfile::Builder::new().prefix("longhaul-pg-").tempdir().expect("a temporary folder").keep();
        if is_root() {
            let status = Command::new("chown").arg("postgres").arg(&folder).status().expect("chown runs");
            assert!(status.success(), "the folder cannot be given to the user postgres");
        }
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let mut options = format!("-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= ");
        options.push_str("-c max_connections=300 -c shared_buffers=128MB -c logging_collector=off");
        for setting in settings.split_whitespace() {
            options.push_str(" -c ");
            options.push_str(setting);
        }
        let mut command = as_postgres("sh");
        command.args(["-c", GUARD]).env("BIN", &bin).env("FOLDER", &folder).env("OPTIONS", &options);
        command.env("PRIMARY", primary.map(|port| port.to_string()).unwrap_or_default());
        // Ctrl-C is for the tests: the shell outlives them for the moment that it needs.
        command.process_group(0);
        let mut guard = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell starts");
        let mut line = String::new();
        let stdout = guard.stdout.take().expect("its output");
        BufReader::new(stdout).read_line(&mut line).expect("its word");
        if line.trim() != "ready" {
            let logs = logs(&folder);
            let _ = std::fs::remove_dir_all(&folder);
            panic!("Postgres did not start: {logs}");
        }
        Self { folder, port, options, _guard: guard }
    }

    /// Puts a rule before those by which the server lets clients in.
    pub(crate) async fn let_in(&self, rule: &str) {
        let path = self.folder.join("data/pg_hba.conf");
        let rules = std::fs::read_to_string(&path).expect("the rules");
        std::fs::write(&path, format!("{rule}\n{rules}")).expect("they are written");
        self.connect().await.batch_execute("SELECT pg_reload_conf()").await.expect("they are read again");
    }

    /// Lets it offer encryption, with a certificate for `localhost` that an authority of its own has signed. Returns the
    /// authority's certificate and the server's.
    pub(crate) async fn offer_tls(&self) -> (PathBuf, PathBuf) {
        let mut command = as_postgres("sh");
        command.args(["-c", CERTIFICATES]).current_dir(&self.folder).stdin(Stdio::null());
        let output = command.output().expect("a shell starts");
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
        (self.folder.join("ca.crt"), self.folder.join("server.crt"))
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("server.log")).expect("its log")
    }

    /// A standby that receives all that this one commits.
    pub(crate) fn standby(&self) -> Self {
        Self::start_from("", Some(self.port))
    }

    /// Makes a standby the primary.
    pub(crate) fn promote(&self) {
        self.pg_ctl(&["-w", "-t", "60", "promote"]);
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a schema.
    pub(crate) fn url(&self, schema: &str) -> PostgresUrl {
        self.url_text(schema).parse().expect("a URL")
    }

    pub(crate) fn url_text(&self, schema: &str) -> String {
        let port = self.port;
        format!(
            "postgres://longhaul@127.0.0.1:{port}/postgres?schema={schema}&connections=4&application_name={schema}"
        )
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
        self.pg_ctl(&["-m", "immediate", "stop"]);
    }

    /// Starts it again, which recovers what was committed.
    pub(crate) fn restart(&self) {
        self.pg_ctl(&["-o", &self.options, "-l", "server.log", "-w", "-t", "60", "start"]);
    }

    fn pg_ctl(&self, args: &[&str]) {
        let mut command = as_postgres(bin().join("pg_ctl").to_str().expect("a path"));
        command.current_dir(&self.folder).args(["-D", "data"]).args(args);
        // The server would keep a pipe open for ever.
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(status.expect("pg_ctl runs").success(), "pg_ctl {args:?}: {}", logs(&self.folder));
    }
}

fn logs(folder: &Path) -> String {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    ["init.log", "start.log", "server.log"].map(|name| format!("{name}: {}", read(name))).join("\n")
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id runs");
    output.stdout.trim_ascii() == b"0"
}

fn as_postgres(program: &str) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]);
    command
}

/// The folder of the newest server that is installed; installs one where that is allowed.
fn bin() -> PathBuf {
    if let Some(bin) = installed() {
        return bin;
    }
    let install = "apt-get install -y --no-install-recommends postgresql";
    let install = if is_root() { install.to_owned() } else { format!("sudo -n {install}") };
    let _ = Command::new("sh").args(["-c", &install]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    installed().expect("these tests need a Postgres server; install the package postgresql (Debian, Ubuntu)")
}

fn installed() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let packaged = versions.filter_map(|version| {
        let number: u32 = version.file_name().to_str()?.parse().ok()?;
        Some((number, version.path().join("bin")))
    });
    let newest = packaged.filter(|(_, bin)| bin.join("initdb").exists()).max();
    newest.map(|(_, bin)| bin).or_else(|| {
        let found = Command::new("sh").args(["-c", "command -v initdb"]).output().ok()?;
        let initdb = String::from_utf8(found.stdout).ok()?;
        Path::new(initdb.trim()).parent().filter(|bin| bin.join("initdb").exists()).map(Path::to_owned)
    })
}
