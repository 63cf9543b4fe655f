//! What an ended batch brought, handed to the requests that wait for it. Lines are matched by id, never by position.
//! Repeatable: a request that was told does not wait any more, and a line that was booked is not booked again.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use longhaul_llm::ledger::LedgerError;
use longhaul_llm::provider::{BatchLine, BatchState, LineOutcome};
use longhaul_llm::{
    Answer, Billing, Class, Error as LlmError, NanoUsd, PartSpent, Route, Spent, Usage, genai,
};
use longhaul_pipeline::numbered;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::store::Signal;
use longhaul_queue::{JobId, Json, Outcome};
use serde_json::Value;
use tracing::{Instrument as _, Span, info, warn};

use super::batch::{self, BatchPayload, Ending, LastWord, Life, Next, ROUNDS_MAX, Step, done};
use super::request::{self, RequestPayload, Told};
use super::{Error, Result};

/// Requests told at once.
const TELLERS: usize = 64;
/// Wait for requests that were not claimed yet and so do not wait yet.
const NOT_PARKED_WAIT: Duration = Duration::from_secs(1);

/// What became of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Once,
    Twice,
}

/// Hands out all results of an ended batch.
pub(super) async fn all(
    life: &Life<'_>,
    id: &str,
    state: BatchState,
    ending: Option<Ending>,
) -> Result<Next> {
    let span = life.live.route.results_span(id);
    let (seen, not_run) = traced(&span, count_lines(life, id)).await?;
    let (usage, cost_usd) = traced(&span, tell_lines(life, id, &seen)).await?;
    genai::record_usage(&span, &usage, cost_usd);
    drop(span); // All is read; what is told from here on concerns the queue alone.
    let (missing, not_run) = tell_the_rest(life, state, ending, &seen, not_run).await?;
    if let Some(waiting) = not_told_yet(life, &not_run).await? {
        info!(waiting, "some requests do not wait for their batch yet");
        let step = Step::Ended { id: id.to_owned(), state, ending, missing: None };
        return life.wait(&step, NOT_PARKED_WAIT);
    }
    let now = life.now().as_millis();
    match life.prompts.llm().ledger().close(&life.tag, now).await {
        Ok(_) | Err(LedgerError::NotReserved(_)) => {}
        Err(error) => return Err(LlmError::from(error).into()),
    }
    if !not_run.is_empty() {
        life.context.enqueue(batch::new_job(&next_round(life.payload, &not_run))?)?;
    }
    info!(batch = id, answered = seen.len(), missing, again = not_run.len(), "batch harvested");
    Ok(Next::Wait(done()))
}

/// Something within the span of the results.
async fn traced<T>(span: &Span, reading: impl Future<Output = Result<T>>) -> Result<T> {
    let read = reading.instrument(span.clone()).await;
    if let Err(Error::Llm(error)) = &read {
        genai::record_error(span, error);
    }
    read
}

/// Which members have a line, which have more than one, and which were never run.
async fn count_lines(life: &Life<'_>, id: &str) -> Result<(HashMap<u64, Seen>, Vec<u64>)> {
    let (mut seen, mut not_run) = (HashMap::new(), Vec::new());
    let mut unknown = 0_u64;
    let mut lines = life.live.route.provider().batch_results(id).await?;
    while let Some(line) = lines.next().await {
        let line = line?;
        match index_of(life, &line) {
            Some(index) => {
                if matches!(line.outcome, LineOutcome::NotRun) {
                    not_run.push(index);
                }
                seen.entry(index).and_modify(|seen| *seen = Seen::Twice).or_insert(Seen::Once);
            }
            None => unknown += 1,
        }
    }
    if unknown > 0 {
        warn!(batch = id, unknown, "results of requests that are not in this batch are ignored");
        life.context.log(format!("{unknown} results of unknown requests ignored"));
    }
    Ok((seen, not_run))
}

fn index_of(life: &Life<'_>, line: &BatchLine) -> Option<u64> {
    life.index_of(line.custom_id.as_deref()?)
}

/// What the lines of a batch used, and what they cost where there is a price.
type Bill = (Usage, Option<NanoUsd>);

/// Books and hands out each line whose member has one line only.
async fn tell_lines(life: &Life<'_>, id: &str, seen: &HashMap<u64, Seen>) -> Result<Bill> {
    let lines = life.live.route.provider().batch_results(id).await?;
    let others = &other_routes(life).await?;
    let told = lines.map(|line| async move {
        let line = line?;
        let Some(index) = index_of(life, &line) else { return Ok((Usage::default(), Some(NanoUsd::ZERO))) };
        let route = others.get(&index).unwrap_or(&life.live.route);
        let usage = answer_of(&line.outcome).map(|answer| answer.usage).unwrap_or_default();
        let bill = (usage, route.cost(&usage, Billing::Batch));
        let mut told = match (seen.get(&index), line.outcome) {
            (Some(Seen::Twice), outcome) => {
                book(life, (index, bill.1), &outcome).await?;
                failed("more than one result in the batch")
            }
            (_, LineOutcome::NotRun) => return Ok(bill),
            (_, outcome) => {
                let cost_usd = book(life, (index, bill.1), &outcome).await?;
                told_of(outcome, cost_usd)
            }
        };
        let mut value = Json::of(&told)?;
        if let Told::Answer { answer, .. } = &mut told
            && request::too_large(&value, life.prompts.queue().limits()).is_some()
            && answer.own.take().is_some()
        {
            value = Json::of(&told)?;
        }
        if let Some(message) = request::too_large(&value, life.prompts.queue().limits()) {
            // Nobody could be told, and the batch would never end.
            value = Json::of(&Told::Failed { class: Class::BadRequest, message })?;
        }
        tell_value(life, vec![life.live.id.job(index)], value).await?;
        Ok(bill)
    });
    let mut told = told.buffer_unordered(TELLERS);
    let (mut usage, mut cost) = (Usage::default(), Some(NanoUsd::ZERO));
    while let Some(told) = told.next().await {
        let told: Result<Bill> = told;
        let (own, own_cost) = told?;
        usage += own;
        cost = cost.zip(own_cost).map(|(sum, own)| sum.saturating_add(own));
    }
    Ok((usage, cost.filter(|_| life.live.route.price().is_some())))
}

/// The routes of requests that name another model than their run, by the number of the request.
async fn other_routes(life: &Life<'_>) -> Result<HashMap<u64, Route>> {
    let mut routes = HashMap::new();
    if !life.payload.mixed {
        return Ok(routes);
    }
    let ids: Vec<JobId> = life.payload.indexes().map(|index| life.live.id.job(index)).collect();
    for page in ids.chunks(PAGE_MAX) {
        for detail in life.prompts.queue().store().get(page.to_vec()).await? {
            let payload: RequestPayload = detail.payload.to()?;
            let model = payload.body.get("model").and_then(Value::as_str).unwrap_or_default();
            let route = life.prompts.route_of(life.live, model).await?;
            routes.insert(numbered::number(detail.job.id), route);
        }
    }
    Ok(routes)
}

/// The answer of a line, also of one that came with an error.
fn answer_of(outcome: &LineOutcome) -> Option<&Answer> {
    match outcome {
        LineOutcome::Answered(answer) => Some(answer),
        LineOutcome::Failed(error) => error.answer.as_deref(),
        LineOutcome::NotRun => None,
    }
}

/// Writes down what a line cost. A part is booked once, however often it is read.
async fn book(
    life: &Life<'_>,
    (index, cost): (u64, Option<NanoUsd>),
    outcome: &LineOutcome,
) -> Result<Option<NanoUsd>> {
    let Some(answer) = answer_of(outcome) else { return Ok(None) };
    let spent = Spent { usage: answer.usage, cost, answers: 1 };
    // What the batch reserved beyond its cost is freed when it is closed.
    let part = PartSpent { part: index.to_string(), spent, ceiling_share: cost };
    match life.prompts.llm().ledger().settle_part(&life.tag, part).await {
        Ok(_) => Ok(cost),
        // It was sent by a process with another file of spending: the answer is worth more than the entry.
        Err(LedgerError::NotReserved(call)) => {
            warn!(call, "what a batch cost is not booked here: it was reserved in another file");
            Ok(cost)
        }
        Err(error) => Err(LlmError::from(error).into()),
    }
}

fn told_of(outcome: LineOutcome, cost_usd: Option<NanoUsd>) -> Told {
    match outcome {
        LineOutcome::Answered(answer) => Told::Answer { answer, cost_usd },
        LineOutcome::NotRun => Told::Sync,
        LineOutcome::Failed(error) => match error.class {
            // What time heals is asked again on its own.
            Class::Throttled
            | Class::Overloaded
            | Class::Unreachable
            | Class::Network
            | Class::Auth
            | Class::Quota => Told::Sync,
            _ => Told::Failed { class: error.class, message: error.message },
        },
    }
}

fn failed(message: &str) -> Told {
    Told::Failed { class: Class::BadShape, message: message.to_owned() }
}

/// Members without a line of their own: missing ones fail; what was never run is cancelled, sent one by one, or left to
/// the next batch, which is answered here by their numbers.
async fn tell_the_rest(
    life: &Life<'_>,
    state: BatchState,
    ending: Option<Ending>,
    seen: &HashMap<u64, Seen>,
    mut not_run: Vec<u64>,
) -> Result<(usize, Vec<u64>)> {
    let absent: Vec<u64> = life.payload.indexes().filter(|index| !seen.contains_key(index)).collect();
    let missing = if state == BatchState::Completed {
        tell(life, ids(life, &absent), &failed("missing in batch result")).await?;
        absent.len()
    } else {
        // An expired or cancelled batch need not mention what it never ran.
        not_run.extend(absent);
        0
    };
    not_run.sort_unstable();
    not_run.dedup();
    match ending {
        Some(Ending::Cancel) => {
            cancel(life, &not_run).await?;
            not_run.clear();
        }
        _ if ending == Some(Ending::Deadline) || life.payload.round + 1 >= ROUNDS_MAX => {
            tell(life, ids(life, &not_run), &Told::Sync).await?;
            not_run.clear();
        }
        _ => {}
    }
    Ok((missing, not_run))
}

/// How many members were not told since they have not parked yet; `None` when all were.
async fn not_told_yet(life: &Life<'_>, not_run: &[u64]) -> Result<Option<usize>> {
    let key = request::batch_key(&life.live.id, life.payload.chunk);
    let told: Vec<u64> =
        life.payload.indexes().filter(|index| not_run.binary_search(index).is_err()).collect();
    let mut waiting = 0;
    for page in ids(life, &told).chunks(PAGE_MAX) {
        let details = life.prompts.queue().store().get(page.to_vec()).await?;
        // Not run at all yet, or parked for this batch since we told it.
        let late = details.iter().filter(|detail| {
            let job = &detail.job;
            let parked_for_us = job.park.as_ref().is_some_and(|park| park.key == key);
            parked_for_us || (!job.state.is_terminal() && job.spent.parks == 0)
        });
        waiting += late.count();
    }
    Ok((waiting > 0).then_some(waiting))
}

fn ids(life: &Life<'_>, indexes: &[u64]) -> Vec<JobId> {
    indexes.iter().map(|index| life.live.id.job(*index)).collect()
}

async fn tell(life: &Life<'_>, ids: Vec<JobId>, told: &Told) -> Result<()> {
    tell_value(life, ids, Json::of(told)?).await
}

async fn tell_value(life: &Life<'_>, ids: Vec<JobId>, value: Json) -> Result<()> {
    let key = request::batch_key(&life.live.id, life.payload.chunk);
    for page in ids.chunks(PAGE_MAX) {
        life.prompts.queue().unpark_waiting(&key, page.to_vec(), Signal::Resume(value.clone())).await?;
    }
    Ok(())
}

async fn cancel(life: &Life<'_>, indexes: &[u64]) -> Result<()> {
    let now = life.now();
    for page in ids(life, indexes).chunks(PAGE_MAX) {
        life.prompts.queue().store().cancel(page.to_vec(), now).await?;
    }
    Ok(())
}

/// Tells all members what becomes of them when the batch brings no answers.
pub(super) async fn last_word(life: &Life<'_>, word: &LastWord, maybe_billed: bool) -> Result<Next> {
    let all: Vec<u64> = life.payload.indexes().collect();
    match word {
        LastWord::Cancelled => cancel(life, &all).await?,
        LastWord::Alone | LastWord::Refused { .. } => tell(life, ids(life, &all), &Told::Sync).await?,
        LastWord::Failed { class, message } => {
            let told = Told::Failed { class: *class, message: message.clone() };
            tell(life, ids(life, &all), &told).await?;
        }
    }
    if not_told_yet(life, &[]).await?.is_some() {
        let step = Step::Over { word: word.clone(), maybe_billed };
        return life.wait(&step, NOT_PARKED_WAIT);
    }
    let (ledger, tag, now) = (life.prompts.llm().ledger(), &life.tag, life.now().as_millis());
    let booked = match maybe_billed {
        true => ledger.mark_unknown(tag, now).await,
        false => ledger.release(tag, now).await,
    };
    booked.map_err(LlmError::from)?;
    Ok(Next::Wait(match word {
        LastWord::Refused { why } => {
            let text =
                format!("its requests were sent one by one: the provider did not take the batch: {why}");
            Outcome::Fail(JobError::new(Reason::Failure, text))
        }
        LastWord::Cancelled | LastWord::Alone | LastWord::Failed { .. } => done(),
    }))
}

/// Whether the first result of a batch carries an id of ours.
pub(super) async fn has_our_ids(life: &Life<'_>, id: &str) -> Result<bool> {
    let mut lines = life.live.route.provider().batch_results(id).await?;
    Ok(match lines.next().await {
        Some(line) => index_of(life, &line?).is_some(),
        None => false,
    })
}

/// The batch that sends the rest again.
fn next_round(payload: &BatchPayload, indexes: &[u64]) -> BatchPayload {
    BatchPayload { round: payload.round + 1, members: ranges(indexes), ..payload.clone() }
}

/// Sorted numbers as inclusive ranges.
fn ranges(sorted: &[u64]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for index in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn ranges_of_numbers() {
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[5]), [(5, 5)]);
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), [(1, 3), (7, 7), (9, 10)]);
    }
}
