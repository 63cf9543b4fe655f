//! A file of requests, each line as it would stand among the `requests` of a call: any number of them, read one by one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use longhaul_api::prompts::PromptIn;
use longhaul_llm::Endpoint;
use longhaul_prompts::NewRequest;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::{FAULTS_TOLD, hex, request};
use longhaul_prompts::sdk_batches::input::LINE_BYTES_MAX;

/// How runs say what they came from.
pub(super) const FORM: &str = "jsonl";

/// Requests that are read ahead of those that are stored.
const READ_AHEAD: usize = 256;

/// What a line of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineForm {
    /// A request as in a call.
    Requests,
    /// A line of OpenAI's batches.
    Batch,
}

/// What tells a line of a batch from a request: it says where it goes.
#[derive(Deserialize)]
struct BatchLine {
    url: Option<serde::de::IgnoredAny>,
}

/// The form of a file, by its first line.
pub(super) fn form_of(path: &Path) -> io::Result<LineForm> {
    let Some((_, first)) = Lines::open(path)?.next().transpose()? else { return Ok(LineForm::Requests) };
    let is_batch = serde_json::from_slice(&first).is_ok_and(|line: BatchLine| line.url.is_some());
    Ok(if is_batch { LineForm::Batch } else { LineForm::Requests })
}

/// Reads a whole file: the number of its requests and its digest, or what is wrong with it.
pub(super) fn check(path: &Path, endpoint: Endpoint) -> io::Result<Result<(u64, String), String>> {
    let (mut requests, mut faults, mut digest) = (0, Vec::new(), Sha256::new());
    for line in Lines::open(path)? {
        let (number, line) = line?;
        digest.update(&line);
        match read(&line, endpoint) {
            Ok(_) => requests += 1,
            Err(text) => faults.push(format!("line {number}: {text}")),
        }
        // The rest of a line that is too long is not read, so that what follows has no numbers.
        if faults.len() >= FAULTS_TOLD || line.len() > LINE_BYTES_MAX {
            break;
        }
    }
    Ok(match (faults.is_empty(), requests) {
        (false, _) => Err(faults.join("; ")),
        (true, 0) => Err("the file has no requests".to_owned()),
        (true, _) => Ok((requests, hex(&digest.finalize()))),
    })
}

/// The requests of a file that was checked.
pub(super) fn read_ahead(path: PathBuf, endpoint: Endpoint) -> mpsc::Receiver<io::Result<NewRequest>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    tokio::task::spawn_blocking(move || {
        let lines = match Lines::open(&path) {
            Ok(lines) => lines,
            Err(error) => return drop(sender.blocking_send(Err(error))),
        };
        for line in lines {
            let request = line.and_then(|(_, line)| read(&line, endpoint).map_err(io::Error::other));
            if sender.blocking_send(request).is_err() {
                return;
            }
        }
    });
    receiver
}

fn read(line: &[u8], endpoint: Endpoint) -> Result<NewRequest, String> {
    if line.len() > LINE_BYTES_MAX {
        return Err(format!("the line is longer than {LINE_BYTES_MAX} bytes"));
    }
    let prompt: PromptIn = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    Ok(request(prompt, endpoint)?)
}

/// The lines of a file that are not empty, with their numbers from 1, each cut one byte behind the longest that is read.
struct Lines {
    reader: BufReader<File>,
    number: u64,
}

impl Lines {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { reader: BufReader::new(File::open(path)?), number: 0 })
    }
}

impl Iterator for Lines {
    type Item = io::Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.number += 1;
            let mut line = Vec::new();
            let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX as u64 + 1);
            match bounded.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) if line.trim_ascii().is_empty() => {}
                Ok(_) => return Some(Ok((self.number, line))),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
