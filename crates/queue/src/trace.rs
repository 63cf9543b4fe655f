//! W3C trace context: who asked for a job, so that what its runs do can be shown together with it. It is a help for
//! whoever looks; one that is missing or cannot be read is never an error.

use std::fmt;
use std::time::Duration;

/// A job that is older than this when it runs begins a trace of its own, linked to the one that asked for it: a trace
/// of many hours is of no use to those who look at it.
pub const LINK_AFTER: Duration = Duration::from_secs(3600);

/// The bit of the flags that says that the trace is recorded.
const SAMPLED: u8 = 1;

/// One span within one trace. Its text is a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: u128,
    /// The span.
    pub span_id: u64,
    /// Bits; the lowest says that the trace is recorded.
    pub flags: u8,
}

impl TraceContext {
    /// A new trace.
    pub fn draw() -> Self {
        Self { trace_id: fastrand::u128(1..), span_id: fastrand::u64(1..), flags: SAMPLED }
    }

    /// A new span of the same trace.
    pub fn child(self) -> Self {
        Self { span_id: fastrand::u64(1..), ..self }
    }

    /// Reads a `traceparent`. Later versions may have more parts, which are passed over.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = hex(parts.next()?, 2)?;
        let (trace_id, span_id) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?);
        let flags = hex(parts.next()?, 2)?;
        let known = version == 0 && parts.next().is_none() || (1..0xff).contains(&version);
        let context =
            Self { trace_id, span_id: u64::try_from(span_id).ok()?, flags: u8::try_from(flags).ok()? };
        (known && context.trace_id != 0 && context.span_id != 0).then_some(context)
    }

    /// Whether whoever began the trace wants it recorded.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let valid = text.len() == digits && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Where one run of a job stands among traces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunTrace {
    /// The run's own span.
    pub(crate) own: TraceContext,
    /// The span that asked for the job, in the same trace.
    pub(crate) parent: Option<TraceContext>,
    /// The span that asked for it long ago, in another trace.
    pub(crate) link: Option<TraceContext>,
}

impl RunTrace {
    /// Of a job with this `traceparent` that was enqueued so long ago.
    pub(crate) fn new(traceparent: Option<&str>, age: Duration) -> Self {
        match traceparent.and_then(TraceContext::parse) {
            None => Self { own: TraceContext::draw(), parent: None, link: None },
            Some(creator) if age > LINK_AFTER => {
                let own = TraceContext { flags: creator.flags, ..TraceContext::draw() };
                Self { own, parent: None, link: Some(creator) }
            }
            Some(creator) => Self { own: creator.child(), parent: Some(creator), link: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let context = TraceContext::parse(TEXT).unwrap();
        assert_eq!(context.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((context.span_id, context.is_sampled()), (0xb7ad_6b71_6920_3331, true));
        assert_eq!(context.to_string(), TEXT);
        assert_eq!(
            TraceContext::parse(&TraceContext::draw().to_string()).map(TraceContext::is_sampled),
            Some(true)
        );
        let child = context.child();
        assert!(child.trace_id == context.trace_id && child.span_id != context.span_id);
    }

    #[test]
    fn a_run_is_below_its_creator_or_linked_to_it_when_that_is_long_ago() {
        let creator = TraceContext::parse(TEXT);
        let soon = RunTrace::new(Some(TEXT), LINK_AFTER);
        assert_eq!((soon.parent, soon.link), (creator, None));
        assert_eq!(Some(soon.own.trace_id), creator.map(|creator| creator.trace_id));
        let late = RunTrace::new(Some(TEXT), LINK_AFTER + Duration::from_secs(1));
        assert_eq!((late.parent, late.link), (None, creator));
        assert_ne!(Some(late.own.trace_id), creator.map(|creator| creator.trace_id));
        for missing in [None, Some("nonsense")] {
            let own = RunTrace::new(missing, Duration::ZERO);
            assert!(own.parent.is_none() && own.link.is_none() && own.own.is_sampled());
        }
    }

    #[test]
    fn what_is_no_traceparent_is_passed_over() {
        let cases = [
            ("", false),
            ("00-1-2-01", false),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false),
            ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", true),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            (" 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00 ", true),
        ];
        for (text, valid) in cases {
            assert_eq!(TraceContext::parse(text).is_some(), valid, "{text:?}");
        }
    }
}
