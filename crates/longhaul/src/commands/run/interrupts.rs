//! Ctrl-C and SIGTERM over the life of `run`: while prompts are read, while they are stored, while they are answered.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use super::working::Working;
use crate::app::App;
use crate::exit::Code;
use crate::output::Output;

/// Wishes that the program should end. None is missed from here on.
pub(super) struct Interrupts {
    interrupts: Signal,
    terms: Signal,
}

impl Interrupts {
    pub(super) fn new() -> Result<Self> {
        let catch = |kind| signal(kind).context("catching signals");
        Ok(Self { interrupts: catch(SignalKind::interrupt())?, terms: catch(SignalKind::terminate())? })
    }

    /// Returns at the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupts.recv() => {}
            _ = self.terms.recv() => {}
        }
    }

    /// Ends the worker after the first one: calls under way may come to their end, until the next.
    pub(super) async fn drain(&mut self, app: &App, working: &mut Working) {
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

/// Ends the program at a signal until it is dropped. For the time while prompts are read, by calls that block this task:
/// nothing is stored or sent by then, so there is nothing to bring to an end.
pub(super) struct EndAtOnce(JoinHandle<()>);

impl EndAtOnce {
    pub(super) fn start(out: &Output) -> Result<Self> {
        let (mut interrupts, out) = (Interrupts::new()?, out.clone());
        Ok(Self(tokio::spawn(async move {
            interrupts.next().await;
            out.note("interrupted while the prompts were read; nothing was stored or sent");
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
