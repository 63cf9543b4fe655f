//! A line of the log as JSON. Ids and slice stand at the top, where tools look for them.

use std::{fmt, io};

use longhaul_queue::TraceContext;
use serde::{Serialize, Serializer};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::{LookupSpan, Scope};

use super::spans::{Fields, Open, Value};
use crate::output::{plain, write_stderr};

/// Fields of spans are kept by the layer of traces; they are not formatted a second time.
pub(super) struct NoFields;

impl<'writer> FormatFields<'writer> for NoFields {
    fn format_fields<R: RecordFields>(&self, _: Writer<'writer>, _: R) -> fmt::Result {
        Ok(())
    }
}

/// Stderr, beside whatever else is shown there.
pub(super) struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_stderr(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// For people: `warning: what happened (key=value, key=value)`.
pub(super) struct Warnings;

impl<S, N> FormatEvent<S, N> for Warnings
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let word = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        let message = fields.take("message").map_or_else(String::new, |message| message.to_string());
        let details: Vec<String> = fields.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        write!(writer, "{word}: {}", plain(&message))?;
        match details.is_empty() {
            true => writeln!(writer),
            false => writeln!(writer, " ({})", plain(&details.join(", "))),
        }
    }
}

/// The format.
pub(super) struct JsonLines {
    /// Ids of lines outside of any span.
    root: TraceContext,
}

impl JsonLines {
    pub(super) fn new(root: TraceContext) -> Self {
        Self { root }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    timestamp: String,
    level: &'a str,
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    slice: Option<&'a str>,
    target: &'a str,
    fields: Named<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    spans: Vec<Named<'a>>,
}

/// Fields as an object, those of a span with its name.
struct Named<'a>(Option<&'static str>, &'a Fields);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = self.0.map(|name| ("name", Value::Text(name.to_owned())));
        serializer.collect_map(name.iter().chain(&self.1.0).map(|(name, value)| (name, value)))
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut fields = Fields::default();
        event.record(&mut fields);
        let said = fields.take("slice");
        let mut own = self.root;
        let mut around = Vec::new();
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(open) = span.extensions().get::<Open>() {
                own = open.own;
                around.push((span.name(), open.fields.clone()));
            }
        }
        let metadata = event.metadata();
        let said = if let Some(Value::Text(slice)) = &said { Some(slice.as_str()) } else { None };
        let line = Line {
            timestamp,
            level: metadata.level().as_str(),
            trace_id: format!("{:032x}", own.trace_id),
            span_id: format!("{:016x}", own.span_id),
            slice: said.or_else(|| slice_of(metadata.target())),
            target: metadata.target(),
            fields: Named(None, &fields),
            spans: around.iter().map(|(name, fields)| Named(Some(name), fields)).collect(),
        };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// The part of the program that speaks, by its crate.
fn slice_of(target: &str) -> Option<&str> {
    match target.split("::").next()?.strip_prefix("longhaul")? {
        "" => Some("cli"),
        name => name.strip_prefix('_'),
    }
}

#[cfg(test)]
mod tests {
    use super::slice_of;

    #[test]
    fn the_slice_of_a_line_is_known_by_its_module() {
        let cases = [
            ("longhaul::telemetry::export", Some("cli")),
            ("longhaul_llm::client", Some("llm")),
            ("longhaul_prompts::batch", Some("prompts")),
            ("longhaul_stores::sqlite", Some("stores")),
            ("hyper::client", None),
            ("longhauler", None),
        ];
        for (target, slice) in cases {
            assert_eq!(slice_of(target), slice, "{target}");
        }
    }
}
