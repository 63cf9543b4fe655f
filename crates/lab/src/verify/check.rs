//! The proof: every claim of the queue about jobs that outlive their workers, checked against the store and the
//! jobs' own journal. The order of lines in the journal is the order of events.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use longhaul_queue::job::{JobDetail, JobResult};
use longhaul_queue::limits::{PAGE_MAX, RUNS_KEPT_MAX};
use longhaul_queue::state::RunOutcome;
use longhaul_queue::{JobId, ProcessId, State};

use super::journal::{Line, What};
use super::plan::{Answer, PROCESS, Plan, Planned, Way};
use super::report::Report;
use super::rows;
use crate::Scratch;

/// Everything known of one job.
struct Case<'a> {
    number: usize,
    planned: &'a Planned,
    /// Its row; `None` when it is lost.
    detail: Option<JobDetail>,
    /// Its lines, each with its place in the journal.
    lines: Vec<(usize, Line)>,
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("job {} ({})", self.number, self.planned.id)
    }

    fn fence(&self) -> Option<u64> {
        self.detail.as_ref().map(|detail| detail.job.fence)
    }

    fn of(&self, what: What) -> impl Iterator<Item = &(usize, Line)> {
        self.lines.iter().filter(move |(_, line)| line.what == what)
    }

    /// Where the run that the store accepted ended, by the journal.
    fn accepted_end(&self) -> Option<&(usize, Line)> {
        self.of(What::End).find(|(_, line)| Some(line.fence) == self.fence())
    }

    fn answer(&self) -> Option<Answer> {
        self.detail.as_ref()?.result.as_ref()?.to().ok()
    }

    fn outcomes(&self, outcome: RunOutcome) -> usize {
        let runs = self.detail.as_ref().map_or(&[][..], |detail| &detail.runs);
        runs.iter().filter(|run| run.outcome == outcome).count()
    }
}

/// The store and the journal, put together by job.
pub(super) struct Evidence<'a> {
    cases: Vec<Case<'a>>,
    strangers: Vec<String>,
}

impl<'a> Evidence<'a> {
    /// Reads the store.
    pub(super) async fn gather(scratch: &Scratch, plan: &'a Plan, lines: &[Line]) -> Result<Self> {
        let mut details = HashMap::new();
        let ids: Vec<JobId> = plan.jobs.iter().map(|planned| planned.id).collect();
        for page in ids.chunks(PAGE_MAX) {
            let found = scratch.queue().store().get(page.to_vec()).await?;
            details.extend(found.into_iter().map(|detail| (detail.job.id, detail)));
        }
        Ok(Self::of(details, plan, lines))
    }

    fn of(mut details: HashMap<JobId, JobDetail>, plan: &'a Plan, lines: &[Line]) -> Self {
        let case = |(number, planned): (usize, &'a Planned)| Case {
            number,
            planned,
            detail: details.remove(&planned.id),
            lines: Vec::new(),
        };
        let mut cases: Vec<Case<'a>> = plan.jobs.iter().enumerate().map(case).collect();
        let mut strangers = Vec::new();
        for (place, line) in lines.iter().enumerate() {
            match cases.get_mut(line.job) {
                Some(case) => case.lines.push((place, *line)),
                None => strangers.push(format!("the journal names a job {}", line.job)),
            }
        }
        Self { cases, strangers }
    }

    fn each(&self, check: impl Fn(&Case<'_>) -> Option<String>) -> Vec<String> {
        let tell = |case: &Case<'_>| check(case).map(|text| format!("{}: {text}", case.name()));
        self.cases.iter().filter_map(tell).collect()
    }
}

/// Adds every check to the report. Consumes the results on the way.
pub(super) async fn prove(report: &mut Report, scratch: &Scratch, evidence: &Evidence<'_>) -> Result<()> {
    count(report, evidence);
    for (check, violations) in violations(evidence) {
        report.check(check, violations);
    }
    let results = results(scratch).await?;
    report.check("results are in submission order, each once", in_submission_order(&results, evidence));
    consume(report, scratch, &results).await
}

/// Every check of single jobs, with what speaks against it.
fn violations(evidence: &Evidence<'_>) -> Vec<(&'static str, Vec<String>)> {
    vec![
        ("every job is known", evidence.strangers.clone()),
        ("every job succeeded", evidence.each(succeeded)),
        ("every result is that of the job's last run", evidence.each(last_run)),
        ("every result was accepted once", evidence.each(accepted_once)),
        ("every result and sum is right", evidence.each(right_value)),
        ("no run was handed out twice", evidence.each(handed_out_once)),
        ("no child started before its parents ended", evidence.each(|case| in_order(case, evidence))),
        ("no acknowledged checkpoint was lost", evidence.each(checkpoints_kept)),
        ("kills cost no attempt", evidence.each(budgets)),
        ("every claim is in the history", evidence.each(history)),
    ]
}

fn count(report: &mut Report, evidence: &Evidence<'_>) {
    let sum = |number: &dyn Fn(&Case<'_>) -> usize| evidence.cases.iter().map(number).sum::<usize>() as u64;
    let starts = sum(&|case| case.of(What::Start).count());
    let claims = evidence.cases.iter().filter_map(Case::fence).sum();
    let late = sum(&|case| {
        let newer = |line: &Line, place: usize| {
            case.of(What::Start).any(|(at, start)| start.fence > line.fence && *at < place)
        };
        case.of(What::End).filter(|(place, line)| newer(line, *place)).count()
    });
    report.fact("claims", claims);
    report.fact("runs that began", starts);
    report.fact("runs cut off and repeated", sum(&|case| case.outcomes(RunOutcome::Crash)));
    report.fact("runs that ended after a newer one had begun", late);
    report.fact("checkpoints acknowledged", sum(&|case| case.of(What::Saved).count()));
}

fn succeeded(case: &Case<'_>) -> Option<String> {
    match &case.detail {
        None => Some("is lost".to_owned()),
        Some(detail) if detail.job.state == State::Succeeded => None,
        Some(detail) => Some(format!("is {} ({:?})", detail.job.state, detail.job.error)),
    }
}

/// A stale writer's result would carry an older fence.
fn last_run(case: &Case<'_>) -> Option<String> {
    let (answer, fence) = (case.answer(), case.fence());
    if answer.is_some() && answer.map(|answer| answer.fence) == fence {
        return None;
    }
    Some(format!("the result is {answer:?}, the job's fence {fence:?}"))
}

fn accepted_once(case: &Case<'_>) -> Option<String> {
    let times = case.outcomes(RunOutcome::Done);
    (times != 1).then(|| format!("{times} runs are on record as done"))
}

fn right_value(case: &Case<'_>) -> Option<String> {
    let value = case.answer().map(|answer| answer.value);
    let written = case.accepted_end().map(|(_, line)| line.value);
    let right = value == Some(case.planned.value) && written == value;
    (!right).then(|| format!("stored {value:?}, written down {written:?}, expected {}", case.planned.value))
}

fn handed_out_once(case: &Case<'_>) -> Option<String> {
    let mut fences = HashSet::new();
    let twice = case.of(What::Start).find(|(_, line)| !fences.insert(line.fence));
    twice.map(|(_, line)| format!("fence {} began twice", line.fence))
}

fn in_order(case: &Case<'_>, evidence: &Evidence<'_>) -> Option<String> {
    let first = case.of(What::Start).map(|(place, _)| *place).min()?;
    case.planned.parents.iter().find_map(|parent| {
        let ended = evidence.cases[*parent].accepted_end().map(|(place, _)| *place);
        let before = ended.is_some_and(|ended| ended < first);
        (!before).then(|| format!("began at line {first}, its parent {parent} ended at {ended:?}"))
    })
}

/// Every run finds at least what earlier runs found, and what the store had acknowledged to them.
fn checkpoints_kept(case: &Case<'_>) -> Option<String> {
    let mut known: Vec<&Line> = Vec::new();
    for (_, line) in &case.lines {
        if matches!(line.what, What::Start | What::Saved) {
            known.push(line);
        }
    }
    // By fence and not by place: a paused run may write down late what it found early.
    known.sort_by_key(|line| (line.fence, line.what == What::Saved));
    let mut least = 0;
    for line in known {
        if line.what == What::Start && line.value < least {
            return Some(format!("fence {} found step {}, {least} was stored", line.fence, line.value));
        }
        least = least.max(line.value);
    }
    None
}

/// Neither a kill nor a lost lease spends what belongs to the handler.
fn budgets(case: &Case<'_>) -> Option<String> {
    let spent = case.detail.as_ref()?.job.spent;
    let attempts = u32::from(case.planned.way == Way::Retry);
    let continues = if case.planned.way == Way::Continue { Way::CONTINUES } else { 0 };
    let right = spent.attempt == attempts && u64::from(spent.continues) == continues;
    (!right).then(|| format!("{spent:?}, planned were {attempts} failures and {continues} continues"))
}

fn history(case: &Case<'_>) -> Option<String> {
    let detail = case.detail.as_ref()?;
    let expected = usize::try_from(detail.job.fence).unwrap_or(usize::MAX).min(RUNS_KEPT_MAX);
    let runs = detail.runs.len();
    (runs != expected).then(|| format!("claimed {} times, {runs} runs on record", detail.job.fence))
}

async fn results(scratch: &Scratch) -> Result<Vec<JobResult>> {
    let mut results = Vec::new();
    let mut after = 0;
    loop {
        let page = scratch.queue().results(&ProcessId::from(PROCESS), after, PAGE_MAX).await?;
        results.extend(page.items);
        match page.next {
            Some(next) => after = next,
            None => return Ok(results),
        }
    }
}

fn in_submission_order(results: &[JobResult], evidence: &Evidence<'_>) -> Vec<String> {
    let planned: Vec<JobId> = evidence.cases.iter().map(|case| case.planned.id).collect();
    let listed: Vec<JobId> = results.iter().map(|item| item.id).collect();
    let mut violations = Vec::new();
    if listed.len() != planned.len() {
        violations.push(format!("{} results are listed for {} jobs", listed.len(), planned.len()));
    }
    if let Some(place) = planned.iter().zip(&listed).position(|(planned, listed)| planned != listed) {
        violations.push(format!("place {place} is {}, expected {}", listed[place], planned[place]));
    }
    if !results.is_sorted_by_key(|item| item.seq) {
        violations.push("the places are not in order".to_owned());
    }
    violations
}

async fn consume(report: &mut Report, scratch: &Scratch, results: &[JobResult]) -> Result<()> {
    let queue = scratch.queue();
    let mut violations = Vec::new();
    let mut deleted = 0;
    for page in results.chunks(PAGE_MAX) {
        let answer = queue.consume(page.iter().map(|item| item.id).collect()).await?;
        deleted += answer.deleted;
        violations.extend(answer.refused.into_iter().map(|(id, error)| format!("job {id}: {error}")));
    }
    if deleted != results.len() as u64 {
        violations.push(format!("{deleted} of {} jobs were deleted", results.len()));
    }
    report.check("every result could be consumed", violations);
    let mut left: Vec<String> = queue
        .store()
        .counts()
        .await?
        .iter()
        .filter(|count| count.jobs > 0)
        .map(|count| format!("{count:?}"))
        .collect();
    left.extend(queue.store().process(ProcessId::from(PROCESS)).await?.map(|info| format!("{info:?}")));
    if let Some(file) = scratch.sqlite_file() {
        left.extend(rows::left(file)?);
    }
    report.check("no row is left after consume", left);
    if let Some(file) = scratch.sqlite_file() {
        report.check("SQLite finds the file sound", rows::damage(file)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
