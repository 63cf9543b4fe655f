//! `backup` and `restore`: a whole store to and from a file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use longhaul_queue::Store as _;
use longhaul_stores::StoreUrl;

use super::workers::SILENT_AFTER;
use crate::app::App;
use crate::exit::{Code, Failure};
use crate::output::size;
use crate::store;

/// `backup FILE`.
pub(crate) async fn backup(app: &App, file: &Path) -> Result<Code> {
    let store = store::open_sqlite(&app.settings)?;
    if file.exists() {
        return Err(Failure::new(Code::Failure, format!("{} exists and was left as it is", file.display()))
            .hint("name a file that does not exist")
            .into());
    }
    store.db().backup_to(file).await?;
    let bytes = std::fs::metadata(file).context("looking at the backup")?.len();
    let path = file.display().to_string();
    app.out
        .one(&serde_json::json!({ "file": path, "bytes": bytes }), || format!("{path} ({})", size(bytes)))?;
    Ok(Code::Ok)
}

/// `restore FILE`.
pub(crate) async fn restore(app: &App, file: &Path) -> Result<Code> {
    let StoreUrl::Sqlite(path) = store::location(&app.settings)? else {
        return Err(Failure::new(Code::Usage, "restore is for SQLite stores")
            .hint("name one with --store sqlite://PATH")
            .into());
    };
    store::check_is_store(file)?;
    if path.exists() {
        may_replace(app, &path).await?;
    }
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let ready = checked_copy(app, file, &path).await?;
    let aside = put_in_place(app, &ready, &path)?;
    let aside = aside.map(|aside| aside.display().to_string());
    app.out.one(&serde_json::json!({ "store": path.display().to_string(), "aside": aside }), || {
        format!("{} restored from {}", path.display(), file.display())
    })?;
    if let Some(aside) = aside {
        app.out.note(format_args!("the former store is at {aside}"));
    }
    Ok(Code::Ok)
}

/// A store in use must not be moved away under its workers: they would go on writing where nobody looks.
async fn may_replace(app: &App, path: &Path) -> Result<()> {
    if !app.says_yes() {
        let text = format!("there is a store at {} already", path.display());
        return Err(Failure::new(Code::Usage, text)
            .hint("stop its workers, then repeat the command with --yes; the store is kept aside")
            .into());
    }
    // A damaged store cannot be asked, and it is the one that most needs a restore.
    let Ok(store) = store::open_sqlite(&app.settings) else { return Ok(()) };
    let now = app.now();
    let workers = store.workers(now).await.unwrap_or_default();
    match workers.iter().find(|worker| now.since(worker.seen_at) <= SILENT_AFTER) {
        None => Ok(()),
        Some(worker) => {
            let text = format!("worker {} (pid {} on {}) uses the store", worker.id, worker.pid, worker.host);
            Err(Failure::new(Code::Failure, text)
                .hint("stop it first; a worker that died is forgotten after 30 s")
                .into())
        }
    }
}

/// A sound, compact copy beside the store's place, so that a crash half-way leaves no half a store. A failure leaves nothing.
async fn checked_copy(app: &App, file: &Path, path: &Path) -> Result<PathBuf> {
    let (raw, ready) = (sibling(path, "restoring"), sibling(path, "restored"));
    remove(&ready);
    let packed = match std::fs::copy(file, &raw) {
        Ok(_) => check_and_pack(app, &raw, &ready).await,
        Err(error) => Err(error).context("copying it"),
    };
    remove(&raw);
    if packed.is_err() {
        remove(&ready);
    }
    packed.with_context(|| format!("{} cannot be restored", file.display()))?;
    Ok(ready)
}

async fn check_and_pack(app: &App, raw: &Path, ready: &Path) -> Result<()> {
    let store = store::open_file(&app.settings, raw)?;
    let found = store.db().check().await?;
    if let Some(problem) = found.problems.first() {
        return Err(Failure::new(Code::Failure, format!("it is damaged: {problem}"))
            .hint("restore an older backup")
            .into());
    }
    Ok(store.db().backup_to(ready).await?)
}

/// Puts the copy at the store's place, and says where the former store is. After a failure that one is back.
fn put_in_place(app: &App, ready: &Path, path: &Path) -> Result<Option<PathBuf>> {
    let aside = sibling(path, &format!("before-restore-{}", app.now().as_millis()));
    let was_there = path.exists();
    let moved = if was_there { move_store(path, &aside) } else { Ok(()) };
    let placed = moved.and_then(|()| {
        std::fs::rename(ready, path).with_context(|| format!("putting the copy at {}", path.display()))
    });
    if let Err(error) = placed {
        remove(ready);
        let back = move_store(&aside, path);
        return Err(match back {
            Ok(()) => error,
            Err(_) => error.context(format!("the former store is at {}", aside.display())),
        });
    }
    Ok(was_there.then_some(aside))
}

/// A store with its write-ahead log: the log may hold what the file does not have yet.
fn move_store(from: &Path, to: &Path) -> Result<()> {
    for suffix in ["-wal", "-shm", ""] {
        let (from, to) = (with_suffix(from, suffix), with_suffix(to, suffix));
        if from.exists() {
            std::fs::rename(&from, &to)
                .with_context(|| format!("moving {} to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}

/// Removes a copy that is only litter, with whatever was left beside it.
fn remove(copy: &Path) {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(with_suffix(copy, suffix));
    }
}

fn sibling(path: &Path, word: &str) -> PathBuf {
    with_suffix(path, &format!(".{word}"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
