//! Rows as the scripts pack them (`ROW` in `scripts/tables.lua`), and everything else that is stored as bytes. Numbers are
//! big-endian. A time in a row has six bytes: its milliseconds and one more, or 0 for none; elsewhere it is a double of
//! milliseconds, or -1 for none. Times before 1970 are kept as 1970, and failures, crashes and throttles are counted up to
//! 65,535.

use longhaul_queue::job::{
    Job, JobId, JobOptions, OnFailure, ParentResult, ParentStatus, ProcessId, Retention, Run, WorkerId,
};
use longhaul_queue::state::{Event, JobError, Park, Policy, RunOutcome, Spent, settle};
use longhaul_queue::{Error, Json, Result, State, Timestamp};
use serde::de::DeserializeOwned;

/// "No time", as a double.
const NONE: f64 = -1.0;
/// The furthest time that six bytes hold with one to spare: the year 10889.
const TIME_MAX: i64 = (1 << 48) - 3;
/// The state of an edge whose parent has not ended.
pub(super) const NOT_ENDED: u8 = 255;

/// Bits of a row's flags.
pub(super) mod flag {
    /// Not among its process's results.
    pub(in super::super) const HELPER: u8 = 1;
    /// Somebody wants it to end.
    pub(in super::super) const CANCEL: u8 = 2;
    /// Its process is not done yet.
    pub(in super::super) const WAITS_PROCESS: u8 = 4;
    /// It is parked, and not for ever.
    pub(in super::super) const PARK_UNTIL: u8 = 8;
    /// It has lost leases.
    pub(in super::super) const SUSPECT: u8 = 16;
    /// Its last run is in the row, not in the history.
    pub(in super::super) const DONE_AT_ONCE: u8 = 32;
    /// It is as it was enqueued: nothing of a run is in its row.
    pub(in super::super) const FRESH: u8 = 64;
}

/// Bits of what a row has beside it.
pub(super) mod has {
    pub(in super::super) const LONG: u16 = 1;
    pub(in super::super) const DATA: u16 = 2;
    pub(in super::super) const RESULT: u16 = 4;
    pub(in super::super) const ERROR: u16 = 8;
    pub(in super::super) const PARK: u16 = 16;
    pub(in super::super) const WAKE: u16 = 32;
    pub(in super::super) const RUNS: u16 = 64;
    pub(in super::super) const PROGRESS: u16 = 128;
    pub(in super::super) const LOG: u16 = 256;
    pub(in super::super) const AFTER: u16 = 512;
    pub(in super::super) const EDGES: u16 = 1024;
    pub(in super::super) const UNIQUE: u16 = 2048;
}

/// A value that cannot be read.
pub(super) fn corrupt(what: &str) -> Error {
    Error::Corrupt(format!("{what} in Redis cannot be read; was it written by something else than longhaul?"))
}

/// A time as a number that every script reads exactly.
pub(super) fn millis(time: Timestamp) -> i64 {
    time.as_millis().clamp(0, TIME_MAX)
}

/// A time as a row has it.
pub(super) fn put_short_time(bytes: &mut Vec<u8>, time: Option<Timestamp>) {
    bytes.extend(&time.map_or(0, |time| millis(time) + 1).to_be_bytes()[2..]);
}

pub(super) fn put_time(bytes: &mut Vec<u8>, time: Option<Timestamp>) {
    let number = time.map_or(NONE, |time| millis(time) as f64);
    bytes.extend(number.to_be_bytes());
}

pub(super) fn put_millis(bytes: &mut Vec<u8>, length: Option<std::time::Duration>) {
    put_time(bytes, length.map(|length| Timestamp::default() + length));
}

pub(super) fn put_name(bytes: &mut Vec<u8>, name: &[u8]) {
    // Names are bounded at enqueue, far below this.
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_be_bytes());
    bytes.extend(&name[..usize::from(length)]);
}

pub(super) fn put_spent(bytes: &mut Vec<u8>, spent: Spent) {
    let Spent { attempt, crashes, throttles, continues, parks } = spent;
    for number in [attempt, crashes, throttles] {
        bytes.extend(u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes());
    }
    for number in [continues, parks] {
        bytes.extend(number.to_be_bytes());
    }
}

/// A retention rule as `removal` in `scripts/graph.lua` reads it.
pub(super) fn put_retention(bytes: &mut Vec<u8>, retention: Retention) {
    let (keep, first, second) = match retention {
        Retention::UntilConsumed { ttl } => (1, ttl, None),
        Retention::Keep { succeeded, failed } => (2, Some(succeeded), Some(failed)),
        Retention::DeleteOnSuccess => (3, None, None),
    };
    bytes.push(keep);
    put_millis(bytes, first);
    put_millis(bytes, second);
}

/// Reads bytes from front to back.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whatever is left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or_else(|| corrupt("a row"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| corrupt("a row"))
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A place in submission order: six bytes.
    pub(super) fn seq(&mut self) -> Result<i64> {
        let mut bytes = [0; 8];
        bytes[2..].copy_from_slice(self.take(6)?);
        Ok(i64::from_be_bytes(bytes))
    }

    pub(super) fn id(&mut self) -> Result<JobId> {
        self.array().map(JobId::from_bytes)
    }

    pub(super) fn state(&mut self) -> Result<State> {
        state(self.byte()?)
    }

    /// A time, or none.
    pub(super) fn time(&mut self) -> Result<Option<Timestamp>> {
        let number = f64::from_be_bytes(self.array()?);
        #[expect(clippy::cast_possible_truncation, reason = "scripts keep whole milliseconds within 53 bits")]
        let time = Timestamp::from_millis(number as i64);
        Ok((number > NONE).then_some(time))
    }

    fn always(&mut self) -> Result<Timestamp> {
        self.time()?.ok_or_else(|| corrupt("a time"))
    }

    /// A time of a row, or none.
    fn short_time(&mut self) -> Result<Option<Timestamp>> {
        let number = self.seq()?;
        Ok((number > 0).then(|| Timestamp::from_millis(number - 1)))
    }

    pub(super) fn name(&mut self) -> Result<String> {
        let length = self.u16()?;
        text(self.take(usize::from(length))?)
    }

    /// A text with a long length, or none when it is empty.
    pub(super) fn long(&mut self) -> Result<Option<&'a [u8]>> {
        let length = self.u32()? as usize;
        let bytes = self.take(length)?;
        Ok((!bytes.is_empty()).then_some(bytes))
    }

    fn spent(&mut self) -> Result<Spent> {
        Ok(Spent {
            attempt: self.u16()?.into(),
            crashes: self.u16()?.into(),
            throttles: self.u16()?.into(),
            continues: self.u32()?,
            parks: self.u32()?,
        })
    }

    /// A retention rule, or none.
    pub(super) fn retention(&mut self) -> Result<Option<Retention>> {
        let keep = self.byte()?;
        let since = |time: Timestamp| time.since(Timestamp::default());
        let (first, second) = (self.time()?.map(since), self.time()?.map(since));
        match (keep, first, second) {
            (0, ..) => Ok(None),
            (1, ttl, _) => Ok(Some(Retention::UntilConsumed { ttl })),
            (2, Some(succeeded), Some(failed)) => Ok(Some(Retention::Keep { succeeded, failed })),
            (3, ..) => Ok(Some(Retention::DeleteOnSuccess)),
            _ => Err(corrupt("a retention rule")),
        }
    }
}

/// A state by its number.
pub(super) fn state(number: u8) -> Result<State> {
    State::ALL.get(usize::from(number)).copied().ok_or_else(|| corrupt("a state"))
}

pub(super) fn text(bytes: &[u8]) -> Result<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| corrupt("a text"))
}

pub(super) fn json(bytes: &[u8]) -> Result<Json> {
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt("a value"))?;
    Ok(Json::trusted(text))
}

pub(super) fn from_json<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|_| corrupt(what))
}

pub(super) fn options(bytes: Option<&[u8]>) -> Result<JobOptions> {
    bytes
        .filter(|bytes| !bytes.is_empty())
        .map_or_else(|| Ok(JobOptions::default()), |bytes| from_json("options", bytes))
}

/// Why a job failed. What the scripts decide themselves is a byte, so that the words stand in Rust only.
pub(super) fn error(bytes: &[u8]) -> Result<JobError> {
    let mut reader = Reader::new(bytes);
    match bytes.first() {
        Some(1) => {
            reader.byte()?;
            Ok(JobError::dependency(reader.id()?, reader.state()?))
        }
        Some(2) => Ok(JobError::cancelled()),
        Some(3) => Ok(JobError::expired()),
        Some(4) => {
            let cancelled =
                settle(Event::Cancel, Spent::default(), &Policy::default(), Timestamp::default(), 0.0);
            cancelled.error.ok_or_else(|| corrupt("an error"))
        }
        _ => from_json("an error", bytes),
    }
}

/// Payload and options.
fn body(bytes: &[u8]) -> Result<(Json, JobOptions)> {
    let mut reader = Reader::new(bytes);
    let payload = json(reader.long()?.unwrap_or_default())?;
    Ok((payload, options(Some(reader.rest()))?))
}

/// A park: its key, for the scripts, and then all of it.
pub(super) fn park(bytes: &[u8]) -> Result<Park> {
    let mut reader = Reader::new(bytes);
    reader.name()?;
    from_json("a park", reader.rest())
}

pub(super) fn park_bytes(park: &Park) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    put_name(&mut bytes, park.key.as_bytes());
    bytes.extend(Json::of(park)?.as_str().as_bytes());
    Ok(bytes)
}

/// What a job's runs have left in its row.
#[derive(Default)]
struct Lived {
    started_at: Option<Timestamp>,
    till: Option<Timestamp>,
    spent: Spent,
    fence: u32,
    worker: String,
    result: Option<Json>,
    remove_at: Option<Timestamp>,
}

impl Lived {
    fn read(row: &mut Reader<'_>) -> Result<Self> {
        let (started_at, till, remove_at) = (row.short_time()?, row.short_time()?, row.short_time()?);
        let (spent, fence) = (row.spent()?, row.u32()?);
        let _delivery = row.take(6)?;
        let worker = row.name()?;
        let length = row.u16()?;
        let result = row.take(usize::from(length))?;
        let result = (!result.is_empty()).then(|| json(result)).transpose()?;
        Ok(Self { started_at, till, spent, fence, worker, result, remove_at })
    }
}

/// A row, and what is known without looking beside it.
#[derive(Debug)]
pub(super) struct Row {
    /// The job, without park and error.
    pub(super) job: Job,
    /// What a repeated enqueue is recognised by, beside the payload.
    pub(super) digest: u64,
    flags: u8,
    /// The payload; `null` where a long one was not asked for.
    pub(super) payload: Json,
    /// The result, unless it is long.
    pub(super) result: Option<Json>,
    /// When the pruner takes it.
    pub(super) remove_at: Option<Timestamp>,
}

impl Row {
    /// Reads a row. A long body stands beside it.
    pub(super) fn read(seq: i64, bytes: &[u8], long_body: Option<&[u8]>) -> Result<Self> {
        let mut row = Reader::new(bytes);
        let (id, digest) = (row.id()?, row.u64()?);
        let (state, flags) = (row.state()?, row.byte()?);
        let priority = row.u32()?.cast_signed();
        let run_at = row.short_time()?.ok_or_else(|| corrupt("a time"))?;
        let expires_at = row.short_time()?;
        let created_at = row.short_time()?.ok_or_else(|| corrupt("a time"))?;
        let (has, waits_for) = (row.u16()?, row.u16()?);
        let lane = row.name()?;
        // The fair key, if there is one, is also among the options.
        let mut names = lane.splitn(4, '\u{1f}').map(str::to_owned);
        let (Some(queue), Some(kind), Some(process)) = (names.next(), names.next(), names.next()) else {
            return Err(corrupt("a lane"));
        };
        let length = row.byte()?;
        let _rule = row.take(usize::from(length))?;
        let Lived { started_at, till, spent, fence, worker, result, remove_at } =
            if flags & flag::FRESH == 0 { Lived::read(&mut row)? } else { Lived::default() };
        let length = row.u16()?;
        let short_body = row.take(usize::from(length))?;
        let some = |name: String| (!name.is_empty()).then_some(name);
        let updated_at = if state == State::Running { started_at } else { till }.unwrap_or(created_at);
        let job = Job {
            id,
            seq,
            queue,
            kind,
            state,
            process_id: some(process).map(ProcessId::new),
            helper: flags & flag::HELPER != 0,
            priority,
            run_at,
            created_at,
            updated_at,
            started_at,
            finished_at: till.filter(|_| state.is_terminal()),
            expires_at,
            spent,
            fence: u64::from(fence),
            lease_until: till.filter(|_| state == State::Running),
            worker: some(worker).map(WorkerId::new),
            cancel_requested: flags & flag::CANCEL != 0,
            waits_for: u32::from(waits_for),
            park: None,
            error: None,
            options: JobOptions::default(),
        };
        let mut row = Self { job, digest, flags, payload: Json::null(), result, remove_at };
        if let Some(body) = long_body.or((has & has::LONG == 0).then_some(short_body)) {
            (row.payload, row.job.options) = self::body(body)?;
        }
        Ok(row)
    }

    /// Whether its process keeps it waiting.
    pub(super) fn waits_for_process(&self) -> bool {
        self.flags & flag::WAITS_PROCESS != 0
    }

    /// The run that ended with success and is told by the row alone.
    pub(super) fn last_run(&self) -> Option<Run> {
        if self.flags & flag::DONE_AT_ONCE == 0 {
            return None;
        }
        let job = &self.job;
        Some(Run {
            fence: job.fence,
            worker: job.worker.clone()?,
            started_at: job.started_at?,
            ended_at: job.finished_at?,
            outcome: RunOutcome::Done,
            error: None,
            usage: None,
        })
    }
}

/// The runs of a job: how many, then each as `RUN` in `scripts/settlement.lua` packs it.
pub(super) fn runs(bytes: &[u8]) -> Result<Vec<Run>> {
    let mut reader = Reader::new(bytes);
    let count = reader.byte()?;
    (0..count).map(|_| run(&mut reader)).collect()
}

fn run(reader: &mut Reader<'_>) -> Result<Run> {
    let (fence, started_at, ended_at) = (reader.u64()?, reader.always()?, reader.always()?);
    let outcome = outcome(reader.byte()?)?;
    let worker = WorkerId::new(reader.name()?);
    let failure = reader.long()?.map(error).transpose()?;
    let usage = reader.long()?.map(json).transpose()?;
    Ok(Run { fence, worker, started_at, ended_at, outcome, error: failure, usage })
}

const OUTCOMES: [RunOutcome; 9] = [
    RunOutcome::Done,
    RunOutcome::Continue,
    RunOutcome::Park,
    RunOutcome::Retry,
    RunOutcome::Throttle,
    RunOutcome::Fail,
    RunOutcome::Crash,
    RunOutcome::Release,
    RunOutcome::Cancel,
];

fn outcome(number: u8) -> Result<RunOutcome> {
    OUTCOMES.get(usize::from(number)).copied().ok_or_else(|| corrupt("an outcome"))
}

/// The number of an outcome, as the scripts have it.
pub(super) fn outcome_number(outcome: RunOutcome) -> u8 {
    outcome as u8
}

/// One edge, as `EDGE` in `scripts/graph.lua` packs it.
pub(super) struct Edge {
    index: u32,
    /// The parent's place; below zero when it was gone before the job came here.
    pub(super) parent: i64,
    pub(super) status: ParentStatus,
    pub(super) result: Option<Json>,
    pub(super) error: Option<JobError>,
}

impl Edge {
    /// What the worker learns of a parent.
    pub(super) fn parent(self) -> Option<ParentResult> {
        let ParentStatus { job_id, satisfied, ended, .. } = self.status;
        let state = ended.filter(|_| satisfied)?;
        Some(ParentResult { job_id, state, result: self.result, error: self.error })
    }
}

/// The edges of a job in the order of `depends_on`, from the fields of its hash: an edge by its parent's seq, and the
/// parent's result by the same with an `x`, or its error with an `r`.
pub(super) fn edges(fields: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<Edge>> {
    let mut edges = Vec::with_capacity(fields.len());
    for (name, value) in fields.iter().filter(|(name, _)| !matches!(name.last(), Some(b'x' | b'r'))) {
        let mut reader = Reader::new(value);
        let (job_id, index) = (reader.id()?, reader.u32()?);
        let on_failure = match reader.byte()? {
            0 => OnFailure::Cancel,
            1 => OnFailure::Run,
            2 => OnFailure::Hold,
            _ => return Err(corrupt("an edge")),
        };
        let satisfied = reader.byte()? == 1;
        let ended = Some(reader.byte()?).filter(|number| *number != NOT_ENDED).map(state).transpose()?;
        let beside = |suffix: &[u8]| {
            let found = fields.iter().find(|(field, _)| field.strip_suffix(suffix) == Some(name.as_slice()));
            found.map(|(_, value)| value.as_slice())
        };
        let (result, error) = (beside(b"x").map(json).transpose()?, beside(b"r").map(error).transpose()?);
        let parent = text(name)?.parse().map_err(|_| corrupt("an edge"))?;
        let status = ParentStatus { job_id, on_failure, satisfied, ended };
        edges.push(Edge { index, parent, status, result, error });
    }
    edges.sort_unstable_by_key(|edge| edge.index);
    Ok(edges)
}
