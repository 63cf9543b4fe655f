//! Ways to a list: which index leads to the jobs of a filter. Either in `seq` order, to be walked as far as a page needs,
//! or, where few jobs can match, to all of them at once.
//!
//! No index is kept for lists alone: those here serve claims, sweeps, results and failures anyway, and an enqueue that
//! had one more to write would feel it.

use std::collections::BTreeSet;

use longhaul_queue::State;
use longhaul_queue::job::ProcessId;
use longhaul_queue::store::{Count, Filter, FilterMatcher, IdRange};
use rusqlite::{Connection, Params};

use super::error::DbResult;
use super::read::all;
use super::rows::{read_state, state_number};

/// Counters that are read for one list. With more than these (a queue for each of thousands of runs) reading them would
/// cost more than they spare.
const COUNTERS_MAX: usize = 10_000;

/// How to come by the jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListPlan {
    /// Nothing can match.
    Nowhere,
    /// These, in no order, and no others.
    Few(Vec<i64>),
    /// In `seq` order along an index, with the value that its entries have.
    Along(Index, Option<String>),
}

/// What stands in `seq` order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    /// All jobs.
    Jobs,
    /// Those of a process.
    Process,
    /// Those with a tag.
    Tag,
    /// Those that failed.
    Failed,
    /// Those that were cancelled.
    Cancelled,
    /// Both of these.
    EndedBadly,
}

/// What a walk reads of each job, from `lh_jobs` as `j`.
macro_rules! walk_columns {
    () => {
        "j.seq, j.id, j.state, j.queue, j.kind, j.process, j.flags"
    };
}
pub(super) use walk_columns;

/// The statement for a walk: ?1 is where it begins, ?2 the index's value or NULL. The second condition on the state is the very
/// words of `lh_jobs_ended_badly`, without which the planner may not use it.
pub(super) fn walk_sql(index: Index, newest_first: bool) -> &'static str {
    macro_rules! both_orders {
        ($from:literal) => {
            if newest_first {
                concat!("SELECT ", walk_columns!(), " FROM ", $from, " AND j.seq < ?1 ORDER BY j.seq DESC")
            } else {
                concat!("SELECT ", walk_columns!(), " FROM ", $from, " AND j.seq > ?1 ORDER BY j.seq")
            }
        };
    }
    // Two walks in `seq` order that SQLite merges.
    macro_rules! ended_badly {
        ($beyond:literal, $order:literal) => {
            concat!(
                "SELECT ",
                walk_columns!(),
                " FROM lh_jobs j WHERE ?2 IS NULL AND j.state = 6 AND j.state >= 6 AND j.seq ",
                $beyond,
                " ?1 UNION ALL SELECT ",
                walk_columns!(),
                " FROM lh_jobs j WHERE ?2 IS NULL AND j.state = 7 AND j.state >= 6 AND j.seq ",
                $beyond,
                " ?1 ORDER BY 1",
                $order
            )
        };
    }
    match (index, newest_first) {
        (Index::Jobs, _) => both_orders!("lh_jobs j WHERE ?2 IS NULL"),
        (Index::Process, _) => both_orders!("lh_jobs j WHERE j.process = ?2"),
        // In this order: the planner must not look up each job's tags instead.
        (Index::Tag, false) => {
            concat!(
                "SELECT ",
                walk_columns!(),
                " FROM lh_tags t CROSS JOIN lh_jobs j ON j.seq = t.seq
                 WHERE t.tag = ?2 AND t.seq > ?1 ORDER BY t.seq"
            )
        }
        (Index::Tag, true) => {
            concat!(
                "SELECT ",
                walk_columns!(),
                " FROM lh_tags t CROSS JOIN lh_jobs j ON j.seq = t.seq
                 WHERE t.tag = ?2 AND t.seq < ?1 ORDER BY t.seq DESC"
            )
        }
        (Index::Failed, _) => both_orders!("lh_jobs j WHERE ?2 IS NULL AND j.state = 6 AND j.state >= 6"),
        (Index::Cancelled, _) => both_orders!("lh_jobs j WHERE ?2 IS NULL AND j.state = 7 AND j.state >= 6"),
        (Index::EndedBadly, false) => ended_badly!(">", ""),
        (Index::EndedBadly, true) => ended_badly!("<", " DESC"),
    }
}

/// The way with the fewest jobs to look at. At most `few_max` are gathered beforehand.
pub(super) fn choose(
    connection: &Connection,
    filter: &Filter,
    matcher: &FilterMatcher<'_>,
    few_max: usize,
) -> DbResult<ListPlan> {
    let mut few = Few { connection, seqs: Vec::new(), max: few_max };
    match matcher.ids() {
        Some(None) => return Ok(ListPlan::Nowhere),
        Some(Some(range)) if few.ids(range)? => return Ok(ListPlan::Few(few.seqs)),
        _ => few.seqs.clear(),
    }
    let of_process = of_process(connection, filter)?;
    if of_process.is_some_and(|jobs| jobs.matching == 0) {
        return Ok(ListPlan::Nowhere);
    }
    let counts = counts(connection, filter)?;
    if let Some(counts) = &counts {
        if counts.is_empty() {
            return Ok(ListPlan::Nowhere);
        }
        if few.of_counts(counts)? {
            return Ok(ListPlan::Few(few.seqs));
        }
    }
    let matching = counts.map_or(u64::MAX, |counts| counts.iter().map(|count| count.jobs).sum());
    Ok(along(filter, matching < of_process.map_or(u64::MAX, |jobs| jobs.all)))
}

/// `states_first`: fewer jobs have the states asked for than belong to the process.
fn along(filter: &Filter, states_first: bool) -> ListPlan {
    if let Some(tag) = &filter.tag {
        return ListPlan::Along(Index::Tag, Some(tag.clone()));
    }
    let states: BTreeSet<State> = filter.states.iter().copied().collect();
    let by_state = match states.iter().collect::<Vec<_>>().as_slice() {
        [State::Failed] => Some(Index::Failed),
        [State::Cancelled] => Some(Index::Cancelled),
        [State::Failed, State::Cancelled] => Some(Index::EndedBadly),
        _ => None,
    };
    let process = filter.process_id.as_ref().map(ProcessId::as_str);
    match (process, by_state) {
        (None, by_state) => ListPlan::Along(by_state.unwrap_or(Index::Jobs), None),
        (Some(_), Some(index)) if states_first => ListPlan::Along(index, None),
        (Some(process), _) => ListPlan::Along(Index::Process, Some(process.to_owned())),
    }
}

/// Jobs of a process.
#[derive(Debug, Clone, Copy)]
struct OfProcess {
    all: u64,
    /// In one of the states asked for.
    matching: u64,
}

/// What the process's own counters say; `None` when no process is asked for.
fn of_process(connection: &Connection, filter: &Filter) -> DbResult<Option<OfProcess>> {
    let Some(process) = &filter.process_id else { return Ok(None) };
    let sql = "SELECT state, jobs FROM lh_process_counts WHERE process = ?1";
    let counts =
        all(connection, sql, [process.as_str()], |row| Ok((read_state(row, 0)?, row.get::<_, u64>(1)?)))?;
    let wanted = |state: &State| filter.states.is_empty() || filter.states.contains(state);
    let sum = |counts: &mut dyn Iterator<Item = &(State, u64)>| counts.map(|(_, jobs)| jobs).sum();
    Ok(Some(OfProcess {
        all: sum(&mut counts.iter()),
        matching: sum(&mut counts.iter().filter(|(state, _)| wanted(state))),
    }))
}

/// Counters of what can match; `None` when the filter asks for nothing that is counted, or when there are too many.
fn counts(connection: &Connection, filter: &Filter) -> DbResult<Option<Vec<Count>>> {
    if filter.states.is_empty() && filter.queue.is_none() && filter.kind.is_none() {
        return Ok(None);
    }
    let sql = if filter.queue.is_some() {
        "SELECT queue, kind, state, jobs FROM lh_counts WHERE queue = ?1 LIMIT ?2"
    } else {
        "SELECT queue, kind, state, jobs FROM lh_counts WHERE ?1 IS NULL LIMIT ?2"
    };
    let mut counts = all(connection, sql, (&filter.queue, COUNTERS_MAX + 1), |row| {
        Ok(Count { queue: row.get(0)?, kind: row.get(1)?, state: read_state(row, 2)?, jobs: row.get(3)? })
    })?;
    if counts.len() > COUNTERS_MAX {
        return Ok(None);
    }
    counts.retain(|count| {
        count.jobs > 0
            && filter.kind.as_ref().is_none_or(|kind| *kind == count.kind)
            && (filter.states.is_empty() || filter.states.contains(&count.state))
    });
    Ok(Some(counts))
}

/// Places of jobs, gathered while they are few.
struct Few<'a> {
    connection: &'a Connection,
    seqs: Vec<i64>,
    max: usize,
}

/// All of these read nothing but their index.
pub(super) const IDS: &str = "SELECT seq FROM lh_jobs WHERE id BETWEEN ?1 AND ?2 LIMIT ?3";
pub(super) const READY: &str =
    "SELECT seq FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND queue = ?1 AND kind = ?2 LIMIT ?3";
pub(super) const READY_WITH_KEY: &str =
    "SELECT seq FROM lh_jobs WHERE state = 2 AND fair_key IS NOT NULL AND queue = ?1 AND kind = ?2 LIMIT ?3";
pub(super) const DUE: &str = "SELECT seq FROM lh_jobs WHERE due_at IS NOT NULL AND state = ?1 LIMIT ?2";
/// A park without an end is due at no time, but every park has a key, and what was woken has none.
pub(super) const PARKED: &str = "SELECT seq FROM lh_parks WHERE key IS NOT NULL LIMIT ?1";
pub(super) const ENDED_BADLY: &str = "SELECT seq FROM lh_jobs WHERE state >= 6 AND state = ?1 LIMIT ?2";

impl Few<'_> {
    /// Adds what a statement finds; false when that is too much.
    fn add(&mut self, sql: &'static str, params: impl Params) -> DbResult<bool> {
        self.seqs.extend(all(self.connection, sql, params, |row| row.get::<_, i64>(0))?);
        Ok(self.seqs.len() <= self.max)
    }

    /// One more than there is room for, to know that it is too much.
    fn room(&self) -> usize {
        (self.max + 1).saturating_sub(self.seqs.len())
    }

    fn ids(&mut self, range: IdRange) -> DbResult<bool> {
        self.add(IDS, (range.first.as_bytes(), range.last.as_bytes(), self.room()))
    }

    /// Adds the jobs that are counted, where an index leads to all of them.
    fn of_counts(&mut self, counts: &[Count]) -> DbResult<bool> {
        let total: u64 = counts.iter().map(|count| count.jobs).sum();
        let states: BTreeSet<State> = counts.iter().map(|count| count.state).collect();
        // Succeeded jobs and blocked ones stand in no index of their own.
        if total > self.max as u64 || states.contains(&State::Succeeded) || states.contains(&State::Blocked) {
            return Ok(false);
        }
        for state in states {
            let fits = match state {
                State::Blocked | State::Succeeded => false,
                State::Ready => self.ready(counts)?,
                State::Scheduled | State::Running => self.add(DUE, (state_number(state), self.room()))?,
                State::Parked => self.add(PARKED, [self.room()])?,
                State::Failed | State::Cancelled => {
                    self.add(ENDED_BADLY, (state_number(state), self.room()))?
                }
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn ready(&mut self, counts: &[Count]) -> DbResult<bool> {
        for count in counts.iter().filter(|count| count.state == State::Ready) {
            for sql in [READY, READY_WITH_KEY] {
                if !self.add(sql, (&count.queue, &count.kind, self.room()))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
