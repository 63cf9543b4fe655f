//! Server-sent events: the form in which models stream. A parser without reconnection: a call that broke off is made
//! again by whoever wants it again, since it costs money.

use crate::error::{Class, Error, Result};
use crate::lines::LineSplitter;

/// Most bytes of one event's data.
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The field `event`.
    pub name: Option<String>,
    /// The lines of the field `data`, joined.
    pub data: String,
}

impl SseEvent {
    /// An event without a name.
    pub fn unnamed(data: impl Into<String>) -> Self {
        Self { name: None, data: data.into() }
    }

    /// An event with a name.
    pub fn named(name: impl Into<String>, data: impl Into<String>) -> Self {
        Self { name: Some(name.into()), data: data.into() }
    }

    /// As it goes over the wire, with the empty line that ends it.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(self.data.len() + 16);
        if let Some(name) = &self.name {
            text.push_str("event: ");
            text.push_str(name);
            text.push('\n');
        }
        for line in self.data.split('\n') {
            text.push_str("data: ");
            text.push_str(line);
            text.push('\n');
        }
        text.push('\n');
        text
    }
}

/// Makes events of bytes, however the network cut them.
#[derive(Debug)]
pub struct SseParser {
    lines: LineSplitter,
    event: SseEvent,
    has_data: bool,
    at_start: bool,
    event_bytes_max: usize,
}

impl Default for SseParser {
    fn default() -> Self {
        Self::with_bound(EVENT_BYTES_MAX)
    }
}

impl SseParser {
    /// With a bound for one event.
    pub fn with_bound(event_bytes_max: usize) -> Self {
        Self {
            lines: LineSplitter::new(event_bytes_max),
            event: SseEvent::default(),
            has_data: false,
            at_start: true,
            event_bytes_max,
        }
    }

    /// Takes what the network brought and answers the events that are now whole.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>> {
        let mut lines = Vec::new();
        self.lines.push(bytes, &mut lines)?;
        let mut events = Vec::new();
        for line in lines {
            events.extend(self.line(&line)?);
        }
        Ok(events)
    }

    /// The end of the body. The standard drops an event that no empty line ended; providers do leave it out at the end of
    /// a stream, so it counts here.
    pub fn finish(&mut self) -> Result<Option<SseEvent>> {
        if let Some(line) = self.lines.finish()? {
            self.line(&line)?;
        }
        self.line("")
    }

    fn line(&mut self, line: &str) -> Result<Option<SseEvent>> {
        let line =
            if std::mem::take(&mut self.at_start) { line.trim_start_matches('\u{feff}') } else { line };
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return Ok(std::mem::take(&mut self.has_data).then_some(event));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.name = Some(value.to_owned()),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                if self.event.data.len() > self.event_bytes_max {
                    let message =
                        format!("an event of the stream is longer than {} bytes", self.event_bytes_max);
                    return Err(Error::new(Class::Network, message).maybe_billed());
                }
            }
            // A comment has an empty field name; `id` and `retry` serve reconnection.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(chunks: &[&[u8]]) -> Vec<SseEvent> {
        let mut parser = SseParser::default();
        let mut events: Vec<SseEvent> = chunks.iter().flat_map(|chunk| parser.push(chunk).unwrap()).collect();
        events.extend(parser.finish().unwrap());
        events
    }

    #[test]
    fn fields_become_events() {
        let cases: [(&str, Vec<SseEvent>); 9] = [
            ("data: a\n\n", vec![SseEvent::unnamed("a")]),
            ("data:a\n\ndata:  b\n\n", vec![SseEvent::unnamed("a"), SseEvent::unnamed(" b")]),
            ("event: ping\ndata: {}\n\n", vec![SseEvent::named("ping", "{}")]),
            ("data: a\ndata: b\ndata:\n\n", vec![SseEvent::unnamed("a\nb\n")]),
            (": keep alive\n\n:\n\ndata: a\n\n", vec![SseEvent::unnamed("a")]),
            ("event: lonely\n\ndata: a\n\n", vec![SseEvent::unnamed("a")]),
            ("id: 7\nretry: 10\nnonsense\ndata: a\n\n", vec![SseEvent::unnamed("a")]),
            ("\u{feff}data: a\r\n\r\ndata: b\r\r", vec![SseEvent::unnamed("a"), SseEvent::unnamed("b")]),
            ("data: a\n\ndata: no end", vec![SseEvent::unnamed("a"), SseEvent::unnamed("no end")]),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(&[text.as_bytes()]), expected, "{text:?}");
        }
    }

    #[test]
    fn it_does_not_matter_where_the_network_cuts() {
        let text = "event: größe\r\ndata: {\"a\":\"日\"}\r\ndata: b\r\n\r\ndata: c\r\n\r\n".as_bytes();
        let whole = parse(&[text]);
        assert_eq!(whole.len(), 2);
        for cut in 0..text.len() {
            assert_eq!(parse(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(parse(&bytes), whole);
    }

    #[test]
    fn an_event_is_bounded() {
        let mut parser = SseParser::with_bound(16);
        assert!(parser.push(b"data: 0123456789\n").unwrap().is_empty());
        let error = parser.push(b"data: 0123456789\n").unwrap_err();
        assert!(error.message.contains("longer than 16 bytes"), "{error}");
    }

    #[test]
    fn what_is_written_can_be_read() {
        for event in [SseEvent::unnamed("a"), SseEvent::named("x", "a\n\nb"), SseEvent::unnamed("")] {
            assert_eq!(parse(&[event.to_text().as_bytes()]), [event]);
        }
    }
}
