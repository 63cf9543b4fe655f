//! From a command to an exit code: runs it, and says what went wrong.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::app::App;
use crate::args::{Cli, Command, ConfigCommand, Global, SimCommand, WorkersCommand};
use crate::exit::Code;
use crate::output::{Color, Format, Output, TimeStyle};
use crate::telemetry::Telemetry;
use crate::{commands, exit, store};

/// How long to wait at the end for what blocks.
const SHUTDOWN_MAX: Duration = Duration::from_millis(300);

/// Does what a command line says.
pub(crate) fn main(cli: &Cli) -> ExitCode {
    start(cli).unwrap_or_else(|error| report(cli, &error)).into()
}

fn start(cli: &Cli) -> Result<Code> {
    // These need neither settings nor a store, so that they work where those are broken.
    match &cli.command {
        Command::Completions { shell } => return commands::config::completions(*shell),
        Command::Man { command } => return commands::config::man(command),
        Command::Init => return commands::config::init(&plain_output(&cli.global)),
        Command::Openapi => return commands::config::openapi(),
        _ => {}
    }
    let flags = match &cli.command {
        Command::Work(args) => args.flags(),
        Command::Up(args) => args.flags(),
        Command::Score(args) => args.flags(),
        _ => Vec::new(),
    };
    let app = App::new(&cli.global, flags)?;
    let mut telemetry = Telemetry::install(cli, &app.settings, app.trace)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let ended = runtime.block_on(async {
        telemetry.start();
        let ended = until_end(&app, &cli.command).await;
        telemetry.finish(&cli.command, &ended).await;
        ended
    });
    // Tasks go, and with the last of them the store comes to rest. A read of stdin that nobody waits for any more must
    // not keep the program alive, so this is bounded.
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    // These work on stores of their own, or on two.
    if let Command::Move(_) | Command::Demo(_) | Command::Verify(_) | Command::Bench(_) = &cli.command {
        return ended;
    }
    ended.map_err(|error| store::named(error, &app.settings))
}

async fn until_end(app: &App, command: &Command) -> Result<Code> {
    if matches!(
        command,
        Command::Work(_)
            | Command::Up(_)
            | Command::Run(_)
            | Command::Score(_)
            | Command::Sim(_)
            | Command::Bench(_)
    ) {
        // What works has its own way to end.
        return run(app, command).await;
    }
    // A command that reads stdin blocks this task, so another one sees to its end.
    let watching = tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            tokio::time::sleep(SHUTDOWN_MAX).await;
            std::process::exit(Code::Interrupted as i32);
        }
    });
    let ended = tokio::select! {
        ended = run(app, command) => ended,
        _ = tokio::signal::ctrl_c() => Ok(Code::Interrupted),
    };
    watching.abort();
    ended
}

async fn run(app: &App, command: &Command) -> Result<Code> {
    match command {
        Command::Demo(args) => commands::demo::run(app, args).await,
        Command::Up(args) => commands::up::run(app, args).await,
        Command::Mcp(args) => commands::mcp::run(app, args).await,
        Command::Tokens(command) => commands::tokens::run(app, command),
        Command::Work(args) => commands::work::run(app, args).await,
        Command::Run(args) => commands::run::run(app, args).await,
        Command::Runs(command) => commands::runs::run(app, command).await,
        Command::Score(args) => commands::score::run(app, args).await,
        Command::Estimate(args) => commands::run::estimate::run(app, args).await,
        Command::Costs(args) => commands::costs::run(app, args).await,
        Command::Models => commands::models::run(app).await,
        Command::Keys(command) => commands::keys::run(app, command),
        Command::Sim(SimCommand::Serve(args)) => commands::sim::serve(app, args).await,
        Command::Enqueue(args) => commands::enqueue::run(app, args).await,
        Command::Jobs(command) => commands::jobs::run(app, command).await,
        Command::Queues(command) => commands::queues::run(app, command).await,
        Command::Workers(WorkersCommand::Ls) => commands::workers::ls(app).await,
        Command::Process(command) => commands::process::run(app, command).await,
        Command::Results(args) => commands::results::run(app, args).await,
        Command::Consume { process } => commands::process::consume(app, process).await,
        Command::Schedule(command) => commands::schedule::run(app, command).await,
        Command::Events(args) => commands::events::run(app, args).await,
        Command::Backup(args) => commands::transfer::backup(app, args).await,
        Command::Restore(args) => commands::transfer::restore(app, &args.file).await,
        Command::Move(args) => commands::move_store::run(app, args).await,
        Command::Verify(args) => commands::verify::run(app, args).await,
        Command::Bench(args) => commands::bench::run(app, args).await,
        Command::Doctor => commands::doctor::run(app).await,
        Command::Config(ConfigCommand::Show) => commands::config::show(app),
        Command::Init => commands::config::init(&app.out),
        Command::Completions { shell } => commands::config::completions(*shell),
        Command::Man { command } => commands::config::man(command),
        Command::Openapi => commands::config::openapi(),
        Command::Added(command) => commands::added::run(app, command).await,
    }
}

/// Output as the command line alone says, where settings are not read or cannot be.
fn plain_output(global: &Global) -> Output {
    let (format, color) = (global.output.unwrap_or(Format::Text), global.color.unwrap_or(Color::Auto));
    Output::new(format, color, TimeStyle::Auto, global.quiet)
}

/// What happened and what to do about it, on stderr.
fn report(cli: &Cli, error: &anyhow::Error) -> Code {
    let code = exit::code_of(error);
    if exit::is_closed_pipe(error) {
        return code;
    }
    let out = plain_output(&cli.global);
    out.error(format_args!("{error:#}"));
    if let Some(hint) = exit::hint_of(error) {
        out.hint(hint);
    }
    code
}
