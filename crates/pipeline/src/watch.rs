//! Watching a run: each change is told, until it has ended or cannot go on by itself.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_llm::Llm;
use longhaul_queue::Queue;

use crate::Result;
use crate::run::RunId;
use crate::run::status::{Status, Units};
use crate::runs::Found;

/// Least and greatest time between two looks at a run.
const LOOK_GAP: Duration = Duration::from_millis(100);
const LOOK_AT_LEAST: Duration = Duration::from_secs(2);

/// A run that can be followed, in this process or at a server.
#[async_trait]
pub trait FollowedRun: Send + Sync {
    /// Its name.
    fn id(&self) -> &RunId;

    /// What one of its units is called.
    fn unit(&self) -> &str;

    /// The queue that its jobs are in.
    fn queue(&self) -> &Queue;

    /// The models that it asks from this process, if it does.
    fn llm(&self) -> Option<&Llm>;

    /// Where it stands.
    async fn status(&self) -> Result<Status>;
}

#[async_trait]
impl FollowedRun for Found {
    fn id(&self) -> &RunId {
        &self.run.id
    }

    fn unit(&self) -> &str {
        self.pipeline.about().unit
    }

    fn queue(&self) -> &Queue {
        self.pipeline.queue()
    }

    fn llm(&self) -> Option<&Llm> {
        self.pipeline.llm()
    }

    async fn status(&self) -> Result<Status> {
        Self::status(self).await
    }
}

impl Found {
    /// Tells of each change of the run: [`watch`].
    pub async fn watch(&self, told: impl FnMut(&Status)) -> Result<Status> {
        watch(self, told).await
    }
}

/// Tells of each unit that ended, where units end one by one, and of each look at the run, where they do not; and when
/// anything else changed. Callers throttle the display. Answers where the run stands when
/// it has ended or cannot go on by itself.
pub async fn watch(run: &dyn FollowedRun, mut told: impl FnMut(&Status)) -> Result<Status> {
    let mut changes = run.queue().changes();
    let mut last = None;
    loop {
        changes.mark_unchanged();
        let status = run.status().await?;
        tell(&mut told, last.replace(status.clone()), &status);
        if status.is_over() {
            return Ok(status);
        }
        // A hint that comes too often is enough once in a while, and one that does not come is not waited for.
        tokio::time::sleep(LOOK_GAP).await;
        let _ = tokio::time::timeout(LOOK_AT_LEAST, changes.changed()).await;
    }
}

/// Tells what is new. What was spent is known as of the last unit that ended.
fn tell(told: &mut impl FnMut(&Status), before: Option<Status>, now: &Status) {
    let Some(mut step) = before else { return told(now) };
    if step == *now {
        return;
    }
    if now.standing.unit_by_unit {
        while let Some(ended) = next_ended(&mut step.standing.units, &now.standing.units) {
            *ended += 1;
            if step.standing.units.ended() >= now.standing.units.ended() {
                break;
            }
            told(&step);
        }
    }
    told(now);
}

/// The count that is behind a later look. Units that were put back since are not told again: there is none then.
fn next_ended<'a>(units: &'a mut Units, later: &Units) -> Option<&'a mut u64> {
    let counts = [
        (&mut units.done, later.done),
        (&mut units.failed, later.failed),
        (&mut units.cancelled, later.cancelled),
    ];
    counts.into_iter().find_map(|(count, later)| (*count < later).then_some(count))
}

#[cfg(test)]
mod tests {
    use longhaul_llm::Totals;
    use longhaul_queue::Timestamp;

    use super::*;
    use crate::run::status::Standing;

    fn stands(unit_by_unit: bool, done: u64, failed: u64) -> Status {
        let units = Units { total: 10, done, failed, ..Units::default() };
        Status {
            id: "run".to_owned(),
            pipeline: "prompts".into(),
            unit: "request".into(),
            title: String::new(),
            created_at: Timestamp::from_millis(0),
            ended_at: None,
            spent: Totals::default(),
            standing: Standing { units, unit_by_unit, ..Standing::default() },
        }
    }

    /// What is told between two looks, as (done, failed).
    fn heard(before: Status, now: &Status) -> Vec<(u64, u64)> {
        let mut heard = Vec::new();
        tell(&mut |status: &Status| heard.push(status.clone()), Some(before), now);
        assert!(heard.is_empty() || heard.last() == Some(now));
        heard.iter().map(|status| (status.standing.units.done, status.standing.units.failed)).collect()
    }

    #[test]
    fn units_that_end_one_by_one_are_told_so() {
        let one = |done, failed| stands(true, done, failed);
        assert_eq!(heard(one(1, 0), &one(3, 1)), [(2, 0), (3, 0), (3, 1)]);
        assert_eq!(heard(one(3, 1), &one(3, 1)), [], "no news");
        assert_eq!(heard(one(3, 2), &one(4, 0)), [(4, 0)], "failed ones were put back");
        let mut busy = one(3, 1);
        busy.standing.units.running = 4;
        assert_eq!(heard(one(3, 1), &busy), [(3, 1)]);
    }

    #[test]
    fn others_are_told_once_a_look() {
        let batch = |done| stands(false, done, 0);
        assert_eq!(heard(batch(0), &batch(5)), [(5, 0)]);
        let looked = |at: u64| {
            let mut status = batch(0);
            status.standing.details.insert("looked_at".to_owned(), at.into());
            status
        };
        assert_eq!(heard(batch(0), &looked(1)), [(0, 0)]);
        assert_eq!(heard(looked(1), &looked(2)), [(0, 0)], "nothing more has ended, but it was looked at");
        assert_eq!(heard(looked(2), &looked(2)), []);
    }
}
