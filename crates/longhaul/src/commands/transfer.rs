//! `backup` and `restore`: an installation to and from a file. The file is a copy of the store that holds what stands beside it too.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use longhaul_queue::Store as _;
use longhaul_stores::StoreUrl;
use rusqlite::{Connection, OpenFlags};

use super::workers::SILENT_AFTER;
use crate::app::App;
use crate::args::BackupArgs;
use crate::exit::{Code, Failure};
use crate::output::{counted, size};
use crate::{models, store, texts};

mod archive;

use archive::Kept;

/// Where the models' file stands in a backup, whatever it is called outside.
const LLM_DB: &str = "llm.db";
/// Uploaded files, beside the store and in a backup.
const FILES: &str = "files";
/// What lets others in, or lets them believe that a message is from here.
const SECRETS: [&str; 2] = ["tokens.json", "webhooks.json"];

/// `backup FILE`.
pub(crate) async fn backup(app: &App, args: &BackupArgs) -> Result<Code> {
    let file = &args.file;
    let store = store::open_sqlite(&app.settings)?;
    if file.exists() {
        return Err(Failure::new(Code::Usage, format!("{} exists and was left as it is", file.display()))
            .hint("name a file that does not exist")
            .into());
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::metadata(folder).map_err(|error| {
        let text = format!("{} cannot be written: {error}", file.display());
        Failure::new(texts::code_of(&error), text).hint("name a file in a folder that exists")
    })?;
    store.db().backup_to(file).await?;
    let added = add_the_rest(app, file, args.secrets);
    if added.is_err() {
        remove(file);
    }
    let parts: Vec<String> = added?.into_iter().map(|kept| kept.name).collect();
    let bytes = std::fs::metadata(file).context("looking at the backup")?.len();
    let path = file.display().to_string();
    app.out.one(&serde_json::json!({ "file": path, "bytes": bytes, "beside_the_store": parts }), || {
        let uploads = parts.iter().filter(|name| name.starts_with(FILES)).count() as u64;
        let others = parts.iter().filter(|name| !name.starts_with(FILES)).map(String::as_str);
        let mut held: Vec<String> = ["the store"].into_iter().chain(others).map(str::to_owned).collect();
        if uploads > 0 {
            held.push(counted(uploads, "uploaded file"));
        }
        format!("{path} ({}): {}", size(bytes), held.join(", "))
    })?;
    Ok(Code::Ok)
}

/// Adds what stands beside the store.
fn add_the_rest(app: &App, file: &Path, secrets: bool) -> Result<Vec<Kept>> {
    let scratch =
        tempfile::tempdir_in(file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")))
            .context("making a folder beside the backup")?;
    let mut kept = Vec::new();
    if let Some(llm) = models::file_of(app)?.filter(|path| path.exists()) {
        let copy = scratch.path().join(LLM_DB);
        let from = Connection::open_with_flags(&llm, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let copied = from.and_then(|from| from.execute("VACUUM INTO ?1", [copy.to_string_lossy()]));
        copied.with_context(|| format!("copying {}", llm.display()))?;
        kept.push(Kept { name: LLM_DB.to_owned(), path: copy });
    }
    if let Some(folder) = store::folder(&app.settings)? {
        if secrets {
            let there = SECRETS.map(|name| Kept { name: name.to_owned(), path: folder.join(name) });
            kept.extend(there.into_iter().filter(|kept| kept.path.exists()));
        }
        kept.extend(archive::below(&folder.join(FILES), FILES)?);
    }
    archive::add(file, &kept).context("adding the files beside the store")?;
    Ok(kept)
}

/// Puts what a backup holds beside the store in its place. What is there already is newer, and stays: above all the ledger, which
/// knows what was spent since.
fn put_the_rest(app: &App, file: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let (mut put, mut left) = (Vec::new(), Vec::new());
    let Some(folder) = store::folder(&app.settings)? else { return Ok((put, left)) };
    for name in archive::names(file)?.into_iter().filter(|name| archive::is_safe(name)) {
        let is_upload = Path::new(&name).starts_with(FILES);
        let path = match name.as_str() {
            LLM_DB => models::file_of(app)?.unwrap_or_else(|| folder.join(LLM_DB)),
            known if is_upload || SECRETS.contains(&known) => folder.join(known),
            _ => continue,
        };
        if path.exists() {
            left.push(name);
            continue;
        }
        archive::put(file, &Kept { name: name.clone(), path })?;
        put.push(name);
    }
    Ok((put, left))
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
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("making {}", directory.display()))?;
    }
    let ready = checked_copy(app, file, &path).await?;
    let aside = put_in_place(app, &ready, &path)?;
    let (put, left) = put_the_rest(app, file)?;
    let aside = aside.map(|aside| aside.display().to_string());
    let told = serde_json::json!({
        "store": path.display().to_string(), "aside": aside, "beside_the_store": put, "left_as_it_is": left,
    });
    app.out.one(&told, || {
        let beside = put.iter().filter(|name| !name.starts_with(FILES)).map(|name| format!(", {name}"));
        format!("{}{} restored from {}", path.display(), beside.collect::<String>(), file.display())
    })?;
    if left.iter().any(|name| name == LLM_DB) {
        app.out.note("llm.db was left as it is: it knows what was spent since the backup");
        app.out.hint("to use the backup's, move it away and restore again");
    }
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
    let copied = std::fs::copy(file, &raw).context("copying it").and_then(|_| archive::strip(&raw));
    let packed = match copied {
        Ok(()) => check_and_pack(app, &raw, &ready).await,
        Err(error) => Err(error),
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
