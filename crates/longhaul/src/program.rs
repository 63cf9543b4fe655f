//! A program made of Longhaul: the built-in commands and pipelines, and those that somebody adds. The only public part of this crate.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use futures_util::future::BoxFuture;
use longhaul_llm::Llm;
use longhaul_pipeline::{About, Listener, Pipeline, Result, RunId};
use longhaul_queue::Queue;
use longhaul_stores::sqlite::Db;

use crate::args::{AddedCommand, Cli, Command, Global};
use crate::exit::Code;
use crate::{dispatch, pipelines};

/// The program `longhaul`, to which pipelines can be added. `runs`, `work`, `up`, the HTTP API, events and metrics know an added pipeline as
/// they know the built-in ones. One per process.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     longhaul::Program::new().main()
/// }
/// ```
#[derive(Default)]
pub struct Program {
    additions: Additions,
}

/// What a pipeline is opened on. Cheap to clone.
#[derive(Clone)]
pub struct PipelineParts {
    /// The queue that its jobs go to.
    pub queue: Queue,
    /// The models.
    pub llm: Llm,
    /// The data store, for tables; none beside a store in memory.
    pub data: Option<Db>,
    /// To be told of ends and holds of runs. Webhooks are sent by it.
    pub listener: Arc<dyn Listener>,
}

impl Program {
    /// With the built-in pipelines alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pipeline. Its name and prefixes must be its own. `open` is called once by each command that knows runs.
    pub fn pipeline<O>(
        mut self,
        about: &'static About,
        open: impl Fn(PipelineParts) -> O + Send + Sync + 'static,
    ) -> Self
    where
        O: Future<Output = Result<Arc<dyn Pipeline>>> + Send + 'static,
    {
        let open = Box::new(move |parts| Box::pin(open(parts)) as BoxFuture<'static, _>);
        self.additions.pipelines.push(AddedPipeline { about, open });
        self
    }

    /// Adds a command that starts runs. `start` stores a run, or finds it where it was started before, and answers its name, which is
    /// printed. One that was held goes on, and what failed or was cancelled is tried again. Workers do the rest.
    pub fn start_command<S>(
        mut self,
        command: clap::Command,
        start: impl Fn(PipelineParts, ArgMatches) -> S + Send + Sync + 'static,
    ) -> Self
    where
        S: Future<Output = Result<RunId>> + Send + 'static,
    {
        let start: Start = Arc::new(move |parts, args| Box::pin(start(parts, args)));
        self.additions.commands.push((command, start));
        self
    }

    /// Reads the command line and does what it says.
    pub fn main(self) -> ExitCode {
        if let Err(error) = pipelines::add(self.additions) {
            // A mistake in the program, found before anything is read.
            eprintln!("error: {error:#}");
            return Code::Failure.into();
        }
        dispatch::main(&pipelines::added().parse())
    }
}

/// What a program has beside what is built in.
#[derive(Default)]
pub(crate) struct Additions {
    pub(crate) pipelines: Vec<AddedPipeline>,
    commands: Vec<(clap::Command, Start)>,
}

/// A pipeline, and how it is opened.
pub(crate) struct AddedPipeline {
    about: &'static About,
    pub(crate) open: Box<Open>,
}

type Open = dyn Fn(PipelineParts) -> BoxFuture<'static, Result<Arc<dyn Pipeline>>> + Send + Sync;

/// Stores a run.
pub(crate) type Start =
    Arc<dyn Fn(PipelineParts, ArgMatches) -> BoxFuture<'static, Result<RunId>> + Send + Sync>;

impl Additions {
    /// The names of the pipelines.
    pub(crate) fn abouts(&self) -> impl Iterator<Item = &'static About> {
        self.pipelines.iter().map(|added| added.about)
    }

    /// The grammar of the command line.
    pub(crate) fn grammar(&self) -> clap::Command {
        Cli::command().subcommands(self.commands.iter().map(|(command, _)| command.clone()))
    }

    /// The command line. What it cannot mean ends the process here, as does a question for help.
    pub(crate) fn parse(&self) -> Cli {
        let mut grammar = self.grammar();
        let matches = grammar.get_matches_mut();
        self.read(&matches).unwrap_or_else(|error| error.format(&mut grammar).exit())
    }

    fn read(&self, matches: &ArgMatches) -> std::result::Result<Cli, clap::Error> {
        let named = |name: &str| self.commands.iter().find(|(command, _)| command.get_name() == name);
        let added = matches.subcommand().and_then(|(name, args)| Some((named(name)?, args)));
        let Some(((_, start), args)) = added else { return Cli::from_arg_matches(matches) };
        let command = Command::Added(AddedCommand { start: Arc::clone(start), args: args.clone() });
        Ok(Cli { global: Global::from_arg_matches(matches)?, command })
    }
}
