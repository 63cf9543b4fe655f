//! What a batch answered, line by line in the client's own form, read from the run's results: also while it goes on.

use futures_util::stream::{self, Stream};
use longhaul_llm::provider::{BatchLine, LineOutcome};
use longhaul_llm::wire::{LineContext, anthropic, openai, responses};
use longhaul_llm::{Class, Error as LlmError, Usage};
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::{JobDetail, State};
use serde_json::Value;

use super::input::RESPONSES;
use super::{Batch, Form, SdkBatches, run_of};
use crate::Result;
use crate::request::{RequestPayload, RequestResult};

/// Which lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those with an answer.
    Answers,
    /// Those without.
    Errors,
    /// All.
    All,
}

/// What all lines come to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    /// What the answers used.
    pub usage: Usage,
    /// Bytes of the lines with an answer, and of those without.
    pub bytes: (u64, u64),
}

/// A line as a client reads it.
struct Line {
    /// What the answer used; `None` without one.
    usage: Option<Usage>,
    text: String,
}

impl SdkBatches {
    /// Lines as they are stored, each with its line break, a page at a time.
    pub fn lines(&self, batch: Batch, which: Which) -> impl Stream<Item = Result<String>> + Send + use<> {
        let batches = self.clone();
        stream::try_unfold(Some(0), move |after| {
            let (batches, batch) = (batches.clone(), batch.clone());
            async move {
                let Some(after) = after else { return Ok(None) };
                let (lines, next) = batches.page(&batch, which, after).await?;
                Ok(Some((lines.into_iter().map(|line| line.text).collect(), next)))
            }
        })
    }

    /// Reads all lines, once.
    pub(super) async fn sums(&self, batch: &Batch) -> Result<Sums> {
        let mut sums = Sums::default();
        let mut after = Some(0);
        while let Some(from) = after {
            let (lines, next) = self.page(batch, Which::All, from).await?;
            for line in lines {
                let bytes = line.text.len() as u64;
                match line.usage {
                    Some(usage) => {
                        sums.usage += usage;
                        sums.bytes.0 += bytes;
                    }
                    None => sums.bytes.1 += bytes,
                }
            }
            after = next;
        }
        Ok(sums)
    }

    async fn page(&self, batch: &Batch, which: Which, after: i64) -> Result<(Vec<Line>, Option<i64>)> {
        let page = self.queue().results(&run_of(batch.id).process(), after, PAGE_MAX).await?;
        let wanted = |state: State| match which {
            Which::Answers => state == State::Succeeded,
            Which::Errors => state != State::Succeeded,
            Which::All => true,
        };
        let mut lines = Vec::with_capacity(page.items.len());
        // Only a request that has no answer must be asked for its name.
        let nameless = page.items.iter().filter(|item| item.state != State::Succeeded && wanted(item.state));
        let details = self.queue().store().get(nameless.map(|item| item.id).collect()).await?;
        let mut details = details.into_iter().peekable();
        for item in page.items.into_iter().filter(|item| wanted(item.state)) {
            let request_id = format!("req_{}", item.id.to_string().replace('-', ""));
            let mut usage = None;
            let line = match item.result {
                Some(result) if item.state == State::Succeeded => {
                    let result: RequestResult = result.to()?;
                    usage = Some(result.answer.usage);
                    BatchLine {
                        custom_id: result.custom_id,
                        outcome: LineOutcome::Answered(Box::new(result.answer)),
                    }
                }
                _ => {
                    let detail = details.next_if(|detail| detail.job.id == item.id);
                    let error = item.error.as_ref();
                    BatchLine { custom_id: custom_id(detail)?, outcome: outcome(item.state, error) }
                }
            };
            let context = LineContext {
                request_id: &request_id,
                created_s: batch.created_at.as_millis() / 1_000,
                cancelled: batch.kept.expired_at.is_none(),
            };
            lines.push(Line { usage, text: format!("{}\n", line_json(batch, &line, &context)) });
        }
        Ok((lines, page.next))
    }
}

fn line_json(batch: &Batch, line: &BatchLine, context: &LineContext<'_>) -> Value {
    match (batch.payload.form, &line.outcome) {
        (Form::Anthropic, _) => anthropic::line_to_json(line, context),
        (Form::OpenAi, LineOutcome::Answered(answer)) if batch.payload.endpoint == RESPONSES => {
            let mut value = openai::line_to_json(line, context);
            value["response"]["body"] =
                responses::response_of_line(answer, context.request_id, context.created_s);
            value
        }
        (Form::OpenAi, _) => openai::line_to_json(line, context),
    }
}

fn custom_id(detail: Option<JobDetail>) -> Result<Option<String>> {
    match detail {
        Some(detail) => Ok(detail.payload.to::<RequestPayload>()?.custom_id),
        // Deleted between two reads.
        None => Ok(None),
    }
}

fn outcome(state: State, error: Option<&JobError>) -> LineOutcome {
    match (state, error) {
        (State::Cancelled, _) => LineOutcome::NotRun,
        (_, Some(error)) if matches!(error.reason, Reason::Cancelled | Reason::Expired) => {
            LineOutcome::NotRun
        }
        (_, Some(error)) => LineOutcome::Failed(Box::new(error_of(&error.text))),
        (_, None) => LineOutcome::Failed(Box::new(LlmError::new(Class::BadRequest, "the request failed"))),
    }
}

/// The error that a failed request's text tells of: `class (HTTP 400): message`.
fn error_of(text: &str) -> LlmError {
    let (head, message) = text.split_once(": ").unwrap_or(("", text));
    let (word, rest) = head.split_once(' ').unwrap_or((head, ""));
    let Some(class) = Class::ALL.into_iter().find(|class| class.as_str() == word) else {
        return LlmError::new(Class::Overloaded, text);
    };
    let status = rest
        .strip_prefix("(HTTP ")
        .and_then(|rest| rest.strip_suffix(')'))
        .and_then(|code| code.parse().ok());
    LlmError { status, ..LlmError::new(class, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_request_keeps_class_and_status() {
        let rows = [
            ("bad_request (HTTP 422): no such field: x", Class::BadRequest, Some(422), "no such field: x"),
            ("network: connection reset", Class::Network, None, "connection reset"),
            ("the handler panicked: oh", Class::Overloaded, None, "the handler panicked: oh"),
        ];
        for (text, class, status, message) in rows {
            let error = error_of(text);
            assert_eq!((error.class, error.status, error.message.as_str()), (class, status, message));
        }
    }
}
