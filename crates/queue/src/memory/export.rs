//! Everything that lasts, out of one store and into another.

use std::collections::HashMap;

use super::tables::{EdgeRow, Row, SignalRow, Tables, UniqueRow, UniqueScope};
use crate::error::{Error, Result};
use crate::job::{Dependency, JobId};
use crate::limits::PIECES_MAX;
use crate::state::State;
use crate::store::{
    EdgePiece, ExportPage, ExportRecord, JobPiece, LedgerRow, QueuePiece, Record, UniquePiece, refusals,
};

impl Tables {
    pub(super) fn export(&self, after: Option<&str>, limit: usize) -> Result<ExportPage> {
        let skip: usize = after.map_or(Ok(0), str::parse).map_err(|_| refusals::no_export_cursor())?;
        let limit = limit.clamp(1, PIECES_MAX);
        let mut pieces = self.pieces().skip(skip);
        let page: Vec<ExportRecord> = pieces.by_ref().take(limit).collect();
        let next = pieces.next().map(|_| (skip + page.len()).to_string());
        Ok(ExportPage { pieces: page, next })
    }

    fn pieces(&self) -> impl Iterator<Item = ExportRecord> {
        let last_seq = (self.last_seq > 0).then_some(ExportRecord::LastSeq(self.last_seq));
        let open = self.processes.iter().filter(|(_, process)| !process.sealed);
        let schedules = self.schedules.values();
        let record = |(name, record): (&String, &Record)| {
            let Record { version, value } = record.clone();
            ExportRecord::Record { name: name.clone(), version, value }
        };
        let signal = |(key, row): (&String, &SignalRow)| {
            let (signal, expires_at) = (row.signal.clone(), row.expires_at);
            ExportRecord::Signal { key: key.clone(), signal, expires_at }
        };
        last_seq
            .into_iter()
            .chain(self.queue_pieces())
            .chain(open.map(|(id, _)| ExportRecord::OpenProcess(id.clone())))
            .chain(self.jobs.values().map(|row| ExportRecord::Job(Box::new(self.job_piece(row)))))
            .chain(self.uniques.iter().map(|(scope, row)| ExportRecord::Unique(unique_piece(scope, row))))
            .chain(self.signals.iter().map(signal))
            .chain(schedules.map(|schedule| ExportRecord::Schedule(schedule.clone())))
            .chain(self.ledger().into_iter().map(ExportRecord::Ledger))
            .chain(self.records.iter().map(record))
    }

    fn queue_pieces(&self) -> impl Iterator<Item = ExportRecord> {
        let mut names: Vec<&String> = self.queues.keys().chain(self.turns.keys()).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(|name| {
            let settings = self.queues.get(name).copied().unwrap_or_default();
            ExportRecord::Queue(QueuePiece {
                name: name.clone(),
                settings,
                last_key: self.turns.get(name).cloned(),
            })
        })
    }

    fn job_piece(&self, row: &Row) -> JobPiece {
        let leads_here = |edge: &EdgeRow| {
            let parent = edge.dependency.job_id;
            let children = self.children.get(&parent)?;
            children.contains(&row.job.seq).then(|| self.seq_of.get(&parent).copied())?
        };
        let edge = |edge: &EdgeRow| EdgePiece {
            parent_id: edge.dependency.job_id,
            parent_seq: leads_here(edge),
            on_failure: edge.dependency.on_failure,
            satisfied: edge.satisfied,
            ended: edge.ended,
            result: edge.result.clone(),
            error: edge.error.clone(),
        };
        JobPiece {
            job: row.job.clone(),
            payload: row.payload.clone(),
            data: row.data.clone(),
            result: row.result.clone(),
            edges: row.edges.iter().map(edge).collect(),
            after_process: row.submitted.after_process.clone(),
            waits_for_process: row.waits_for_process,
            wake: row.wake.clone(),
            runs: row.runs.clone(),
            progress: row.progress.clone(),
            log: row.log.clone(),
            remove_at: row.remove_at,
        }
    }

    pub(super) fn import(&mut self, pieces: Vec<ExportRecord>) -> Result<()> {
        let mut places = HashMap::new();
        for piece in &pieces {
            self.check_piece(piece, &mut places)?;
        }
        for piece in pieces {
            self.put(piece);
        }
        self.forget_news();
        Ok(())
    }

    /// Refuses a job that runs, or whose place is another's: a stored one's, or of one in `places`, which came before.
    fn check_piece(&self, piece: &ExportRecord, places: &mut HashMap<i64, JobId>) -> Result<()> {
        let ExportRecord::Job(piece) = piece else { return Ok(()) };
        let job = &piece.job;
        if job.state == State::Running {
            return Err(Error::wrong_state(job.id, job.state, "imported"));
        }
        let other = self.jobs.get(&job.seq).is_some_and(|row| row.job.id != job.id)
            || self.row(job.id).is_some_and(|row| row.job.seq != job.seq)
            || places.insert(job.seq, job.id).is_some_and(|id| id != job.id);
        match other {
            true => Err(refusals::place_taken(job.id, job.seq)),
            false => Ok(()),
        }
    }

    fn put(&mut self, piece: ExportRecord) {
        match piece {
            ExportRecord::LastSeq(seq) => self.last_seq = self.last_seq.max(seq),
            ExportRecord::Queue(piece) => self.put_queue(piece),
            ExportRecord::OpenProcess(id) => self.processes.entry(id).or_default().sealed = false,
            ExportRecord::Job(piece) => {
                if !self.jobs.contains_key(&piece.job.seq) {
                    self.put_job(*piece);
                }
            }
            ExportRecord::Unique(UniquePiece { queue, kind, key, job_id, seq, ended, taken_until }) => {
                let row = UniqueRow { job_id, seq, ended, taken_until };
                self.uniques.insert(UniqueScope { queue, kind, key }, row);
            }
            ExportRecord::Signal { key, signal, expires_at } => {
                self.signals.insert(key, SignalRow { signal, expires_at });
            }
            ExportRecord::Schedule(schedule) => {
                self.schedules.insert(schedule.name.clone(), schedule);
            }
            ExportRecord::Ledger(LedgerRow { day, queue, kind, state, jobs }) => {
                self.ledger.insert((day, queue, kind, state), jobs);
            }
            ExportRecord::Record { name, version, value } => {
                self.records.insert(name, Record { version, value });
            }
        }
    }

    fn put_queue(&mut self, piece: QueuePiece) {
        let QueuePiece { name, settings, last_key } = piece;
        if let Some(last_key) = last_key {
            self.turns.insert(name.clone(), last_key);
        }
        if !settings.is_default() {
            self.queues.insert(name, settings);
        }
    }

    fn put_job(&mut self, piece: JobPiece) {
        let seq = piece.job.seq;
        // Edges to parents that are gone lead nowhere.
        let gone: Vec<_> =
            piece.edges.iter().filter(|edge| edge.parent_seq.is_none()).map(|edge| edge.parent_id).collect();
        self.add(Row {
            submitted: piece.submitted(),
            edges: piece.edges.into_iter().map(edge_row).collect(),
            job: piece.job,
            payload: piece.payload,
            data: piece.data,
            result: piece.result,
            waits_for_process: piece.waits_for_process,
            wake: piece.wake,
            runs: piece.runs,
            progress: piece.progress,
            log: piece.log,
            remove_at: piece.remove_at,
        });
        for parent in gone {
            self.forget_child(&parent, seq);
        }
    }
}

fn edge_row(piece: EdgePiece) -> EdgeRow {
    let EdgePiece { parent_id, on_failure, satisfied, ended, result, error, .. } = piece;
    EdgeRow { dependency: Dependency { job_id: parent_id, on_failure }, satisfied, ended, result, error }
}

fn unique_piece(scope: &UniqueScope, row: &UniqueRow) -> UniquePiece {
    let UniqueScope { queue, kind, key } = scope.clone();
    let UniqueRow { job_id, seq, ended, taken_until } = *row;
    UniquePiece { queue, kind, key, job_id, seq, ended, taken_until }
}
