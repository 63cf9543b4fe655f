//! Spans in the JSON form of OTLP. Runs of jobs get the names of OpenTelemetry's messaging conventions here, and only
//! here; calls of models bring theirs from `longhaul_llm::genai`.

use std::time::Instant;

use longhaul_llm::genai;
use serde_json::{Value as Json, json};

use super::spans::{Closed, Value};

const INTERNAL: u8 = 1;
const CONSUMER: u8 = 5;
const STATUS_ERROR: u8 = 2;

/// The span that the queue opens around a run.
const RUN: &str = "run";

/// Names of a run's fields abroad.
const RUN_NAMES: [(&str, &str); 8] = [
    ("queue", "messaging.destination.name"),
    ("job_id", "messaging.message.id"),
    ("process_id", "messaging.message.conversation_id"),
    ("worker", "messaging.client.id"),
    ("kind", "longhaul.job.kind"),
    ("attempt", "longhaul.job.attempt"),
    ("fence", "longhaul.job.fence"),
    ("state", "longhaul.job.state"),
];

/// The wall clock at one moment; all others are counted from there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anchor {
    pub(super) at: Instant,
    pub(super) unix_nanos: u64,
}

impl Anchor {
    /// OTLP's JSON has 64-bit numbers as texts. What began before the anchor did so by less than its start-up.
    fn nanos(self, moment: Instant) -> String {
        let since = |later: Instant, earlier: Instant| {
            u64::try_from(later.saturating_duration_since(earlier).as_nanos()).unwrap_or(u64::MAX)
        };
        let nanos = self.unix_nanos.saturating_add(since(moment, self.at));
        nanos.saturating_sub(since(self.at, moment)).to_string()
    }
}

/// A request to `/v1/traces`.
pub(super) fn body(spans: &[Closed], service_name: &str, anchor: Anchor) -> Vec<u8> {
    let resource = [
        attribute("service.name", &text(service_name)),
        attribute("service.version", &text(env!("CARGO_PKG_VERSION"))),
        attribute("telemetry.sdk.language", &text("rust")),
        attribute("telemetry.sdk.name", &text("longhaul")),
    ];
    let spans: Vec<Json> = spans.iter().map(|closed| span(closed, anchor)).collect();
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{
            "scope": { "name": "longhaul", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans,
        }],
    }] });
    body.to_string().into_bytes()
}

fn span(closed: &Closed, anchor: Anchor) -> Json {
    let is_run = closed.name == RUN;
    let mut attributes = Vec::with_capacity(closed.fields.0.len() + 3);
    if is_run {
        attributes.push(attribute("messaging.system", &text("longhaul")));
        attributes.push(attribute("messaging.operation.name", &text("process")));
        attributes.push(attribute("messaging.operation.type", &text("process")));
    }
    for (name, value) in &closed.fields.0 {
        // Those that begin so are about the span and say nothing of what it was; the slice is for the log.
        if name.starts_with("otel.") || *name == "slice" {
            continue;
        }
        let known = RUN_NAMES.iter().find(|(own, _)| is_run && own == name);
        attributes.push(attribute(known.map_or(name, |(_, abroad)| abroad), &any_value(name, value)));
    }
    let fields = &closed.fields;
    let name = match fields.text("otel.name") {
        Some(name) => name.to_owned(),
        None if is_run => format!("process {}", fields.text("queue").unwrap_or_default()),
        None => closed.name.to_owned(),
    };
    let mut span = json!({
        "traceId": format!("{:032x}", closed.own.trace_id),
        "spanId": format!("{:016x}", closed.own.span_id),
        "flags": closed.own.flags,
        "name": name,
        "kind": kind(fields.text("otel.kind"), is_run),
        "startTimeUnixNano": anchor.nanos(closed.started),
        "endTimeUnixNano": anchor.nanos(closed.ended),
        "attributes": attributes,
    });
    if let Some(parent) = closed.parent {
        span["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(link) = closed.link {
        span["links"] = json!([{
            "traceId": format!("{:032x}", link.trace_id),
            "spanId": format!("{:016x}", link.span_id),
        }]);
    }
    if fields.text("otel.status_code") == Some("ERROR") {
        span["status"] = json!({ "code": STATUS_ERROR });
    }
    span
}

fn kind(named: Option<&str>, is_run: bool) -> u8 {
    match named {
        Some("server") => 2,
        Some("client") => 3,
        Some("producer") => 4,
        Some("consumer") => CONSUMER,
        _ if is_run => CONSUMER,
        _ => INTERNAL,
    }
}

fn attribute(key: &str, value: &Json) -> Json {
    json!({ "key": key, "value": value })
}

fn text(text: &str) -> Json {
    json!({ "stringValue": text })
}

fn any_value(name: &str, value: &Value) -> Json {
    let single = match value {
        Value::Text(value) => text(value),
        Value::Int(value) => json!({ "intValue": value.to_string() }),
        Value::Float(value) => json!({ "doubleValue": value }),
        Value::Bool(value) => json!({ "boolValue": value }),
    };
    if name == genai::FINISH_REASONS { json!({ "arrayValue": { "values": [single] } }) } else { single }
}

#[cfg(test)]
mod tests;
