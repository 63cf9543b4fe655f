//! A store of its own and processes of this very program on it, for whoever kills workers on purpose. Knows nothing of the
//! jobs that they run.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result};
use longhaul_queue::{Engine, Queue};
use longhaul_stores::{StoreUrl, shown};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tracing::warn;

use crate::server_space::ServerSpace;
use crate::{Host, Refusal};

/// How names of spaces on a server begin.
const SPACE: &str = "longhaul_stage";
const OTHER_STORE: &str = "omit --store, or name a new file";

/// A folder for a store and the logs of its processes. It goes when it is dropped, unless it is to be kept.
pub struct Scratch {
    folder: PathBuf,
    temporary: Option<TempDir>,
    exe: PathBuf,
    die_with_parent: fn(&mut Command),
    url: String,
    /// Where the store is a server that others use too.
    space: Option<ServerSpace>,
    engine: Engine,
}

impl Scratch {
    /// A new store in a temporary folder, in `keep`, or where the command line says. Other jobs are never touched: on a server
    /// it has a space of its own, and a file with jobs is refused.
    pub async fn new(host: &Host, keep: Option<&Path>) -> Result<Self> {
        let Some(url) = &host.store else { return Self::at(host, keep, None).await };
        // Opening it reports what is wrong with it.
        let space = ServerSpace::draw(url, SPACE).ok().flatten();
        let url = space.as_ref().map_or_else(|| url.clone(), |space| space.url.clone());
        Ok(Self { space, ..Self::at(host, keep, Some(url)).await? })
    }

    /// Removes what it has on a server.
    pub async fn remove(self) {
        let space = self.space.clone();
        // None of our processes may write there any more.
        drop(self);
        let Some(space) = space else { return };
        if let Err(error) = space.discard().await {
            warn!(%error, space = shown(&space.url), "what is left on the server must be removed by hand");
        }
    }

    /// The same on the store at a URL, where one is given.
    pub(crate) async fn at(host: &Host, keep: Option<&Path>, url: Option<String>) -> Result<Self> {
        let temporary = match keep {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("longhaul-").tempdir().context("making a folder")?),
        };
        let folder = match (keep, &temporary) {
            (Some(keep), _) => new_folder(keep)?,
            (None, Some(temporary)) => temporary.path().to_owned(),
            (None, None) => return Err(anyhow::anyhow!("there is no folder; this is a bug")),
        };
        let url = url.unwrap_or_else(|| format!("sqlite://{}", folder.join("longhaul.db").display()));
        let engine = open(host, &url).await?;
        let exe = std::env::current_exe().context("looking for this program's file")?;
        let die_with_parent = host.die_with_parent;
        Ok(Self { folder, temporary, exe, die_with_parent, url, space: None, engine })
    }

    /// Has the processes that are yet to be started reach the store by another URL.
    pub(crate) fn lead_to(&mut self, url: String) {
        self.url = url;
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        self.engine.queue()
    }

    /// The store, as `--store` takes it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The store, if it is a space on a server that others use too.
    pub(crate) fn space_url(&self) -> Option<&str> {
        self.space.as_ref().map(|space| space.url.as_str())
    }

    /// The SQLite file, if it is one.
    pub fn sqlite_file(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite://").map(Path::new)
    }

    /// This program's file.
    pub(crate) fn exe(&self) -> &Path {
        &self.exe
    }

    /// A file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Leaves everything where it is, for a look at what went wrong.
    pub fn keep(&mut self) -> &Path {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
        &self.folder
    }

    /// Starts this program on the store. What it says goes to a file in the folder; stdout can be read.
    ///
    /// Call it from the main task only: Linux ties a child's death to the thread that started it.
    pub fn spawn(&self, args: &[impl AsRef<OsStr>], log: &str) -> Result<Child> {
        self.spawn_with(args, log, &[])
    }

    /// As [`Scratch::spawn`], with settings in its environment.
    pub fn spawn_with(
        &self,
        args: &[impl AsRef<OsStr>],
        log: &str,
        settings: &[(&str, &str)],
    ) -> Result<Child> {
        let mut command = Command::new(&self.exe);
        command.envs(settings.iter().copied());
        let data = format!("sqlite://{}", self.path("data.db").display());
        // By its environment: everybody can read the arguments of a process.
        command.env("LONGHAUL_STORE__URL", &self.url);
        command.args(["--data", &data]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(self.log(log)?);
        // Own group: Ctrl-C in a terminal goes to this process alone, which then ends its children.
        command.process_group(0).kill_on_drop(true);
        (self.die_with_parent)(&mut command);
        command.spawn().with_context(|| format!("starting {}", self.exe.display()))
    }

    fn log(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.with_context(|| format!("opening {}", path.display()))
    }
}

fn new_folder(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
    let path = path.canonicalize().with_context(|| format!("finding {}", path.display()))?;
    if path.read_dir().with_context(|| format!("reading {}", path.display()))?.next().is_some() {
        let text = format!("{} is not empty", path.display());
        return Err(Refusal::usage(text, "name a folder that does not exist yet").into());
    }
    Ok(path)
}

async fn open(host: &Host, url: &str) -> Result<Engine> {
    let parsed: StoreUrl = url.parse().map_err(|problem| {
        let text = format!("--store is {:?}: {problem}", shown(url));
        Refusal::Usage { text, hint: None }
    })?;
    if parsed == StoreUrl::Memory {
        return Err(Refusal::usage("memory:// cannot be shared with worker processes", OTHER_STORE).into());
    }
    let engine = Engine::new(longhaul_stores::connect(&parsed, host.sqlite.clone()).await?);
    if engine.store().counts().await?.iter().any(|count| count.jobs > 0) {
        let text =
            format!("the store {} has jobs, and this command only works on one of its own", shown(url));
        return Err(Refusal::usage(text, OTHER_STORE).into());
    }
    Ok(engine)
}
