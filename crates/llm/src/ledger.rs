//! What was spent, to the nano-dollar and over all processes that share the file.
//!
//! Before a paid call its ceiling is reserved, durably: if the process dies, the call stays booked. A cap is checked inside
//! that transaction, so no number of processes can pass it together. Afterwards the truth is settled in its place, or the
//! reservation is released when surely nothing was billed. A call whose end nobody saw becomes *unknown*: it counts at its
//! ceiling against every cap, and is shown apart, until somebody settles it.

use std::path::Path;

use serde::Serialize;

use crate::file::{FileError, FileResult, LlmFile};
use crate::money::NanoUsd;
use crate::types::Usage;

mod entries;
mod pending_totals;
mod report;
mod resolve;
mod scope;

pub(crate) use pending_totals::Sheet;
pub use report::{ScopeTotals, Spend, Totals};
pub use resolve::{Decision, Resolved, UnknownCall, UnknownFilter, Verdict};
pub use scope::{Scope, day_of, is_day};

/// Scopes of one reservation.
const SCOPES_MAX: usize = 16;
/// Bytes of each name: of a call, a job, a scope, a part, a profile, a model.
const NAME_BYTES_MAX: usize = 256;
/// The most that one reservation or settlement moves: ten million dollars, far below where sums would overflow.
const AMOUNT_MAX: NanoUsd = NanoUsd::dollars(10_000_000);
/// The most tokens of a class, and requests or answers, that one settlement books.
const COUNT_MAX: u64 = 1_000_000_000_000;

/// The ledger of a file. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    file: LlmFile,
}

/// What a paid call may cost, before it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Names the call, once and for all: job, fence and a number, or a batch's chunk.
    pub call: String,
    /// The job that makes it.
    pub job: String,
    /// The run of the job, as a number that grows from run to run: what earlier runs left open becomes unknown. `None` for
    /// a batch, which outlives runs and is re-attached by its call's name.
    pub fence: Option<u64>,
    /// Where it counts.
    pub scopes: Vec<Scope>,
    /// The most it can cost; `None` is unpriced.
    pub ceiling: Option<NanoUsd>,
    /// How many requests it covers: 1, or a batch's.
    pub requests: u64,
    /// Whose account, for reports.
    pub profile: String,
    /// Which model, for reports.
    pub model: String,
}

/// What became of a reservation that was let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// It is booked now.
    New,
    /// It was booked already, by this name; nothing is booked twice.
    Again,
}

/// What a call brought and cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Tokens, as the provider told.
    pub usage: Usage,
    /// Money; `None` is unpriced.
    pub cost: Option<NanoUsd>,
    /// Usable answers.
    pub answers: u64,
}

/// One request of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSpent {
    /// Names it within the batch. Booked once, however often it is told.
    pub part: String,
    /// What it brought and cost.
    pub spent: Spent,
    /// Its share of the batch's ceiling, which is freed; `None` where the batch is unpriced.
    pub ceiling_share: Option<NanoUsd>,
}

/// What is counted and is no money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An answer came from the response cache.
    Cached,
    /// A provider said 429.
    Throttled,
    /// A call was made again after an error.
    Retried,
    /// An answer of the wrong shape was mended or asked for again.
    Repaired,
}

impl Event {
    /// Its name in output and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Throttled => "throttled",
            Self::Retried => "retried",
            Self::Repaired => "repaired",
        }
    }
}

/// A reservation that would break a cap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{scope} has a cap of {cap}: {spent} is spent, {open} is reserved by calls under way and {unknown} may have been \
     billed, so a call of up to {ceiling} does not fit; raise the cap, or bound answers with --max-tokens"
)]
pub struct OverBudget {
    /// Whose cap.
    pub scope: Scope,
    /// The cap.
    pub cap: NanoUsd,
    /// Booked for good.
    pub spent: NanoUsd,
    /// Reserved by calls under way.
    pub open: NanoUsd,
    /// Reserved by calls whose end nobody saw.
    pub unknown: NanoUsd,
    /// What was asked for.
    pub ceiling: NanoUsd,
}

impl OverBudget {
    /// Whether it may fit once calls under way have settled; otherwise only a higher cap helps.
    pub fn may_fit_later(&self) -> bool {
        self.spent.saturating_add(self.unknown).saturating_add(self.ceiling) <= self.cap
    }
}

/// Why the ledger did not book.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// It would break a cap.
    #[error(transparent)]
    OverBudget(Box<OverBudget>),
    /// A cap cannot be kept without a price.
    #[error(
        "{scope} has a cap of {cap}, but {model} has no price, so the cap cannot be kept; name its price in the file of \
         llm.prices, say local = true in its profile if it runs on a machine of yours, or let the calls of this run \
         pass uncounted with --allow-unpriced"
    )]
    Unpriced {
        /// Whose cap.
        scope: Scope,
        /// The cap.
        cap: NanoUsd,
        /// The model without a price.
        model: String,
    },
    /// Nobody reserved this call, or it is settled already.
    #[error("call {0} is not reserved, or settled already")]
    NotReserved(String),
    /// The batch is closed.
    #[error("batch {0} is closed in the ledger")]
    Closed(String),
    /// The file did not take or give it.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Ledger {
    /// The ledger of a file.
    pub fn new(file: LlmFile) -> Self {
        Self { file }
    }

    /// Books a call's ceiling before it is made. On return it is durable. What earlier runs of the job left open becomes
    /// unknown, whether or not the call is let pass. A caller that is dropped while it waits may leave it booked.
    pub async fn reserve(&self, reservation: Reservation, now_ms: i64) -> Result<Reserved, LedgerError> {
        check(&reservation)?;
        // A scope that is named twice counts once.
        let mut reservation = reservation;
        reservation.scopes.sort();
        reservation.scopes.dedup();
        let owner = self.file.owner().to_owned();
        self.file.write(move |tx| entries::reserve(tx, &reservation, &owner, now_ms)).await?
    }

    /// Books what a call cost, in place of its reservation.
    pub async fn settle(&self, call: &str, spent: Spent) -> Result<(), LedgerError> {
        let call = call.to_owned();
        self.file.write(move |tx| entries::settle(tx, &call, spent)).await?
    }

    /// Takes a reservation back when surely nothing was billed. False when there is none.
    pub async fn release(&self, call: &str, now_ms: i64) -> FileResult<bool> {
        let call = call.to_owned();
        self.file.write(move |tx| entries::release(tx, &call, now_ms)).await
    }

    /// Says that nobody saw how a call ended: it may have been billed. False when it is not open.
    pub async fn mark_unknown(&self, call: &str, now_ms: i64) -> FileResult<bool> {
        let call = call.to_owned();
        self.file.write(move |tx| entries::mark_unknown(tx, &call, now_ms)).await
    }

    /// Makes unknown what processes left open that are gone, and says how many calls that were: nobody will come to say how they
    /// ended. Those of living ones, and batches, which outlive any process, stay.
    pub async fn abandon_dead(&self, now_ms: i64) -> FileResult<u64> {
        let Some(path) = self.file.path().map(Path::to_owned) else { return Ok(0) };
        let own = self.file.owner().to_owned();
        let dead = self.file.read(move |connection| {
            let mut owners = entries::owners(connection, now_ms)?;
            owners.retain(|owner| *owner != own && (owner.is_empty() || LlmFile::is_dead(&path, owner)));
            Ok(owners)
        });
        let dead = dead.await?;
        if dead.is_empty() {
            return Ok(0);
        }
        self.file.write(move |tx| entries::abandon(tx, &dead, now_ms)).await
    }

    /// Books one request of a batch; see [`Ledger::settle_parts`].
    pub async fn settle_part(&self, call: &str, part: PartSpent) -> Result<bool, LedgerError> {
        Ok(self.settle_parts(call, vec![part]).await? == 1)
    }

    /// Books requests of a batch, each once however often it is told: how many were new. All of them, or none.
    pub async fn settle_parts(&self, call: &str, parts: Vec<PartSpent>) -> Result<u64, LedgerError> {
        let call = call.to_owned();
        if parts.iter().any(|part| part.part.len() > NAME_BYTES_MAX) {
            return Err(
                FileError::invalid(format!("a part's name has more than {NAME_BYTES_MAX} bytes")).into()
            );
        }
        self.file.write(move |tx| entries::settle_parts(tx, &call, &parts)).await?
    }

    /// Ends a batch whose rest was not billed. Telling its parts again then changes nothing. False when it was closed before.
    pub async fn close(&self, call: &str, now_ms: i64) -> Result<bool, LedgerError> {
        let call = call.to_owned();
        self.file.write(move |tx| entries::close(tx, &call, now_ms)).await?
    }

    /// Sets or lifts a cap. It holds from now on; what is spent or reserved already is not undone.
    pub async fn set_cap(&self, scope: &Scope, cap: Option<NanoUsd>) -> FileResult<()> {
        check_scope(scope)?;
        let scope = scope.clone();
        let cap = cap.map(|cap| cap.min(NanoUsd::MAX));
        self.file.write(move |tx| tx.sheet.set_cap(tx.connection, scope.as_str(), cap)).await
    }

    /// Limits what a scope may cost. Without a cap, the one that it has stays; whether calls without a price pass is decided anew with
    /// each cap.
    pub async fn set_limits(
        &self,
        scope: &Scope,
        cap: Option<NanoUsd>,
        allow_unpriced: bool,
    ) -> FileResult<()> {
        if cap.is_some() {
            self.set_cap(scope, cap).await?;
        }
        if cap.is_some() || allow_unpriced {
            self.allow_unpriced(scope, allow_unpriced).await?;
        }
        Ok(())
    }

    /// Says whether calls of a scope may have no price although it, or another scope of such a call, has a cap. They are not
    /// counted: the cap holds for the other calls only.
    pub async fn allow_unpriced(&self, scope: &Scope, allow: bool) -> FileResult<()> {
        check_scope(scope)?;
        let scope = scope.clone();
        self.file.write(move |tx| tx.sheet.allow_unpriced(tx.connection, scope.as_str(), allow)).await
    }

    /// Counts an event. It is written with the next commit, within a second: a process that is killed in between loses it.
    pub fn count(&self, scope: &Scope, event: Event) {
        if check_scope(scope).is_ok() {
            self.file.count(scope.as_str(), event, 1);
        }
    }

    /// Deletes a scope and what it counted, for good; other scopes keep what they counted of the same calls. Calls under
    /// way settle into those. False when there is no such scope.
    pub async fn forget(&self, scope: &Scope) -> FileResult<bool> {
        let scope = scope.clone();
        // Counts that still wait would make it anew.
        self.file.flush_events().await?;
        self.file.write(move |tx| entries::forget(tx, scope.as_str())).await
    }
}

fn check(reservation: &Reservation) -> FileResult<()> {
    let Reservation { call, job, scopes, ceiling, requests, profile, model, fence, .. } = reservation;
    for (what, name) in [("call", call), ("job", job), ("profile", profile), ("model", model)] {
        if name.len() > NAME_BYTES_MAX {
            return Err(FileError::invalid(format!("a {what}'s name has more than {NAME_BYTES_MAX} bytes")));
        }
    }
    if call.is_empty() || scopes.is_empty() || scopes.len() > SCOPES_MAX {
        let message =
            format!("call {call:?} needs a name and 1 to {SCOPES_MAX} scopes, not {}", scopes.len());
        return Err(FileError::invalid(message));
    }
    scopes.iter().try_for_each(check_scope)?;
    if *requests == 0 || *requests > COUNT_MAX || fence.is_some_and(|fence| fence > i64::MAX as u64) {
        return Err(FileError::invalid(format!("call {call} has {requests} requests and fence {fence:?}")));
    }
    if let Some(ceiling) = ceiling.filter(|ceiling| *ceiling > AMOUNT_MAX) {
        return Err(FileError::invalid(format!("a ceiling of {ceiling} is beyond {AMOUNT_MAX}")));
    }
    Ok(())
}

fn check_scope(scope: &Scope) -> FileResult<()> {
    if scope.as_str().len() > NAME_BYTES_MAX {
        return Err(FileError::invalid(format!("a scope's name has more than {NAME_BYTES_MAX} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
