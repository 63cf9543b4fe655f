//! What the calls about queues, processes, schedules and workers take and answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{NewJob, ProcessId, Retention, WorkerId};
use crate::state::State;

/// What people have set of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// Nothing is claimed from it.
    pub paused: bool,
    /// At most this many of its jobs run at once, over all workers.
    pub max_running: Option<u32>,
    /// At most this many jobs of one fair key run at once, over all workers.
    pub max_running_per_key: Option<u32>,
    /// The time of waiting that makes up for one level of priority.
    #[serde(with = "crate::duration::millis_option", rename = "ageing_ms")]
    pub ageing: Option<Duration>,
    /// For jobs that name none.
    pub retention: Option<Retention>,
}

impl QueueSettings {
    /// Whether ready jobs may have to wait for others to end.
    pub fn is_limited(&self) -> bool {
        self.max_running.is_some() || self.max_running_per_key.is_some()
    }

    /// The same after a change.
    pub fn changed_by(self, change: &QueueChange) -> Self {
        Self {
            paused: change.paused.unwrap_or(self.paused),
            max_running: change.max_running.unwrap_or(self.max_running),
            max_running_per_key: change.max_running_per_key.unwrap_or(self.max_running_per_key),
            ageing: change.ageing.unwrap_or(self.ageing),
            retention: change.retention.unwrap_or(self.retention),
        }
    }

    /// Whether nobody has set anything.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A queue's settings and counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// What is set.
    #[serde(flatten)]
    pub settings: QueueSettings,
    /// Jobs by state, in the order of [`State::ALL`].
    pub counts: [u64; 8],
}

impl QueueInfo {
    /// A queue without settings and without jobs.
    pub fn bare(name: String) -> Self {
        Self { name, settings: QueueSettings::default(), counts: [0; 8] }
    }
}

/// A change of a queue's settings; `None` leaves a setting alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// Its name.
    pub name: String,
    /// Pause or resume.
    pub paused: Option<bool>,
    /// Set or lift the limit.
    pub max_running: Option<Option<u32>>,
    /// Set or lift the limit for each fair key.
    pub max_running_per_key: Option<Option<u32>>,
    /// Set or lift ageing; at most [`crate::limits::AGEING_MAX`].
    pub ageing: Option<Option<Duration>>,
    /// Set or lift the rule.
    pub retention: Option<Option<Retention>>,
}

/// A process and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessInfo {
    /// Its id.
    pub id: ProcessId,
    /// No more jobs are expected.
    pub sealed: bool,
    /// Its jobs by state, in the order of [`State::ALL`], helpers left out.
    pub counts: [u64; 8],
    /// Its helpers by state.
    pub helpers: [u64; 8],
}

impl ProcessInfo {
    /// A process that is open for its first job.
    pub fn empty(id: ProcessId) -> Self {
        Self { id, sealed: false, counts: [0; 8], helpers: [0; 8] }
    }

    /// Total number of jobs, without helpers.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Jobs that have not ended, helpers left out.
    pub fn unfinished(&self) -> u64 {
        State::ALL
            .iter()
            .zip(self.counts)
            .filter(|(state, _)| !state.is_terminal())
            .map(|(_, count)| count)
            .sum()
    }
}

/// A job that recurs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// Cron expression: five fields, or six with seconds first.
    pub cron: String,
    /// IANA time zone in which the expression is read.
    pub timezone: String,
    /// What to enqueue.
    pub job: NewJob,
    /// What happens to times that passed while nobody looked.
    pub missed: Missed,
    /// The next time.
    pub next_at: Timestamp,
    /// When it fired last.
    pub last_at: Option<Timestamp>,
}

/// What happens to times that passed while nobody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Nothing.
    Skip,
    /// One job for all of them.
    #[default]
    Once,
    /// A job for each, at most [`crate::limits::CRON_CATCH_UP_MAX`].
    All,
}

/// A schedule that fires.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    /// Its name.
    pub name: String,
    /// The next time as the caller read it.
    pub expected_at: Timestamp,
    /// The next time from now on.
    pub next_at: Timestamp,
    /// What to enqueue.
    pub jobs: Vec<NewJob>,
}

/// A worker as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Random per start.
    pub id: WorkerId,
    /// A label.
    pub host: String,
    /// A label.
    pub pid: u32,
    /// Of the program.
    pub version: String,
    /// What it serves.
    pub queues: Vec<String>,
    /// What it serves; `None` is any kind.
    pub kinds: Option<Vec<String>>,
    /// Slots.
    pub concurrency: u32,
    /// Slots in use.
    pub running: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was heard of last.
    pub seen_at: Timestamp,
    /// It says goodbye.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// Jobs that ended on a day.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LedgerRow {
    /// Days since the Unix epoch, UTC.
    pub day: i64,
    /// In this queue.
    pub queue: String,
    /// Of this kind.
    pub kind: String,
    /// As this.
    pub state: State,
    /// So many.
    pub jobs: u64,
}
