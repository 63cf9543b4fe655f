//! What was executed and so has to be paid, and how often each request was seen. Counters and sixteen bytes a request stay
//! in memory; the list of calls is a short tail, or a file.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, LineWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use longhaul_llm::types::Usage;

/// Requests whose attempts are told apart; a simulator that has seen more takes new ones for first attempts.
pub const REQUESTS_MAX: usize = 8_000_000;
/// Executed calls that are kept in memory.
pub const LOG_TAIL_MAX: usize = 1000;
/// Parts of the table, so that calls on several threads seldom meet.
const SHARDS: usize = 16;

/// How a call came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// On its own.
    Sync,
    /// As a line of a batch.
    Batch,
    /// Texts to embed.
    Embed,
}

/// One executed call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The answer's id, or the line's `custom_id`.
    pub id: String,
    /// Hash of the request, in hexadecimal.
    pub request: String,
    /// The model.
    pub model: String,
    /// How it came.
    pub kind: CallKind,
    /// The how-manieth time this request was seen.
    pub attempt: u32,
    /// Whether the answer reached the caller, as far as the simulator knows.
    pub delivered: bool,
    /// What it used.
    pub usage: Usage,
    /// The trace that it came with over HTTP; of a line, that of its batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

tokio::task_local! {
    /// The trace that the call under way came with.
    pub(super) static TRACEPARENT: Option<String>;
}

/// The trace of the caller, where there is one.
pub(super) fn traceparent() -> Option<String> {
    TRACEPARENT.try_with(Clone::clone).ok().flatten()
}

/// Sums since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Calls that arrived: chat and embeddings, not batches.
    pub calls: u64,
    /// Calls whose answer was sent whole.
    pub answered: u64,
    /// Calls that the limits turned away; random 429s are among the faults.
    pub throttled: u64,
    /// Faults by kind.
    pub faults: std::collections::BTreeMap<String, u64>,
    /// Batches that were created.
    pub batches_created: u64,
    /// Lines of batches that were executed.
    pub lines_executed: u64,
    /// Lines of batches that failed.
    pub lines_failed: u64,
    /// All that was executed, alone or in batches: what has to be paid.
    pub executed: u64,
    /// Different requests that were seen.
    pub distinct_requests: u64,
    /// Different requests that were executed more than once.
    pub paid_twice: u64,
    /// Tokens of executed input.
    pub tokens_in: u64,
    /// Tokens of executed output.
    pub tokens_out: u64,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    answered: AtomicU64,
    throttled: AtomicU64,
    faults: [AtomicU64; Fault::KINDS],
    batches_created: AtomicU64,
    lines_executed: AtomicU64,
    lines_failed: AtomicU64,
    executed: AtomicU64,
    paid_twice: AtomicU64,
    tokens_in: AtomicU64,
    tokens_out: AtomicU64,
}

/// Beside a key of eight bytes, smaller counts would save nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    attempts: u32,
    executed: u32,
}

/// Keys are hashes already.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Shard = HashMap<u64, Seen, BuildHasherDefault<AsItIs>>;

/// The books of a simulator.
#[derive(Debug)]
pub(crate) struct Ledger {
    counters: Counters,
    shards: [Mutex<Shard>; SHARDS],
    tail: Mutex<VecDeque<LogEntry>>,
    /// Line by line, so that who looks at it sees each call at once.
    file: Option<Mutex<LineWriter<File>>>,
}

/// What to count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Count {
    Call,
    Answered,
    Throttled,
    BatchCreated,
    LineFailed,
}

impl Ledger {
    pub(crate) fn open(log: Option<&Path>) -> io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        let file = log.map(open).transpose()?.map(|file| Mutex::new(LineWriter::new(file)));
        Ok(Self { counters: Counters::default(), shards: Default::default(), tail: Mutex::default(), file })
    }

    pub(crate) fn count(&self, what: Count) {
        let counter = match what {
            Count::Call => &self.counters.calls,
            Count::Answered => &self.counters.answered,
            Count::Throttled => &self.counters.throttled,
            Count::BatchCreated => &self.counters.batches_created,
            Count::LineFailed => &self.counters.lines_failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.counters.faults[fault.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// The next attempt at a request, from 1.
    pub(crate) fn attempt(&self, request: u64) -> u32 {
        let mut shard = self.shard(request);
        if shard.len() >= REQUESTS_MAX / SHARDS && !shard.contains_key(&request) {
            return 1;
        }
        let seen = shard.entry(request).or_default();
        seen.attempts = seen.attempts.saturating_add(1);
        seen.attempts
    }

    /// Books an executed call.
    pub(crate) fn executed(
        &self,
        request: u64,
        entry: impl FnOnce() -> LogEntry,
        usage: &Usage,
        kind: CallKind,
    ) {
        let add = |counter: &AtomicU64, amount| counter.fetch_add(amount, Ordering::Relaxed);
        add(&self.counters.executed, 1);
        add(&self.counters.tokens_in, usage.input());
        add(&self.counters.tokens_out, usage.output());
        if kind == CallKind::Batch {
            add(&self.counters.lines_executed, 1);
        }
        let mut shard = self.shard(request);
        if let Some(seen) = shard.get_mut(&request) {
            seen.executed = seen.executed.saturating_add(1);
            if seen.executed == 2 {
                add(&self.counters.paid_twice, 1);
            }
        }
        drop(shard);
        self.log(entry());
    }

    pub(crate) fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let faults = Fault::NAMES.iter().zip(&counters.faults);
        let distinct: usize = self.shards.iter().map(|shard| lock(shard).len()).sum();
        Stats {
            calls: get(&counters.calls),
            answered: get(&counters.answered),
            throttled: get(&counters.throttled),
            faults: faults
                .map(|(name, counter)| ((*name).to_owned(), get(counter)))
                .filter(|(_, n)| *n > 0)
                .collect(),
            batches_created: get(&counters.batches_created),
            lines_executed: get(&counters.lines_executed),
            lines_failed: get(&counters.lines_failed),
            executed: get(&counters.executed),
            distinct_requests: distinct as u64,
            paid_twice: get(&counters.paid_twice),
            tokens_in: get(&counters.tokens_in),
            tokens_out: get(&counters.tokens_out),
        }
    }

    /// The last executed calls, oldest first.
    pub(crate) fn tail(&self) -> Vec<LogEntry> {
        lock(&self.tail).iter().cloned().collect()
    }

    /// How often a request was executed.
    pub(crate) fn times_executed(&self, request: u64) -> u32 {
        self.shard(request).get(&request).map_or(0, |seen| seen.executed)
    }

    /// Writes what is buffered to the file.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| lock(file).flush())
    }

    fn log(&self, entry: LogEntry) {
        if let Some(file) = &self.file
            && let Ok(mut line) = serde_json::to_vec(&entry)
        {
            line.push(b'\n');
            if let Err(error) = lock(file).write_all(&line) {
                tracing::warn!(%error, "the simulator cannot write its log");
            }
        }
        let mut tail = lock(&self.tail);
        if tail.len() >= LOG_TAIL_MAX {
            tail.pop_front();
        }
        tail.push_back(entry);
    }

    fn shard(&self, request: u64) -> MutexGuard<'_, Shard> {
        // The middle bits: the table itself uses those at both ends.
        lock(&self.shards[usize::try_from((request >> 32) & 0xff).unwrap_or_default() % SHARDS])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
