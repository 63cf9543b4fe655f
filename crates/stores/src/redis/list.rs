//! A page of a list: jobs by filter, in `seq` order. The walk to a page is bounded; one that reached its bound says where
//! to go on. It goes along the narrowest index that the filter allows: the jobs of a process, of a state that few jobs
//! are in, or all.

use longhaul_queue::job::{Job, ProcessId};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Candidate, Filter, FilterMatcher, ListRequest, Page};
use longhaul_queue::{Result, State};
use redis::Value;

use super::RedisStore;
use super::codec::{self, Row, corrupt};
use super::encode::Args;
use super::reply;
use super::scripts::Function;

/// Jobs that one page may look at.
const LOOKED_AT_MAX: usize = 20_000;
/// Jobs that one call of the script hands over.
const STEP: usize = 500;

/// Where a walk goes on.
pub(super) struct Place<'a> {
    /// The end of an index's key, or nothing for all jobs.
    pub(super) index: &'a str,
    pub(super) cursor: Option<i64>,
    pub(super) newest_first: bool,
}

/// A job met on the way.
pub(super) struct Met {
    pub(super) row: Row,
    /// The field that was asked for.
    pub(super) value: Option<Vec<u8>>,
}

/// What is wanted of jobs met on the way.
pub(super) struct Wanted {
    /// At most so many jobs.
    pub(super) count: usize,
    /// Also long payloads; without, only the options that stand with them.
    pub(super) payloads: bool,
    /// The field under this letter, if not empty.
    pub(super) letter: &'static str,
}

/// The next jobs, and whether there are more although these are fewer than wanted: the values of all would be too large.
pub(super) async fn walk(store: &RedisStore, place: &Place<'_>, wanted: &Wanted) -> Result<(Vec<Met>, bool)> {
    let flag = |on: bool| if on { b"1".to_vec() } else { b"0".to_vec() };
    let args: Args = vec![
        place.index.as_bytes().to_vec(),
        place.cursor.map_or_else(Vec::new, |cursor| cursor.to_string().into_bytes()),
        flag(place.newest_first),
        wanted.count.to_string().into_bytes(),
        flag(wanted.payloads),
        wanted.letter.as_bytes().to_vec(),
    ];
    let now = longhaul_queue::Timestamp::default();
    let values = reply::list(store.link.run(Function::Walk, now, args).await?)?;
    let met = |chunk: &[Value]| {
        let [seq, row, long, error, park, value] = chunk else { return Err(corrupt("an answer")) };
        let mut row = Row::read(reply::int(seq)?, reply::bytes(row)?, reply::maybe(long)?)?;
        row.job.error = reply::maybe(error)?.map(codec::error).transpose()?;
        row.job.park = reply::maybe(park)?.map(codec::park).transpose()?;
        Ok(Met { row, value: reply::maybe(value)?.map(<[u8]>::to_vec) })
    };
    let (cut, values) = values.split_first().ok_or_else(|| corrupt("an answer"))?;
    Ok((values.chunks(6).map(met).collect::<Result<_>>()?, reply::int(cut)? == 1))
}

/// The narrowest index that has all jobs a filter can match.
fn index_of(filter: &Filter) -> String {
    if let Some(process) = &filter.process_id {
        return format!(":pj:{process}");
    }
    let listed = |state: State| {
        matches!(state, State::Blocked | State::Parked | State::Failed | State::Cancelled)
            .then(|| format!(":in:{}", state as u8))
    };
    match filter.states.as_slice() {
        [state] => listed(*state).unwrap_or_default(),
        _ => String::new(),
    }
}

pub(super) async fn list(store: &RedisStore, request: &ListRequest) -> Result<Page<Job>> {
    let limit = request.limit.clamp(1, PAGE_MAX);
    let matcher = request.filter.matcher();
    let none = Page { items: Vec::new(), next: None, partial: false };
    if matcher.ids() == Some(None) {
        return Ok(none);
    }
    let index = index_of(&request.filter);
    let mut place = Place { index: &index, cursor: request.cursor, newest_first: request.newest_first };
    let mut page = none;
    let mut looked_at = 0;
    loop {
        let step = if request.filter == Filter::default() { (limit + 1).min(STEP) } else { STEP };
        let wanted = Wanted { count: step, payloads: matcher.reads_texts(), letter: "" };
        let (met, cut) = walk(store, &place, &wanted).await?;
        let last = met.len() < step && !cut;
        for met in met {
            let seq = met.row.job.seq;
            if fits(&met, &request.filter, &matcher)? {
                if page.items.len() == limit {
                    page.next = page.items.last().map(|job: &Job| job.seq);
                    return Ok(page);
                }
                page.items.push(met.row.job);
            }
            place.cursor = Some(seq);
            looked_at += 1;
        }
        if last {
            return Ok(page);
        }
        if looked_at >= LOOKED_AT_MAX {
            page.next = place.cursor;
            page.partial = true;
            return Ok(page);
        }
    }
}

fn fits(met: &Met, filter: &Filter, matcher: &FilterMatcher<'_>) -> Result<bool> {
    let job = &met.row.job;
    let candidate = Candidate {
        id: job.id,
        state: job.state,
        queue: &job.queue,
        kind: &job.kind,
        process: job.process_id.as_ref().map(ProcessId::as_str),
    };
    let tagged = || filter.tag.as_ref().is_none_or(|tag| job.options.tags.contains(tag));
    if !matcher.row_fits(&candidate) || !tagged() {
        return Ok(false);
    }
    if !matcher.reads_texts() {
        return Ok(true);
    }
    let others = || Ok([job.options.title.clone(), job.error.as_ref().map(|error| error.text.clone())]);
    matcher.texts_fit(job.id, met.row.payload.as_str(), others)
}
