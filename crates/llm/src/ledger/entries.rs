//! The ledger's entries: each function is one command, run in a transaction. Sums go to the sheet after the last statement
//! that can fail.

use rusqlite::{Connection, OptionalExtension, Row};

use super::pending_totals::{SpendKey, Sums, signed, tokens};
use super::resolve::UnknownFilter;
use super::{AMOUNT_MAX, LedgerError, PartSpent, Reservation, Reserved, Sheet, Spent, day_of};
use crate::file::{FileResult, Tx};
use crate::money::NanoUsd;

/// How long a closed batch is remembered, so that telling its parts again changes nothing: longer than any provider keeps
/// its results.
const CLOSED_KEPT_MS: i64 = 60 * 24 * 60 * 60 * 1_000;
/// A call of a process without a name is taken for dead after this; none takes so long.
const NAMELESS_OPEN_MS: i64 = 24 * 60 * 60 * 1_000;
/// Closed batches removed at a time.
const CLOSED_PRUNED_MAX: i64 = 100;

/// What a command answers when the file took it.
type Answer<T> = FileResult<Result<T, LedgerError>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Unknown,
    Closed,
}

/// A reservation, as the file has it.
pub(super) struct Held {
    pub(super) call: String,
    pub(super) fence: Option<i64>,
    state: State,
    pub(super) ceiling: Option<i64>,
    pub(super) requests: i64,
    scopes: String,
    pub(super) spend: SpendKey,
}

/// The columns of a [`Held`], for the statements that answer with some.
macro_rules! held_columns {
    () => {
        "call, fence, state, ceiling, requests, scopes, day, profile, model"
    };
}

impl Held {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let state = match row.get(2)? {
            0_i64 => State::Open,
            1 => State::Unknown,
            _ => State::Closed,
        };
        Ok(Self {
            call: row.get(0)?,
            fence: row.get(1)?,
            state,
            ceiling: row.get(3)?,
            requests: row.get(4)?,
            scopes: row.get(5)?,
            spend: (row.get(6)?, row.get(7)?, row.get(8)?),
        })
    }

    /// What it adds to its scopes' sums in the state that it is in.
    fn standing(&self) -> Sums {
        self.standing_as(self.state)
    }

    fn standing_as(&self, state: State) -> Sums {
        let (requests, ceiling) = (self.requests, self.ceiling.unwrap_or(0));
        match state {
            State::Open => Sums { open_calls: requests, open_ceiling: ceiling, ..Sums::default() },
            State::Unknown => Sums { unknown_calls: requests, unknown_ceiling: ceiling, ..Sums::default() },
            State::Closed => Sums::default(),
        }
    }

    fn ids(&self) -> impl Iterator<Item = i64> {
        self.scopes.split(',').filter_map(|id| id.parse().ok())
    }

    /// Books that it stood as `before` and now as it is, and `spent` besides.
    fn book(&self, sheet: &mut Sheet, before: &Sums, spent: &Sums) {
        let mut change = self.standing();
        change += &before.negative();
        change += spent;
        sheet.add(self.ids(), &change);
        let open_only =
            Sums { open_calls: change.open_calls, open_ceiling: change.open_ceiling, ..Sums::default() };
        if change != open_only {
            sheet.add_spend(self.spend.clone(), &change);
        }
    }
}

impl Sums {
    /// The other way round, of what a reservation stands for.
    fn negative(&self) -> Self {
        Self {
            open_calls: -self.open_calls,
            open_ceiling: -self.open_ceiling,
            unknown_calls: -self.unknown_calls,
            unknown_ceiling: -self.unknown_ceiling,
            ..Self::default()
        }
    }

    fn of_spent(spent: &Spent, requests: i64) -> Self {
        Self {
            calls: requests,
            answers: signed(spent.answers),
            usage: tokens(&spent.usage),
            cost: spent.cost.map_or(0, amount),
            unpriced_calls: if spent.cost.is_none() { requests } else { 0 },
            ..Self::default()
        }
    }
}

fn amount(money: NanoUsd) -> i64 {
    i64::try_from(money.min(AMOUNT_MAX).0).unwrap_or(i64::MAX)
}

/// Runs a statement that answers with reservations.
fn held(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> FileResult<Vec<Held>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(values, Held::read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn find(connection: &Connection, call: &str) -> FileResult<Option<Held>> {
    let sql = concat!("SELECT ", held_columns!(), " FROM calls WHERE call = ?1");
    Ok(held(connection, sql, [call])?.pop())
}

pub(super) fn reserve(
    tx: &mut Tx<'_>,
    reservation: &Reservation,
    owner: &str,
    now_ms: i64,
) -> Answer<Reserved> {
    let earlier = match reservation.fence {
        Some(fence) => turn_unknown(tx.connection, &reservation.job, fence, now_ms)?,
        None => Vec::new(),
    };
    // Booked before the caps are asked, so that a refusal tells the sums as they are.
    book_unknown(&mut tx.sheet, &earlier);
    let answer = reserve_one(tx, reservation, owner, now_ms);
    if answer.is_err() {
        unbook_unknown(&mut tx.sheet, &earlier);
    }
    answer
}

fn reserve_one(tx: &mut Tx<'_>, reservation: &Reservation, owner: &str, now_ms: i64) -> Answer<Reserved> {
    let mut ids = Vec::with_capacity(reservation.scopes.len());
    for scope in &reservation.scopes {
        ids.push(tx.sheet.scope(tx.connection, scope.as_str())?);
    }
    if let Err(refusal) = fits(&tx.sheet, reservation, &ids) {
        // What is booked already needs no room.
        return Ok(reserved_before(tx, &reservation.call, owner, now_ms)?.unwrap_or(Err(refusal)));
    }
    if !insert(tx.connection, reservation, &ids, (owner, now_ms))? {
        let before = reserved_before(tx, &reservation.call, owner, now_ms)?;
        return Ok(before.unwrap_or_else(|| Err(LedgerError::NotReserved(reservation.call.clone()))));
    }
    let change = Sums {
        open_calls: signed(reservation.requests),
        open_ceiling: reservation.ceiling.map_or(0, amount),
        ..Sums::default()
    };
    tx.sheet.add(ids.into_iter(), &change);
    Ok(Ok(Reserved::New))
}

fn fits(sheet: &Sheet, reservation: &Reservation, ids: &[i64]) -> Result<(), LedgerError> {
    // Allowed for a run, it is allowed under the caps of the day and of tags too: nobody else can allow it there.
    if reservation.ceiling.is_none() && ids.iter().any(|id| sheet.allows_unpriced(*id)) {
        return Ok(());
    }
    for (scope, id) in reservation.scopes.iter().zip(ids) {
        match (reservation.ceiling, sheet.cap(*id)) {
            (Some(ceiling), Some(_)) => {
                if let Some(refusal) = sheet.refusal(*id, scope, ceiling) {
                    return Err(LedgerError::OverBudget(Box::new(refusal)));
                }
            }
            (None, Some(cap)) => {
                let (scope, model) = (scope.clone(), reservation.model.clone());
                return Err(LedgerError::Unpriced { scope, cap, model });
            }
            (_, None) => {}
        }
    }
    Ok(())
}

/// False when a call of this name is there.
fn insert(
    connection: &Connection,
    reservation: &Reservation,
    ids: &[i64],
    (owner, now_ms): (&str, i64),
) -> FileResult<bool> {
    let scopes: Vec<String> = ids.iter().map(i64::to_string).collect();
    let inserted = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO calls
                 (call, job, fence, state, ceiling, requests, scopes, day, profile, model, changed_at, owner)
             VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(rusqlite::params![
            reservation.call,
            reservation.job,
            reservation.fence,
            reservation.ceiling.map(amount),
            reservation.requests,
            scopes.join(","),
            day_of(now_ms),
            reservation.profile,
            reservation.model,
            now_ms,
            owner,
        ])?;
    Ok(inserted == 1)
}

/// What is known of a call by its name; one that was unknown is under way again.
fn reserved_before(
    tx: &mut Tx<'_>,
    call: &str,
    owner: &str,
    now_ms: i64,
) -> FileResult<Option<Result<Reserved, LedgerError>>> {
    let Some(mut found) = find(tx.connection, call)? else { return Ok(None) };
    match found.state {
        State::Open => {}
        State::Unknown => {
            let before = found.standing();
            let reopen = "UPDATE calls SET state = 0, changed_at = ?2, owner = ?3 WHERE call = ?1";
            tx.connection.prepare_cached(reopen)?.execute((call, now_ms, owner))?;
            found.state = State::Open;
            found.book(&mut tx.sheet, &before, &Sums::default());
        }
        State::Closed => return Ok(Some(Err(LedgerError::Closed(call.to_owned())))),
    }
    Ok(Some(Ok(Reserved::Again)))
}

/// Makes unknown what runs of a job before `fence` left open.
fn turn_unknown(connection: &Connection, job: &str, fence: u64, now_ms: i64) -> FileResult<Vec<Held>> {
    let sql = concat!(
        "UPDATE calls SET state = 1, changed_at = ?3 WHERE job = ?1 AND state = 0 AND fence < ?2 RETURNING ",
        held_columns!()
    );
    held(connection, sql, (job, fence, now_ms))
}

/// Books calls that were open and are now unknown.
fn book_unknown(sheet: &mut Sheet, calls: &[Held]) {
    for call in calls {
        call.book(sheet, &call.standing_as(State::Open), &Sums::default());
    }
}

/// Takes that back, when the statements behind it are undone.
fn unbook_unknown(sheet: &mut Sheet, calls: &[Held]) {
    for call in calls {
        let mut change = call.standing_as(State::Open);
        change += &call.standing().negative();
        sheet.add(call.ids(), &change);
        sheet.add_spend(call.spend.clone(), &change);
    }
}

/// Processes with open calls that end with them. Few rows: only calls under way, of unknown end, and batches have one.
pub(super) fn owners(connection: &Connection, now_ms: i64) -> FileResult<Vec<String>> {
    let mut statement = connection.prepare_cached(
        "SELECT DISTINCT owner FROM calls
         WHERE state = 0 AND fence IS NOT NULL AND (owner <> '' OR changed_at < ?1)",
    )?;
    let rows = statement.query_map([now_ms - NAMELESS_OPEN_MS], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Makes unknown all that these processes left open.
pub(super) fn abandon(tx: &mut Tx<'_>, owners: &[String], now_ms: i64) -> FileResult<u64> {
    let sql = concat!(
        "UPDATE calls SET state = 1, changed_at = ?2
         WHERE owner = ?1 AND state = 0 AND fence IS NOT NULL AND (owner <> '' OR changed_at < ?3) RETURNING ",
        held_columns!()
    );
    let mut calls = Vec::new();
    for owner in owners {
        calls.extend(held(tx.connection, sql, (owner, now_ms, now_ms - NAMELESS_OPEN_MS))?);
    }
    book_unknown(&mut tx.sheet, &calls);
    Ok(calls.len() as u64)
}

pub(super) fn mark_unknown(tx: &mut Tx<'_>, call: &str, now_ms: i64) -> FileResult<bool> {
    let sql = concat!(
        "UPDATE calls SET state = 1, changed_at = ?2 WHERE call = ?1 AND state = 0 RETURNING ",
        held_columns!()
    );
    let calls = held(tx.connection, sql, (call, now_ms))?;
    book_unknown(&mut tx.sheet, &calls);
    Ok(!calls.is_empty())
}

pub(super) fn settle(tx: &mut Tx<'_>, call: &str, spent: Spent) -> Answer<()> {
    let Some(found) = take(tx.connection, call)? else {
        let closed = find(tx.connection, call)?.is_some();
        let (closed_error, absent) = (LedgerError::Closed, LedgerError::NotReserved);
        return Ok(Err(if closed { closed_error(call.to_owned()) } else { absent(call.to_owned()) }));
    };
    let (before, requests) = (found.standing(), found.requests);
    let settled = Held { state: State::Closed, ..found };
    settled.book(&mut tx.sheet, &before, &Sums::of_spent(&spent, requests));
    Ok(Ok(()))
}

/// Removes a reservation that is open or unknown, with the parts that it may have.
fn take(connection: &Connection, call: &str) -> FileResult<Option<Held>> {
    let sql = concat!("DELETE FROM calls WHERE call = ?1 AND state < 2 RETURNING ", held_columns!());
    let found = held(connection, sql, [call])?.pop();
    // Only what outlives runs has parts.
    if found.as_ref().is_some_and(|found| found.fence.is_none()) {
        delete_parts(connection, call)?;
    }
    Ok(found)
}

fn delete_parts(connection: &Connection, call: &str) -> FileResult<()> {
    connection.prepare_cached("DELETE FROM parts WHERE call = ?1")?.execute([call])?;
    Ok(())
}

pub(super) fn release(tx: &mut Tx<'_>, call: &str, now_ms: i64) -> FileResult<bool> {
    let has_parts = "SELECT EXISTS (SELECT 1 FROM parts WHERE call = ?1)";
    if tx.connection.prepare_cached(has_parts)?.query_row([call], |row| row.get(0))? {
        // Forgetting the parts would let them be booked again.
        return Ok(close(tx, call, now_ms)?.unwrap_or(false));
    }
    let Some(found) = take(tx.connection, call)? else { return Ok(false) };
    let before = found.standing();
    Held { state: State::Closed, ..found }.book(&mut tx.sheet, &before, &Sums::default());
    Ok(true)
}

pub(super) fn settle_parts(tx: &mut Tx<'_>, call: &str, parts: &[PartSpent]) -> Answer<u64> {
    let Some(mut found) = find(tx.connection, call)? else {
        return Ok(Err(LedgerError::NotReserved(call.to_owned())));
    };
    if found.state == State::Closed {
        return Ok(Ok(0));
    }
    let (before, mut booked, mut count) = (found.standing(), Sums::default(), 0);
    let mut insert =
        tx.connection.prepare_cached("INSERT OR IGNORE INTO parts (call, part) VALUES (?1, ?2)")?;
    for part in parts {
        if insert.execute((call, &part.part))? == 0 {
            continue;
        }
        count += 1;
        booked += &Sums::of_spent(&part.spent, 1);
        found.requests = (found.requests - 1).max(0);
        let share = part.ceiling_share.map_or(0, amount);
        found.ceiling = found.ceiling.map(|ceiling| (ceiling - share).max(0));
    }
    let left = "UPDATE calls SET ceiling = ?2, requests = ?3 WHERE call = ?1";
    tx.connection.prepare_cached(left)?.execute((call, found.ceiling, found.requests))?;
    found.book(&mut tx.sheet, &before, &booked);
    Ok(Ok(count))
}

pub(super) fn close(tx: &mut Tx<'_>, call: &str, now_ms: i64) -> Answer<bool> {
    let Some(mut found) = find(tx.connection, call)? else {
        return Ok(Err(LedgerError::NotReserved(call.to_owned())));
    };
    if found.state == State::Closed {
        return Ok(Ok(false));
    }
    let before = found.standing();
    mark_closed(tx.connection, call, now_ms)?;
    let prune = "DELETE FROM calls WHERE call IN
                     (SELECT call FROM calls WHERE state = 2 AND changed_at < ?1 ORDER BY changed_at LIMIT ?2)";
    tx.connection.prepare_cached(prune)?.execute((now_ms - CLOSED_KEPT_MS, CLOSED_PRUNED_MAX))?;
    found.state = State::Closed;
    found.book(&mut tx.sheet, &before, &Sums::default());
    Ok(Ok(true))
}

/// Leaves of a batch that it was closed.
fn mark_closed(connection: &Connection, call: &str, now_ms: i64) -> FileResult<()> {
    let close = "UPDATE calls SET state = 2, ceiling = 0, requests = 0, changed_at = ?2 WHERE call = ?1";
    connection.prepare_cached(close)?.execute((call, now_ms))?;
    delete_parts(connection, call)
}

/// Calls of unknown end that a filter is about, oldest first.
pub(super) fn unknown(connection: &Connection, filter: &UnknownFilter, most: i64) -> FileResult<Vec<Held>> {
    let scope: Option<i64> = match &filter.scope {
        Some(scope) => {
            let find = "SELECT id FROM scopes WHERE name = ?1";
            let id =
                connection.prepare_cached(find)?.query_row([scope.as_str()], |row| row.get(0)).optional()?;
            // An unused scope has no rows.
            let Some(id) = id else { return Ok(Vec::new()) };
            Some(id)
        }
        None => None,
    };
    // Few rows: only calls under way, of unknown end, and closed batches have one.
    let sql = concat!(
        "SELECT ",
        held_columns!(),
        " FROM calls WHERE state = 1 AND (?1 IS NULL OR ',' || scopes || ',' LIKE '%,' || ?1 || ',%')
           AND (?2 IS NULL OR profile = ?2) AND (?3 IS NULL OR model = ?3) AND (?4 IS NULL OR day = ?4)
           AND (?5 IS NULL OR call = ?5)
         ORDER BY changed_at, call LIMIT ?6"
    );
    held(
        connection,
        sql,
        rusqlite::params![scope, filter.profile, filter.model, filter.day, filter.call, most],
    )
}

/// Books what was decided about a call of unknown end. A batch stays known as closed, so that late results book nothing.
pub(super) fn decide(tx: &mut Tx<'_>, call: Held, spent: Option<&Spent>, now_ms: i64) -> FileResult<()> {
    match call.fence {
        Some(_) => drop(take(tx.connection, &call.call)?),
        None => mark_closed(tx.connection, &call.call, now_ms)?,
    }
    let (before, requests) = (call.standing(), call.requests);
    let spent = spent.map_or_else(Sums::default, |spent| Sums::of_spent(spent, requests));
    Held { state: State::Closed, ..call }.book(&mut tx.sheet, &before, &spent);
    Ok(())
}

pub(super) fn forget(tx: &mut Tx<'_>, scope: &str) -> FileResult<bool> {
    let delete = "DELETE FROM scopes WHERE name = ?1 RETURNING id";
    let id: Option<i64> =
        tx.connection.prepare_cached(delete)?.query_row([scope], |row| row.get(0)).optional()?;
    let Some(id) = id else { return Ok(false) };
    // What may have been billed stays, since other scopes count it until they are resolved. Few rows: only calls under way, of
    // unknown end, and closed batches have one.
    let ended = concat!("SELECT ", held_columns!(), " FROM calls WHERE state = 2");
    for call in held(tx.connection, ended, [])? {
        if call.ids().any(|of| of == id) {
            tx.connection.prepare_cached("DELETE FROM calls WHERE call = ?1")?.execute([&call.call])?;
            delete_parts(tx.connection, &call.call)?;
        }
    }
    tx.sheet.forget(scope);
    Ok(true)
}
