//! A page of a list: jobs by filter, in `seq` order. The walk to a page is bounded, so that a filter which hardly any
//! job fits costs no more than one that all do; a walk that reached its bound says where to go on.

use longhaul_queue::State;
use longhaul_queue::job::{Job, JobId, JobOptions};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Candidate, FilterMatcher, ListRequest, Page};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row};

use super::error::{DbError, DbResult};
use super::list_plan::{ListPlan, choose, walk_columns, walk_sql};
use super::rows::{flag, job_with_options, read_error, read_options, read_state};

/// What one page may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Rows looked at; one that is far from the one before counts as [`FAR_ROW_COST`].
    pub(super) rows_max: usize,
    /// Of these, rows whose texts were read.
    pub(super) texts_max: usize,
    /// Bytes of these texts.
    pub(super) bytes_max: usize,
    /// Jobs whose places are gathered and sorted, instead of walking.
    pub(super) few_max: usize,
}

/// Each of them some 25 ms on a core of a small machine with the file in memory, so that a busy one still answers in time.
const BOUNDS: Bounds =
    Bounds { rows_max: 50_000, texts_max: 20_000, bytes_max: 16 * 1024 * 1024, few_max: 5_000 };

/// Rows this near to the one before are mostly on its page.
const NEAR: u64 = 16;
/// What a row elsewhere costs, in rows: an index may lead from page to page.
const FAR_ROW_COST: usize = 5;

/// Jobs by filter.
pub(super) fn list(connection: &Connection, request: &ListRequest) -> DbResult<Page<Job>> {
    list_within(connection, request, BOUNDS)
}

pub(super) fn list_within(
    connection: &Connection,
    request: &ListRequest,
    bounds: Bounds,
) -> DbResult<Page<Job>> {
    let limit = request.limit.clamp(1, PAGE_MAX);
    let matcher = request.filter.matcher();
    let mut walk = Walk::new(connection, &matcher, request, limit, bounds)?;
    let start = request.cursor.unwrap_or(if request.newest_first { i64::MAX } else { i64::MIN });
    match choose(connection, &request.filter, &matcher, bounds.few_max)? {
        ListPlan::Nowhere => {}
        ListPlan::Few(mut seqs) => {
            seqs.retain(|seq| if request.newest_first { *seq < start } else { *seq > start });
            seqs.sort_unstable();
            seqs.dedup();
            if request.newest_first {
                seqs.reverse();
            }
            walk.each(&seqs)?;
        }
        ListPlan::Along(index, value) => {
            let mut statement = connection.prepare_cached(walk_sql(index, request.newest_first))?;
            let mut rows = statement.query((start, value))?;
            while let Some(row) = rows.next()? {
                if !walk.look(row)? {
                    break;
                }
            }
        }
    }
    walk.page(connection)
}

/// A walk under way.
struct Walk<'a> {
    request: &'a ListRequest,
    matcher: &'a FilterMatcher<'a>,
    limit: usize,
    left: Bounds,
    texts: Texts<'a>,
    found: Vec<i64>,
    /// The last row that was judged.
    last: Option<i64>,
    /// There is one more than the page holds.
    more: bool,
    /// The bound was reached with rows left.
    cut: bool,
}

impl<'a> Walk<'a> {
    fn new(
        connection: &'a Connection,
        matcher: &'a FilterMatcher<'a>,
        request: &'a ListRequest,
        limit: usize,
        bounds: Bounds,
    ) -> DbResult<Self> {
        let texts = Texts::new(connection)?;
        Ok(Self {
            request,
            matcher,
            limit,
            left: bounds,
            texts,
            found: Vec::new(),
            last: None,
            more: false,
            cut: false,
        })
    }

    /// Looks at these jobs.
    fn each(&mut self, seqs: &[i64]) -> DbResult<()> {
        let sql = concat!("SELECT ", walk_columns!(), " FROM lh_jobs j WHERE j.seq = ?1");
        let mut statement = self.texts.connection.prepare_cached(sql)?;
        for seq in seqs {
            let mut rows = statement.query([seq])?;
            if let Some(row) = rows.next()?
                && !self.look(row)?
            {
                break;
            }
        }
        Ok(())
    }

    /// Judges a row; false when the walk ends here.
    fn look(&mut self, row: &Row<'_>) -> DbResult<bool> {
        if self.left.rows_max == 0 || self.left.texts_max == 0 || self.left.bytes_max == 0 {
            self.cut = true;
            return Ok(false);
        }
        let seq: i64 = row.get(0)?;
        let near = self.last.is_none_or(|last| seq.abs_diff(last) <= NEAR);
        let cost = if near { 1 } else { FAR_ROW_COST };
        self.left.rows_max = self.left.rows_max.saturating_sub(cost);
        if self.fits(seq, cost, row)? {
            if self.found.len() == self.limit {
                self.more = true;
                return Ok(false);
            }
            self.found.push(seq);
        }
        self.last = Some(seq);
        Ok(true)
    }

    fn fits(&mut self, seq: i64, cost: usize, row: &Row<'_>) -> DbResult<bool> {
        let text = |index| row.get_ref(index).and_then(|value| Ok(value.as_str()?));
        let id = JobId::from_bytes(row.get(1)?);
        let state = read_state(row, 2)?;
        let process = row.get_ref(5)?.as_str_or_null().map_err(rusqlite::Error::from)?;
        let candidate = Candidate { id, state, queue: text(3)?, kind: text(4)?, process };
        if !self.matcher.row_fits(&candidate) {
            return Ok(false);
        }
        let flags: i32 = row.get(6)?;
        if let Some(tag) = &self.request.filter.tag
            && !(flags & flag::TAGS != 0 && self.texts.has_tag(seq, tag)?)
        {
            return Ok(false);
        }
        if !self.matcher.reads_texts() {
            return Ok(true);
        }
        let (fits, bytes) = self.texts.fit(self.matcher, &Place { seq, id, state, flags })?;
        self.left.texts_max = self.left.texts_max.saturating_sub(cost);
        self.left.bytes_max = self.left.bytes_max.saturating_sub(bytes);
        Ok(fits)
    }

    fn page(self, connection: &Connection) -> DbResult<Page<Job>> {
        let mut items = Vec::with_capacity(self.found.len());
        for seq in &self.found {
            if let Some((row, options)) = job_with_options(connection, *seq)? {
                items.push(row.into_job(connection, options)?);
            }
        }
        let next = match (self.more, self.cut) {
            (true, _) => self.found.last().copied(),
            (false, true) => self.last,
            (false, false) => None,
        };
        Ok(Page { partial: self.cut && items.len() < self.limit, items, next })
    }
}

/// Which job's texts to read.
struct Place {
    seq: i64,
    id: JobId,
    state: State,
    flags: i32,
}

/// What does not stand in the narrow row.
struct Texts<'a> {
    connection: &'a Connection,
    in_row: CachedStatement<'a>,
    beside: CachedStatement<'a>,
    tagged: CachedStatement<'a>,
}

impl<'a> Texts<'a> {
    fn new(connection: &'a Connection) -> DbResult<Self> {
        Ok(Self {
            connection,
            in_row: connection.prepare_cached("SELECT payload, options FROM lh_jobs WHERE seq = ?1")?,
            beside: connection.prepare_cached("SELECT payload, options FROM lh_bodies WHERE seq = ?1")?,
            tagged: connection.prepare_cached("SELECT 1 FROM lh_tags WHERE tag = ?1 AND seq = ?2")?,
        })
    }

    fn has_tag(&mut self, seq: i64, tag: &str) -> DbResult<bool> {
        Ok(self.tagged.query_row((tag, seq), |_| Ok(())).optional()?.is_some())
    }

    /// Whether a job's texts fit, and how many bytes were read.
    fn fit(&mut self, matcher: &FilterMatcher<'_>, job: &Place) -> DbResult<(bool, usize)> {
        let connection = self.connection;
        let statement = if job.flags & flag::BODY == 0 { &mut self.in_row } else { &mut self.beside };
        let mut rows = statement.query([job.seq])?;
        let Some(row) = rows.next()? else { return Ok((false, 0)) };
        let payload = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
        let others = || {
            let title = match row.get::<_, Option<String>>(1)? {
                // Most options have no title, and reading them as options costs more than this look.
                Some(options) if options.contains("\"title\"") => {
                    read_options(Some(options)).map(|options: JobOptions| options.title)?
                }
                _ => None,
            };
            // A job that succeeded has a result in its place.
            let error = if job.flags & flag::RESULT != 0 && job.state != State::Succeeded {
                read_error(connection, job.seq)?.map(|error| error.text)
            } else {
                None
            };
            Ok::<_, DbError>([title, error])
        };
        Ok((matcher.texts_fit(job.id, payload, others)?, payload.len()))
    }
}

#[cfg(test)]
mod tests;
