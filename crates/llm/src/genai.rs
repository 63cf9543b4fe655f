//! Spans of calls under the names of OpenTelemetry's GenAI conventions. The conventions still move: this is the only
//! file that knows their names. Contents of messages are never recorded.

use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::error::Error;
use crate::money::NanoUsd;
use crate::provider::{BatchState, Caps};
use crate::types::{Answer, ChatRequest, EmbedRequest, Request, Stop, Usage};

/// An attribute that the conventions want as a list; fields of spans are single values.
pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";

/// The span of one call.
pub fn call_span(caps: &Caps, request: &Request) -> Span {
    match request {
        Request::Chat(request) => chat_span(caps, request),
        Request::Embed(request) => embed_span(caps, request),
    }
}

fn embed_span(caps: &Caps, request: &EmbedRequest) -> Span {
    info_span!(
        "embeddings",
        otel.name = format!("embeddings {}", request.model),
        otel.kind = "client",
        otel.status_code = Empty,
        gen_ai.operation.name = "embeddings",
        gen_ai.provider.name = provider_name(caps.dialect),
        gen_ai.request.model = request.model,
        gen_ai.embeddings.dimension.count = request.dimensions,
        gen_ai.response.model = Empty,
        gen_ai.usage.input_tokens = Empty,
        error.type = Empty,
        http.response.status_code = Empty,
        longhaul.cost.usd = Empty,
    )
}

fn chat_span(caps: &Caps, request: &ChatRequest) -> Span {
    info_span!(
        "chat",
        otel.name = format!("chat {}", request.model),
        otel.kind = "client",
        otel.status_code = Empty,
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = provider_name(caps.dialect),
        gen_ai.request.model = request.model,
        gen_ai.request.max_tokens = request.max_tokens,
        gen_ai.request.temperature = request.temperature,
        gen_ai.output.type = if request.schema.is_some() { "json" } else { "text" },
        gen_ai.response.id = Empty,
        gen_ai.response.model = Empty,
        gen_ai.response.finish_reasons = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.usage.cache_read.input_tokens = Empty,
        gen_ai.usage.cache_creation.input_tokens = Empty,
        gen_ai.usage.reasoning.output_tokens = Empty,
        error.type = Empty,
        http.response.status_code = Empty,
        longhaul.cost.usd = Empty,
    )
}

/// The span of a call about a batch. The conventions have no names for these yet: the verbs are those of our seam.
pub fn batch_span(caps: &Caps, verb: &'static str, model: &str, requests: Option<usize>) -> Span {
    info_span!(
        "batch",
        otel.name = format!("{verb} {model}"),
        otel.kind = "client",
        otel.status_code = Empty,
        gen_ai.operation.name = verb,
        gen_ai.provider.name = provider_name(caps.dialect),
        gen_ai.request.model = model,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.usage.cache_read.input_tokens = Empty,
        gen_ai.usage.cache_creation.input_tokens = Empty,
        gen_ai.usage.reasoning.output_tokens = Empty,
        error.type = Empty,
        http.response.status_code = Empty,
        longhaul.batch.id = Empty,
        longhaul.batch.requests = requests,
        longhaul.batch.state = Empty,
        longhaul.cost.usd = Empty,
    )
}

/// Writes which batch a span is about, and where it stands.
pub fn record_batch(span: &Span, id: &str, state: Option<BatchState>) {
    span.record("longhaul.batch.id", id);
    if let Some(state) = state {
        span.record("longhaul.batch.state", format!("{state:?}").to_lowercase());
    }
}

/// Writes an answer to its span, which passes over what it has no field for. The conventions count cached tokens as
/// input tokens too.
pub fn record_answer(span: &Span, answer: &Answer, cost: Option<NanoUsd>) {
    span.record("gen_ai.response.id", answer.id.as_str());
    span.record("gen_ai.response.model", answer.model.as_str());
    span.record(FINISH_REASONS, finish_reason(answer.stop));
    record_usage(span, &answer.usage, cost);
}

/// Writes tokens and their cost to a span, of one answer or of all in a batch.
pub fn record_usage(span: &Span, usage: &Usage, cost: Option<NanoUsd>) {
    span.record("gen_ai.usage.input_tokens", usage.input());
    span.record("gen_ai.usage.output_tokens", usage.output());
    span.record("gen_ai.usage.cache_read.input_tokens", usage.cache_read);
    span.record("gen_ai.usage.cache_creation.input_tokens", usage.cache_write);
    span.record("gen_ai.usage.reasoning.output_tokens", usage.reasoning);
    if let Some(cost) = cost {
        span.record("longhaul.cost.usd", cost.as_dollars());
    }
}

/// Writes an error to its span.
pub fn record_error(span: &Span, error: &Error) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", error.class.as_str());
    if let Some(status) = error.status {
        span.record("http.response.status_code", status);
    }
}

/// The words that providers use most.
fn finish_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "stop",
        Stop::Length => "length",
        Stop::ToolCalls => "tool_calls",
        Stop::Refused => "content_filter",
    }
}

fn provider_name(dialect: &str) -> &str {
    match dialect {
        "gemini" => "gcp.gemini",
        other => other,
    }
}
