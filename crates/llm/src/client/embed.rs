//! Vectors of texts, booked like any other call.

use std::future::Future;

use tokio::time::Instant;

use super::{Ask, Llm, Stop};
use crate::error::Result;
use crate::ledger::Spent;
use crate::rate::Settled;
use crate::route::Billing;
use crate::types::{ChatRequest, EmbedRequest, Embeddings, Message, Role};

impl Llm {
    /// Embeds texts with the model that `ask` names. Neither its request nor the response cache is looked at.
    pub async fn embed(
        &self,
        ask: Ask,
        request: &EmbedRequest,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Embeddings> {
        let mut stop: Stop<'_> = Box::pin(stop);
        let route = ask.route.clone();
        // What is read is priced like a conversation of these texts that is not answered.
        let priced = ChatRequest {
            model: request.model.clone(),
            messages: request.inputs.iter().map(|text| Message::text(Role::User, text)).collect(),
            max_tokens: Some(0),
            ..ChatRequest::default()
        };
        let mut tries = 0;
        loop {
            let (permit, name) = self.admit(&ask, (&route, &priced), (0, tries), &mut stop).await?;
            let started = Instant::now();
            match route.provider().embed(request).await {
                Ok(reply) => {
                    let (usage, latency) = (reply.value.usage, started.elapsed());
                    permit.settle(&Settled::Answered { usage, rate: reply.rate, latency });
                    let cost = route.cost(&usage, Billing::Sync);
                    self.ledger().settle(&name, Spent { usage, cost, answers: 1 }).await?;
                    return Ok(reply.value);
                }
                Err(error) => {
                    permit.settle(&Settled::of_error(&error, started.elapsed()));
                    self.unbook(&name, &route, &error).await?;
                    self.goes_on(&ask, &route, error, tries)?;
                    tries += 1;
                }
            }
        }
    }
}
