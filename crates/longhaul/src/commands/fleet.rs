//! A store of its own and processes of this very binary on it, for the commands that kill workers on purpose.
//! Knows nothing of the jobs that they run.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result};
use longhaul_queue::{Engine, Queue};
use longhaul_stores::StoreUrl;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::app::App;
use crate::exec::die_with_parent;
use crate::exit::{Code, Failure};
use crate::server_space::ServerSpace;
use crate::store;

/// How names of spaces on a server begin.
const SPACE: &str = "longhaul_stage";

/// A folder for a store and the logs of its processes. It goes when it is dropped, unless it is to be kept.
pub(crate) struct Stage {
    folder: PathBuf,
    temporary: Option<TempDir>,
    exe: PathBuf,
    url: String,
    /// Where the store is a server that others use too.
    space: Option<ServerSpace>,
    engine: Engine,
}

impl Stage {
    /// A new store in a temporary folder, in `keep`, or where `--store` says. Other jobs are never touched: on a server
    /// it has a space of its own, and a file with jobs is refused.
    pub(crate) async fn new(app: &App, keep: Option<&Path>) -> Result<Self> {
        let Some(url) = app.settings.flag("store.url")? else { return Self::at(app, keep, None).await };
        // Opening it reports what is wrong with it.
        let space = ServerSpace::draw(url, SPACE).ok().flatten();
        let url = space.as_ref().map_or_else(|| url.to_owned(), |space| space.url.clone());
        Ok(Self { space, ..Self::at(app, keep, Some(url)).await? })
    }

    /// Removes what it has on a server, unless something is wrong and should be kept for inspection.
    pub(crate) async fn leave(self, app: &App, code: Code) {
        let space = self.space.clone();
        // None of our processes may write there any more.
        drop(self);
        let Some(space) = space else { return };
        if code != Code::Ok {
            app.out.note(format_args!("its jobs are kept in {}", store::shown(&space.url)));
        } else if let Err(error) = space.discard().await {
            let place = store::shown(&space.url);
            app.out.warn(format_args!("remove what is left in {place} by hand: {error:#}"));
        }
    }

    /// The same on the store at a URL, where one is given.
    pub(crate) async fn at(app: &App, keep: Option<&Path>, url: Option<String>) -> Result<Self> {
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
        let engine = open(app, &url).await?;
        let exe = std::env::current_exe().context("looking for this program's file")?;
        Ok(Self { folder, temporary, exe, url, space: None, engine })
    }

    /// Has the processes that are yet to be started reach the store by another URL.
    pub(crate) fn lead_to(&mut self, url: String) {
        self.url = url;
    }

    /// The queue.
    pub(crate) fn queue(&self) -> &Queue {
        self.engine.queue()
    }

    /// The store, as `--store` takes it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The SQLite file, if it is one.
    pub(crate) fn sqlite_file(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite://").map(Path::new)
    }

    /// This program's file.
    pub(crate) fn exe(&self) -> &Path {
        &self.exe
    }

    /// A file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Leaves the folder where it is, for a look at what went wrong.
    pub(crate) fn keep(&mut self) -> &Path {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
        &self.folder
    }

    /// Starts this program on the store. What it says goes to a file in the folder; stdout can be read.
    ///
    /// Call it from the main task only: Linux ties a child's death to the thread that started it.
    pub(crate) fn spawn(&self, args: &[&str], log: &str) -> Result<Child> {
        self.spawn_with(args, log, &[])
    }

    /// As [`Stage::spawn`], with settings in its environment.
    pub(crate) fn spawn_with(&self, args: &[&str], log: &str, settings: &[(&str, &str)]) -> Result<Child> {
        let mut command = Command::new(&self.exe);
        command.envs(settings.iter().copied());
        let data = format!("sqlite://{}", self.path("data.db").display());
        // By its environment: everybody can read the arguments of a process.
        command.env("LONGHAUL_STORE__URL", &self.url);
        command.args(["--data", &data]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(self.log(log)?);
        // Own group: Ctrl-C in a terminal goes to this process alone, which then ends its children.
        command.process_group(0).kill_on_drop(true);
        die_with_parent(&mut command);
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
        return Err(Failure::new(Code::Usage, text).hint("name a folder that does not exist yet").into());
    }
    Ok(path)
}

async fn open(app: &App, url: &str) -> Result<Engine> {
    let parsed = store::parse_url(url).map_err(|problem| {
        Failure::new(Code::Usage, format!("--store is {:?}: {problem}", store::shown(url)))
    })?;
    if parsed == StoreUrl::Memory {
        let text = "memory:// cannot be shared with worker processes";
        return Err(Failure::new(Code::Usage, text).hint("omit --store, or name a new file").into());
    }
    let engine = Engine::new(store::connect(&app.settings, &parsed).await?);
    if engine.store().counts().await?.iter().any(|count| count.jobs > 0) {
        let text = format!(
            "the store {} has jobs, and this command only works on one of its own",
            store::shown(url)
        );
        return Err(Failure::new(Code::Usage, text).hint("omit --store, or name a new file").into());
    }
    Ok(engine)
}
