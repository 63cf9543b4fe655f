//! A Redis or Postgres server of one's own, in a temporary folder and on a free port, that can be killed and started again.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::app::App;
use crate::args::{HostArgs, OwnServer};
use crate::exec::die_with_parent;
use crate::exit::{Code, Failure};

/// How long a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(60);
/// How long one may take to end. Postgres itself gives its processes five seconds before it kills them.
const END_MAX: Duration = Duration::from_secs(10);
/// Between two looks whether it answers.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The end of a server's log that is told where it did not start.
const LOG_LINES: usize = 5;
/// The log in a server's folder.
const LOG: &str = "log";
/// Where Debian keeps programs of Postgres that are not on the path.
const POSTGRES_FOLDER: &str = "/usr/lib/postgresql";
/// Who runs Postgres, which refuses to be run by root.
const POSTGRES_USER: &str = "postgres";

/// What it is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be killed: what it has answered to is on disk.
    Faults,
    /// To be measured, set up as one that works hard is: a Redis that writes to its disk once a second, and a Postgres with durable
    /// commits and more than the few megabytes that it takes by default.
    Speed,
}

/// See the module. It is ended when this is dropped, and its folder goes after it.
pub(crate) struct Server {
    kind: OwnServer,
    purpose: Purpose,
    folder: TempDir,
    port: u16,
    child: Child,
}

impl Server {
    /// Starts one and waits until it answers.
    pub(crate) async fn start(kind: OwnServer, purpose: Purpose) -> Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("longhaul-server-").tempdir().context("making a folder")?;
        let port = {
            let free =
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("looking for a free port")?;
            free.local_addr().context("a port")?.port()
        };
        if kind == OwnServer::Postgres {
            prepare_postgres(folder.path()).await?;
        }
        let child = spawn(kind, purpose, folder.path(), port)?;
        let mut server = Self { kind, purpose, folder, port, child };
        server.wait().await?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// As `--store` takes it.
    pub(crate) fn url(&self) -> String {
        match self.kind {
            OwnServer::Redis => format!("redis://127.0.0.1:{}", self.port),
            OwnServer::Postgres => format!("postgres://{POSTGRES_USER}@127.0.0.1:{}/postgres", self.port),
        }
    }

    /// Ends it as a crash would, and starts it again on what it left on disk.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.end().await?;
        self.child = spawn(self.kind, self.purpose, self.folder.path(), self.port)?;
        self.wait().await
    }

    async fn end(&mut self) -> Result<()> {
        let signal = match self.kind {
            OwnServer::Redis => Signal::KILL,
            // Of its many processes only the first knows all others, and the memory that they share; this one makes it drop
            // everything at once.
            OwnServer::Postgres => Signal::QUIT,
        };
        if let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            kill_process(pid, signal).context("ending the server")?;
        }
        let ended = tokio::time::timeout(END_MAX, self.child.wait()).await;
        ended.context("the server does not end")?.context("waiting for the server's end")?;
        Ok(())
    }

    /// Waits until it answers.
    async fn wait(&mut self) -> Result<()> {
        let started = Instant::now();
        while !self.answers().await {
            if let Some(status) = self.child.try_wait().context("looking at the server")? {
                bail!("the server ended by itself: {status}; its log ends with: {}", self.end_of_log());
            }
            if started.elapsed() > START_MAX {
                let log = self.end_of_log();
                bail!("the server does not answer after {} s; its log ends with: {log}", START_MAX.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    async fn answers(&self) -> bool {
        if TcpStream::connect(self.address()).await.is_err() {
            return false;
        }
        match self.kind {
            OwnServer::Redis => true,
            // It accepts connections before it lets anybody in: what it left has to be put in order first.
            OwnServer::Postgres => {
                let mut command = Command::new(postgres_program("pg_isready"));
                command.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
                command.stdin(Stdio::null()).status().await.is_ok_and(|status| status.success())
            }
        }
    }

    fn end_of_log(&self) -> String {
        let log = std::fs::read(self.folder.path().join(LOG)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Server {
    /// Blocks for the moment that it takes: a server that is killed with its folder under it leaves files and shared memory behind.
    fn drop(&mut self) {
        if let Ok(runtime) = Handle::try_current() {
            // One that does not end is killed with its handle.
            let _ = tokio::task::block_in_place(|| runtime.block_on(self.end()));
        }
    }
}

/// Starts a server, prints its URL, and ends it when stdin ends: for tests of whatever uses a store.
pub(crate) async fn host(app: &App, args: &HostArgs) -> Result<Code> {
    let server = Server::start(args.own, Purpose::Faults).await?;
    app.out.one(&server.url(), || server.url())?;
    tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await.context("reading stdin")?;
    Ok(Code::Ok)
}

fn spawn(kind: OwnServer, purpose: Purpose, folder: &Path, port: u16) -> Result<Child> {
    let port = port.to_string();
    let mut command = match kind {
        OwnServer::Redis => {
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--port", &port, "--daemonize", "no", "--save", ""]);
            let sync = if purpose == Purpose::Speed { "everysec" } else { "always" };
            command.args(["--appendonly", "yes", "--appendfsync", sync, "--dir"]).arg(folder);
            die_with_parent(&mut command);
            command
        }
        OwnServer::Postgres => {
            let mut command = as_postgres(&postgres_program("postgres"));
            command
                .args(["-h", "127.0.0.1", "-p", &port, "-k"])
                .arg(folder)
                .arg("-D")
                .arg(folder.join("data"));
            if purpose == Purpose::Speed {
                command.args(["-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"]);
            }
            command
        }
    };
    let log = std::fs::OpenOptions::new().append(true).create(true).open(folder.join(LOG));
    let log = log.context("opening the server's log")?;
    command.stdin(Stdio::null()).stdout(log.try_clone().context("the server's log")?).stderr(log);
    command.process_group(0).kill_on_drop(true);
    command.spawn().map_err(|error| missing(kind, &error).into())
}

fn missing(kind: OwnServer, error: &std::io::Error) -> Failure {
    let (program, package) = match kind {
        OwnServer::Redis => ("redis-server", "redis-server"),
        OwnServer::Postgres => ("Postgres", "postgresql"),
    };
    Failure::new(Code::Config, format!("{program} cannot be started: {error}"))
        .hint(format!("install it, such as with: apt-get install {package}"))
}

async fn prepare_postgres(folder: &Path) -> Result<()> {
    if geteuid().is_root() {
        let mut command = Command::new("chown");
        let status = command.arg(POSTGRES_USER).arg(folder).status().await.context("running chown")?;
        if !status.success() {
            bail!(
                "the folder cannot be given to the user {POSTGRES_USER}, who comes with the package postgresql"
            );
        }
    }
    let mut command = as_postgres(&postgres_program("initdb"));
    command.args(["--auth", "trust", "--username", POSTGRES_USER, "--encoding", "UTF8", "--no-locale", "-D"]);
    let made =
        command.arg(folder.join("data")).stdin(Stdio::null()).output().await.context("running initdb")?;
    if !made.status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

/// A command of Postgres, run by a user that it accepts, and ended with this process.
fn as_postgres(program: &Path) -> Command {
    if !geteuid().is_root() {
        let mut command = Command::new(program);
        die_with_parent(&mut command);
        return command;
    }
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "QUIT",
        "--reuid",
        POSTGRES_USER,
        "--regid",
        POSTGRES_USER,
        "--clear-groups",
    ]);
    command.arg(program);
    command
}

/// The newest of the installed ones, or the one on the path.
fn postgres_program(name: &str) -> PathBuf {
    let folders = std::fs::read_dir(POSTGRES_FOLDER).into_iter().flatten().flatten();
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest = folders.map(|entry| entry.path()).filter(|path| version(path).is_some()).max_by_key(version);
    let program = newest.map(|folder| folder.join("bin").join(name)).filter(|program| program.exists());
    program.unwrap_or_else(|| PathBuf::from(name))
}
