//! `work --exec CMD`: runs a shell command for each job. Payload on stdin, context in the environment, result and
//! control lines on stdout, log on stderr. The protocol is documented in docs/exec.md.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::limits::Limits;
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::{JobContext, Json, Outcome};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;

use crate::config;

mod answer;
mod child;
mod control;
mod environment;
mod lines;
mod machine;

use answer::Answer;
use child::{Child, End, GroupId, Signal};
use environment::Environment;
use lines::Lines;
use machine::{Machine, Waited};

pub(crate) use child::{Spawner, die_with_parent};

/// The end of stderr that becomes the error's text.
const STDERR_TAIL_BYTES_MAX: usize = 2_000;
/// What is left of the worker's grace for the kill itself.
const KILL_RESERVE: Duration = Duration::from_millis(500);

/// How long the output of a command that has ended may stay open without a word.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// Runs one command for many jobs.
pub(crate) struct Exec {
    /// The shell command.
    command: String,
    /// What it gets of the worker's own environment.
    passed: Vec<(OsString, OsString)>,
    machine: Machine,
    /// Starts children.
    spawner: Spawner,
    /// What may be stored.
    limits: Limits,
    /// Between SIGTERM and SIGKILL.
    grace: Duration,
}

/// What commands are run with.
pub(crate) struct ExecOptions {
    /// The shell command.
    pub(crate) command: String,
    /// Variables of the worker's own environment that it gets beside the usual ones.
    pub(crate) pass: Vec<String>,
    /// Starts children.
    pub(crate) spawner: Spawner,
    /// What may be stored.
    pub(crate) limits: Limits,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Exec {
    /// For one command.
    pub(crate) fn new(options: ExecOptions) -> Self {
        let ExecOptions { command, pass, spawner, limits, grace } = options;
        let passed = environment::passed(config::variables(), &pass);
        Self { command, passed, machine: Machine::default(), spawner, limits, grace }
    }

    /// Runs the command for one job.
    pub(crate) async fn run(self: Arc<Self>, context: JobContext, payload: Json) -> Outcome {
        match self.attempt(&context, &payload).await {
            Ok(outcome) => outcome,
            Err(error) => retry(format!("the command could not be run: {error}")),
        }
    }

    async fn attempt(&self, context: &JobContext, payload: &Json) -> io::Result<Outcome> {
        let mut waited = Waited::default();
        let (environment, mut child) = loop {
            match self.start(context).await {
                Ok(started) => break started,
                Err(error) => {
                    if let Some(outcome) = self.machine.wait(context, error, &mut waited).await? {
                        return Ok(outcome);
                    }
                }
            }
        };
        let (stdin, stdout, stderr) = child.pipes()?;
        let group = child.id();
        let (ended, has_ended) = watch::channel(false);
        let mut answer = Answer::new(context, self.limits);
        let mut tail = String::new();
        let talk = async {
            let (read, logged, ()) = tokio::join!(
                read_stdout(Lines::new(stdout, &has_ended), &mut answer, group),
                read_stderr(Lines::new(stderr, &has_ended), context, &mut tail),
                feed(stdin, payload, &has_ended),
            );
            read.and(logged)
        };
        let end = self.supervise(&mut child, context, &ended, talk).await?;
        // The checkpoint files of the environment go only when the child has gone.
        drop(environment);
        let told = context.is_cancel_requested();
        Ok(answer.into_outcome(end, &tail, told))
    }

    async fn start(&self, context: &JobContext) -> io::Result<(Environment, Child)> {
        let environment = environment::of(context)?;
        let child = self.spawner.spawn(&self.command, &self.passed, &environment).await?;
        Ok((environment, child))
    }

    /// Waits for the child, and ends it when the run is to end.
    async fn supervise(
        &self,
        child: &mut Child,
        context: &JobContext,
        ended: &watch::Sender<bool>,
        talk: impl Future<Output = io::Result<()>>,
    ) -> io::Result<End> {
        let group = child.id();
        let mut life = std::pin::pin!(live(child, ended, talk));
        tokio::select! {
            end = &mut life => return end,
            // Not on a drain: a command may finish within its grace, and is ended with its run after that.
            () = context.cancel_requested() => {}
        }
        context.log("asked to end: the command gets SIGTERM");
        group.signal(Signal::TERM);
        let grace = self.grace.saturating_sub(KILL_RESERVE);
        // The command may still say how it wants to end: a checkpoint, a continue.
        if let Ok(end) = tokio::time::timeout(grace, &mut life).await {
            return end;
        }
        context.log("the command did not end in time and gets SIGKILL");
        group.signal(Signal::KILL);
        life.await
    }
}

/// Waits for the child and for what it says. What it left in the background may hold its output open, and is killed.
async fn live(
    child: &mut Child,
    ended: &watch::Sender<bool>,
    talk: impl Future<Output = io::Result<()>>,
) -> io::Result<End> {
    let mut talk = std::pin::pin!(talk);
    let end = tokio::select! {
        talked = &mut talk => {
            talked?;
            return child.wait().await;
        }
        end = child.wait() => end?,
    };
    ended.send_replace(true);
    if let Ok(talked) = tokio::time::timeout(OUTPUT_GRACE, &mut talk).await {
        talked?;
    } else {
        child.id().signal(Signal::KILL);
        // What is in the pipes already is still read: it may hold control lines.
        talk.await?;
    }
    Ok(end)
}

/// Writes the payload for as long as the command runs.
async fn feed(mut stdin: impl AsyncWrite + Unpin, payload: &Json, has_ended: &watch::Receiver<bool>) {
    let mut has_ended = has_ended.clone();
    tokio::select! {
        // A command need not read its input.
        _ = stdin.write_all(payload.as_str().as_bytes()) => {}
        _ = has_ended.wait_for(|ended| *ended) => {}
    }
}

/// Hands each line of stdout to the answer; a line without end is bounded like a value. Kills a command that says more
/// than may be stored: it might never stop.
async fn read_stdout(
    mut lines: Lines<impl AsyncRead + Unpin>,
    answer: &mut Answer<'_>,
    group: GroupId,
) -> io::Result<()> {
    while let Some(line) = lines.next(answer.line_bytes_max()).await? {
        answer.line(&line).await;
        if answer.is_too_long() {
            group.signal(Signal::KILL);
            break;
        }
    }
    Ok(())
}

/// Sends each line of stderr to the job's log and keeps the end of it in `tail`.
async fn read_stderr(
    mut lines: Lines<impl AsyncRead + Unpin>,
    context: &JobContext,
    tail: &mut String,
) -> io::Result<()> {
    while let Some(line) = lines.next(longhaul_queue::limits::LOG_LINE_BYTES_MAX as u64).await? {
        context.log(line.trim_end_matches(['\n', '\r']));
        tail.push_str(&line);
        if tail.len() > STDERR_TAIL_BYTES_MAX {
            let cut = tail.ceil_char_boundary(tail.len() - STDERR_TAIL_BYTES_MAX);
            tail.drain(..cut);
        }
    }
    Ok(())
}

fn retry(text: impl std::fmt::Display) -> Outcome {
    Outcome::Retry { error: JobError::new(Reason::Failure, text), after: None, data: None }
}
