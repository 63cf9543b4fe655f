//! `results`: the ended jobs of a process as JSONL, in submission order. With `--out --consume` each page is written
//! and fsynced first and deleted afterwards: a crash in between repeats delivery, the other order would lose it.

use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use longhaul_api::processes::ResultOut;
use longhaul_queue::job::JobResult;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::{JobId, ProcessId, Queue, State};
use serde_json::json;

use crate::app::App;
use crate::args::ResultsArgs;
use crate::exit::{Code, Failure};
use crate::output::{Format, counted, write_stdout};
use crate::{store, texts};

/// How a line that we wrote begins; only such a torn line may be cut off.
const LINE_START: &str = "{\"id\":\"";
/// Bytes of an id, which follows.
const ID_BYTES: usize = 36;
/// A torn line longer than this is none of ours.
const TORN_BYTES_MAX: u64 = 32_000_000;

/// Runs the command.
pub(crate) async fn run(app: &App, args: &ResultsArgs) -> Result<Code> {
    let queue = app.queue().await?;
    let process = ProcessId::from(args.process.as_str());
    let mut info = queue.process(&process).await?;
    if args.wait {
        super::wait::process_ended(app, &queue, &process, None).await?;
        info = queue.process(&process).await?;
    }
    let mut sink = match &args.out {
        Some(path) => Sink::file(app, path, args.force)?,
        None if app.out.format == Format::None => Sink::Nowhere,
        None => Sink::Stdout,
    };
    let (mut after, mut count, mut failed) = (0, 0_usize, 0_usize);
    loop {
        let page = queue.results(&process, after, PAGE_MAX).await?;
        sink.write(&page.items)?;
        count += page.items.len();
        failed += page.items.iter().filter(|item| item.state != State::Succeeded).count();
        if args.consume {
            consume(&queue, &page.items).await?;
        }
        let last = page.items.last().map(|item| item.seq);
        match page.next.or(last.filter(|_| page.items.len() == PAGE_MAX)) {
            Some(next) => after = next,
            None => break,
        }
    }
    // Fewer than were counted: another process consumes them meanwhile, or the file has lost some. A server checks its own.
    if (count as u64) < info.total() - info.unfinished() && store::server(&app.settings)?.is_none() {
        app.engine().await?.store().verify().await?;
    }
    report(app, &queue, &process, count).await?;
    if let Some(file) = &args.out {
        let told = json!({ "process": process.as_str(), "file": file, "results": count, "failed": failed });
        app.out.one(&told, String::new)?;
    }
    Ok(if failed > 0 { Code::JobsFailed } else { Code::Ok })
}

async fn consume(queue: &Queue, items: &[JobResult]) -> Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let deleted = queue.consume(items.iter().map(|item| item.id).collect()).await?;
    match deleted.refused.first() {
        Some((id, error)) => {
            Err(error.clone()).with_context(|| format!("deleting job {id} after its result was written"))
        }
        None => Ok(()),
    }
}

async fn report(app: &App, queue: &Queue, process: &ProcessId, count: usize) -> Result<()> {
    let left = queue.store().process(process.clone()).await?.map_or(0, |info| info.unfinished());
    let found = format!("{} of process {process}", counted(count as u64, "result"));
    if left == 0 {
        app.out.note(found);
    } else {
        app.out.note(format_args!("{found}; {} unfinished", counted(left, "job")));
        app.out.hint("wait for all of them: add --wait");
    }
    Ok(())
}

/// Where results go.
enum Sink {
    Stdout,
    Nowhere,
    File { file: File, written: HashSet<JobId> },
}

impl Sink {
    fn file(app: &App, path: &Path, force: bool) -> Result<Self> {
        let context = || format!("reading {}", path.display());
        // Results are synced, mended and continued, which only a plain file allows.
        if path.exists() && !path.is_file() {
            return Err(Failure::new(Code::Usage, format!("--out {} is not a plain file", path.display()))
                .hint("omit --out to write to stdout")
                .into());
        }
        let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
        let mut file = opened.map_err(|error| {
            let text = format!("--out {} cannot be written: {error}", path.display());
            Failure::new(texts::code_of(&error), text).hint("name a file in a folder that exists")
        })?;
        if !force && !begins_with_results(&file).with_context(context)? {
            let text = format!("--out {} exists and does not begin with results", path.display());
            return Err(Failure::new(Code::Usage, text)
                .hint("name another file, or append to this one with --force")
                .into());
        }
        mend(app, &mut file, path)?;
        let written = last_ids(&file).with_context(context)?;
        Ok(Self::File { file, written })
    }

    fn write(&mut self, items: &[JobResult]) -> Result<()> {
        let line =
            |item: &JobResult| serde_json::to_string(&ResultOut::from(item.clone())).map(|line| line + "\n");
        match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => write_stdout(&items.iter().map(line).collect::<Result<String, _>>()?),
            Self::File { file, written } => {
                // What an earlier run wrote but did not come to delete is not written again.
                let fresh = items.iter().filter(|item| !written.contains(&item.id));
                let text = fresh.map(line).collect::<Result<String, _>>()?;
                file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).context("writing results")
            }
        }
    }
}

/// Whether a file is empty, or begins as one that we wrote: results are appended to it, never to a file of something else.
fn begins_with_results(file: &File) -> Result<bool> {
    let mut start = Vec::new();
    file.take(LINE_START.len() as u64).read_to_end(&mut start)?;
    Ok(LINE_START.as_bytes().starts_with(&start))
}

/// Cuts off a line that a crash left unfinished: its job was not deleted, so its result comes again.
fn mend(app: &App, file: &mut File, path: &Path) -> Result<()> {
    let length = file.metadata().context("looking at the file")?.len();
    if length == 0 {
        return Ok(());
    }
    let start = length.saturating_sub(TORN_BYTES_MAX);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(start))
        .and_then(|_| file.read_to_end(&mut tail))
        .context("reading the file's end")?;
    if tail.last() == Some(&b'\n') {
        return Ok(());
    }
    let line_start = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let torn = String::from_utf8_lossy(&tail[line_start..]).into_owned();
    if serde_json::from_str::<serde::de::IgnoredAny>(&torn).is_ok() {
        return file.write_all(b"\n").context("ending the last line");
    }
    if !torn.starts_with(LINE_START) && !LINE_START.starts_with(&torn) {
        let text = format!("{} ends in the middle of a line that is not a result", path.display());
        return Err(Failure::new(Code::Failure, text).hint("name another file with --out").into());
    }
    app.out.warn(format_args!(
        "{} ended with a torn line ({} bytes), which is cut off; its result follows",
        path.display(),
        torn.len()
    ));
    file.set_len(start + line_start as u64).context("cutting off the torn line")
}

/// The ids on the last lines: as many as one page has, since earlier pages were deleted before the next was read. Of each line
/// only the start is kept, since a file that was written to with `--force` may have lines of any length.
fn last_ids(file: &File) -> Result<HashSet<JobId>> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(0))?;
    let mut ids = VecDeque::with_capacity(PAGE_MAX + 1);
    let mut start = Vec::with_capacity(LINE_START.len() + ID_BYTES);
    loop {
        start.clear();
        (&mut reader).take((LINE_START.len() + ID_BYTES) as u64).read_until(b'\n', &mut start)?;
        if start.is_empty() {
            return Ok(ids.into_iter().collect());
        }
        if start.last() != Some(&b'\n') {
            reader.skip_until(b'\n')?;
        }
        let id = start.strip_prefix(LINE_START.as_bytes()).and_then(|id| std::str::from_utf8(id).ok());
        if let Some(id) = id.and_then(|id| id.parse().ok()) {
            ids.push_back(id);
            if ids.len() > PAGE_MAX {
                ids.pop_front();
            }
        }
    }
}
