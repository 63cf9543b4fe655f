//! Which files a command may write to: never a file that it reads, and no file with other content unless forced. A record in
//! the store lists the files that a run has written, so that the same command may write them again. Without a store, as with
//! `--server`, none is known.

use std::fs::{self, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use longhaul_queue::store::Record;
use longhaul_queue::{Engine, Json};
use serde::{Deserialize, Serialize};

use crate::exit::{Code, Failure};

/// The record of files that were written.
const RECORD: &str = "outputs";
/// Files that are remembered, the newest ones.
const REMEMBERED_MAX: usize = 200;
/// Attempts to write the record when other processes change it at the same time.
const RECORD_TRIES_MAX: u32 = 8;

/// Places that a command is to write to, each with the option that names it. `None` and `-` are stdout.
pub(crate) type Places<'a> = [(&'static str, Option<&'a Path>)];

/// A file that a command reads.
#[derive(Debug)]
pub(crate) struct Input {
    name: String,
    id: FileId,
}

/// Identifies a file, whichever name leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl Input {
    /// A file, or stdin for `-`. Anything but a regular file can be read and written at once.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let id =
            if is_stream(path) { of_stream(&std::io::stdin()) } else { plain(&fs::metadata(path).ok()?) };
        Some(Self { name: path.display().to_string(), id: id? })
    }
}

/// Refuses to write to an input, also if a link or another spelling leads to it. `instead` says what to do.
pub(crate) fn refuse_inputs(places: &Places<'_>, inputs: &[Input], instead: &str) -> Result<()> {
    for (option, path) in places {
        let id = match path {
            Some(path) if !is_stream(path) => fs::metadata(path).ok().and_then(|found| plain(&found)),
            _ if *option == "--out" => of_stream(&std::io::stdout()),
            _ => None,
        };
        if let Some(input) = inputs.iter().find(|input| Some(input.id) == id) {
            let out = path.map_or_else(|| "stdout".to_owned(), |path| format!("{option} {}", path.display()));
            let text = format!("{out} is a file that this command reads: {}", input.name);
            return Err(Failure::new(Code::Usage, text).hint(instead).into());
        }
    }
    Ok(())
}

/// Refuses two options that name one file.
pub(crate) fn refuse_same(places: &Places<'_>) -> Result<()> {
    for (at, (option, path)) in places.iter().enumerate() {
        let place = path.map(place_of);
        let same = |(_, other): &&(_, Option<&Path>)| place.is_some() && other.map(place_of) == place;
        if let (Some((earlier, _)), Some(path)) = (places[..at].iter().find(same), path) {
            let text = format!("{earlier} and {option} both name {}", path.display());
            return Err(Failure::new(Code::Usage, text)
                .hint(format_args!("omit {option} to keep failed prompts among the answers"))
                .into());
        }
    }
    Ok(())
}

/// Refuses to write over a file with content, unless `owner` wrote it and it has not changed since.
pub(crate) async fn refuse_foreign(engine: Option<&Engine>, owner: &str, places: &Places<'_>) -> Result<()> {
    let existing = places.iter().filter_map(|(option, path)| Some((option, (*path)?)));
    for (option, path) in existing.filter(|(_, path)| !is_stream(path)) {
        // Nothing is lost with an empty file, and mktemp makes one.
        let Some(found) = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() > 0) else {
            continue;
        };
        let outputs = match engine {
            Some(engine) => remembered(engine).await?.1,
            None => Remembered::default(),
        };
        let place = place_of(path);
        let why = match outputs.files.iter().find(|file| file.path == place && file.owner == owner) {
            Some(file) if file.is_unchanged(&found) => continue,
            Some(_) => format!("it was changed after {owner} wrote it"),
            None => format!("it is not an output of {owner}"),
        };
        let text = format!("{option} {} exists and was left as it is: {why}", path.display());
        return Err(Failure::new(Code::Usage, text)
            .hint("name another file, or overwrite this one with --force")
            .into());
    }
    Ok(())
}

/// Records that `owner` has written these files. If that fails, the next command needs `--force`, which is not a reason to
/// fail after the work is done.
pub(crate) async fn remember(engine: Option<&Engine>, owner: &str, places: &Places<'_>) {
    let Some(engine) = engine else { return };
    let written = |path: &&Path| !is_stream(path) && fs::metadata(path).is_ok_and(|found| found.is_file());
    let files: Vec<OutputFile> = places
        .iter()
        .filter_map(|(_, path)| *path)
        .filter(written)
        .filter_map(|path| OutputFile::of(owner, path))
        .collect();
    if !files.is_empty()
        && let Err(error) = add(engine, &files).await
    {
        tracing::warn!(owner, error = format!("{error:#}"), "the list of written files could not be stored");
    }
}

/// Forgets what `owner` has written: a run that is consumed leaves nothing behind.
pub(crate) async fn forget(engine: &Engine, owner: &str) -> Result<()> {
    change(engine, |outputs| outputs.files.retain(|file| file.owner != owner)).await
}

/// The record's content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Remembered {
    /// Oldest first.
    files: Vec<OutputFile>,
}

/// A file as it was when it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OutputFile {
    /// Without links.
    path: PathBuf,
    /// The run or sheet that wrote it.
    owner: String,
    bytes: u64,
    /// When it was modified, in nanoseconds since 1970.
    modified: i64,
}

impl OutputFile {
    fn of(owner: &str, path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let (bytes, modified) = (found.len(), modified(&found));
        Some(Self { path: place_of(path), owner: owner.to_owned(), bytes, modified })
    }

    fn is_unchanged(&self, found: &Metadata) -> bool {
        (self.bytes, self.modified) == (found.len(), modified(found))
    }
}

fn modified(found: &Metadata) -> i64 {
    found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec())
}

async fn remembered(engine: &Engine) -> Result<(u64, Remembered)> {
    Ok(match engine.store().record(RECORD.to_owned()).await? {
        Some(Record { version, value }) => (version, value.to()?),
        None => (0, Remembered::default()),
    })
}

async fn add(engine: &Engine, written: &[OutputFile]) -> Result<()> {
    change(engine, |outputs| {
        outputs.files.retain(|file| written.iter().all(|written| written.path != file.path));
        outputs.files.extend_from_slice(written);
        let surplus = outputs.files.len().saturating_sub(REMEMBERED_MAX);
        outputs.files.drain(..surplus);
    })
    .await
}

/// Changes the record, and gives up if other processes keep changing it.
async fn change(engine: &Engine, change: impl Fn(&mut Remembered)) -> Result<()> {
    for _ in 0..RECORD_TRIES_MAX {
        let (version, mut outputs) = remembered(engine).await?;
        change(&mut outputs);
        if engine.store().put_record(RECORD.to_owned(), version, Json::of(&outputs)?).await? {
            break;
        }
    }
    Ok(())
}

fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

fn plain(found: &Metadata) -> Option<FileId> {
    found.is_file().then(|| FileId { device: found.dev(), inode: found.ino() })
}

fn of_stream(stream: &impl AsFd) -> Option<FileId> {
    plain(&fs::File::from(stream.as_fd().try_clone_to_owned().ok()?).metadata().ok()?)
}

/// The path without links, also of a file that does not exist yet.
fn place_of(path: &Path) -> PathBuf {
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
    };
    fs::canonicalize(path).ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}
