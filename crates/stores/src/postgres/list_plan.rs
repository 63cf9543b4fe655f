//! Ways to a list: which index leads to the jobs of a filter in `seq` order, and the statement that walks along it. No
//! index is kept for lists alone.

use longhaul_queue::State;
use longhaul_queue::job::ProcessId;
use longhaul_queue::store::{Filter, FilterMatcher, IdRange, NameForm};
use tokio_postgres::types::ToSql;

use super::error::DbResult;
use super::rows::{state_number, stored_limit, uuid};
use super::tx::Tx;

/// Jobs whose places are gathered beforehand, instead of walking.
const FEW_MAX: usize = 5_000;

/// How to come by the jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListPlan {
    /// Nothing can match.
    Nowhere,
    /// These and no others.
    Few(Vec<i64>),
    /// All jobs.
    Jobs,
    /// Those of a process.
    Process(String),
    /// Those with a tag.
    Tag(String),
    /// Those that ended so: failed, cancelled or either.
    EndedBadly(Vec<i16>),
}

/// The way with the fewest jobs to look at.
pub(super) async fn choose(tx: &Tx<'_>, filter: &Filter, matcher: &FilterMatcher<'_>) -> DbResult<ListPlan> {
    match matcher.ids() {
        Some(None) => return Ok(ListPlan::Nowhere),
        Some(Some(range)) => {
            if let Some(seqs) = few_ids(tx, range).await? {
                return Ok(ListPlan::Few(seqs));
            }
        }
        None => {}
    }
    if let Some(tag) = &filter.tag {
        return Ok(ListPlan::Tag(tag.clone()));
    }
    let mut states = filter.states.clone();
    states.sort_unstable();
    states.dedup();
    if !states.is_empty() && states.iter().all(|state| matches!(state, State::Failed | State::Cancelled)) {
        return Ok(ListPlan::EndedBadly(states.into_iter().map(state_number).collect()));
    }
    if let Some(seqs) = few_waiting(tx, &states).await? {
        return Ok(ListPlan::Few(seqs));
    }
    let process = filter.process_id.as_ref().map(ProcessId::as_str);
    Ok(process.map_or(ListPlan::Jobs, |process| ListPlan::Process(process.to_owned())))
}

async fn few_ids(tx: &Tx<'_>, range: IdRange) -> DbResult<Option<Vec<i64>>> {
    let sql = "SELECT seq FROM lh_ids WHERE id BETWEEN $1 AND $2 LIMIT $3";
    few(tx, sql, &[&uuid(range.first), &uuid(range.last), &stored_limit(FEW_MAX + 1)]).await
}

async fn few(tx: &Tx<'_>, sql: &'static str, params: super::tx::Params<'_>) -> DbResult<Option<Vec<i64>>> {
    let rows = tx.all(sql, params).await?;
    if rows.len() > FEW_MAX {
        return Ok(None);
    }
    Ok(Some(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?))
}

/// All jobs of these states, where each has an index and they are few.
async fn few_waiting(tx: &Tx<'_>, states: &[State]) -> DbResult<Option<Vec<i64>>> {
    let mut seqs = Vec::new();
    if states.is_empty() {
        return Ok(None);
    }
    for state in states {
        let sql = match state {
            State::Ready => {
                "(SELECT seq FROM lh_jobs WHERE state = 2 AND fair_key IS NULL AND $1::smallint IS NOT NULL LIMIT $2)
                 UNION ALL (SELECT seq FROM lh_jobs WHERE state = 2 AND fair_key IS NOT NULL LIMIT $2)"
            },
            State::Scheduled | State::Running => {
                "SELECT seq FROM lh_jobs WHERE due_at IS NOT NULL AND state = $1 LIMIT $2"
            }
            // A park without an end is due at no time, but every park has a key.
            State::Parked => "SELECT seq FROM lh_jobs WHERE park_key IS NOT NULL AND state = $1 LIMIT $2",
            State::Failed | State::Cancelled => {
                "SELECT seq FROM lh_jobs WHERE state >= 6 AND state = $1 LIMIT $2"
            }
            State::Blocked | State::Succeeded => return Ok(None),
        };
        match few(tx, sql, &[&state_number(*state), &stored_limit(FEW_MAX + 1)]).await? {
            Some(mut found) => seqs.append(&mut found),
            None => return Ok(None),
        }
    }
    Ok(Some(seqs))
}

/// A statement that looks at the next jobs along a way: how many it looked at, the last of them, and those that fit as
/// far as rows tell.
pub(super) struct Walk {
    sql: String,
    params: Vec<Box<dyn ToSql + Sync + Send>>,
}

/// Where a walk goes on, and how far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) from: i64,
    pub(super) rows: usize,
    pub(super) hits: usize,
}

impl Walk {
    pub(super) fn along(
        way: &ListPlan,
        filter: &Filter,
        matcher: &FilterMatcher<'_>,
        newest_first: bool,
    ) -> Self {
        let mut walk = Self { sql: String::new(), params: Vec::new() };
        let (beyond, order) = if newest_first { ("<", "seq DESC") } else { (">", "seq") };
        let from = match way {
            ListPlan::Nowhere => "SELECT * FROM lh_jobs WHERE false".to_owned(),
            ListPlan::Few(seqs) => {
                let seqs = walk.param(seqs.clone());
                format!("SELECT * FROM lh_jobs WHERE seq = ANY ({seqs}::bigint[]) AND seq {beyond} $1")
            }
            ListPlan::Jobs => format!("SELECT * FROM lh_jobs WHERE seq {beyond} $1"),
            ListPlan::Process(process) => {
                let process = walk.param(process.clone());
                format!(
                    "SELECT * FROM lh_jobs WHERE process IS NOT NULL AND process = {process} AND seq {beyond} $1"
                )
            }
            ListPlan::Tag(tag) => {
                let tag = walk.param(tag.clone());
                format!(
                    "SELECT lh_jobs.* FROM (SELECT seq AS place FROM lh_tags WHERE tag = {tag} AND seq {beyond} $1
                         ORDER BY {order} LIMIT $2) tagged JOIN lh_jobs ON seq = place"
                )
            }
            // Each in `seq` order, merged.
            ListPlan::EndedBadly(states) => {
                let each = states.iter().map(|state| {
                    format!(
                        "(SELECT * FROM lh_jobs WHERE state >= 6 AND state = {state} AND seq {beyond} $1
                          ORDER BY {order} LIMIT $2)"
                    )
                });
                each.collect::<Vec<_>>().join(" UNION ALL ")
            }
        };
        let fits = walk.conditions(filter, matcher);
        let last = if newest_first { "min" } else { "max" };
        walk.sql = format!(
            "WITH walk AS MATERIALIZED (
                 SELECT seq, id, state, queue, kind, process FROM ({from}) jobs ORDER BY {order} LIMIT $2)
             SELECT (SELECT count(*) FROM walk), (SELECT {last}(seq) FROM walk),
                 ARRAY(SELECT seq FROM walk WHERE {fits} ORDER BY {order} LIMIT $3)"
        );
        walk
    }

    /// A parameter's name in the statement; the first three are a stretch's.
    fn param(&mut self, value: impl ToSql + Sync + Send + 'static) -> String {
        self.params.push(Box::new(value));
        format!("${}", self.params.len() + 3)
    }

    fn conditions(&mut self, filter: &Filter, matcher: &FilterMatcher<'_>) -> String {
        let mut all = vec!["true".to_owned()];
        if !filter.states.is_empty() {
            let states: Vec<i16> = filter.states.iter().copied().map(state_number).collect();
            all.push(format!("state = ANY ({}::smallint[])", self.param(states)));
        }
        if let Some(queue) = &filter.queue {
            all.push(format!("queue = {}", self.param(queue.clone())));
        }
        if let Some(kind) = &filter.kind {
            all.push(format!("kind = {}", self.param(kind.clone())));
        }
        if let Some(process) = &filter.process_id {
            all.push(format!("process = {}", self.param(process.as_str().to_owned())));
        }
        if let Some(tag) = &filter.tag {
            let tag = self.param(tag.clone());
            all.push(format!("EXISTS (SELECT 1 FROM lh_tags t WHERE t.tag = {tag} AND t.seq = walk.seq)"));
        }
        if let Some(Some(range)) = matcher.ids() {
            let (first, last) = (self.param(uuid(range.first)), self.param(uuid(range.last)));
            all.push(format!("id BETWEEN {first} AND {last}"));
        }
        for NameForm { prefix, bytes } in &filter.hidden_queues {
            let (prefix, bytes) = (self.param(prefix.clone()), self.param(stored_limit(*bytes)));
            all.push(format!("NOT (starts_with(queue, {prefix}) AND octet_length(queue) = {bytes}::bigint)"));
        }
        all.join(" AND ")
    }

    /// Looks at the next stretch: how many jobs there were, the last of them, and those that fit.
    pub(super) async fn look(
        &self,
        tx: &Tx<'_>,
        stretch: Stretch,
    ) -> DbResult<(usize, Option<i64>, Vec<i64>)> {
        let (rows, hits) = (stored_limit(stretch.rows), stored_limit(stretch.hits));
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&stretch.from, &rows, &hits];
        for param in &self.params {
            params.push(param.as_ref());
        }
        let row = tx.client()?.query_one(self.sql.as_str(), &params).await?;
        let looked = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0);
        Ok((looked, row.try_get(1)?, row.try_get(2)?))
    }
}
