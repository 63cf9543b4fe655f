//! What goes to the scripts: new jobs and settlements.

use longhaul_queue::job::{JobId, JobOptions, NewJob, OnFailure, Retention, Unique, UniquePolicy, Window};
use longhaul_queue::state::{RunOutcome, Settlement};
use longhaul_queue::store::refusals;
use longhaul_queue::store::rules::{self, WakeChange};
use longhaul_queue::{Json, Lease, Result, State, Timestamp};

use super::codec::{
    flag, has, outcome_number, park_bytes, put_millis, put_name, put_retention, put_short_time, put_spent,
    put_time,
};

/// Payload and options together may stand in the row up to this size, which every change rewrites.
pub(super) const BODY_IN_ROW_MAX: usize = 512;

/// The arguments of a script call.
pub(super) type Args = Vec<Vec<u8>>;

/// Adds a job as `read_jobs` in `scripts/insert.lua` takes it: the row, then whatever the row says it has. `options` is what
/// [`options_text`] makes of its own.
pub(super) fn put_job(args: &mut Args, job: &NewJob, options: Option<&Json>, now: Timestamp) -> Result<()> {
    let Some(id) = job.id else {
        return Err(refusals::no_id(&job.kind));
    };
    let body = body(&job.payload, options);
    let long = body.len() > BODY_IN_ROW_MAX;
    let (body, long_body) = if long { (Vec::new(), Some(body)) } else { (body, None) };
    let mut having = 0;
    let mut note = |there: bool, bit: u16| having |= if there { bit } else { 0 };
    note(job.after_process.is_some(), has::AFTER);
    note(!job.depends_on.is_empty(), has::EDGES);
    note(job.options.unique.is_some(), has::UNIQUE);
    note(long, has::LONG);

    let run_at = job.run_at.unwrap_or(now);
    let waits = job.depends_on.len() + usize::from(job.after_process.is_some());
    let state = first_state(job, now);
    let mut row = Vec::with_capacity(160 + body.len());
    row.extend(id.as_bytes());
    row.extend(digest(job, options)?.to_be_bytes());
    row.push(state as u8);
    let helper = if job.helper { flag::HELPER } else { 0 };
    row.push(flag::FRESH | helper | if job.after_process.is_some() { flag::WAITS_PROCESS } else { 0 });
    row.extend(job.priority.to_be_bytes());
    for time in [Some(run_at), job.expires_at, Some(now)] {
        put_short_time(&mut row, time);
    }
    row.extend(having.to_be_bytes());
    row.extend(u16::try_from(waits).unwrap_or(u16::MAX).to_be_bytes());
    put_lane(&mut row, job);
    put_rule(&mut row, job.options.retention);
    put_name(&mut row, &body);
    args.push(row);

    args.extend(long_body);
    args.extend(job.after_process.as_ref().map(|process| process.as_str().as_bytes().to_vec()));
    if !job.depends_on.is_empty() {
        args.push(parents(job));
    }
    args.extend(job.options.unique.as_ref().map(|unique| unique_bytes(job, unique)));
    Ok(())
}

/// Options as they are stored: not at all when they say nothing.
pub(super) fn options_text(options: &JobOptions) -> Result<Option<Json>> {
    (*options != JobOptions::default()).then(|| Json::of(options)).transpose()
}

/// Payload and options as one value.
pub(super) fn body(payload: &Json, options: Option<&Json>) -> Vec<u8> {
    let mut body = Vec::with_capacity(4 + payload.len());
    body.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    body.extend(payload.as_str().as_bytes());
    body.extend(options.map_or("", |options| options.as_str()).as_bytes());
    body
}

/// Queue, kind, process, and the fair key if there is one, with their length.
pub(super) fn put_lane(row: &mut Vec<u8>, job: &NewJob) {
    let process = job.process_id.as_ref().map_or("", |process| process.as_str());
    let key = job.options.fair_key.as_deref();
    let parts = [
        job.queue.as_str(),
        "\u{1f}",
        &job.kind,
        "\u{1f}",
        process,
        key.map_or("", |_| "\u{1f}"),
        key.unwrap_or(""),
    ];
    let length: usize = parts.iter().map(|part| part.len()).sum();
    row.extend(u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
    for part in parts {
        row.extend(part.as_bytes());
    }
}

/// Where a new job stands before anybody has looked at its parents.
pub(super) fn first_state(job: &NewJob, now: Timestamp) -> State {
    let waits = !job.depends_on.is_empty() || job.after_process.is_some();
    rules::first_state(waits, job.run_at.unwrap_or(now), now)
}

/// The job's own retention rule, with its length.
pub(super) fn put_rule(row: &mut Vec<u8>, retention: Option<Retention>) {
    let mut rule = Vec::new();
    if let Some(retention) = retention {
        put_retention(&mut rule, retention);
    }
    row.push(u8::try_from(rule.len()).unwrap_or(0));
    row.extend(rule);
}

fn parents(job: &NewJob) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(job.depends_on.len() * 17);
    for dependency in &job.depends_on {
        bytes.extend(dependency.job_id.as_bytes());
        bytes.push(on_failure(dependency.on_failure));
    }
    bytes
}

/// As the scripts have it.
pub(super) fn on_failure(on_failure: OnFailure) -> u8 {
    match on_failure {
        OnFailure::Cancel => 0,
        OnFailure::Run => 1,
        OnFailure::Hold => 2,
    }
}

/// Policy, wait, cap; then what is kept with the job: both windows and the key within its scope.
pub(super) fn unique_bytes(job: &NewJob, unique: &Unique) -> Vec<u8> {
    let (policy, wait, cap) = match unique.policy {
        UniquePolicy::Skip => (0, None, None),
        UniquePolicy::Replace => (1, None, None),
        UniquePolicy::Debounce { wait, cap } => (2, Some(wait), Some(cap)),
    };
    let (enqueue, success) = match unique.window {
        None => (None, None),
        Some(Window::Enqueue { length }) => (Some(length), None),
        Some(Window::Success { length }) => (None, Some(length)),
    };
    let mut bytes = vec![policy];
    for length in [wait, cap, enqueue, success] {
        put_millis(&mut bytes, length);
    }
    bytes.extend(format!("{}\u{1f}{}\u{1f}{}", job.queue, job.kind, unique.key).as_bytes());
    bytes
}

/// What a repeated enqueue is recognised by, beside its payload: everything but times and the trace, which tells who
/// asked and not for what.
pub(super) fn digest(job: &NewJob, options: Option<&Json>) -> Result<u64> {
    let mut hash = Fnv::default();
    let process = |process: &Option<longhaul_queue::job::ProcessId>| {
        process.as_ref().map_or_else(Vec::new, |process| process.as_str().as_bytes().to_vec())
    };
    hash.add(job.queue.as_bytes());
    hash.add(job.kind.as_bytes());
    hash.add(&process(&job.process_id));
    hash.add(&process(&job.after_process));
    hash.add(&[u8::from(job.helper)]);
    hash.add(&job.priority.to_be_bytes());
    if !job.depends_on.is_empty() {
        hash.add(&parents(job));
    }
    let untraced = match (&job.options.trace, options) {
        (_, None) => None,
        (None, Some(options)) => Some(options.clone()),
        (Some(_), Some(_)) => options_text(&JobOptions { trace: None, ..job.options.clone() })?,
    };
    hash.add(untraced.as_ref().map_or("", |options| options.as_str()).as_bytes());
    Ok(hash.0)
}

/// FNV-1a with 64 bits: the same in every version of this program and of the compiler.
pub(super) struct Fnv(pub(super) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_be_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// A settlement for a script, with all that the judgement of a waiting signal has added.
pub(super) struct Item<'a> {
    pub(super) seq: i64,
    pub(super) job_id: JobId,
    pub(super) fence: u64,
    /// The lease's worker, by its place in the call; 0 where the row itself is compared.
    pub(super) worker: usize,
    pub(super) settlement: &'a Settlement,
    pub(super) wake: WakeChange,
    /// How the run ended, when a signal has changed what becomes of the job.
    pub(super) outcome: RunOutcome,
    pub(super) follow_ups: usize,
    /// It cannot be carried out, whatever the server says; unless the job's cancellation was asked for.
    pub(super) invalid: bool,
}

impl<'a> Item<'a> {
    /// For a settlement as it is.
    pub(super) fn of((seq, job_id, fence): (i64, JobId, u64), settlement: &'a Settlement) -> Self {
        let outcome = settlement.outcome;
        Self {
            seq,
            job_id,
            fence,
            worker: 0,
            settlement,
            wake: WakeChange::after(outcome),
            outcome,
            follow_ups: 0,
            invalid: false,
        }
    }

    /// Adds it as `read_item` in `scripts/settlement.lua` takes it.
    pub(super) fn put(&self, args: &mut Args) -> Result<()> {
        let Settlement { state, run_at, spent, data, result, error, park, usage, .. } = self.settlement;
        let wake = match &self.wake {
            WakeChange::Clear => (0, None),
            WakeChange::Keep => (1, None),
            WakeChange::Set(wake) => (2, Some(Json::of(wake)?)),
        };
        let error = error.as_ref().map(Json::of).transpose()?;
        let park = park.as_ref().filter(|_| *state == State::Parked);
        let until = park.is_some_and(|park| park.until.is_some());
        let bits = [
            data.is_some(),
            result.is_some(),
            error.is_some(),
            park.is_some(),
            usage.is_some(),
            until,
            self.invalid || self.settlement.check().is_err(),
            wake.1.is_some(),
        ];
        let bits = bits.iter().enumerate().fold(0, |sum, (bit, on)| sum | (u8::from(*on) << bit));
        let mut head = Vec::with_capacity(60);
        put_place(&mut head, self.seq, self.job_id, self.fence);
        put_spent(&mut head, *spent);
        head.extend(u16::try_from(self.worker).unwrap_or(0).to_be_bytes());
        head.extend([*state as u8, outcome_number(self.outcome)]);
        put_time(&mut head, *run_at);
        head.extend([wake.0, bits]);
        head.extend(u32::try_from(self.follow_ups).unwrap_or(u32::MAX).to_be_bytes());
        args.push(head);
        let json = |json: &Json| json.as_str().as_bytes().to_vec();
        args.extend(data.as_ref().map(json));
        args.extend(result.as_ref().map(json));
        args.extend(error.as_ref().map(json));
        args.extend(park.map(park_bytes).transpose()?);
        args.extend(usage.as_ref().map(json));
        args.extend(wake.1.as_ref().map(json));
        Ok(())
    }
}

/// A job's place, its id and a fence.
pub(super) fn put_place(bytes: &mut Vec<u8>, seq: i64, id: JobId, fence: u64) {
    bytes.extend(&seq.to_be_bytes()[2..]);
    bytes.extend(id.as_bytes());
    bytes.extend(u32::try_from(fence).unwrap_or(u32::MAX).to_be_bytes());
}

/// A lease as `leased` in `scripts/tables.lua` takes it.
pub(super) fn lease_arg(lease: &Lease) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_place(&mut bytes, lease.seq, lease.job_id, lease.fence);
    put_name(&mut bytes, lease.worker.as_str().as_bytes());
    bytes
}
