//! `backup` and `restore`: a whole store to and from a file.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::app::App;
use crate::exit::{Code, Failure};
use crate::output::size;
use crate::store::{self, Location};

/// `backup FILE`.
pub(crate) async fn backup(app: &App, file: &Path) -> Result<Code> {
    let Location::Sqlite(_) = store::location(&app.settings)? else { return Err(not_sqlite()) };
    if file.exists() {
        return Err(Failure::new(Code::Failure, format!("{} exists and was left as it is", file.display()))
            .hint("name a file that does not exist")
            .into());
    }
    store::backup(&app.settings, file).await?;
    let bytes = std::fs::metadata(file).context("looking at the backup")?.len();
    let path = file.display().to_string();
    app.out.one(&serde_json::json!({ "file": path, "bytes": bytes }), || format!("{path} ({})", size(bytes)))?;
    Ok(Code::Ok)
}

/// `restore FILE`.
pub(crate) async fn restore(app: &App, file: &Path) -> Result<Code> {
    let Location::Sqlite(path) = store::location(&app.settings)? else { return Err(not_sqlite()) };
    store::check_file(&app.settings, file).await.with_context(|| format!("{} cannot be restored", file.display()))?;
    let mut aside = None;
    if path.exists() {
        if !app.says_yes() {
            let text = format!("there is a store at {} already", path.display());
            return Err(Failure::new(Code::Usage, text)
                .hint("stop its workers, then repeat the command with --yes; the store is kept aside")
                .into());
        }
        aside = Some(move_aside(app, &path)?);
    }
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    // Copied beside its place first: a crash half-way leaves no half a store.
    let part = sibling(&path, "restoring");
    std::fs::copy(file, &part).with_context(|| format!("copying {}", file.display()))?;
    std::fs::File::open(&part).and_then(|copy| copy.sync_all()).context("writing the copy to disk")?;
    std::fs::rename(&part, &path).with_context(|| format!("putting the copy at {}", path.display()))?;
    let aside_text = aside.as_ref().map(|aside| aside.display().to_string());
    app.out.one(&serde_json::json!({ "store": path.display().to_string(), "aside": aside_text }), || {
        format!("{} restored from {}", path.display(), file.display())
    })?;
    if let Some(aside) = aside_text {
        app.out.note(format_args!("the former store is at {aside}"));
    }
    Ok(Code::Ok)
}

/// The store with its write-ahead log: the log may hold what the file does not have yet.
fn move_aside(app: &App, path: &Path) -> Result<std::path::PathBuf> {
    let aside = sibling(path, &format!("before-restore-{}", app.now().as_millis()));
    for suffix in ["-wal", "-shm", ""] {
        let from = with_suffix(path, suffix);
        if from.exists() {
            let to = with_suffix(&aside, suffix);
            std::fs::rename(&from, &to).with_context(|| format!("moving {} aside", from.display()))?;
        }
    }
    Ok(aside)
}

fn sibling(path: &Path, word: &str) -> std::path::PathBuf {
    with_suffix(path, &format!(".{word}"))
}

fn with_suffix(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn not_sqlite() -> anyhow::Error {
    Failure::new(Code::Usage, "backup and restore are for SQLite stores").hint("name one with --store sqlite://PATH").into()
}
