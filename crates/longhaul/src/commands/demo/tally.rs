//! What became of the demo's jobs, read from the store.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use longhaul_lab::Scratch;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::RunOutcome;
use longhaul_queue::{JobId, ProcessId, State};
use serde::Serialize;

use super::answered::Answered;
use super::batch::Batched;
use super::plan::{PROCESS, Plan};
use super::sheet::Scored;
use super::work::Answer;
use crate::app::App;
use crate::output::{Cell, Table};

/// The worker's end in the middle.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Kill {
    /// Since the start of the demo.
    pub(super) after_ms: u64,
    /// Jobs that were running.
    pub(super) in_flight: u64,
    /// Jobs that had ended.
    pub(super) done: u64,
}

/// The counts that the demo is about.
#[derive(Debug, Serialize)]
pub(super) struct Tally {
    jobs: u64,
    succeeded: u64,
    failed: u64,
    runs: u64,
    /// Runs that the kill cut off; the jobs were run again.
    runs_repeated: u64,
    results_lost: u64,
    results_twice: u64,
    report: Option<u64>,
    report_expected: u64,
    kill: Option<Kill>,
    /// The run of prompts.
    prompts: Answered,
    /// The batch over HTTP.
    batch: Batched,
    /// The sheet.
    sheet: Scored,
    /// Rows of the demo's jobs at the end; `None` when they were left on purpose.
    rows_left: Option<u64>,
    #[serde(rename = "elapsed_ms", serialize_with = "millis")]
    pub(super) elapsed: Duration,
}

impl Tally {
    /// Reads it.
    pub(super) async fn read(
        scratch: &Scratch,
        plan: &Plan,
        kill: Option<Kill>,
        (prompts, batch, sheet): (Answered, Batched, Scored),
    ) -> Result<Self> {
        let mut tally = Self {
            jobs: 0,
            succeeded: 0,
            failed: 0,
            runs: 0,
            runs_repeated: 0,
            results_lost: 0,
            results_twice: 0,
            report: None,
            report_expected: plan.expected(),
            kill,
            prompts,
            batch,
            sheet,
            rows_left: None,
            elapsed: Duration::ZERO,
        };
        for ids in plan.ids().chunks(PAGE_MAX) {
            for detail in scratch.queue().store().get(ids.to_vec()).await? {
                tally.jobs += 1;
                tally.succeeded += u64::from(detail.job.state == State::Succeeded);
                tally.failed += u64::from(matches!(detail.job.state, State::Failed | State::Cancelled));
                let outcomes =
                    |outcome| detail.runs.iter().filter(|run| run.outcome == outcome).count() as u64;
                tally.runs += detail.runs.len() as u64;
                tally.runs_repeated += outcomes(RunOutcome::Crash);
                tally.results_twice += outcomes(RunOutcome::Done).saturating_sub(1);
            }
        }
        tally.count_results(scratch, plan).await?;
        Ok(tally)
    }

    async fn count_results(&mut self, scratch: &Scratch, plan: &Plan) -> Result<()> {
        let mut listed: HashMap<JobId, u64> = HashMap::new();
        let mut after = 0;
        loop {
            let page = scratch.queue().results(&ProcessId::from(PROCESS), after, PAGE_MAX).await?;
            for item in &page.items {
                *listed.entry(item.id).or_default() += u64::from(item.result.is_some());
                if Some(&item.id) == plan.ids().last() {
                    self.report = item
                        .result
                        .as_ref()
                        .map(longhaul_queue::Json::to::<Answer>)
                        .transpose()?
                        .map(|answer| answer.value);
                }
            }
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        let times = |id: &JobId| listed.get(id).copied().unwrap_or(0);
        self.results_lost = plan.ids().iter().filter(|id| times(id) == 0).count() as u64;
        self.results_twice += plan.ids().iter().map(|id| times(id).saturating_sub(1)).sum::<u64>();
        Ok(())
    }

    /// Deletes the results, now that they are counted, and looks whether a row is left.
    pub(super) async fn consume(&mut self, scratch: &Scratch) -> Result<()> {
        scratch.queue().consume_process(&ProcessId::from(PROCESS)).await?;
        let left = scratch.queue().store().counts().await?.iter().map(|count| count.jobs).sum();
        self.rows_left = Some(left);
        Ok(())
    }

    /// Whether the demo showed what it is to show.
    pub(super) fn is_right(&self) -> bool {
        self.succeeded == self.jobs
            && self.results_lost == 0
            && self.results_twice == 0
            && self.report == Some(self.report_expected)
            && self.prompts.is_right()
            && self.batch.is_right()
            && self.sheet.is_right()
            && self.rows_left.unwrap_or(0) == 0
    }

    /// Prints it.
    pub(super) fn print(&self, app: &App) -> Result<()> {
        app.out.one(self, || {
            self.table().render(false)
                + &self.prompts.table().render(false)
                + &self.batch.line()
                + &self.sheet.line()
        })
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["TALLY", "COUNT", "NOTE"]);
        let mut row = |name: &str, count: u64, note: &str| {
            table.row(vec![Cell::new(name), Cell::number(count), Cell::new(note)]);
        };
        let repeated = match self.kill {
            Some(kill) => format!("cut off by the kill ({} in flight) and repeated", kill.in_flight),
            None => String::new(),
        };
        row("jobs", self.jobs, "");
        row("succeeded", self.succeeded, "");
        row("failed", self.failed, "");
        row("runs", self.runs, "");
        row("runs repeated", self.runs_repeated, &repeated);
        row("results lost", self.results_lost, "");
        row("results twice", self.results_twice, "");
        let right = if self.report == Some(self.report_expected) { "as expected" } else { "wrong" };
        row(
            "report",
            self.report.unwrap_or(0),
            &format!("{right}: the sum of all results is {}", self.report_expected),
        );
        match self.rows_left {
            Some(left) => row("rows left", left, "after consume"),
            None => row("rows left", self.jobs, "kept, as asked"),
        }
        row("time", whole_millis(self.elapsed), "ms, all below included");
        table
    }
}

fn millis<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(whole_millis(*duration))
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
