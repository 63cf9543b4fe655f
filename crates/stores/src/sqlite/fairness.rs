//! Claims from queues whose jobs stand in several lines: fair keys take turns, and with ageing a wait makes up for
//! priority. The rules are those of [`longhaul_queue::turns`]. Queues with neither keep the plain claim.
//!
//! The cost does not depend on how many jobs wait. Keys are found by a seek from one to the next, and only until enough of
//! those have given of which nothing runs, since they come first; the others are no more than there are slots. Each
//! line is read from its head, by pieces that grow with what the claim takes of it.

use std::collections::{HashMap, VecDeque};

use longhaul_queue::Timestamp;
use longhaul_queue::fairness::{Rank, rank, take_turns};
use longhaul_queue::limits::CLAIM_MAX;
use longhaul_queue::store::QueueSettings;

use super::claim::{Choice, EXPIRED_MET_MAX, Look, running_in};
use super::error::DbResult;
use super::rows::{Body, JobRow, job_with_body};
use super::tx::Tx;
use crate::queue_row::QueueRow;

/// The next key of a lane. Index lh_jobs_turns.
pub(super) const NEXT_KEY: &str = "SELECT fair_key FROM lh_jobs
     WHERE state = 2 AND fair_key IS NOT NULL AND queue = ?1 AND kind = ?2 AND suspect = ?3 AND fair_key > ?4
     ORDER BY fair_key LIMIT 1";

/// Running jobs of a queue by key. Index lh_jobs_running.
pub(super) const RUNNING: &str = "SELECT fair_key, count(*) FROM lh_jobs
     WHERE state = 3 AND fair_key IS NOT NULL AND queue = ?1 GROUP BY fair_key";

/// Jobs of a line after one of them. The condition must be in the words of the index: lh_jobs_turns for jobs with a key,
/// lh_jobs_ready for the others. SQLite seeks by priority and time and passes over those before in place that came at
/// the same time; only this claim has left them there.
macro_rules! heads {
    ($of_key:literal) => {
        concat!(
            "SELECT priority, run_at, seq FROM lh_jobs
             WHERE state = 2 AND ",
            $of_key,
            " AND queue = ?1 AND kind = ?2 AND suspect = ?3
                 AND (priority, run_at, seq) > (?5, ?6, ?7) AND priority <= ?8
             ORDER BY priority, run_at, seq LIMIT ?9"
        )
    };
}
pub(super) const HEADS: &str = heads!("fair_key IS NULL");
pub(super) const HEADS_OF_KEY: &str = heads!("fair_key IS NOT NULL AND fair_key = ?4");

macro_rules! next_level {
    ($of_key:literal) => {
        concat!(
            "SELECT priority FROM lh_jobs
             WHERE state = 2 AND ",
            $of_key,
            " AND queue = ?1 AND kind = ?2 AND suspect = ?3 AND priority > ?5
             ORDER BY priority LIMIT 1"
        )
    };
}
pub(super) const NEXT_LEVEL: &str = next_level!("fair_key IS NULL");
pub(super) const NEXT_LEVEL_OF_KEY: &str = next_level!("fair_key IS NOT NULL AND fair_key = ?4");

/// Keys without a job for the claim that it passes on its way: all their jobs have expired, or are suspects too many. Those
/// that have expired are the promoter's to clear, and a short answer is asked again when it has.
const BARREN_KEYS_MAX: usize = 1_000;

/// What a claim asks a queue for.
pub(super) struct Ask<'a> {
    pub(super) queue: &'a str,
    pub(super) kinds: &'a [String],
    pub(super) wanted: Look,
    pub(super) now: Timestamp,
}

/// The first jobs of a queue, by turns, as it stands now.
pub(super) fn choose(tx: &Tx<'_>, ask: &Ask<'_>, queue: QueueRow) -> DbResult<Choice> {
    let QueueRow { settings, keyed } = queue;
    let last = if keyed { last_key(tx, ask.queue)? } else { String::new() };
    let running = if keyed { running(tx, ask.queue)? } else { HashMap::new() };
    let mut ring = Ring::new(ask, keyed, last);
    let mut taker = Taker { tx, ask, settings, suspects_left: ask.wanted.suspects, expired: Vec::new() };
    let (mut given, mut lines, mut served) = (Vec::new(), Vec::new(), Vec::new());
    // Keys of which nothing runs come first, and give as they are found.
    let mut barren = 0;
    while given.len() < ask.wanted.jobs
        && barren < BARREN_KEYS_MAX
        && let Some((key, lanes)) = ring.next(tx)?
    {
        let count = running.get(&key).copied().unwrap_or(0);
        let mut line = taker.line(key, &lanes, count)?;
        if count > 0 {
            lines.push((count, line));
        } else if let Some(job) = taker.next(&mut line)? {
            given.push(job);
            served.push((1, line));
        } else {
            barren += 1;
        }
    }
    lines.append(&mut served);
    let free = ask.wanted.jobs - given.len();
    given.append(&mut take_turns(lines, free, |line| taker.next(line))?);
    Ok(Choice { jobs: given, expired: taker.expired, ..Choice::default() })
}

/// Running jobs by key, those without one under the empty key.
fn running(tx: &Tx<'_>, queue: &str) -> DbResult<HashMap<String, usize>> {
    let by_key = tx.all(RUNNING, [queue], |row| Ok((row.get(0)?, row.get::<_, usize>(1)?)))?;
    let with_key: usize = by_key.iter().map(|(_, count)| count).sum();
    let mut running: HashMap<String, usize> = by_key.into_iter().collect();
    let all = usize::try_from(running_in(tx, queue)?).unwrap_or(0);
    running.insert(String::new(), all.saturating_sub(with_key));
    Ok(running)
}

/// Whose turn it was last.
fn last_key(tx: &Tx<'_>, queue: &str) -> DbResult<String> {
    let sql = "SELECT last_key FROM lh_queues WHERE name = ?1";
    Ok(tx.one(sql, [queue], |row| row.get(0))?.flatten().unwrap_or_default())
}

/// Remembers whose turn it was.
pub(super) fn served(tx: &Tx<'_>, queue: &str, key: &str) -> DbResult<()> {
    tx.run("UPDATE lh_queues SET last_key = ?2 WHERE name = ?1 AND last_key <> ?2", (queue, key))?;
    Ok(())
}

/// From now on claims of this queue look for keys.
pub(super) fn expect_keys(tx: &mut Tx<'_>, queue: &str) -> DbResult<()> {
    if tx.queue(queue)?.keyed {
        return Ok(());
    }
    tx.run(
        "INSERT INTO lh_queues (name, paused, last_key) VALUES (?1, 0, '')
         ON CONFLICT DO UPDATE SET last_key = '' WHERE last_key IS NULL",
        [queue],
    )?;
    tx.forget_settings();
    Ok(())
}

/// Ready jobs of one kind; those whose worker died stand apart.
#[derive(Clone, Copy)]
struct Lane<'a> {
    kind: &'a str,
    suspect: bool,
}

/// A queue's keys in the order of their turns, found one by one.
struct Ring<'a> {
    queue: &'a str,
    lanes: Vec<LaneKeys<'a>>,
    /// Whose turn it was before this claim.
    last: String,
    part: Part,
    /// The key that was found last.
    at: String,
}

struct LaneKeys<'a> {
    lane: Lane<'a>,
    next: Option<String>,
    /// `next` has been given, or was never looked for.
    passed: bool,
}

enum Part {
    AfterLast,
    WithoutKey,
    UpToLast,
}

impl<'a> Ring<'a> {
    fn new(ask: &Ask<'a>, has_keys: bool, last: String) -> Self {
        // A kind may be named twice; its jobs must not come twice.
        let mut kinds: Vec<&str> = ask.kinds.iter().map(String::as_str).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let sorts: &[bool] = if ask.wanted.suspects > 0 { &[false, true] } else { &[false] };
        let lanes =
            kinds.iter().flat_map(|kind| sorts.iter().map(|suspect| Lane { kind, suspect: *suspect }));
        Self {
            queue: ask.queue,
            lanes: lanes.map(|lane| LaneKeys { lane, next: None, passed: true }).collect(),
            at: last.clone(),
            last,
            part: if has_keys { Part::AfterLast } else { Part::WithoutKey },
        }
    }

    /// The next key, empty for jobs without one, and the lanes that may have jobs of it.
    fn next(&mut self, tx: &Tx<'_>) -> DbResult<Option<(String, Vec<Lane<'a>>)>> {
        if matches!(self.part, Part::AfterLast) {
            if let Some(found) = self.next_key(tx)? {
                return Ok(Some(found));
            }
            self.part = Part::WithoutKey;
        }
        if matches!(self.part, Part::WithoutKey) {
            self.part = Part::UpToLast;
            self.at.clear();
            self.lanes.iter_mut().for_each(|lane| lane.passed = true);
            return Ok(Some((String::new(), self.lanes.iter().map(|lane| lane.lane).collect())));
        }
        if self.at >= self.last {
            return Ok(None);
        }
        Ok(self.next_key(tx)?.filter(|(key, _)| *key <= self.last))
    }

    fn next_key(&mut self, tx: &Tx<'_>) -> DbResult<Option<(String, Vec<Lane<'a>>)>> {
        for LaneKeys { lane, next, passed } in self.lanes.iter_mut().filter(|lane| lane.passed) {
            let after = (self.queue, lane.kind, lane.suspect, &self.at);
            *next = tx.one(NEXT_KEY, after, |row| row.get(0))?;
            *passed = false;
        }
        let Some(key) = self.lanes.iter().filter_map(|lane| lane.next.as_ref()).min().cloned() else {
            return Ok(None);
        };
        self.at.clone_from(&key);
        let mut lanes = Vec::new();
        for lane in self.lanes.iter_mut().filter(|lane| lane.next.as_ref() == Some(&key)) {
            lane.passed = true;
            lanes.push(lane.lane);
        }
        Ok(Some((key, lanes)))
    }
}

/// The jobs of one key.
struct Line<'a> {
    key: String,
    /// So many more of them may run.
    room: usize,
    stretches: Vec<Stretch<'a>>,
}

/// Jobs of a line that stand in its order in the index.
struct Stretch<'a> {
    lane: Lane<'a>,
    /// The highest priority of them.
    level_max: i32,
    /// Those read and not taken: priority, `run_at`, `seq`.
    heads: VecDeque<(i32, i64, i64)>,
    /// The last one read.
    read_to: (i64, i64, i64),
    /// So many are read next.
    piece: usize,
    ended: bool,
}

impl<'a> Stretch<'a> {
    /// A lane's jobs of one priority, or of all.
    fn new(lane: Lane<'a>, level: Option<i32>) -> Self {
        let (from, level_max) = level.map_or((i64::MIN, i32::MAX), |level| (level.into(), level));
        let read_to = (from, i64::MIN, i64::MIN);
        Self { lane, level_max, heads: VecDeque::new(), read_to, piece: 1, ended: false }
    }

    fn first(&mut self, tx: &Tx<'_>, queue: &str, key: &str) -> DbResult<Option<(i32, i64, i64)>> {
        if self.heads.is_empty() && !self.ended {
            let sql = if key.is_empty() { HEADS } else { HEADS_OF_KEY };
            let Lane { kind, suspect } = self.lane;
            let (priority, run_at, seq) = self.read_to;
            let params = (queue, kind, suspect, key, priority, run_at, seq, self.level_max, self.piece);
            self.heads = tx.all(sql, params, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.into();
            self.ended = self.heads.len() < self.piece;
            self.piece = (2 * self.piece).min(CLAIM_MAX);
            if let Some(&(priority, run_at, seq)) = self.heads.back() {
                self.read_to = (priority.into(), run_at, seq);
            }
        }
        Ok(self.heads.front().copied())
    }
}

/// A claim on its way round.
struct Taker<'a, 'c> {
    tx: &'a Tx<'c>,
    ask: &'a Ask<'a>,
    settings: QueueSettings,
    suspects_left: usize,
    /// Met on the way.
    expired: Vec<JobRow>,
}

impl<'a> Taker<'a, '_> {
    fn line(&self, key: String, lanes: &[Lane<'a>], running: usize) -> DbResult<Line<'a>> {
        let room = self.room(&key, running);
        let mut stretches = Vec::new();
        for lane in lanes.iter().filter(|_| room > 0) {
            if self.settings.ageing.is_none() {
                stretches.push(Stretch::new(*lane, None));
                continue;
            }
            for level in self.levels(*lane, &key)? {
                stretches.push(Stretch::new(*lane, Some(level)));
            }
        }
        Ok(Line { key, room, stretches })
    }

    /// How many more jobs of a key may run.
    fn room(&self, key: &str, running: usize) -> usize {
        let limit = self.settings.max_running_per_key.filter(|_| !key.is_empty());
        limit.map_or(usize::MAX, |limit| (limit as usize).saturating_sub(running))
    }

    /// The priorities of a lane's jobs, by a seek each.
    fn levels(&self, lane: Lane<'_>, key: &str) -> DbResult<Vec<i32>> {
        let sql = if key.is_empty() { NEXT_LEVEL } else { NEXT_LEVEL_OF_KEY };
        let (mut levels, mut after) = (Vec::new(), i64::MIN);
        loop {
            let params = (self.ask.queue, lane.kind, lane.suspect, key, after);
            let Some(level) = self.tx.one(sql, params, |row| row.get::<_, i32>(0))? else {
                return Ok(levels);
            };
            levels.push(level);
            after = level.into();
        }
    }

    /// What a line gives on its turn.
    fn next(&mut self, line: &mut Line<'_>) -> DbResult<Option<(JobRow, Body)>> {
        while line.room > 0
            && let Some((_, index)) = self.first(line)?
        {
            let stretch = &mut line.stretches[index];
            let suspect = stretch.lane.suspect;
            let Some((_, _, seq)) = stretch.heads.pop_front() else { break };
            let Some((row, body)) = job_with_body(self.tx, seq)? else { continue };
            if !row.is_expired(self.ask.now) {
                self.suspects_left -= usize::from(suspect);
                line.room -= 1;
                return Ok(Some((row, body)));
            }
            // A backlog of expired jobs is the promoter's to clear; it keeps no other key waiting.
            if self.expired.len() >= EXPIRED_MET_MAX {
                break;
            }
            self.expired.push(row);
        }
        Ok(None)
    }

    /// The first job that the claim may have, and where it stands.
    fn first(&self, line: &mut Line<'_>) -> DbResult<Option<(Rank, usize)>> {
        let mut first: Option<(Rank, usize)> = None;
        for (index, stretch) in line.stretches.iter_mut().enumerate() {
            if stretch.lane.suspect && self.suspects_left == 0 {
                continue;
            }
            let Some((priority, run_at, seq)) = stretch.first(self.tx, self.ask.queue, &line.key)? else {
                continue;
            };
            let place = rank(priority, Timestamp::from_millis(run_at), seq, self.settings.ageing);
            first = Some(first.map_or((place, index), |known| known.min((place, index))));
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests;
