//! What an abandoned batch cost, by the provider's own results.

use futures_util::StreamExt as _;

use super::Llm;
use crate::error::Result;
use crate::ledger::{PartSpent, Resolved, Spent, UnknownCall};
use crate::money::NanoUsd;
use crate::provider::{BatchProbe, LineOutcome};
use crate::route::Billing;

impl Llm {
    /// Books a batch of unknown end by its results, if the provider still has them. None where there is no such batch, or it
    /// has not ended.
    pub async fn book_by_results(&self, call: &UnknownCall, now_ms: i64) -> Result<Option<Resolved>> {
        let route = self.route(&call.profile, &call.model).await?;
        // It was created on its day or later.
        let day = call.day.parse::<jiff::civil::Date>().unwrap_or(jiff::civil::Date::ZERO);
        let since = day.to_zoned(jiff::tz::TimeZone::UTC).map_or(0, |day| day.timestamp().as_millisecond());
        let requests = usize::try_from(call.requests).unwrap_or(usize::MAX);
        let probe = BatchProbe { tag: call.call.clone(), file: None, sent_at_ms: since, requests };
        let found = route.find_batches(&probe).await?;
        let ours = found.iter().find(|found| found.certain && found.status.state.is_terminal());
        let Some(id) = ours.map(|found| found.status.id.as_str()) else { return Ok(None) };
        let mut lines = route.provider().batch_results(id).await?;
        let mut resolved = Resolved {
            calls: call.requests,
            ceiling: call.ceiling.unwrap_or(NanoUsd::ZERO),
            cost: NanoUsd::ZERO,
        };
        while let Some(line) = lines.next().await {
            let line = line?;
            let answer = match &line.outcome {
                LineOutcome::Answered(answer) => Some(&**answer),
                LineOutcome::Failed(error) => error.answer.as_deref(),
                LineOutcome::NotRun => None,
            };
            let (Some(answer), Some(name)) = (answer, &line.custom_id) else { continue };
            // Parts are booked by the number at the end of a line's name.
            let part = name.rsplit('-').next().unwrap_or(name).to_owned();
            let cost = route.cost(&answer.usage, Billing::Batch);
            let spent = Spent { usage: answer.usage, cost, answers: 1 };
            if self.ledger().settle_part(&call.call, PartSpent { part, spent, ceiling_share: cost }).await? {
                resolved.cost = resolved.cost.saturating_add(cost.unwrap_or(NanoUsd::ZERO));
            }
        }
        self.ledger().close(&call.call, now_ms).await?;
        self.ledger().note_results(&call.call, resolved, now_ms).await?;
        Ok(Some(resolved))
    }
}
