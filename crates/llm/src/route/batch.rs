//! The calls of a batch's life, each in a span of its own: what a provider is asked about batches shows beside what it is
//! asked to answer.

use std::future::Future;

use tracing::{Instrument as _, Span};

use super::Route;
use crate::error::Result;
use crate::genai;
use crate::provider::{BatchInput, BatchProbe, BatchStatus, FoundBatch};

impl Route {
    /// Uploads a batch's input where the provider wants it as a file.
    pub async fn upload_batch(&self, input: &BatchInput) -> Result<Option<String>> {
        let span = self.batch_span("upload_batch", Some(input.items.len()));
        self.told(&span, self.provider().upload_batch(input)).await
    }

    /// Creates a batch; an error with `maybe_billed` means that it may exist.
    pub async fn create_batch(&self, input: &BatchInput, file: Option<&str>) -> Result<BatchStatus> {
        let span = self.batch_span("create_batch", Some(input.items.len()));
        let status = self.told(&span, self.provider().create_batch(input, file)).await?;
        genai::record_batch(&span, &status.id, Some(status.state));
        Ok(status)
    }

    /// Recent batches that may be the one looked for.
    pub async fn find_batches(&self, probe: &BatchProbe) -> Result<Vec<FoundBatch>> {
        let span = self.batch_span("find_batches", Some(probe.requests));
        self.told(&span, self.provider().find_batches(probe)).await
    }

    /// Where a batch stands.
    pub async fn poll_batch(&self, id: &str) -> Result<BatchStatus> {
        let span = self.batch_span("poll_batch", None);
        genai::record_batch(&span, id, None);
        let status = self.told(&span, self.provider().poll_batch(id)).await?;
        genai::record_batch(&span, id, Some(status.state));
        Ok(status)
    }

    /// Asks a batch to end.
    pub async fn cancel_batch(&self, id: &str) -> Result<()> {
        let span = self.batch_span("cancel_batch", None);
        genai::record_batch(&span, id, None);
        self.told(&span, self.provider().cancel_batch(id)).await
    }

    /// The span of reading a batch's results, for whoever reads them: that takes as long as their reader does.
    pub fn results_span(&self, id: &str) -> Span {
        let span = self.batch_span("batch_results", None);
        genai::record_batch(&span, id, None);
        span
    }

    fn batch_span(&self, verb: &'static str, requests: Option<usize>) -> Span {
        genai::batch_span(self.caps(), verb, self.model(), requests)
    }

    async fn told<T>(&self, span: &Span, call: impl Future<Output = Result<T>>) -> Result<T> {
        let result = call.instrument(span.clone()).await;
        self.note(&result);
        if let Err(error) = &result {
            genai::record_error(span, error);
        }
        result
    }
}
