//! A page of a list: jobs by filter, in `seq` order. The walk to a page is bounded, so that a filter which hardly any
//! job fits costs no more than one that all do; a walk that reached its bound says where to go on.

use std::collections::HashMap;

use longhaul_queue::job::{Job, JobId};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{Filter, FilterMatcher, ListRequest, Page};

use super::error::{DbError, DbResult};
use super::list_plan::{ListPlan, Stretch, Walk, choose};
use super::rows::{JobRow, from_text, job_columns, read_id};
use super::tx::Tx;

/// Rows that one page may look at.
const ROWS_MAX: usize = 100_000;
/// Rows that one statement looks at: few at first, because most filters fit many jobs.
const STRETCH_MIN: usize = 2_000;
const STRETCH_MAX: usize = 50_000;
/// Texts that are fetched at once, and that one page may read.
const TEXTS_AT_ONCE: usize = 200;
const TEXTS_MAX: usize = 20_000;
const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Jobs by filter.
pub(super) async fn list(tx: &Tx<'_>, request: &ListRequest) -> DbResult<Page<Job>> {
    let limit = request.limit.clamp(1, PAGE_MAX);
    let matcher = request.filter.matcher();
    let way = choose(tx, &request.filter, &matcher).await?;
    if way == ListPlan::Nowhere {
        return Ok(Page { items: Vec::new(), next: None, partial: false });
    }
    let walk = Walk::along(&way, &request.filter, &matcher, request.newest_first);
    let start = request.cursor.unwrap_or(if request.newest_first { i64::MAX } else { i64::MIN });
    let mut search =
        Search { tx, matcher: &matcher, limit, found: Vec::new(), at: start, texts: 0, bytes: 0 };
    let end = search.go(&walk, &request.filter).await?;
    let Search { mut found, at, .. } = search;
    found.truncate(limit);
    let next = match end {
        End::Full => found.last().copied(),
        End::Cut => Some(at),
        End::Nothing => None,
    };
    let items = read_jobs(tx, &found).await?;
    Ok(Page { partial: end == End::Cut && items.len() < limit, items, next })
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// There is one more than the page holds.
    Full,
    /// The bound was reached with rows left.
    Cut,
    /// There is nothing left to look at.
    Nothing,
}

struct Search<'a> {
    tx: &'a Tx<'a>,
    matcher: &'a FilterMatcher<'a>,
    limit: usize,
    found: Vec<i64>,
    /// The last row that was judged.
    at: i64,
    texts: usize,
    bytes: usize,
}

impl Search<'_> {
    async fn go(&mut self, walk: &Walk, filter: &Filter) -> DbResult<End> {
        let plain = *filter == Filter::default();
        let (mut rows, mut left) = (if plain { self.limit + 1 } else { STRETCH_MIN }, ROWS_MAX);
        loop {
            let wanted = self.limit + 1 - self.found.len();
            let hits = if self.matcher.reads_texts() { TEXTS_AT_ONCE } else { wanted };
            let rows_now = rows.min(left);
            let stretch = Stretch { from: self.at, rows: rows_now, hits };
            let (looked, last, fitting) = walk.look(self.tx, stretch).await?;
            let whole = fitting.len() < hits;
            let end = match (whole, last, fitting.last()) {
                (true, Some(last), _) => last,
                (false, _, Some(last)) => *last,
                _ => self.at,
            };
            if self.judge(&fitting).await? {
                return Ok(if self.found.len() > self.limit { End::Full } else { End::Cut });
            }
            self.at = end;
            if whole && looked < rows_now {
                return Ok(End::Nothing);
            }
            left = left.saturating_sub(looked);
            if left == 0 {
                return Ok(End::Cut);
            }
            rows = (rows * 4).clamp(STRETCH_MIN, STRETCH_MAX);
        }
    }

    /// Takes those whose texts fit too; says whether the walk ends here.
    async fn judge(&mut self, seqs: &[i64]) -> DbResult<bool> {
        if !self.matcher.reads_texts() {
            self.found.extend_from_slice(seqs);
            return Ok(self.found.len() > self.limit);
        }
        let texts = read_texts(self.tx, seqs).await?;
        for seq in seqs {
            if self.texts >= TEXTS_MAX || self.bytes >= TEXT_BYTES_MAX {
                return Ok(true);
            }
            if let Some(text) = texts.get(seq) {
                self.texts += 1;
                self.bytes += text.payload.len();
                if text.fits(self.matcher)? {
                    self.found.push(*seq);
                    if self.found.len() > self.limit {
                        return Ok(true);
                    }
                }
            }
            self.at = *seq;
        }
        Ok(false)
    }
}

/// What a search looks into.
struct Texts {
    id: JobId,
    payload: String,
    options: Option<String>,
    error: Option<String>,
}

impl Texts {
    fn fits(&self, matcher: &FilterMatcher<'_>) -> DbResult<bool> {
        let others = || {
            let options: Option<longhaul_queue::job::JobOptions> =
                from_text("a job's options", self.options.clone())?;
            let error: Option<longhaul_queue::state::JobError> = from_text("an error", self.error.clone())?;
            Ok::<_, DbError>([options.and_then(|options| options.title), error.map(|error| error.text)])
        };
        matcher.texts_fit(self.id, &self.payload, others)
    }
}

async fn read_texts(tx: &Tx<'_>, seqs: &[i64]) -> DbResult<HashMap<i64, Texts>> {
    let sql = "SELECT seq, id, payload, options, error FROM lh_jobs WHERE seq = ANY ($1)";
    let mut texts = HashMap::with_capacity(seqs.len());
    for row in tx.all(sql, &[&seqs]).await? {
        let text = Texts {
            id: read_id(&row, 1)?,
            payload: row.try_get(2)?,
            options: row.try_get(3)?,
            error: row.try_get(4)?,
        };
        texts.insert(row.try_get(0)?, text);
    }
    Ok(texts)
}

async fn read_jobs(tx: &Tx<'_>, seqs: &[i64]) -> DbResult<Vec<Job>> {
    let sql = concat!("SELECT ", job_columns!(), " FROM lh_jobs WHERE seq = ANY ($1)");
    let mut jobs = HashMap::with_capacity(seqs.len());
    for row in tx.all(sql, &[&seqs]).await? {
        let job = JobRow::read(&row)?.into_job()?;
        jobs.insert(job.seq, job);
    }
    Ok(seqs.iter().filter_map(|seq| jobs.remove(seq)).collect())
}
