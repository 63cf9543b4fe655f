//! Lists and resolves calls whose end was never seen. Until they are resolved, they count against every cap at the most they can
//! have cost.

use rusqlite::Row;
use serde::{Deserialize, Serialize};

use super::pending_totals::nanos;
use super::{Ledger, Scope, Spent, entries};
use crate::file::{FileError, FileResult};
use crate::money::NanoUsd;
use crate::types::Usage;

/// Calls that one command decides about.
const CALLS_MAX: i64 = 100_000;
/// Decisions that are listed.
const DECISIONS_MAX: i64 = 1_000;
/// Most bytes of the author of a decision, and of its subject.
const WORDS_BYTES_MAX: usize = 256;

/// Which calls of unknown end; all where nothing is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnknownFilter {
    /// Those that count there, such as of a run.
    pub scope: Option<Scope>,
    /// Those of an account.
    pub profile: Option<String>,
    /// Only calls to this model.
    pub model: Option<String>,
    /// Those reserved on a day, in UTC: `2026-11-15`.
    pub day: Option<String>,
    /// One of them.
    pub call: Option<String>,
}

/// A call whose end was never seen, or the rest of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownCall {
    /// Its name.
    pub call: String,
    /// The day when it was reserved, in UTC.
    pub day: String,
    /// Whose account.
    pub profile: String,
    /// Which model.
    pub model: String,
    /// How many requests: 1, or a batch's.
    pub requests: u64,
    /// A provider batch, whose results tell what it cost for as long as the provider keeps them.
    pub batch: bool,
    /// The most it can have cost; absent without a price.
    #[serde(rename = "ceiling_usd")]
    pub ceiling: Option<NanoUsd>,
}

/// What became of calls of unknown end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They never reached the provider, or it does not charge for them.
    NotBilled,
    /// They cost this much together; without an amount, the most they can have cost.
    Billed(Option<NanoUsd>),
}

impl Verdict {
    /// Its name in the file and in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotBilled => "not_billed",
            Self::Billed(_) => "billed",
        }
    }
}

/// What a decision changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// Requests that are not unknown any more.
    pub calls: u64,
    /// What counted against caps for them.
    #[serde(rename = "ceiling_usd")]
    pub ceiling: NanoUsd,
    /// What is booked instead.
    #[serde(rename = "cost_usd")]
    pub cost: NanoUsd,
}

/// Something that was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// When, in milliseconds since the epoch.
    pub decided_at: i64,
    /// Who.
    pub decided_by: String,
    /// `billed`, `not_billed` or `provider`: by the results of a batch.
    pub verdict: String,
    /// Which calls, in the words of the command.
    pub about: String,
    /// What it changed.
    #[serde(flatten)]
    pub resolved: Resolved,
}

impl Ledger {
    /// Calls of unknown end, oldest first.
    pub async fn unknown(&self, filter: UnknownFilter) -> FileResult<Vec<UnknownCall>> {
        self.file
            .read(move |connection| {
                let calls = entries::unknown(connection, &filter, CALLS_MAX)?;
                Ok(calls.into_iter().map(UnknownCall::from).collect())
            })
            .await
    }

    /// Books a decision about calls of unknown end, all of them or none, and records its author and subject: `(who, which)`.
    pub async fn resolve(
        &self,
        filter: UnknownFilter,
        verdict: Verdict,
        (who, about): (&str, &str),
        now_ms: i64,
    ) -> FileResult<Resolved> {
        if who.len() > WORDS_BYTES_MAX || about.len() > WORDS_BYTES_MAX {
            let text =
                format!("the author and the subject of a decision take at most {WORDS_BYTES_MAX} bytes each");
            return Err(FileError::invalid(text));
        }
        let (who, about) = (who.to_owned(), about.to_owned());
        self.file
            .write(move |tx| {
                let calls = entries::unknown(tx.connection, &filter, CALLS_MAX)?;
                let resolved = sums(&calls, verdict);
                if resolved.calls == 0 {
                    return Ok(resolved);
                }
                if resolved.cost > resolved.ceiling && calls.iter().all(|call| call.ceiling.is_some()) {
                    return Err(FileError::invalid(format!(
                        "{} is more than those calls can have cost: {}",
                        resolved.cost, resolved.ceiling
                    )));
                }
                record(tx.connection, &resolved, (verdict.as_str(), &who, &about), now_ms)?;
                let weights: u128 = calls.iter().map(weight).sum();
                let mut left = resolved.cost;
                let last = calls.len() - 1;
                for (number, call) in calls.into_iter().enumerate() {
                    let share = match verdict {
                        Verdict::NotBilled => None,
                        Verdict::Billed(None) => call.ceiling.map(nanos),
                        Verdict::Billed(Some(_)) if number == last => Some(left),
                        Verdict::Billed(Some(sum)) => {
                            let share = u128::from(sum.0) * weight(&call) / weights.max(1);
                            Some(NanoUsd(u64::try_from(share).unwrap_or(u64::MAX)))
                        }
                    };
                    left = left.saturating_sub(share.unwrap_or(NanoUsd::ZERO));
                    let spent = Spent { usage: Usage::default(), cost: share, answers: 0 };
                    let spent = (verdict != Verdict::NotBilled).then_some(&spent);
                    entries::decide(tx, call, spent, now_ms)?;
                }
                Ok(resolved)
            })
            .await
    }

    /// Records that the provider's own results gave the cost of a batch.
    pub async fn note_results(&self, about: &str, resolved: Resolved, now_ms: i64) -> FileResult<()> {
        let about = about.to_owned();
        self.file
            .write(move |tx| {
                record(tx.connection, &resolved, ("provider", "results of the batch", &about), now_ms)
            })
            .await
    }

    /// What was decided, newest first.
    pub async fn decisions(&self) -> FileResult<Vec<Decision>> {
        self.file
            .read(|connection| {
                let sql = "SELECT decided_at, decided_by, verdict, about, calls, ceiling, cost
                           FROM decisions ORDER BY number DESC LIMIT ?1";
                let mut statement = connection.prepare_cached(sql)?;
                let rows = statement.query_map([DECISIONS_MAX], read_decision)?;
                Ok(rows.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }
}

fn sums(calls: &[entries::Held], verdict: Verdict) -> Resolved {
    let ceiling = calls.iter().filter_map(|call| call.ceiling).map(nanos).sum();
    Resolved {
        calls: calls.iter().map(|call| u64::try_from(call.requests).unwrap_or(0)).sum(),
        ceiling,
        cost: match verdict {
            Verdict::NotBilled => NanoUsd::ZERO,
            Verdict::Billed(None) => ceiling,
            Verdict::Billed(Some(sum)) => sum,
        },
    }
}

/// A sum is spread by what each call can have cost; where nothing is known of that, by requests.
fn weight(call: &entries::Held) -> u128 {
    let weight = call.ceiling.filter(|ceiling| *ceiling > 0).unwrap_or(call.requests);
    u128::try_from(weight).unwrap_or(0)
}

fn record(
    connection: &rusqlite::Connection,
    resolved: &Resolved,
    (verdict, who, about): (&str, &str, &str),
    now_ms: i64,
) -> FileResult<()> {
    let Resolved { calls, ceiling, cost } = resolved;
    connection
        .prepare_cached(
            "INSERT INTO decisions (decided_at, decided_by, verdict, about, calls, ceiling, cost)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(rusqlite::params![now_ms, who, verdict, about, calls, ceiling.0, cost.0])?;
    Ok(())
}

fn read_decision(row: &Row<'_>) -> rusqlite::Result<Decision> {
    let calls: i64 = row.get(4)?;
    let resolved = Resolved {
        calls: u64::try_from(calls).unwrap_or(0),
        ceiling: nanos(row.get(5)?),
        cost: nanos(row.get(6)?),
    };
    Ok(Decision {
        decided_at: row.get(0)?,
        decided_by: row.get(1)?,
        verdict: row.get(2)?,
        about: row.get(3)?,
        resolved,
    })
}

impl From<entries::Held> for UnknownCall {
    fn from(call: entries::Held) -> Self {
        let (day, profile, model) = call.spend;
        Self {
            call: call.call,
            day,
            profile,
            model,
            requests: u64::try_from(call.requests).unwrap_or(0),
            batch: call.fence.is_none(),
            ceiling: call.ceiling.map(nanos),
        }
    }
}
