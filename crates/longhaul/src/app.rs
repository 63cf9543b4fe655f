//! What every command has at hand: settings, output, and the store when it asks for it.

use std::io::{IsTerminal, Read, Write, stderr, stdin};
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_queue::limits::Limits;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Clock, Engine, JobId, Json, Queue, SystemClock, Timestamp};
use longhaul_stores::StoreUrl;
use longhaul_stores::sqlite::Db;

use crate::args::Global;
use crate::config::{Flag, Settings};
use crate::exit::{Code, Failure, code_of};
use crate::output::Output;
use crate::progress::Progress;
use crate::store::{self, Missing};
use crate::telemetry::Root;
use crate::texts;

/// Shortest start of an id that is looked for.
const PREFIX_MIN: usize = 4;
/// Before a server that is away is tried again.
const SERVER_AGAIN: Duration = Duration::from_secs(1);

/// One run of the program.
pub(crate) struct App {
    /// Where and how to print.
    pub(crate) out: Output,
    /// Settings.
    pub(crate) settings: Settings,
    /// Where this run of the program stands among traces.
    pub(crate) trace: Root,
    yes: bool,
}

impl App {
    /// Reads the settings.
    pub(crate) fn new(global: &Global, more_flags: Vec<Flag>) -> Result<Self> {
        let mut flags = global.flags();
        flags.extend(more_flags);
        let settings = Settings::load(&flags, global.config.as_deref())?;
        let out = Output::new(
            settings.choice("output.format")?,
            settings.choice("output.color")?,
            settings.choice("output.time")?,
            global.quiet,
        );
        let trace = Root::new(&settings)?;
        Ok(Self { out, settings, trace, yes: global.yes })
    }

    /// The queue, which must exist.
    pub(crate) async fn queue(&self) -> Result<Queue> {
        self.open(Missing::Refuse).await
    }

    /// The queue, made if need be.
    pub(crate) async fn queue_or_new(&self) -> Result<Queue> {
        self.open(Missing::Create).await
    }

    /// The engine, whose store must exist.
    pub(crate) async fn engine(&self) -> Result<Engine> {
        self.open_engine(Missing::Refuse).await
    }

    /// The engine, its store made if need be.
    pub(crate) async fn engine_or_new(&self) -> Result<Engine> {
        self.open_engine(Missing::Create).await
    }

    /// The engine with the data store, where pipelines keep their tables.
    pub(crate) async fn engine_with_data(&self, missing: Missing) -> Result<(Engine, Option<Db>)> {
        let (store, data) = store::open_with_data(&self.settings, missing).await?;
        Ok((Engine::new(store).with_limits(self.limits()?), data))
    }

    /// The same, made if need be, for one who works for long: a server that is away is waited for.
    pub(crate) async fn engine_for_long(&self) -> Result<(Engine, Option<Db>)> {
        let is_server =
            matches!(store::location(&self.settings)?, StoreUrl::Redis(_) | StoreUrl::Postgres(_));
        let mut told = false;
        loop {
            match self.engine_with_data(Missing::Create).await {
                Err(error) if is_server && code_of(&error) == Code::Unreachable => {
                    if !std::mem::replace(&mut told, true) {
                        self.out.warn(format_args!("{error:#}; it is tried again until it answers"));
                    }
                    tokio::time::sleep(SERVER_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }

    async fn open(&self, missing: Missing) -> Result<Queue> {
        let store = store::open(&self.settings, missing).await?;
        Ok(Queue::new(store).with_limits(self.limits()?))
    }

    async fn open_engine(&self, missing: Missing) -> Result<Engine> {
        let store = store::open_here(&self.settings, missing).await?;
        Ok(Engine::new(store).with_limits(self.limits()?))
    }

    /// What may be stored.
    pub(crate) fn limits(&self) -> Result<Limits> {
        store::limits(&self.settings)
    }

    /// Now.
    pub(crate) fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    /// A progress display in the chosen style.
    pub(crate) fn progress(&self) -> Result<Progress> {
        Ok(Progress::new(self.settings.choice("output.progress")?, self.out.quiet))
    }

    /// Whether questions are answered with yes beforehand.
    pub(crate) fn says_yes(&self) -> bool {
        self.yes
    }

    /// Asks before something that cannot be undone. Off a terminal nobody can answer, so `--yes` is needed there.
    pub(crate) fn confirm(&self, action: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        if !(stdin().is_terminal() && stderr().is_terminal()) {
            return Err(Failure::new(
                Code::Usage,
                format!("this would {action}, and nobody can be asked here"),
            )
            .hint("repeat the command with --yes")
            .into());
        }
        let mut prompt = stderr().lock();
        write!(prompt, "{action}? [y/N] ").and_then(|()| prompt.flush()).context("asking")?;
        let mut answer = String::new();
        stdin().read_line(&mut answer).context("reading the answer")?;
        if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            return Ok(());
        }
        Err(Failure::new(Code::Failure, "nothing was changed").into())
    }

    /// JSON from an argument: itself, `-` for stdin, `@FILE`; `null` when there is none.
    pub(crate) fn json_argument(&self, argument: Option<&str>) -> Result<Json> {
        let Some(argument) = argument else { return Ok(Json::null()) };
        let (text, source) = if argument == "-" {
            (read_bounded(stdin().lock(), "stdin", self.limits()?)?, "stdin")
        } else if let Some(path) = argument.strip_prefix('@') {
            if std::path::Path::new(path).is_dir() {
                return Err(Failure::new(Code::Usage, format!("{path} is a folder, not a file")).into());
            }
            let file = std::fs::File::open(path).map_err(|error| texts::unreadable(path, &error))?;
            (read_bounded(file, path, self.limits()?)?, path)
        } else {
            (argument.to_owned(), "the argument")
        };
        Json::parse(&text).map_err(|error| {
            let hint = if source == "the argument" {
                format!(
                    "a text needs its own quotes: '\"{}\"'; a file is read with @FILE",
                    argument.replace(['"', '\''], "")
                )
            } else {
                "check it with: jq .".to_owned()
            };
            Failure::new(Code::Usage, format!("{source} is {error}")).hint(hint).into()
        })
    }
}

fn read_bounded(reader: impl Read, name: &str, limits: Limits) -> Result<String> {
    let max = limits.value_bytes_max;
    let mut text = String::new();
    reader.take(max as u64 + 1).read_to_string(&mut text).with_context(|| format!("reading {name}"))?;
    if text.len() > max {
        return Err(Failure::new(
            Code::Failure,
            format!("{name} is larger than {max} bytes (store.value_bytes_max)"),
        )
        .hint("put large content into a file and pass its path in the payload")
        .into());
    }
    Ok(text)
}

/// The job that `text` names: a whole id, or a start of one that only one job has.
pub(crate) async fn resolve(queue: &Queue, text: &str) -> Result<JobId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let prefix = text.to_ascii_lowercase();
    let plausible = prefix.len() >= PREFIX_MIN && prefix.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if !plausible {
        return Err(Failure::new(
            Code::Usage,
            format!("{text:?} is not a job id, nor the start of one ({PREFIX_MIN} digits or more)"),
        )
        .hint("list ids with: longhaul jobs ls")
        .into());
    }
    let filter = Filter { id_prefix: Some(prefix), ..Filter::default() };
    // Two are enough to see that it is not clear which.
    let page = queue.list(ListRequest { filter, newest_first: true, cursor: None, limit: 2 }).await?;
    let found: Vec<JobId> = page.items.into_iter().map(|job| job.id).collect();
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(Failure::new(Code::NothingMatched, format!("there is no job {text}"))
            .hint("list jobs with: longhaul jobs ls")
            .into()),
        [first, second, ..] => Err(Failure::new(
            Code::Usage,
            format!("{text} is the start of more than one job id: {first}, {second}"),
        )
        .hint("give more of the id")
        .into()),
    }
}

/// The jobs that `texts` name.
pub(crate) async fn resolve_all(queue: &Queue, texts: &[String]) -> Result<Vec<JobId>> {
    let mut ids = Vec::with_capacity(texts.len());
    for text in texts {
        ids.push(resolve(queue, text).await?);
    }
    Ok(ids)
}
