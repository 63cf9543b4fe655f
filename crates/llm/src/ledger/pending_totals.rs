//! Changes of sums, gathered over a group of commands and written once. Sums of a scope are one row, and a crowd of calls
//! mostly shares its scopes: writing them call by call would cost more than the calls' own rows.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};

use super::{Event, OverBudget, Scope};
use crate::file::FileResult;
use crate::money::NanoUsd;
use crate::types::Usage;

/// Changes of what is summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) calls: i64,
    pub(super) answers: i64,
    pub(super) cached: i64,
    pub(super) throttled: i64,
    pub(super) retried: i64,
    pub(super) repaired: i64,
    pub(super) usage: Tokens,
    pub(super) cost: i64,
    pub(super) unpriced_calls: i64,
    pub(super) open_calls: i64,
    pub(super) open_ceiling: i64,
    pub(super) unknown_calls: i64,
    pub(super) unknown_ceiling: i64,
}

/// A usage, as the database's numbers: fresh input, cache write, cache read, output, reasoning.
pub(super) type Tokens = [i64; 5];

pub(super) fn tokens(usage: &Usage) -> Tokens {
    let Usage { fresh_in, cache_write, cache_read, out, reasoning } = *usage;
    [fresh_in, cache_write, cache_read, out, reasoning].map(signed)
}

/// A count as the database's number. Callers bound what they pass; the rest could only be a provider's nonsense.
pub(super) fn signed(count: u64) -> i64 {
    i64::try_from(count.min(super::COUNT_MAX)).unwrap_or(i64::MAX)
}

impl std::ops::AddAssign<&Sums> for Sums {
    fn add_assign(&mut self, other: &Sums) {
        self.calls += other.calls;
        self.answers += other.answers;
        self.cached += other.cached;
        self.throttled += other.throttled;
        self.retried += other.retried;
        self.repaired += other.repaired;
        for (sum, tokens) in self.usage.iter_mut().zip(other.usage) {
            *sum += tokens;
        }
        self.cost += other.cost;
        self.unpriced_calls += other.unpriced_calls;
        self.open_calls += other.open_calls;
        self.open_ceiling += other.open_ceiling;
        self.unknown_calls += other.unknown_calls;
        self.unknown_ceiling += other.unknown_ceiling;
    }
}

/// What a cap is checked against, as the file had it when the group began.
#[derive(Debug, Clone, Copy, Default)]
struct Balance {
    cap: Option<i64>,
    allow_unpriced: bool,
    cost: i64,
    open: i64,
    unknown: i64,
}

#[derive(Default)]
struct Line {
    balance: Balance,
    change: Sums,
}

/// Day, profile and model.
pub(super) type SpendKey = (String, String, String);

/// The changes of one group.
#[derive(Default)]
pub(crate) struct Sheet {
    ids: HashMap<String, i64>,
    lines: HashMap<i64, Line>,
    spend: HashMap<SpendKey, Sums>,
}

impl Sheet {
    /// The id of a scope; makes it where it is new.
    pub(super) fn scope(&mut self, connection: &Connection, name: &str) -> FileResult<i64> {
        if let Some(id) = self.ids.get(name) {
            return Ok(*id);
        }
        let find =
            "SELECT id, cap, cost, open_ceiling, unknown_ceiling, allow_unpriced FROM scopes WHERE name = ?1";
        let found = connection
            .prepare_cached(find)?
            .query_row([name], |row| {
                let balance = Balance {
                    cap: row.get(1)?,
                    cost: row.get(2)?,
                    open: row.get(3)?,
                    unknown: row.get(4)?,
                    allow_unpriced: row.get(5)?,
                };
                Ok((row.get(0)?, balance))
            })
            .optional()?;
        let (id, balance) = match found {
            Some(found) => found,
            None => {
                connection.prepare_cached("INSERT INTO scopes (name) VALUES (?1)")?.execute([name])?;
                (connection.last_insert_rowid(), Balance::default())
            }
        };
        self.ids.insert(name.to_owned(), id);
        self.lines.entry(id).or_default().balance = balance;
        Ok(id)
    }

    /// The cap of a scope that was looked up.
    pub(super) fn cap(&self, id: i64) -> Option<NanoUsd> {
        self.lines.get(&id).and_then(|line| line.balance.cap).map(nanos)
    }

    /// Whether calls without a price pass, for a scope that was looked up.
    pub(super) fn allows_unpriced(&self, id: i64) -> bool {
        self.lines.get(&id).is_some_and(|line| line.balance.allow_unpriced)
    }

    /// Why an amount does not fit under the cap of a scope that was looked up.
    pub(super) fn refusal(&self, id: i64, scope: &Scope, ceiling: NanoUsd) -> Option<OverBudget> {
        let Line { balance, change } = self.lines.get(&id)?;
        let cap = nanos(balance.cap?);
        let spent = nanos(balance.cost + change.cost);
        let open = nanos(balance.open + change.open_ceiling);
        let unknown = nanos(balance.unknown + change.unknown_ceiling);
        let sum = [spent, open, unknown, ceiling].into_iter().sum::<NanoUsd>();
        (sum > cap).then(|| OverBudget { scope: scope.clone(), cap, spent, open, unknown, ceiling })
    }

    /// Adds to scopes. Ids of scopes that are forgotten meanwhile do no harm.
    pub(super) fn add(&mut self, ids: impl Iterator<Item = i64>, change: &Sums) {
        for id in ids {
            self.lines.entry(id).or_default().change += change;
        }
    }

    /// Adds to what a model cost on a day.
    pub(super) fn add_spend(&mut self, key: SpendKey, change: &Sums) {
        *self.spend.entry(key).or_default() += change;
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.ids.remove(name);
    }

    pub(super) fn set_cap(
        &mut self,
        connection: &Connection,
        name: &str,
        cap: Option<NanoUsd>,
    ) -> FileResult<()> {
        let id = self.scope(connection, name)?;
        let cap = cap.map(|cap| i64::try_from(cap.0).unwrap_or(i64::MAX));
        connection.prepare_cached("UPDATE scopes SET cap = ?2 WHERE id = ?1")?.execute((id, cap))?;
        self.lines.entry(id).or_default().balance.cap = cap;
        Ok(())
    }

    pub(super) fn allow_unpriced(
        &mut self,
        connection: &Connection,
        name: &str,
        allow: bool,
    ) -> FileResult<()> {
        let id = self.scope(connection, name)?;
        let set = "UPDATE scopes SET allow_unpriced = ?2 WHERE id = ?1";
        connection.prepare_cached(set)?.execute((id, allow))?;
        self.lines.entry(id).or_default().balance.allow_unpriced = allow;
        Ok(())
    }

    /// After a command was undone: a scope that it made is gone again, so names are looked up anew.
    pub(crate) fn distrust_names(&mut self) {
        self.ids.clear();
    }

    /// Counts events.
    pub(crate) fn count(
        &mut self,
        connection: &Connection,
        scope: &str,
        event: Event,
        count: u64,
    ) -> FileResult<()> {
        let id = self.scope(connection, scope)?;
        let mut change = Sums::default();
        let sum = match event {
            Event::Cached => &mut change.cached,
            Event::Throttled => &mut change.throttled,
            Event::Retried => &mut change.retried,
            Event::Repaired => &mut change.repaired,
        };
        *sum = signed(count);
        self.add(std::iter::once(id), &change);
        Ok(())
    }

    /// Writes all of it.
    pub(crate) fn write(&self, connection: &Connection) -> FileResult<()> {
        for (id, line) in &self.lines {
            if line.change != Sums::default() {
                write_scope(connection, *id, &line.change)?;
            }
        }
        for (key, change) in &self.spend {
            if *change != Sums::default() {
                write_spend(connection, key, change)?;
            }
        }
        Ok(())
    }
}

/// An amount out of the file. Sums of what was added are never negative.
pub(super) fn nanos(amount: i64) -> NanoUsd {
    NanoUsd(u64::try_from(amount).unwrap_or(0))
}

fn write_scope(connection: &Connection, id: i64, change: &Sums) -> FileResult<()> {
    let [fresh_in, cache_write, cache_read, out, reasoning] = change.usage;
    connection
        .prepare_cached(
            "UPDATE scopes SET
                 calls = calls + ?2, answers = answers + ?3, cached = cached + ?4, throttled = throttled + ?5,
                 retried = retried + ?6, repaired = repaired + ?7, fresh_in = fresh_in + ?8,
                 cache_write = cache_write + ?9, cache_read = cache_read + ?10, out = out + ?11,
                 reasoning = reasoning + ?12, cost = cost + ?13, unpriced_calls = unpriced_calls + ?14,
                 open_calls = open_calls + ?15, open_ceiling = open_ceiling + ?16,
                 unknown_calls = unknown_calls + ?17, unknown_ceiling = unknown_ceiling + ?18
             WHERE id = ?1",
        )?
        .execute([
            id,
            change.calls,
            change.answers,
            change.cached,
            change.throttled,
            change.retried,
            change.repaired,
            fresh_in,
            cache_write,
            cache_read,
            out,
            reasoning,
            change.cost,
            change.unpriced_calls,
            change.open_calls,
            change.open_ceiling,
            change.unknown_calls,
            change.unknown_ceiling,
        ])?;
    Ok(())
}

fn write_spend(connection: &Connection, key: &SpendKey, change: &Sums) -> FileResult<()> {
    let (day, profile, model) = key;
    let [fresh_in, cache_write, cache_read, out, reasoning] = change.usage;
    connection
        .prepare_cached(
            "INSERT INTO spend (day, profile, model, calls, answers, fresh_in, cache_write, cache_read, out, reasoning,
                                cost, unpriced_calls, unknown_calls, unknown_ceiling)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
             ON CONFLICT DO UPDATE SET
                 calls = calls + excluded.calls, answers = answers + excluded.answers,
                 fresh_in = fresh_in + excluded.fresh_in, cache_write = cache_write + excluded.cache_write,
                 cache_read = cache_read + excluded.cache_read, out = out + excluded.out,
                 reasoning = reasoning + excluded.reasoning, cost = cost + excluded.cost,
                 unpriced_calls = unpriced_calls + excluded.unpriced_calls,
                 unknown_calls = unknown_calls + excluded.unknown_calls,
                 unknown_ceiling = unknown_ceiling + excluded.unknown_ceiling",
        )?
        .execute(rusqlite::params![
            day,
            profile,
            model,
            change.calls,
            change.answers,
            fresh_in,
            cache_write,
            cache_read,
            out,
            reasoning,
            change.cost,
            change.unpriced_calls,
            change.unknown_calls,
            change.unknown_ceiling,
        ])?;
    Ok(())
}
