//! Gives each span its place in a trace, keeps its fields for the lines of the log, and hands it on when it is over.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Instant;

use longhaul_queue::TraceContext;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Metadata, Span, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::export::Exporter;

/// A field's value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Value {
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Int(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
            Self::Bool(truth) => write!(f, "{truth}"),
        }
    }
}

/// Fields by name, in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fields(pub(super) Vec<(&'static str, Value)>);

impl Fields {
    pub(super) fn set(&mut self, name: &'static str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find_map(|(known, value)| match value {
            Value::Text(text) if *known == name => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let place = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.remove(place).1)
    }

    fn take_text(&mut self, name: &str) -> Option<String> {
        self.take(name).and_then(|value| if let Value::Text(text) = value { Some(text) } else { None })
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), Value::Text(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), Value::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), Value::Int(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), Value::Bool(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), Value::Float(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field.name(), Value::Text(format!("{value:?}")));
    }
}

/// A span while it lasts.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) own: TraceContext,
    parent: Option<u64>,
    link: Option<TraceContext>,
    started: Instant,
    pub(super) fields: Fields,
}

/// A span that is over.
#[derive(Debug, Clone)]
pub(super) struct Closed {
    pub(super) own: TraceContext,
    pub(super) parent: Option<u64>,
    pub(super) link: Option<TraceContext>,
    pub(super) name: &'static str,
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) fields: Fields,
}

/// Whether a span is of this program and not of a library in it.
pub(super) fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("longhaul")
}

/// The place of the span around the caller.
pub(super) fn current() -> Option<TraceContext> {
    let place = |(id, dispatch): (&Id, &Dispatch)| {
        let span = dispatch.downcast_ref::<Registry>()?.span(id)?;
        span.extensions().get::<Open>().map(|open| open.own)
    };
    Span::current().with_subscriber(place)?
}

/// The layer.
pub(super) struct TraceLayer {
    root: TraceContext,
    exporter: Option<Arc<Exporter>>,
}

impl TraceLayer {
    pub(super) fn new(root: TraceContext, exporter: Option<Arc<Exporter>>) -> Self {
        Self { root, exporter }
    }

    /// By its own fields, where it knows its place; below the span around it, or below the program, otherwise.
    fn place(&self, mut fields: Fields, around: Option<TraceContext>) -> Open {
        let parent = fields.take_text("parent").and_then(|text| TraceContext::parse(&text));
        let link = fields.take_text("link").and_then(|text| TraceContext::parse(&text));
        let ids = (fields.take_text("trace_id"), fields.take_text("span_id"));
        let started = Instant::now();
        if let (Some(trace_id), Some(span_id)) = ids
            && let Ok(trace_id) = u128::from_str_radix(&trace_id, 16)
            && let Ok(span_id) = u64::from_str_radix(&span_id, 16)
        {
            let flags = parent.or(link).map_or_else(|| TraceContext::draw().flags, |creator| creator.flags);
            let own = TraceContext { trace_id, span_id, flags };
            return Open { own, parent: parent.map(|parent| parent.span_id), link, started, fields };
        }
        let parent = around.unwrap_or(self.root);
        Open { own: parent.child(), parent: Some(parent.span_id), link, started, fields }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let around = span.parent().and_then(|parent| parent.extensions().get::<Open>().map(|open| open.own));
        // Each job pays for this: room for all fields at once.
        let mut fields = Fields(Vec::with_capacity(attributes.metadata().fields().len()));
        attributes.record(&mut fields);
        span.extensions_mut().insert(self.place(fields, around));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(&mut open.fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(exporter) = &self.exporter else { return };
        let Some(span) = context.span(&id).filter(|span| is_ours(span.metadata())) else { return };
        let Some(Open { own, parent, link, started, fields }) = span.extensions_mut().remove() else {
            return;
        };
        // Whoever began the trace decides whether it is recorded.
        if own.is_sampled() {
            let (name, ended) = (span.metadata().name(), Instant::now());
            exporter.send(Closed { own, parent, link, name, started, ended, fields });
        }
    }
}
