//! Enqueues the jobs of schedules when their time has come. A schedule is a row with a next time; whoever moves that
//! time enqueues the jobs, in one transaction, so two processes fire once.
//!
//! In a zone whose clock goes forward, a fixed time that falls into the gap fires once, at the gap's end; where the
//! clock goes back, a fixed time fires once, the first time it comes round.

use std::time::Duration;

use async_trait::async_trait;
use croner::Cron as Expression;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Zoned;
use jiff::tz::TimeZone;
use tracing::{debug, error};

use crate::client::Queue;
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::job::{NewJob, Unique};
use crate::limits::CRON_CATCH_UP_MAX;
use crate::store::{Firing, Missed, Schedule, Swept};

use super::{Duty, Pace};

/// A time that is noticed within this is on time, not missed.
const ON_TIME: Duration = Duration::from_secs(10);

/// Enqueues the jobs of schedules when their time has come.
pub struct Cron {
    engine: Engine,
    pace: Pace,
}

impl Cron {
    /// The duty on an engine.
    pub fn new(engine: Engine, pace: Pace) -> Self {
        Self { engine, pace }
    }

    /// Fires one schedule; its next time, or `None` when it has none.
    async fn fire(&self, schedule: &Schedule, now: Timestamp) -> Result<(bool, Timestamp)> {
        let times = Times::parse(&schedule.cron, &schedule.timezone)?;
        let next_at = times.next_after(now)?;
        let due = times.due(schedule.next_at, now, schedule.missed)?;
        let jobs: Vec<NewJob> = due.into_iter().map(|at| job_for(schedule, at)).collect();
        let jobs = self.engine.prepare(jobs).unwrap_or_else(|error| {
            // The next time moves on all the same, or the schedule would be tried for ever.
            error!(schedule = schedule.name, %error, "the schedule's job is invalid and was not enqueued");
            Vec::new()
        });
        let count = jobs.len();
        let firing = Firing { name: schedule.name.clone(), expected_at: schedule.next_at, next_at, jobs };
        let without_jobs = Firing { jobs: Vec::new(), ..firing.clone() };
        let fired = match self.engine.store().fire(firing, now).await {
            Err(error) if count > 0 && !error.is_transient() => {
                // What only the store can see, such as a parent that is gone. The same holds: the time moves on.
                error!(schedule = schedule.name, %error, "the schedule's job was refused and not enqueued");
                self.engine.store().fire(without_jobs, now).await?
            }
            answer => answer?,
        };
        debug!(schedule = schedule.name, fired, count, "schedule due");
        Ok((fired, next_at))
    }
}

#[async_trait]
impl Duty for Cron {
    fn name(&self) -> &'static str {
        "cron"
    }

    fn queue(&self) -> &Queue {
        &self.engine
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    async fn run_once(&self) -> Result<Swept> {
        let now = self.engine.clock().now();
        let mut swept = Swept::default();
        for schedule in self.engine.store().schedules().await? {
            let next_at = if schedule.next_at > now {
                schedule.next_at
            } else {
                match self.fire(&schedule, now).await {
                    Ok((fired, next_at)) => {
                        swept.changed += u64::from(fired);
                        next_at
                    }
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => {
                        // One bad schedule must not keep the others from firing.
                        error!(schedule = schedule.name, %error, "schedule cannot fire");
                        continue;
                    }
                }
            };
            swept.next_at = Some(swept.next_at.map_or(next_at, |nearest| nearest.min(next_at)));
        }
        Ok(swept)
    }
}

/// The first time after `after` that a cron expression means in a time zone. Five fields, or six with seconds first,
/// or a nickname such as `@daily`; the zone by its IANA name.
pub fn next_after(cron: &str, timezone: &str, after: Timestamp) -> Result<Timestamp> {
    Times::parse(cron, timezone)?.next_after(after)
}

/// The times that an expression means in a zone.
struct Times {
    expression: Expression,
    zone: TimeZone,
    text: String,
}

impl Times {
    fn parse(cron: &str, timezone: &str) -> Result<Self> {
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let expression = parser.parse(cron).map_err(|error| {
            Error::invalid(format!("{cron:?} is not a cron expression such as \"0 6 * * 1-5\": {error}"))
        })?;
        let zone = TimeZone::get(timezone).map_err(|_| {
            Error::invalid(format!(
                "{timezone:?} is not a time zone; use an IANA name such as Europe/Berlin or UTC"
            ))
        })?;
        Ok(Self { expression, zone, text: cron.to_owned() })
    }

    fn next_after(&self, after: Timestamp) -> Result<Timestamp> {
        let next = self.expression.find_next_occurrence(&self.zoned(after)?, false);
        next.map(|next| to_timestamp(&next))
            .map_err(|_| Error::invalid(format!("{:?} never comes", self.text)))
    }

    /// The times from `first` to `now` to enqueue a job for, oldest first.
    fn due(&self, first: Timestamp, now: Timestamp, missed: Missed) -> Result<Vec<Timestamp>> {
        let most = match missed {
            Missed::Skip | Missed::Once => 1,
            Missed::All => CRON_CATCH_UP_MAX,
        };
        let mut due = Vec::new();
        let mut before = self.zoned(now)?;
        let mut inclusive = true;
        // Backwards, so that after a long absence the newest are taken, and none of the others is even computed.
        while due.len() < most {
            let Ok(at) = self.expression.find_previous_occurrence(&before, inclusive) else { break };
            if to_timestamp(&at) < first {
                break;
            }
            due.push(to_timestamp(&at));
            (before, inclusive) = (at, false);
        }
        if due.is_empty() {
            // The stored time came from an older expression; it was promised all the same.
            due.push(first);
        }
        if missed == Missed::Skip {
            due.retain(|at| now.since(*at) <= ON_TIME);
        }
        due.reverse();
        Ok(due)
    }

    fn zoned(&self, at: Timestamp) -> Result<Zoned> {
        let at = jiff::Timestamp::from_millisecond(at.as_millis())
            .map_err(|error| Error::invalid(format!("time out of range: {error}")))?;
        Ok(at.to_zoned(self.zone.clone()))
    }
}

fn to_timestamp(zoned: &Zoned) -> Timestamp {
    Timestamp::from_millis(zoned.timestamp().as_millisecond())
}

/// The schedule's job for one of its times. The key lets nobody enqueue that time again; a key of the job's own, which
/// says more (such as "never two at once"), stays.
fn job_for(schedule: &Schedule, at: Timestamp) -> NewJob {
    let mut job = schedule.job.clone();
    job.id = None;
    job.options
        .unique
        .get_or_insert_with(|| Unique::key(format!("cron:{}:{}", schedule.name, at.as_millis())));
    job
}
