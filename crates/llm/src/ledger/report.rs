//! Reading the ledger.

use rusqlite::{OptionalExtension, Row};
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::pending_totals::nanos;
use super::{Ledger, Scope};
use crate::file::{FileError, FileResult};
use crate::money::{CostRange, NanoUsd};
use crate::types::Usage;

/// Rows that one report gives.
const ROWS_MAX: i64 = 10_000;

/// What a scope sums up to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests that were paid for and are booked; each of a batch counts.
    pub calls: u64,
    /// Usable answers among them.
    pub answers: u64,
    /// Answers from the response cache, which cost nothing.
    pub cached: u64,
    /// Tokens.
    pub usage: Usage,
    /// Money spent, of what has a price.
    #[serde(rename = "cost_usd")]
    pub cost: NanoUsd,
    /// The same with all requests of unknown end at the most they can have cost: the bill is between the two.
    #[serde(rename = "cost_max_usd")]
    pub cost_max: NanoUsd,
    /// Booked requests that have no price.
    pub unpriced_calls: u64,
    /// Requests under way.
    pub open_calls: u64,
    /// The most they can cost.
    #[serde(rename = "open_ceiling_usd")]
    pub open_ceiling: NanoUsd,
    /// Requests whose end nobody saw; they may have been billed.
    pub unknown_calls: u64,
    /// The most they can have cost.
    #[serde(rename = "unknown_ceiling_usd")]
    pub unknown_ceiling: NanoUsd,
    /// Times that a provider said 429.
    pub throttled: u64,
    /// Calls made again after an error.
    pub retried: u64,
    /// Answers mended or asked for again.
    pub repaired: u64,
}

/// A scope with its cap and sums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeTotals {
    /// Which.
    pub scope: Scope,
    /// Its cap.
    pub cap: Option<NanoUsd>,
    /// Its sums.
    pub totals: Totals,
}

/// What a model cost on a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spend {
    /// The day when it was reserved, in UTC: `2026-11-15`.
    pub day: String,
    /// Whose account.
    pub profile: String,
    /// Which model.
    pub model: String,
    /// Requests that were paid for.
    pub calls: u64,
    /// Usable answers among them.
    pub answers: u64,
    /// Tokens.
    pub usage: Usage,
    /// Money spent, of what has a price.
    pub cost: NanoUsd,
    /// Booked requests that have no price.
    pub unpriced_calls: u64,
    /// Requests that may have been billed.
    pub unknown_calls: u64,
    /// The most they can have cost.
    pub unknown_ceiling: NanoUsd,
}

impl Totals {
    /// What was spent, with what may have been.
    pub fn cost_range(&self) -> CostRange {
        CostRange { low: self.cost, high: self.cost_max }
    }

    /// What was spent, for people: a range where calls of unknown end may have been billed.
    pub fn spent(&self) -> String {
        let range = self.cost_range();
        match self.unpriced_calls {
            0 => range.to_string(),
            _ if range == CostRange::default() => "unpriced".to_owned(),
            1 => format!("{range} and 1 unpriced call"),
            calls => format!("{range} and {calls} unpriced calls"),
        }
    }
}

const SCOPE: &str = "SELECT name, cap, calls, answers, cached, fresh_in, cache_write, cache_read, out, reasoning, cost,
                            unpriced_calls, open_calls, open_ceiling, unknown_calls, unknown_ceiling, throttled, retried,
                            repaired
                     FROM scopes";

impl Ledger {
    /// The sums of a scope, with all that this process has counted; zeros when nobody has used it.
    pub async fn totals(&self, scope: &Scope) -> FileResult<Totals> {
        Ok(self.scope(scope).await?.map_or_else(Totals::default, |found| found.totals))
    }

    /// A scope with its cap and sums; none when nobody has used or capped it.
    pub async fn scope(&self, scope: &Scope) -> FileResult<Option<ScopeTotals>> {
        self.try_flush().await;
        let name = scope.as_str().to_owned();
        self.file
            .read(move |connection| {
                let sql = format!("{SCOPE} WHERE name = ?1");
                Ok(connection.prepare_cached(&sql)?.query_row([name], read_scope).optional()?)
            })
            .await
    }

    /// All scopes whose name begins so, such as `run:`, by name; the newest ten thousand where there are more.
    pub async fn list(&self, prefix: &str) -> FileResult<Vec<ScopeTotals>> {
        self.try_flush().await;
        let prefix = prefix.to_owned();
        self.file
            .read(move |connection| {
                // Not LIKE, to which % and _ mean something.
                let sql = format!("{SCOPE} WHERE substr(name, 1, length(?1)) = ?1 ORDER BY id DESC LIMIT ?2");
                let mut statement = connection.prepare_cached(&sql)?;
                let rows = statement.query_map((prefix, ROWS_MAX), read_scope)?;
                let mut found = rows.collect::<rusqlite::Result<Vec<_>>>()?;
                found.sort_by(|one, other| one.scope.cmp(&other.scope));
                Ok(found)
            })
            .await
    }

    /// Counts that cannot be written now are missing from the sums; they wait, and nobody must wait for them.
    async fn try_flush(&self) {
        if let Err(error) = self.file.flush_events().await {
            debug!(%error, "counts are not written yet");
        }
    }

    /// What each model cost on each day from `first` to `last`, both as `2026-11-15` and both included.
    pub async fn spend(&self, first: &str, last: &str) -> FileResult<Vec<Spend>> {
        let days = (first.to_owned(), last.to_owned(), ROWS_MAX);
        for day in [first, last] {
            if day.parse::<jiff::civil::Date>().is_err() {
                return Err(FileError::invalid(format!("{day:?} is not a day; write it like 2026-11-15")));
            }
        }
        self.file
            .read(move |connection| {
                let sql = "SELECT day, profile, model, calls, answers, fresh_in, cache_write, cache_read, out, reasoning,
                                  cost, unpriced_calls, unknown_calls, unknown_ceiling
                           FROM spend WHERE day BETWEEN ?1 AND ?2
                           ORDER BY day DESC, profile, model LIMIT ?3";
                let mut statement = connection.prepare_cached(sql)?;
                let rows = statement.query_map(days, read_spend)?;
                let mut found = rows.collect::<rusqlite::Result<Vec<_>>>()?;
                found.sort_by(|one, other| key(one).cmp(&key(other)));
                Ok(found)
            })
            .await
    }
}

fn key(spend: &Spend) -> (&str, &str, &str) {
    (&spend.day, &spend.profile, &spend.model)
}

fn read_scope(row: &Row<'_>) -> rusqlite::Result<ScopeTotals> {
    Ok(ScopeTotals {
        scope: Scope::stored(row.get(0)?),
        cap: row.get::<_, Option<i64>>(1)?.map(nanos),
        totals: Totals {
            calls: count(row, 2)?,
            answers: count(row, 3)?,
            cached: count(row, 4)?,
            usage: usage(row, 5)?,
            cost: nanos(row.get(10)?),
            cost_max: nanos(row.get(10)?).saturating_add(nanos(row.get(15)?)),
            unpriced_calls: count(row, 11)?,
            open_calls: count(row, 12)?,
            open_ceiling: nanos(row.get(13)?),
            unknown_calls: count(row, 14)?,
            unknown_ceiling: nanos(row.get(15)?),
            throttled: count(row, 16)?,
            retried: count(row, 17)?,
            repaired: count(row, 18)?,
        },
    })
}

fn read_spend(row: &Row<'_>) -> rusqlite::Result<Spend> {
    Ok(Spend {
        day: row.get(0)?,
        profile: row.get(1)?,
        model: row.get(2)?,
        calls: count(row, 3)?,
        answers: count(row, 4)?,
        usage: usage(row, 5)?,
        cost: nanos(row.get(10)?),
        unpriced_calls: count(row, 11)?,
        unknown_calls: count(row, 12)?,
        unknown_ceiling: nanos(row.get(13)?),
    })
}

fn usage(row: &Row<'_>, first: usize) -> rusqlite::Result<Usage> {
    Ok(Usage {
        fresh_in: count(row, first)?,
        cache_write: count(row, first + 1)?,
        cache_read: count(row, first + 2)?,
        out: count(row, first + 3)?,
        reasoning: count(row, first + 4)?,
    })
}

/// Sums of what was added are never negative.
fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}
