//! Everything that only looks.

use std::collections::BTreeMap;
use std::convert::Infallible;

use super::tables::{ProcessRow, Row, Tables};
use crate::events::EventPage;
use crate::job::{Job, JobDetail, JobId, JobResult, ProcessId};
use crate::limits::PAGE_MAX;
use crate::store::{
    Candidate, Count, Filter, FilterMatcher, LedgerRow, ListRequest, Page, ProcessInfo, QueueInfo,
};

impl Tables {
    pub(super) fn get(&self, ids: &[JobId]) -> Vec<JobDetail> {
        ids.iter().filter_map(|id| self.row(*id)).map(Row::detail).collect()
    }

    pub(super) fn list(&self, request: &ListRequest) -> Page<Job> {
        let rows: Box<dyn Iterator<Item = &Row>> = match (request.newest_first, request.cursor) {
            (false, cursor) => {
                Box::new(self.jobs.range(cursor.map_or(0, |seq| seq.saturating_add(1))..).map(|(_, row)| row))
            }
            (true, cursor) => {
                Box::new(self.jobs.range(..cursor.unwrap_or(i64::MAX)).rev().map(|(_, row)| row))
            }
        };
        let matcher = request.filter.matcher();
        let matching = rows.filter(|row| matches(row, &request.filter, &matcher));
        page(matching, request.limit, |row| (row.job.seq, row.job.clone()))
    }

    pub(super) fn results(&self, process_id: &ProcessId, after: i64, limit: usize) -> Page<JobResult> {
        let rows = self.jobs.range(after.saturating_add(1)..).map(|(_, row)| row);
        let of_process =
            rows.filter(|row| row.job.process_id.as_ref() == Some(process_id) && !row.job.helper);
        page(of_process.filter(|row| row.job.state.is_terminal()), limit, |row| (row.job.seq, result_of(row)))
    }

    pub(super) fn counts(&self) -> Vec<Count> {
        let mut counts = BTreeMap::new();
        for job in self.jobs.values().map(|row| &row.job) {
            *counts.entry((job.queue.clone(), job.kind.clone(), job.state)).or_default() += 1;
        }
        counts.into_iter().map(|((queue, kind, state), jobs)| Count { queue, kind, state, jobs }).collect()
    }

    pub(super) fn queues(&self) -> Vec<QueueInfo> {
        let mut counts: BTreeMap<&str, [u64; 8]> =
            self.queues.keys().map(|name| (name.as_str(), [0; 8])).collect();
        for job in self.jobs.values().map(|row| &row.job) {
            counts.entry(&job.queue).or_default()[job.state as usize] += 1;
        }
        let info = |(name, counts): (&str, [u64; 8])| {
            let settings = self.queues.get(name).copied().unwrap_or_default();
            QueueInfo { name: name.to_owned(), settings, counts }
        };
        counts.into_iter().map(info).collect()
    }

    pub(super) fn processes(&self, after: Option<&ProcessId>, limit: usize) -> Vec<ProcessInfo> {
        let rows = self.processes.iter().filter(|(id, _)| after.is_none_or(|after| *id > after));
        rows.take(limit.clamp(1, PAGE_MAX)).map(|(id, row)| process_info(id, row)).collect()
    }

    pub(super) fn process(&self, id: &ProcessId) -> Option<ProcessInfo> {
        self.processes.get(id).map(|row| process_info(id, row))
    }

    pub(super) fn events(&self, after: Option<u64>, limit: usize) -> EventPage {
        let limit = limit.clamp(1, PAGE_MAX);
        let Some(after) = after else {
            let skip = self.events.len().saturating_sub(limit);
            return EventPage { events: self.events.iter().skip(skip).cloned().collect(), resync: false };
        };
        let resync = self.events.front().is_some_and(|oldest| oldest.id > after.saturating_add(1));
        let events = self.events.iter().filter(|event| event.id > after);
        EventPage { events: events.take(limit).cloned().collect(), resync }
    }

    pub(super) fn ledger(&self) -> Vec<LedgerRow> {
        let row = |((day, queue, kind, state), jobs): (&(i64, String, String, _), &u64)| LedgerRow {
            day: *day,
            queue: queue.clone(),
            kind: kind.clone(),
            state: *state,
            jobs: *jobs,
        };
        self.ledger.iter().map(row).collect()
    }
}

/// Takes a page and looks one row further to know whether there is another.
fn page<'a, T>(
    mut rows: impl Iterator<Item = &'a Row>,
    limit: usize,
    item: impl Fn(&Row) -> (i64, T),
) -> Page<T> {
    let mut last = None;
    let mut items = Vec::new();
    for (seq, value) in rows.by_ref().take(limit.clamp(1, PAGE_MAX)).map(item) {
        last = Some(seq);
        items.push(value);
    }
    Page { items, next: last.filter(|_| rows.next().is_some()), partial: false }
}

fn matches(row: &Row, filter: &Filter, matcher: &FilterMatcher<'_>) -> bool {
    let job = &row.job;
    let candidate = Candidate {
        id: job.id,
        state: job.state,
        queue: &job.queue,
        kind: &job.kind,
        process: job.process_id.as_ref().map(ProcessId::as_str),
    };
    let others = || {
        Ok::<_, Infallible>([job.options.title.clone(), job.error.as_ref().map(|error| error.text.clone())])
    };
    matcher.row_fits(&candidate)
        && filter.tag.as_ref().is_none_or(|tag| job.options.tags.contains(tag))
        && matcher.texts_fit(job.id, row.payload.as_str(), others).unwrap_or_else(|never| match never {})
}

fn result_of(row: &Row) -> JobResult {
    let Job { id, seq, kind, state, error, .. } = row.job.clone();
    JobResult { id, seq, kind, state, result: row.result.clone(), error }
}

fn process_info(id: &ProcessId, row: &ProcessRow) -> ProcessInfo {
    ProcessInfo { id: id.clone(), sealed: row.sealed, counts: row.counts, helpers: row.helpers }
}
