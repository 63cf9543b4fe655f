//! `work --exec CMD`: runs a shell command for each job. Payload on stdin, context in the environment, result and
//! control lines on stdout, log on stderr. The protocol is documented in docs/exec.md.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::limits::Limits;
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::{JobContext, Json, Outcome};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

mod answer;
mod child;
mod control;
mod environment;

use answer::Answer;
use child::{Child, End, Signal};

pub(crate) use child::{Spawner, die_with_parent};

/// The end of stderr that becomes the error's text.
const STDERR_TAIL_BYTES_MAX: usize = 2_000;
/// What is left of the worker's grace for the kill itself.
const KILL_RESERVE: Duration = Duration::from_millis(500);

/// Runs one command for many jobs.
pub(crate) struct Exec {
    /// The shell command.
    pub(crate) command: String,
    /// Starts children.
    pub(crate) spawner: Spawner,
    /// What may be stored.
    pub(crate) limits: Limits,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Exec {
    /// Runs the command for one job.
    pub(crate) async fn run(self: Arc<Self>, context: JobContext, payload: Json) -> Outcome {
        match self.attempt(&context, &payload).await {
            Ok(outcome) => outcome,
            Err(error) => retry(format!("the command could not be run: {error}")),
        }
    }

    async fn attempt(&self, context: &JobContext, payload: &Json) -> io::Result<Outcome> {
        let environment = environment::of(context)?;
        let mut child = self.spawner.spawn(&self.command, &environment).await?;
        let (stdin, stdout, stderr) = child.pipes()?;
        let feed = async move {
            let mut stdin = stdin;
            // A command that does not read its input is free to do so.
            let _ = stdin.write_all(payload.as_str().as_bytes()).await;
        };
        let mut answer = Answer::new(context, self.limits);
        let talk = async {
            let (read, tail, ()) =
                tokio::join!(read_stdout(stdout, &mut answer), read_stderr(stderr, context), feed);
            read.and(tail)
        };
        let (tail, end) = self.supervise(&mut child, context, talk).await?;
        // The checkpoint files of the environment go only when the child has gone.
        drop(environment);
        let told = context.is_cancel_requested();
        Ok(answer.into_outcome(end, &tail, told))
    }

    /// Waits for the child, and ends it when the run is to end.
    async fn supervise(
        &self,
        child: &mut Child,
        context: &JobContext,
        talk: impl Future<Output = io::Result<String>>,
    ) -> io::Result<(String, End)> {
        let mut talk = std::pin::pin!(talk);
        tokio::select! {
            tail = &mut talk => return Ok((tail?, child.wait().await?)),
            // Not on a drain: a command may finish within its grace, and is ended with its run after that.
            () = context.cancel_requested() => {}
        }
        context.log("asked to end: the command gets SIGTERM");
        child.signal(Signal::TERM);
        let grace = self.grace.saturating_sub(KILL_RESERVE);
        // The command may still say how it wants to end: a checkpoint, a continue.
        let ended = tokio::time::timeout(grace, async {
            let tail = talk.as_mut().await?;
            Ok::<_, io::Error>((tail, child.wait().await?))
        });
        if let Ok(ended) = ended.await {
            return ended;
        }
        context.log("the command did not end in time and gets SIGKILL");
        child.signal(Signal::KILL);
        Ok((talk.await?, child.wait().await?))
    }
}

/// Hands each line of stdout to the answer; a line without end is bounded like a value.
async fn read_stdout(stdout: impl AsyncRead + Unpin, answer: &mut Answer<'_>) -> io::Result<()> {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(answer.line_bytes_max()).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(());
        }
        answer.line(&String::from_utf8_lossy(&line)).await;
    }
}

/// Sends each line of stderr to the job's log and keeps the end of it.
async fn read_stderr(stderr: impl AsyncRead + Unpin, context: &JobContext) -> io::Result<String> {
    let mut reader = BufReader::new(stderr);
    let mut tail = String::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = longhaul_queue::limits::LOG_LINE_BYTES_MAX as u64;
        if (&mut reader).take(limit).read_until(b'\n', &mut line).await? == 0 {
            return Ok(tail);
        }
        let text = String::from_utf8_lossy(&line);
        context.log(text.trim_end_matches(['\n', '\r']));
        tail.push_str(&text);
        if tail.len() > STDERR_TAIL_BYTES_MAX {
            let cut = tail.ceil_char_boundary(tail.len() - STDERR_TAIL_BYTES_MAX);
            tail.drain(..cut);
        }
    }
}

fn retry(text: impl std::fmt::Display) -> Outcome {
    Outcome::Retry { error: JobError::new(Reason::Failure, text), after: None, data: None }
}
