//! Whose turn it is: which ready jobs of a queue a claim gets, by the rules of [`longhaul_queue::turns`]. It looks at the
//! first jobs of as many keys as it may need, and looks further only when these did not do.
//!
//! A lane is a kind, with jobs whose worker died apart from the others; with ageing also a priority. Within a lane the
//! index has the order already, so each costs one seek and a step a job. Keys are found by stepping along the index
//! from one to the next.

use std::collections::{BTreeMap, HashMap, VecDeque};

use longhaul_queue::Timestamp;
use longhaul_queue::fairness::{Rank, rank, take_turns};
use longhaul_queue::store::QueueSettings;
use tokio_postgres::Row;

use super::error::{DbError, DbResult};
use super::rows::stored_limit;
use super::totals;
use super::tx::Tx;

/// Expired jobs that one claim cancels on its way; each costs a few statements.
const EXPIRED_MET_MAX: usize = 100;
/// How much further it is looked when the first look did not do.
const FURTHER: usize = 4;

/// What a claim looks for in a queue.
pub(super) struct Wanted<'a> {
    pub(super) queue: &'a str,
    /// Kinds asked for, each once.
    pub(super) kinds: Vec<String>,
    pub(super) settings: QueueSettings,
    /// `None` when the queue never had a fair key.
    pub(super) last_key: Option<String>,
    pub(super) jobs: usize,
    /// At most so many of them with crashes.
    pub(super) suspects: usize,
    pub(super) now: Timestamp,
}

/// What a claim gets.
#[derive(Default)]
pub(super) struct Chosen {
    /// Places of the jobs, in the order of their turns.
    pub(super) seqs: Vec<i64>,
    /// The key of the last of them.
    pub(super) last_key: String,
    /// Places of the jobs that have expired and stood before them.
    pub(super) expired: Vec<i64>,
}

/// Chooses ready jobs. Beside others it begins again alone when it meets expired ones, whose cancellation may reach far.
pub(super) async fn choose(tx: &Tx<'_>, wanted: &Wanted<'_>) -> DbResult<Chosen> {
    let (mut keys_max, mut heads_max) = (wanted.jobs, 0);
    let running = running(tx, wanted).await?;
    loop {
        let ring = ring(tx, wanted, &running, keys_max).await?;
        let giving = ring.keys.iter().filter(|key| key.room > 0).count().max(1);
        heads_max = heads_max.max(2 * wanted.jobs.div_ceil(giving));
        let lines = lines(tx, wanted, ring.keys, heads_max).await?;
        let (chosen, look) = give(lines, wanted);
        if !tx.is_alone() && !chosen.expired.is_empty() {
            return Err(DbError::Alone);
        }
        // Keys that were not looked at come later than those of which nothing ran, and maybe before all others.
        let filled_at_once = chosen.seqs.len() == wanted.jobs && !look.others_ran;
        if chosen.expired.len() >= EXPIRED_MET_MAX {
            // A backlog of expired jobs is the promoter's to clear; a short answer is asked again after the commit.
            return Ok(chosen);
        }
        if look.ran_dry {
            heads_max *= FURTHER;
        } else if ring.cut && !filled_at_once {
            keys_max *= FURTHER;
        } else {
            return Ok(chosen);
        }
    }
}

/// A key whose turn comes, the empty one for jobs without.
struct Key {
    name: String,
    running: usize,
    /// So many more of its jobs may run.
    room: usize,
}

/// Running jobs by key, the empty one for those without. Index lh_jobs_running_keys; those without a key are what the
/// maintained counter has beyond.
async fn running(tx: &Tx<'_>, wanted: &Wanted<'_>) -> DbResult<HashMap<String, usize>> {
    let mut running = HashMap::new();
    if wanted.last_key.is_none() {
        return Ok(running);
    }
    let sql = "SELECT fair_key, count(*) FROM lh_jobs WHERE state = 3 AND fair_key IS NOT NULL AND queue = $1
         GROUP BY fair_key";
    let mut with_key = 0;
    for row in tx.all(sql, &[&wanted.queue]).await? {
        let jobs: i64 = row.try_get(1)?;
        with_key += jobs;
        running.insert(row.try_get(0)?, usize::try_from(jobs).unwrap_or(0));
    }
    let without_key = totals::running_in(tx, wanted.queue).await? - with_key;
    running.insert(String::new(), usize::try_from(without_key).unwrap_or(0));
    Ok(running)
}

struct Ring {
    /// In the order of their turns.
    keys: Vec<Key>,
    /// There are more.
    cut: bool,
}

/// The next key with ready jobs after another. Index lh_jobs_keyed.
macro_rules! next_key {
    ($after:literal) => {
        concat!(
            "(SELECT min(n_key) FROM unnest($2::text[]) AS k (k_kind)
              CROSS JOIN (VALUES (0::smallint), (1::smallint)) AS lane (l_suspect)
              CROSS JOIN LATERAL (
                  SELECT fair_key AS n_key FROM lh_jobs
                  WHERE state = 2 AND fair_key IS NOT NULL AND queue = $1 AND kind = k_kind AND suspect = l_suspect
                      AND fair_key > ",
            $after,
            " ORDER BY fair_key LIMIT 1) AS next)"
        )
    };
}

/// Keys after `$3`, up to `$5` if that is given.
const RING: &str = concat!(
    "WITH RECURSIVE ring AS (
         SELECT ",
    next_key!("$3"),
    " AS r_key, 1::bigint AS r_place
         UNION ALL
         SELECT ",
    next_key!("r_key"),
    ", r_place + 1 FROM ring WHERE r_key IS NOT NULL AND r_place < $4 AND ($5::text IS NULL OR r_key <= $5))
     SELECT r_key FROM ring WHERE r_key IS NOT NULL AND ($5::text IS NULL OR r_key <= $5) ORDER BY r_place"
);

async fn ring(
    tx: &Tx<'_>,
    wanted: &Wanted<'_>,
    running: &HashMap<String, usize>,
    keys_max: usize,
) -> DbResult<Ring> {
    let limit = wanted.settings.max_running_per_key.map(|limit| limit as usize);
    let key = |name: String| {
        let running = running.get(&name).copied().unwrap_or(0);
        let limit = limit.filter(|_| !name.is_empty());
        Key { running, room: limit.map_or(usize::MAX, |limit| limit.saturating_sub(running)), name }
    };
    let Some(last) = wanted.last_key.as_deref() else {
        return Ok(Ring { keys: vec![key(String::new())], cut: false });
    };
    let mut names = keys_after(tx, wanted, last, None, keys_max).await?;
    let mut cut = names.len() >= keys_max;
    if !cut {
        names.push(String::new());
        if !last.is_empty() {
            let mut before = keys_after(tx, wanted, "", Some(last), keys_max).await?;
            cut = before.len() >= keys_max;
            names.append(&mut before);
        }
    }
    Ok(Ring { keys: names.into_iter().map(key).collect(), cut })
}

async fn keys_after(
    tx: &Tx<'_>,
    wanted: &Wanted<'_>,
    after: &str,
    up_to: Option<&str>,
    keys_max: usize,
) -> DbResult<Vec<String>> {
    let (queue, kinds) = (wanted.queue, &wanted.kinds);
    let rows = tx.all(RING, &[&queue, kinds, &after, &stored_limit(keys_max), &up_to]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// The ready jobs of a lane of a key. Index lh_jobs_keyed.
macro_rules! with_key {
    () => {
        "state = 2 AND fair_key IS NOT NULL AND queue = $1 AND kind = k_kind AND suspect = l_suspect AND fair_key = l_key"
    };
}

/// The ready jobs of a lane without a key. Index lh_jobs_ready.
macro_rules! without_key {
    () => {
        "state = 2 AND fair_key IS NULL AND queue = $1 AND kind = k_kind AND suspect = l_suspect"
    };
}

macro_rules! lanes {
    () => {
        "unnest($2::text[]) AS k (k_kind)
         CROSS JOIN (VALUES (0::smallint, $4::bigint), (1::smallint, $5::bigint)) AS lane (l_suspect, l_limit)
         CROSS JOIN unnest($6::text[]) AS key (l_key)"
    };
}

/// The first jobs of each lane, by priority.
macro_rules! heads {
    ($ready:expr) => {
        concat!(
            "SELECT l_key, k_kind, l_suspect, priority, run_at, seq, expires_at <= $3 AND started_at IS NULL
             FROM ",
            lanes!(),
            " CROSS JOIN LATERAL (
                 SELECT priority, run_at, seq, expires_at, started_at FROM lh_jobs WHERE ",
            $ready,
            " ORDER BY priority, run_at, seq LIMIT l_limit) AS head"
        )
    };
}

/// The same for each priority in use: there the order is that of `run_at`, aged or not.
macro_rules! heads_by_priority {
    ($ready:expr) => {
        concat!(
            "WITH RECURSIVE levels AS (
                 SELECT l_key, k_kind, l_suspect, l_limit, l_priority FROM ",
            lanes!(),
            " CROSS JOIN LATERAL (
                     SELECT priority AS l_priority FROM lh_jobs WHERE ",
            $ready,
            " ORDER BY priority LIMIT 1) AS lowest
                 UNION ALL
                 SELECT l_key, k_kind, l_suspect, l_limit, higher.n_priority FROM levels CROSS JOIN LATERAL (
                     SELECT priority AS n_priority FROM lh_jobs WHERE ",
            $ready,
            " AND priority > l_priority ORDER BY priority LIMIT 1) AS higher)
             SELECT l_key, k_kind, l_suspect, priority, run_at, seq, expires_at <= $3 AND started_at IS NULL
             FROM levels CROSS JOIN LATERAL (
                 SELECT priority, run_at, seq, expires_at, started_at FROM lh_jobs WHERE ",
            $ready,
            " AND priority = l_priority ORDER BY run_at, seq LIMIT l_limit) AS head"
        )
    };
}

const HEADS: [&str; 2] = [heads!(without_key!()), heads!(with_key!())];
const HEADS_BY_PRIORITY: [&str; 2] = [heads_by_priority!(without_key!()), heads_by_priority!(with_key!())];

/// A ready job as a turn sees it.
struct Head {
    rank: Rank,
    seq: i64,
    suspect: bool,
    expired: bool,
}

/// The first jobs of a key, in its order.
struct Line {
    key: String,
    /// With those that it has given.
    running: usize,
    room: usize,
    jobs: VecDeque<Head>,
    /// There are more behind them.
    cut: bool,
}

/// The jobs of one lane, by lane: the kind, whether suspect, and the priority where that makes a lane.
type Lanes = BTreeMap<(String, bool, i32), Vec<Head>>;

async fn lines(tx: &Tx<'_>, wanted: &Wanted<'_>, keys: Vec<Key>, heads_max: usize) -> DbResult<Vec<Line>> {
    let mut lanes: HashMap<String, Lanes> = HashMap::new();
    for with_key in [false, true] {
        let open = keys.iter().filter(|key| key.room > 0 && key.name.is_empty() != with_key);
        let names: Vec<&str> = open.map(|key| key.name.as_str()).collect();
        if !names.is_empty() {
            read_heads(tx, wanted, &names, heads_max, &mut lanes).await?;
        }
    }
    let line = |key: Key| {
        let (jobs, cut) = merge(lanes.remove(&key.name).unwrap_or_default(), wanted, heads_max);
        Line { key: key.name, running: key.running, room: key.room, jobs, cut }
    };
    Ok(keys.into_iter().map(line).collect())
}

async fn read_heads(
    tx: &Tx<'_>,
    wanted: &Wanted<'_>,
    keys: &[&str],
    heads_max: usize,
    lanes: &mut HashMap<String, Lanes>,
) -> DbResult<()> {
    let ageing = wanted.settings.ageing;
    let with_key = usize::from(keys.iter().any(|key| !key.is_empty()));
    let sql = if ageing.is_some() { HEADS_BY_PRIORITY[with_key] } else { HEADS[with_key] };
    let (jobs, suspects) = (stored_limit(heads_max), stored_limit(heads_max.min(wanted.suspects)));
    let (queue, kinds, now) = (wanted.queue, &wanted.kinds, wanted.now.as_millis());
    for row in tx.all(sql, &[&queue, kinds, &now, &jobs, &suspects, &keys]).await? {
        let head = read_head(&row, wanted)?;
        let priority = if ageing.is_some() { head.rank.1 } else { 0 };
        let lane = (row.try_get(1)?, head.suspect, priority);
        lanes.entry(row.try_get(0)?).or_default().entry(lane).or_default().push(head);
    }
    Ok(())
}

fn read_head(row: &Row, wanted: &Wanted<'_>) -> DbResult<Head> {
    let (priority, run_at, seq): (i32, i64, i64) = (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
    Ok(Head {
        rank: rank(priority, Timestamp::from_millis(run_at), seq, wanted.settings.ageing),
        seq,
        suspect: row.try_get::<_, i16>(2)? != 0,
        expired: row.try_get::<_, Option<bool>>(6)?.unwrap_or(false),
    })
}

/// Lanes as one line, as far as it is known: behind the last job of a lane that has more, others may stand between.
fn merge(lanes: Lanes, wanted: &Wanted<'_>, heads_max: usize) -> (VecDeque<Head>, bool) {
    let mut known_to: Option<Rank> = None;
    let mut jobs = Vec::new();
    for ((_, suspect, _), mut lane) in lanes {
        // More suspects than may run need not be known.
        let has_more = lane.len() >= heads_max && (!suspect || heads_max < wanted.suspects);
        if let Some(last) = lane.iter().map(|head| head.rank).max().filter(|_| has_more) {
            known_to = Some(known_to.map_or(last, |known| known.min(last)));
        }
        jobs.append(&mut lane);
    }
    jobs.sort_unstable_by_key(|head| head.rank);
    if let Some(known_to) = known_to {
        jobs.retain(|head| head.rank <= known_to);
    }
    (jobs.into(), known_to.is_some())
}

/// What a look has shown about itself.
#[derive(Default)]
struct Looked {
    /// A line was asked for more than is known of it.
    ran_dry: bool,
    /// Some key had a turn although jobs of it ran.
    others_ran: bool,
}

fn give(lines: Vec<Line>, wanted: &Wanted<'_>) -> (Chosen, Looked) {
    let (mut chosen, mut looked) = (Chosen::default(), Looked::default());
    let mut suspects_left = wanted.suspects;
    let next = |line: &mut Line| {
        while line.room > 0 && chosen.expired.len() < EXPIRED_MET_MAX {
            let Some(head) = line.jobs.pop_front() else {
                looked.ran_dry |= line.cut;
                break;
            };
            if head.suspect && suspects_left == 0 {
                continue;
            }
            if head.expired {
                chosen.expired.push(head.seq);
                continue;
            }
            suspects_left -= usize::from(head.suspect);
            line.room -= 1;
            looked.others_ran |= line.running > 0;
            line.running += 1;
            return Ok::<_, std::convert::Infallible>(Some((head.seq, line.key.clone())));
        }
        Ok(None)
    };
    let lines = lines.into_iter().map(|line| (line.running, line)).collect();
    let given = take_turns(lines, wanted.jobs, next).unwrap_or_else(|never| match never {});
    if let Some((_, key)) = given.last() {
        key.clone_into(&mut chosen.last_key);
    }
    chosen.seqs = given.into_iter().map(|(seq, _)| seq).collect();
    (chosen, looked)
}
