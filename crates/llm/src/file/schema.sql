-- All times: milliseconds since the epoch, UTC. All money: micro-dollars.

-- What was spent and is booked, by scope: a run, a day, a tag, everything. Maintained with each change, so that a cap is
-- checked by reading one row.
CREATE TABLE scopes (
    -- Never used again: a call under way keeps the ids of its scopes, and must not book into a stranger's.
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    name            TEXT    NOT NULL UNIQUE,
    cap             INTEGER,                    -- NULL: none
    calls           INTEGER NOT NULL DEFAULT 0, -- booked; one request of a batch is one
    answers         INTEGER NOT NULL DEFAULT 0,
    cached          INTEGER NOT NULL DEFAULT 0,
    throttled       INTEGER NOT NULL DEFAULT 0,
    retried         INTEGER NOT NULL DEFAULT 0,
    repaired        INTEGER NOT NULL DEFAULT 0,
    fresh_in        INTEGER NOT NULL DEFAULT 0,
    cache_write     INTEGER NOT NULL DEFAULT 0,
    cache_read      INTEGER NOT NULL DEFAULT 0,
    out             INTEGER NOT NULL DEFAULT 0,
    reasoning       INTEGER NOT NULL DEFAULT 0,
    cost            INTEGER NOT NULL DEFAULT 0,
    unpriced_calls  INTEGER NOT NULL DEFAULT 0,
    open_calls      INTEGER NOT NULL DEFAULT 0, -- under way: requests, and the most they can cost
    open_ceiling    INTEGER NOT NULL DEFAULT 0,
    unknown_calls   INTEGER NOT NULL DEFAULT 0, -- may have been billed: requests, and the most they can have cost
    unknown_ceiling INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Reservations that are not settled. A settled call leaves no row; a batch leaves one until nobody can settle it again.
CREATE TABLE calls (
    call        TEXT    NOT NULL PRIMARY KEY,
    job         TEXT    NOT NULL,
    fence       INTEGER,                    -- NULL: outlives the run that made it
    state       INTEGER NOT NULL,           -- 0 open 1 unknown 2 closed
    ceiling     INTEGER,                    -- of what is left of it; NULL: unpriced
    requests    INTEGER NOT NULL,           -- left of it
    scopes      TEXT    NOT NULL,           -- their ids, separated by commas
    day         TEXT    NOT NULL,
    profile     TEXT    NOT NULL,
    model       TEXT    NOT NULL,
    changed_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A run that begins looks for what an earlier run of its job left open.
CREATE INDEX calls_job ON calls (job);
CREATE INDEX calls_closed ON calls (changed_at) WHERE state = 2;

-- Requests of a batch that are booked, so that storing its results again books none twice.
CREATE TABLE parts (
    call TEXT NOT NULL,
    part TEXT NOT NULL,
    PRIMARY KEY (call, part)
) STRICT, WITHOUT ROWID;

-- For "what did which model cost on which day".
CREATE TABLE spend (
    day             TEXT    NOT NULL,
    profile         TEXT    NOT NULL,
    model           TEXT    NOT NULL,
    calls           INTEGER NOT NULL,
    answers         INTEGER NOT NULL,
    fresh_in        INTEGER NOT NULL,
    cache_write     INTEGER NOT NULL,
    cache_read      INTEGER NOT NULL,
    out             INTEGER NOT NULL,
    reasoning       INTEGER NOT NULL,
    cost            INTEGER NOT NULL,
    unpriced_calls  INTEGER NOT NULL,
    unknown_calls   INTEGER NOT NULL,
    unknown_ceiling INTEGER NOT NULL,
    PRIMARY KEY (day, profile, model)
) STRICT, WITHOUT ROWID;

-- The response cache. The number grows with each put, so the lowest numbers are the oldest answers.
CREATE TABLE answers (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    key       BLOB    NOT NULL UNIQUE,
    stored_at INTEGER NOT NULL,
    used_at   INTEGER NOT NULL,             -- to within an hour
    bytes     INTEGER NOT NULL,
    answer    TEXT    NOT NULL
) STRICT;

CREATE INDEX answers_used ON answers (used_at);

-- What the rate controller learnt of its routes. As above, the lowest numbers were written longest ago.
CREATE TABLE learnt (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    route  TEXT NOT NULL UNIQUE,
    json   TEXT NOT NULL
) STRICT;

INSERT INTO meta (key, value) VALUES ('cache_bytes', 0);
