//! Longhaul as tools for agents: the Model Context Protocol, over stdio (`longhaul mcp`) and at `/mcp`.
//!
//! **Flow.** A transport ([`stdio`], [`http`]) hands each message to [`rpc`], which knows JSON-RPC and the revisions of the protocol;
//! a call goes to [`tools`], which checks the arguments against the very schema that clients are shown.
//!
//! **Decisions.**
//! - No sessions. Every message is answered from the store alone, so both eras of the protocol are served at once: clients that begin
//!   with `initialize` (until 2025-11-25) and those that say with each request who they are (since 2026-07-28).
//! - What a caller may not do is not listed, and refused when it is called all the same ([`Access`]).
//! - Every answer is bounded, and says what was cut and which call gives the rest: an agent pays for each byte that it reads.
//! - What goes wrong with a tool is a result with `isError`, which a model can read and act upon. Protocol errors are for clients.

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::tokens::Scope;

mod ask;
mod change;
mod http;
mod jobs;
mod page;
mod reports;
mod results;
mod rpc;
mod runs;
mod schemas;
mod show;
mod stdio;
mod target;
mod tools;

pub(crate) use http::routes;
pub use stdio::serve;

/// Who calls, and what they may do beside looking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Hand in jobs and runs.
    pub enqueue: bool,
    /// Change jobs and runs that are there.
    pub admin: bool,
    /// Whose batches may be seen.
    caller: Caller,
}

impl Access {
    /// Looking only.
    pub const READ: Self = Self { enqueue: false, admin: false, caller: Caller::LOCAL };
    /// Everything.
    pub const WRITE: Self = Self { enqueue: true, admin: true, caller: Caller::LOCAL };

    /// Over HTTP: by the scopes of the token; on loopback, where there is none, by the server's options.
    fn of(ctx: &Ctx, caller: &Caller) -> Self {
        if !ctx.options.token_required {
            return if ctx.options.mcp_allow_write { Self::WRITE } else { Self::READ };
        }
        Self { enqueue: caller.may(Scope::Enqueue), admin: caller.may(Scope::Admin), caller: caller.clone() }
    }

    /// Whether this scope is among it. Tools never claim jobs.
    fn allows(&self, scope: Scope) -> bool {
        match scope {
            Scope::Read => true,
            Scope::Enqueue => self.enqueue,
            Scope::Admin => self.admin,
            Scope::Work => false,
        }
    }
}

#[cfg(test)]
mod tests;
