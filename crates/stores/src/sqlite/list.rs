//! A page of a list: jobs by filter, in `seq` order. The walk to a page is bounded, so that a filter which hardly any
//! job fits costs no more than one that all do; a walk that reached its bound says where to go on.

use longhaul_queue::State;
use longhaul_queue::job::{Job, JobId, JobOptions};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Candidate, ListRequest, Page, Sieve};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row};

use super::error::{DbError, DbResult};
use super::rows::{flag, job_with_options, read_error, read_options, read_state};
use super::ways::{Way, choose, walk_columns, walk_sql};

/// What one page may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Rows looked at.
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
    Bounds { rows_max: 100_000, texts_max: 20_000, bytes_max: 16 * 1024 * 1024, few_max: 5_000 };

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
    let sieve = request.filter.sieve();
    let mut walk = Walk::new(connection, &sieve, request, limit, bounds)?;
    let start = request.cursor.unwrap_or(if request.newest_first { i64::MAX } else { i64::MIN });
    match choose(connection, &request.filter, &sieve, bounds.few_max)? {
        Way::Nowhere => {}
        Way::Few(mut seqs) => {
            seqs.retain(|seq| if request.newest_first { *seq < start } else { *seq > start });
            seqs.sort_unstable();
            seqs.dedup();
            if request.newest_first {
                seqs.reverse();
            }
            walk.each(&seqs)?;
        }
        Way::Along(index, value) => {
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
    sieve: &'a Sieve<'a>,
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
        sieve: &'a Sieve<'a>,
        request: &'a ListRequest,
        limit: usize,
        bounds: Bounds,
    ) -> DbResult<Self> {
        let texts = Texts::new(connection)?;
        Ok(Self {
            request,
            sieve,
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
        self.left.rows_max -= 1;
        let seq = row.get(0)?;
        if self.fits(seq, row)? {
            if self.found.len() == self.limit {
                self.more = true;
                return Ok(false);
            }
            self.found.push(seq);
        }
        self.last = Some(seq);
        Ok(true)
    }

    fn fits(&mut self, seq: i64, row: &Row<'_>) -> DbResult<bool> {
        let text = |index| row.get_ref(index).and_then(|value| Ok(value.as_str()?));
        let id = JobId::from_bytes(row.get(1)?);
        let state = read_state(row, 2)?;
        let process = row.get_ref(5)?.as_str_or_null().map_err(rusqlite::Error::from)?;
        let candidate = Candidate { id, state, queue: text(3)?, kind: text(4)?, process };
        if !self.sieve.row_fits(&candidate) {
            return Ok(false);
        }
        let flags: i64 = row.get(6)?;
        if let Some(tag) = &self.request.filter.tag
            && !(flags & flag::TAGS != 0 && self.texts.has_tag(seq, tag)?)
        {
            return Ok(false);
        }
        if !self.sieve.reads_texts() {
            return Ok(true);
        }
        let (fits, bytes) = self.texts.fit(self.sieve, &Place { seq, id, state, flags })?;
        self.left.texts_max -= 1;
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
    flags: i64,
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
    fn fit(&mut self, sieve: &Sieve<'_>, job: &Place) -> DbResult<(bool, usize)> {
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
        Ok((sieve.texts_fit(job.id, payload, others)?, payload.len()))
    }
}

#[cfg(test)]
mod tests {
    use longhaul_queue::store::{Filter, Store as _};
    use longhaul_queue::{Json, NewJob, Timestamp};

    use super::*;
    use crate::sqlite::{SqliteOptions, SqliteStore};

    /// Sixty jobs in two queues: every seventh tagged and of a process, some cancelled, some deleted.
    async fn stocked(path: &std::path::Path) -> SqliteStore {
        let store = SqliteStore::open(path, SqliteOptions::default()).expect("the store opens");
        let now = Timestamp::from_millis(1_800_000_000_000);
        let job = |number: u64| {
            let payload = format!(r#"{{"n":{number},"user":{{"id":{}}}}}"#, number % 10);
            let id = JobId::generate(now, u128::from(number) << 56);
            let job = NewJob::new("work", Json::parse(&payload).expect("JSON")).id(id);
            let job = job.queue(if number % 2 == 0 { "even" } else { "odd" });
            if number % 7 == 0 { job.tag("red").process("p") } else { job }
        };
        let inserted = store.insert((1..=60).map(job).collect(), now).await.expect("valid jobs");
        let every = |step: usize| inserted.iter().step_by(step).map(|job| job.id).collect::<Vec<_>>();
        store.cancel(every(4), now).await.expect("jobs that wait");
        store.delete(every(12)).await.expect("cancelled jobs");
        store
    }

    async fn walked(store: &SqliteStore, filter: &Filter, newest_first: bool, bounds: Bounds) -> Vec<i64> {
        let (mut met, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            let request = ListRequest { filter: filter.clone(), newest_first, cursor, limit: 4 };
            let page = store.db().read(move |connection| list_within(connection, &request, bounds)).await;
            let page = page.expect("list answers");
            assert_eq!(page.partial, page.next.is_some() && page.items.len() < 4);
            met.extend(page.items.iter().map(|job| job.seq));
            pages += 1;
            assert!(pages <= 200, "each page gets further");
            cursor = page.next;
            if cursor.is_none() {
                return met;
            }
        }
    }

    #[tokio::test]
    async fn a_bounded_walk_meets_the_same_jobs_over_more_pages() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = stocked(&folder.path().join("test.db")).await;
        let tiny = [
            Bounds { rows_max: 1, ..BOUNDS },
            Bounds { rows_max: 5, few_max: 0, ..BOUNDS },
            Bounds { texts_max: 3, few_max: 8, ..BOUNDS },
            Bounds { bytes_max: 40, few_max: 0, ..BOUNDS },
        ];
        for (search, count) in [
            ("", 55),
            ("queue:even", 30),
            ("queue:odd state:cancelled", 10),
            ("state:ready", 45),
            ("state:ready tag:red", 6),
            ("process:p", 7),
            ("process:p state:cancelled", 1),
            ("process:p state:failed", 0),
            ("process:nobody", 0),
            ("user.id:3", 5),
            ("id:01", 55),
            ("id:ff", 0),
            ("queue:nobody", 0),
            ("state:failed", 0),
            ("state:cancelled,failed", 10),
            ("\"n\\\":4\"", 10),
            ("nowhere", 0),
        ] {
            let filter = Filter::parse(search).expect("a search");
            for newest_first in [false, true] {
                let expected = walked(&store, &filter, newest_first, BOUNDS).await;
                assert_eq!(expected.len(), count, "{search}");
                for bounds in tiny {
                    let met = walked(&store, &filter, newest_first, bounds).await;
                    assert_eq!(met, expected, "{search} {newest_first} {bounds:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_page_that_reached_its_bound_says_so() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = stocked(&folder.path().join("test.db")).await;
        let filter = Filter { search: vec!["nowhere".to_owned()], ..Filter::default() };
        let request = ListRequest { filter, limit: 10, ..ListRequest::default() };
        let bounds = Bounds { rows_max: 20, ..BOUNDS };
        let page = store.db().read(move |connection| list_within(connection, &request, bounds)).await;
        let page = page.expect("list answers");
        assert_eq!((page.items.len(), page.partial), (0, true));
        assert_eq!(page.next, Some(22), "the twentieth that is left");
    }
}
