//! Logs and traces. Lines of the log go to stderr: as text for people on a terminal, as JSON for programs off it, with
//! trace and span ids on each. Spans are exported by OTLP over HTTP where a setting says where to. Contents of prompts,
//! answers and payloads are in neither.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use longhaul_llm::trace;
use longhaul_queue::TraceContext;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{Cli, Command, Global};
use crate::config::{self, Settings};
use crate::exit::Code;
use crate::output::Color;

mod export;
mod lines;
mod otlp;
mod spans;

pub(crate) use export::check_url;
use export::{Exporter, Exporting};
use spans::{Closed, Fields, TraceLayer, Value};

/// Where this program's own doing stands among traces. The caller's trace goes on, if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    own: TraceContext,
    caller: Option<TraceContext>,
    exported: bool,
    started: Instant,
}

impl Root {
    /// What cannot be read is passed over, as the standard wants it.
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let caller = config::traceparent().as_deref().and_then(TraceContext::parse);
        let own = caller.map_or_else(TraceContext::draw, TraceContext::child);
        let exported = !settings.get(config::OTLP_URL)?.value.is_empty();
        Ok(Self { own, caller, exported, started: Instant::now() })
    }

    /// `traceparent` of what is submitted here. Who looks for a parent must find it: a span of ours that is not
    /// exported is none.
    pub(crate) fn traceparent(&self) -> String {
        let shown = if self.exported { self.own } else { self.caller.unwrap_or(self.own) };
        shown.to_string()
    }

    /// The same where a trace is nobody's wish unless somebody looks.
    pub(crate) fn traceparent_if_wanted(&self) -> Option<String> {
        (self.exported || self.caller.is_some()).then(|| self.traceparent())
    }
}

/// What exports spans, once there is a runtime.
pub(crate) struct Telemetry {
    root: Root,
    exporter: Option<Arc<Exporter>>,
    exporting: Option<Exporting>,
}

impl Telemetry {
    /// Sets up the log, and the export where it is wanted.
    pub(crate) fn install(cli: &Cli, settings: &Settings, root: Root) -> Result<Self> {
        let global = &cli.global;
        let (exporter, exporting) = match export::Target::of(settings)? {
            Some(target) => {
                let (exporter, exporting) = export::prepare(target)?;
                (Some(exporter), Some(exporting))
            }
            None => (None, None),
        };
        let level = level(global);
        let terminal = std::io::stderr().is_terminal();
        let layer = TraceLayer::new(root.own, exporter.clone());
        let wanted = filter_fn(move |metadata| is_wanted(metadata, level))
            .with_max_level_hint(level.max(LevelFilter::INFO));
        let fmt = tracing_subscriber::fmt::layer().with_writer(|| lines::Stderr);
        let lines = if is_for_people(&cli.command) && global.verbose == 0 {
            // What became of its jobs a command says itself, once and not for each of them.
            let shown =
                filter_fn(|metadata| metadata.is_span() || metadata.fields().field("job_id").is_none());
            fmt.fmt_fields(lines::NoFields).event_format(lines::Warnings).with_filter(shown).boxed()
        } else if terminal {
            // Who does not ask for more is told what happened, not within what.
            let shown = filter_fn(move |metadata| !metadata.is_span() || level >= LevelFilter::INFO);
            fmt.with_ansi(is_colored(global)).with_filter(shown).boxed()
        } else {
            fmt.fmt_fields(lines::NoFields).event_format(lines::JsonLines::new(root.own)).boxed()
        };
        tracing_subscriber::registry().with(wanted).with(layer).with(lines).init();
        // What is called outside of any job is the command's own doing.
        let own = root.own;
        trace::ask_traceparent(move || Some(spans::current().unwrap_or(own).to_string()));
        Ok(Self { root, exporter, exporting })
    }

    /// Begins to export; to be called on the runtime.
    pub(crate) fn start(&mut self) {
        if let Some(exporting) = &mut self.exporting {
            exporting.start();
        }
    }

    /// Exports what is left, for a short while. What the command itself was is the parent of what it submitted.
    pub(crate) async fn finish(self, command: &Command, ended: &Result<Code>) {
        if let (Some(exporter), Some(name)) = (&self.exporter, submitting(command)) {
            let mut fields = Fields::default();
            if ended.is_err() {
                fields.set("otel.status_code", Value::Text("ERROR".to_owned()));
            }
            exporter.send(Closed {
                own: self.root.own,
                parent: self.root.caller.map(|caller| caller.span_id),
                link: None,
                name,
                started: self.root.started,
                ended: Instant::now(),
                fields,
            });
        }
        if let Some(exporting) = self.exporting {
            exporting.finish().await;
        }
    }
}

/// A command that somebody waits for says what happened as its other warnings; what runs on and on writes a log, which is read
/// by programs.
const fn is_for_people(command: &Command) -> bool {
    !matches!(command, Command::Up(_) | Command::Work(_) | Command::Mcp(_) | Command::Sim(_))
}

/// The commands whose jobs name them as their parent.
fn submitting(command: &Command) -> Option<&'static str> {
    match command {
        Command::Run(_) => Some("longhaul run"),
        Command::Enqueue(_) => Some("longhaul enqueue"),
        _ => None,
    }
}

fn level(global: &Global) -> LevelFilter {
    match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    }
}

/// Our own spans are there whatever is logged, since the ids of lines and of calls come from them.
fn is_wanted(metadata: &Metadata<'_>, level: LevelFilter) -> bool {
    let ours = metadata.is_span() && spans::is_ours(metadata);
    *metadata.level() <= level || ours && *metadata.level() <= Level::INFO
}

fn is_colored(global: &Global) -> bool {
    global.color != Some(Color::Never) && !config::no_color()
}
