//! Plain successes, which are most settlements, in the form of `scripts/settle_done.lua`: runs of neighbours, so that the
//! server compares many leases at once and joins what is stored out of few pieces.

use std::collections::HashSet;

use longhaul_queue::state::{RunOutcome, Settlement};
use longhaul_queue::{Json, State};

use super::super::codec::put_spent;
use super::super::encode::{Args, put_place};
use super::{Judged, Workers, head};

/// The longest run; its length has two bytes.
const RUN_MAX: usize = 10_000;

/// The arguments of the call, when all are of this kind.
pub(super) fn args(judged: &[Judged]) -> Option<Args> {
    let mut seen = HashSet::with_capacity(judged.len());
    let (mut workers, mut runs): (Workers, Vec<Run>) = (Workers::default(), Vec::new());
    for item in judged {
        let result = plain_result(item)?;
        let lease = &item.item.lease;
        if !seen.insert(lease.seq) {
            return None;
        }
        let worker = workers.place(&lease.worker);
        match runs.last_mut() {
            Some(run) if run.worker == worker && run.next == lease.seq && run.count < RUN_MAX => {}
            _ => runs.push(Run::at(lease.seq, worker)),
        }
        runs.last_mut()?.add(item, result);
    }
    let mut args = head("done", &workers.0, runs.len());
    for run in runs {
        let mut whose = Vec::with_capacity(4);
        for number in [run.worker, run.count] {
            whose.extend(u16::try_from(number).ok()?.to_be_bytes());
        }
        args.extend([whose, run.places, run.proofs]);
        args.extend(run.ends);
    }
    Some(args)
}

/// The result of a settlement that does nothing but end its job with success.
fn plain_result(judged: &Judged) -> Option<&Json> {
    let Settlement { state, outcome, run_at, data, result, error, park, usage, .. } = &judged.settlement;
    let nothing_else =
        run_at.is_none() && data.is_none() && error.is_none() && park.is_none() && usage.is_none();
    let plain = *state == State::Succeeded
        && *outcome == RunOutcome::Done
        && judged.item.settlement.outcome == RunOutcome::Done
        && judged.item.follow_ups.is_empty()
        && nothing_else;
    result.as_ref().filter(|_| plain)
}

/// Neighbours of one worker.
struct Run {
    worker: usize,
    count: usize,
    next: i64,
    places: Vec<u8>,
    proofs: Vec<u8>,
    ends: Args,
}

impl Run {
    fn at(seq: i64, worker: usize) -> Self {
        Self { worker, count: 0, next: seq, places: Vec::new(), proofs: Vec::new(), ends: Vec::new() }
    }

    fn add(&mut self, judged: &Judged, result: &Json) {
        let lease = &judged.item.lease;
        let mut place = Vec::with_capacity(26);
        put_place(&mut place, lease.seq, lease.job_id, lease.fence);
        let (seq, proof) = place.split_at(6);
        self.places.extend(seq);
        self.proofs.extend(proof);
        let mut name = Vec::with_capacity(7);
        name.extend(seq);
        name.push(b'z');
        let mut tail = Vec::with_capacity(18 + result.len());
        tail.extend(&proof[16..]);
        put_spent(&mut tail, judged.settlement.spent);
        tail.extend(result.as_str().as_bytes());
        self.ends.extend([name, tail]);
        self.count += 1;
        self.next = lease.seq + 1;
    }
}
