//! Redis and Postgres servers in temporary folders, for tests and measurements. A server can be crashed and restarted. It ends
//! with its value and with this process, however that ends, and its folder goes with it.
//!
//! Calls block for as long as the server takes.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// How long a server may take until it answers, and to end. Postgres gives its processes five seconds before it kills them.
const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(10);
/// Between two looks at a server, which tells nobody that it listens now.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The end of a server's log that is part of an error.
const LOG_LINES: usize = 5;
/// Where Debian keeps the programs of Postgres, which are not on the path.
const POSTGRES_FOLDER: &str = "/usr/lib/postgresql";
/// Who runs Postgres where this process is root's, whom Postgres refuses.
const POSTGRES_USER: &str = "postgres";

/// Reads the number of each server that is started. At the end of its input this process has gone: it ends the last server,
/// unless that has ended, and removes the folder.
const GUARD: &str = r#"
while read -r number; do server=$number; done
if [ -n "$server" ]; then
    kill -s "$SIGNAL" "$server" 2>/dev/null
    looks=0
    while kill -0 "$server" 2>/dev/null && [ $looks -lt 100 ]; do
        sleep 0.1
        looks=$((looks + 1))
    done
fi
rm -rf "$FOLDER"
"#;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `redis-server`.
    Redis,
    /// Postgres, the newest that is installed.
    Postgres,
}

/// A running server. By default a Redis has every write on disk, and so has a Postgres.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    port: u16,
    folder: PathBuf,
    settings: Vec<String>,
    guard: Child,
    server: Child,
}

impl Server {
    /// Starts one with these command-line arguments on top, such as `--appendonly no` or `-c fsync=off`, and waits until it
    /// answers. Where its programs are not installed, the error is [`io::ErrorKind::NotFound`].
    pub fn start(kind: Kind, settings: &[&str]) -> io::Result<Self> {
        Self::start_at(free_port()?, kind, settings)
    }

    /// The same at a port.
    pub fn start_at(port: u16, kind: Kind, settings: &[&str]) -> io::Result<Self> {
        Self::prepare(port, kind, settings, |folder| match kind {
            Kind::Redis => Ok(()),
            Kind::Postgres => {
                let mut initdb = postgres(folder, "initdb")?;
                initdb.args(["-U", "longhaul", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
                finish(initdb.args(["-D", "data"]))
            }
        })
    }

    /// A standby that receives all that this Postgres commits.
    pub fn standby(&self) -> io::Result<Self> {
        // It must allow at least as much as the one that it follows.
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        Self::prepare(free_port()?, self.kind, &settings, |folder| {
            let mut copy = postgres(folder, "pg_basebackup")?;
            copy.args([
                "-D",
                "data",
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "-h",
                "127.0.0.1",
                "-U",
                "longhaul",
            ]);
            finish(copy.args(["-p", &self.port.to_string()]))
        })
    }

    fn prepare(
        port: u16,
        kind: Kind,
        settings: &[&str],
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        // The guard removes it.
        let folder = tempfile::Builder::new().prefix("longhaul-server-").tempdir()?.keep();
        let mut guard = guard(kind, &folder)?;
        if kind == Kind::Postgres && geteuid().is_root() {
            finish(Command::new("chown").arg(POSTGRES_USER).arg(&folder))?;
        }
        fill(&folder)?;
        let settings: Vec<String> = settings.iter().map(|&text| text.to_owned()).collect();
        let server = spawn(kind, port, &folder, &settings, &mut guard)?;
        let mut server = Self { kind, port, folder, settings, guard, server };
        server.wait()?;
        Ok(server)
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// As `--store` takes it.
    pub fn url(&self) -> String {
        match self.kind {
            Kind::Redis => format!("redis://127.0.0.1:{}", self.port),
            Kind::Postgres => format!("postgres://longhaul@127.0.0.1:{}/postgres", self.port),
        }
    }

    /// Its files; those of a Postgres are in `data`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// A command in the folder, as the user who owns it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match self.kind {
            Kind::Redis => in_folder(&self.folder, Command::new(program)),
            Kind::Postgres => in_folder(&self.folder, as_postgres(program)),
        }
    }

    /// Ends it as a crash does: nothing is flushed or closed.
    pub fn crash(&mut self) -> io::Result<()> {
        let id = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw);
        if let (None, Some(id)) = (self.server.try_wait()?, id) {
            kill_process(id, signal(self.kind))?;
        }
        let started = Instant::now();
        while self.server.try_wait()?.is_none() {
            if started.elapsed() > END_MAX {
                return Err(io::Error::other("the server does not end"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // Its number may soon be that of somebody else.
        tell(&mut self.guard, "")
    }

    /// Starts it again on what a crash has left on disk.
    pub fn restart(&mut self) -> io::Result<()> {
        self.server = spawn(self.kind, self.port, &self.folder, &self.settings, &mut self.guard)?;
        self.wait()
    }

    fn wait(&mut self) -> io::Result<()> {
        let started = Instant::now();
        while !self.answers() {
            let ended = self.server.try_wait()?;
            if ended.is_some() || started.elapsed() > START_MAX {
                let log = self.log();
                let lines: Vec<&str> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
                let how = ended.map_or_else(|| "it does not answer".to_owned(), |status| status.to_string());
                return Err(io::Error::other(format!(
                    "the server did not start: {how}; its log ends: {end}"
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        match self.kind {
            Kind::Redis => TcpStream::connect(self.address()).is_ok(),
            // It accepts connections before it lets anybody in: what it left has to be put in order first. Its own tools
            // look at this file too.
            Kind::Postgres => {
                let file = std::fs::read_to_string(self.folder.join("data/postmaster.pid"));
                let file = file.unwrap_or_default();
                let lines: Vec<&str> = file.lines().map(str::trim).collect();
                let is_its_own = lines.first() == Some(&self.server.id().to_string().as_str());
                is_its_own && matches!(lines.get(7), Some(&("ready" | "standby")))
            }
        }
    }
}

impl Drop for Server {
    /// A Postgres whose folder goes first would leave shared memory behind.
    fn drop(&mut self) {
        let _ = self.crash();
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// What ends a server at once. Of the processes of a Postgres only the first knows the others, and the memory that they share.
fn signal(kind: Kind) -> Signal {
    match kind {
        Kind::Redis => Signal::KILL,
        Kind::Postgres => Signal::QUIT,
    }
}

fn guard(kind: Kind, folder: &Path) -> io::Result<Child> {
    let signal = if signal(kind) == Signal::KILL { "KILL" } else { "QUIT" };
    let mut shell = Command::new("sh");
    shell.args(["-c", GUARD]).env("FOLDER", folder).env("SIGNAL", signal);
    // Ctrl-C is for this process: the shell outlives it for the moment that it needs.
    shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

fn tell(guard: &mut Child, number: &str) -> io::Result<()> {
    guard.stdin.as_mut().map_or(Ok(()), |stdin| writeln!(stdin, "{number}"))
}

fn spawn(kind: Kind, port: u16, folder: &Path, settings: &[String], guard: &mut Child) -> io::Result<Child> {
    let port = port.to_string();
    let mut command = match kind {
        Kind::Redis => {
            let mut command = in_folder(folder, Command::new("redis-server"));
            command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
            command
        }
        Kind::Postgres => {
            let mut command = postgres(folder, "postgres")?;
            command.args(["-D", "data", "-p", &port, "-c", "listen_addresses=127.0.0.1"]);
            command.args(["-c", "unix_socket_directories=", "-c", "logging_collector=off"]);
            command
        }
    };
    let log = std::fs::OpenOptions::new().append(true).create(true).open(folder.join("log"))?;
    command.args(settings).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    let server = command.spawn()?;
    tell(guard, &server.id().to_string())?;
    Ok(server)
}

fn in_folder(folder: &Path, mut command: Command) -> Command {
    command.current_dir(folder);
    command
}

/// A program of Postgres in a server's folder, run by a user that it accepts.
fn postgres(folder: &Path, program: &str) -> io::Result<Command> {
    Ok(in_folder(folder, as_postgres(postgres_programs()?.join(program))))
}

fn as_postgres(program: impl AsRef<OsStr>) -> Command {
    if !geteuid().is_root() {
        return Command::new(program);
    }
    // It becomes the program, so that its number is the server's.
    let mut command = Command::new("setpriv");
    command.args(["--reuid", POSTGRES_USER, "--regid", POSTGRES_USER, "--clear-groups"]).arg(program);
    command
}

/// The folder of the newest installed Postgres, or of the one on the path.
fn postgres_programs() -> io::Result<PathBuf> {
    let versions = std::fs::read_dir(POSTGRES_FOLDER).into_iter().flatten().flatten();
    let packaged = versions.filter_map(|version| {
        let number: u32 = version.file_name().to_str()?.parse().ok()?;
        Some((number, version.path().join("bin")))
    });
    if let Some((_, newest)) = packaged.filter(|(_, programs)| programs.join("initdb").exists()).max() {
        return Ok(newest);
    }
    let found = Command::new("sh").args(["-c", "command -v initdb"]).output()?;
    let initdb = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    match Path::new(&initdb).parent().filter(|_| found.status.success()) {
        Some(folder) => Ok(folder.to_owned()),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "Postgres is not installed")),
    }
}

fn finish(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{} failed: {said}", command.get_program().display())))
}
