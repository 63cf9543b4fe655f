//! A child process in a group of its own that does not outlive its worker.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::environment::{Environment, NAMES};

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// With this code.
    Exit(i32),
    /// By this signal.
    Signal(String),
}

/// A running child. Dropping it kills its whole group.
pub(super) struct Child {
    child: tokio::process::Child,
    group: Option<Pid>,
}

impl Child {
    /// Its stdin, stdout and stderr; once.
    pub(super) fn pipes(&mut self) -> io::Result<(ChildStdin, ChildStdout, ChildStderr)> {
        let pipes = (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("the child has no pipes"));
        };
        Ok((stdin, stdout, stderr))
    }

    /// Waits for its end.
    pub(super) async fn wait(&mut self) -> io::Result<End> {
        let status = self.child.wait().await?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => End::Exit(code),
            (None, signal) => End::Signal(signal_name(signal)),
        })
    }

    /// Asks the group to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends the group.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The group may have ended by itself a moment ago.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Also after a normal end: what the command left in the background holds no lease.
        self.kill();
    }
}

fn signal_name(signal: Option<i32>) -> String {
    let Some(number) = signal else { return "a signal".to_owned() };
    const NAMES: [(i32, &str); 8] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (6, "SIGABRT"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (15, "SIGTERM"),
    ];
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

/// Starts children from one thread that lives as long as the program. Linux sends the death signal of
/// [`die_with_parent`] when the *thread* that started a child ends, and threads of a runtime's pool may end early.
pub(crate) struct Spawner {
    requests: mpsc::UnboundedSender<Request>,
}

struct Request {
    command: Command,
    reply: oneshot::Sender<io::Result<tokio::process::Child>>,
}

impl Spawner {
    /// Starts the thread; call it inside the runtime.
    pub(crate) fn start() -> io::Result<Self> {
        // Never longer than the worker has slots: each job sends one request and waits for its answer.
        let (requests, mut queue) = mpsc::unbounded_channel::<Request>();
        let runtime = Handle::current();
        let serve = move || {
            let _inside = runtime.enter();
            while let Some(Request { mut command, reply }) = queue.blocking_recv() {
                // A job that was cancelled meanwhile drops its child, which ends it.
                let _ = reply.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("longhaul-spawner".to_owned()).spawn(serve)?;
        Ok(Self { requests })
    }

    /// Runs `sh -c command`.
    pub(super) async fn spawn(&self, command: &str, environment: &Environment) -> io::Result<Child> {
        let mut child = Command::new("sh");
        child.arg("-c").arg(command);
        for name in NAMES {
            child.env_remove(name);
        }
        child.envs(environment.variables.iter().map(|(name, value)| (name, value)));
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        child.process_group(0).kill_on_drop(true);
        die_with_parent(&mut child);
        let (reply, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts commands has ended");
        self.requests.send(Request { command: child, reply }).map_err(|_| gone())?;
        let child = answer.await.map_err(|_| gone())??;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Child { child, group })
    }
}

/// A worker that is killed takes its commands along: they hold no lease any more.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "pre_exec is unsafe; the closure makes one system call and allocates nothing")]
fn die_with_parent(command: &mut Command) {
    let die = || rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; prctl is a plain system call.
    unsafe {
        command.pre_exec(die);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_command: &mut Command) {}
