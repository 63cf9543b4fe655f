//! Ctrl-C and SIGTERM over the life of a command that works: while its input is read, while it is stored, while it is answered.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use super::working::Working;
use crate::app::App;
use crate::exit::Code;
use crate::output::Output;

/// Wishes that the program should end. None is missed from here on.
pub(crate) struct Interrupts {
    interrupts: Signal,
    terms: Signal,
}

impl Interrupts {
    pub(crate) fn new() -> Result<Self> {
        let catch = |kind| signal(kind).context("catching signals");
        Ok(Self { interrupts: catch(SignalKind::interrupt())?, terms: catch(SignalKind::terminate())? })
    }

    /// Returns at the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupts.recv() => {}
            _ = self.terms.recv() => {}
        }
    }

    /// Ends the worker after the first one: calls under way may come to their end, until the next.
    pub(crate) async fn drain(&mut self, app: &App, working: &mut Working) {
        app.out.note("draining: no new requests, those under way may be answered; once more to stop at once");
        working.drain();
        tokio::select! {
            () = working.ended() => return,
            () = self.next() => {}
        }
        working.abort();
        app.out.note("stopping: requests under way are given back, and may have been billed");
        working.ended().await;
    }
}

/// Ends the program at a signal until it is dropped. For the time while input is read, by calls that block this task:
/// nothing is stored or sent by then, so there is nothing to bring to an end.
pub(crate) struct EndAtOnce(JoinHandle<()>);

impl EndAtOnce {
    pub(crate) fn start(out: &Output) -> Result<Self> {
        let (mut interrupts, out) = (Interrupts::new()?, out.clone());
        Ok(Self(tokio::spawn(async move {
            interrupts.next().await;
            out.note("interrupted while the input was read; nothing was stored or sent");
            out.hint("begin anew with the same command");
            std::process::exit(Code::Interrupted as i32);
        })))
    }
}

impl Drop for EndAtOnce {
    fn drop(&mut self) {
        self.0.abort();
    }
}
