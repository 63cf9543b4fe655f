//! A child process in a group of its own that does not outlive its worker.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, kill_process_group};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

pub(super) use rustix::process::Signal;

use super::environment::Environment;

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// With this code.
    Exit(i32),
    /// By this signal.
    Signal(String),
}

/// After a run was taken away from its command: between SIGTERM and SIGKILL.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// A running child. When it is dropped before its end, its group gets SIGTERM and soon afterwards SIGKILL.
pub(super) struct Child {
    group: Option<Group>,
    ended: bool,
    orphans: Orphans,
}

/// Commands whose run was taken away and that have not ended yet.
type Orphans = Arc<Mutex<JoinSet<()>>>;

impl Child {
    /// Its stdin, stdout and stderr; once.
    pub(super) fn pipes(&mut self) -> io::Result<(ChildStdin, ChildStdout, ChildStderr)> {
        let child = &mut self.group()?.child;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("the child has no pipes"));
        };
        Ok((stdin, stdout, stderr))
    }

    /// Waits for its end.
    pub(super) async fn wait(&mut self) -> io::Result<End> {
        let status = self.group()?.child.wait().await?;
        self.ended = true;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => End::Exit(code),
            (None, signal) => End::Signal(signal_name(signal)),
        })
    }

    /// Its group, to send signals to.
    pub(super) fn id(&self) -> GroupId {
        self.group.as_ref().map_or(GroupId(None), |group| group.id)
    }

    fn group(&mut self) -> io::Result<&mut Group> {
        self.group.as_mut().ok_or_else(|| io::Error::other("the child is gone"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(mut group) = self.group.take().filter(|_| !self.ended) else { return };
        group.id.signal(Signal::TERM);
        let Ok(runtime) = Handle::try_current() else { return };
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        while orphans.try_join_next().is_some() {}
        let end = async move {
            // Whatever comes of the wait, the group is killed when it goes out of scope.
            let _ = tokio::time::timeout(ORPHAN_GRACE, group.child.wait()).await;
        };
        orphans.spawn_on(end, &runtime);
    }
}

/// A child and the group that it leads. Dropping it kills the group, also after a normal end: what a command left
/// behind in the background holds no lease.
struct Group {
    child: tokio::process::Child,
    id: GroupId,
}

/// Names the group of a child.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupId(Option<Pid>);

impl GroupId {
    /// Sends a signal to the whole group.
    pub(super) fn signal(self, signal: Signal) {
        if let Some(id) = self.0 {
            // The group may have ended by itself a moment ago.
            let _ = kill_process_group(id, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.id.signal(Signal::KILL);
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
#[derive(Clone)]
pub(crate) struct Spawner {
    requests: mpsc::UnboundedSender<Request>,
    orphans: Orphans,
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
        Ok(Self { requests, orphans: Orphans::default() })
    }

    /// Waits until every command whose run was taken away has gone: they must not outlive the worker.
    pub(crate) async fn finish(&self) {
        let mut orphans = std::mem::take(&mut *self.orphans.lock().unwrap_or_else(PoisonError::into_inner));
        while orphans.join_next().await.is_some() {}
    }

    /// Runs `sh -c command`.
    pub(super) async fn spawn(
        &self,
        command: &str,
        passed: &[(OsString, OsString)],
        environment: &Environment,
    ) -> io::Result<Child> {
        let mut child = Command::new("sh");
        child.arg("-c").arg(command);
        // Keys of providers and tokens are in the worker's environment, and a command gets what it was given only.
        child.env_clear().envs(passed.iter().map(|(name, value)| (name, value)));
        child.envs(environment.variables.iter().map(|(name, value)| (name, value)));
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        child.process_group(0).kill_on_drop(true);
        die_with_parent(&mut child);
        let (reply, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts commands has ended");
        self.requests.send(Request { command: child, reply }).map_err(|_| gone())?;
        let child = answer.await.map_err(|_| gone())??;
        let id = GroupId(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        Ok(Child { group: Some(Group { child, id }), ended: false, orphans: Arc::clone(&self.orphans) })
    }
}

/// A worker that is killed takes its commands along: they hold no lease any more.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "pre_exec is unsafe; the closure makes one system call and allocates nothing")]
pub(crate) fn die_with_parent(command: &mut Command) {
    let die =
        || rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; prctl is a plain system call.
    unsafe {
        command.pre_exec(die);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn die_with_parent(_command: &mut Command) {}
