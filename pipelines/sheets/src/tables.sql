-- A sheet: what was asked for, and how far it was read.
CREATE TABLE score_sheets (
  seq        INTEGER PRIMARY KEY,
  id         TEXT NOT NULL UNIQUE,
  settings   TEXT NOT NULL,
  plan       TEXT NOT NULL,
  made_at    INTEGER NOT NULL,
  -- All of the table was read.
  read_whole INTEGER NOT NULL DEFAULT 0,
  -- What finishing it came to, once it has.
  exported   TEXT
) STRICT;

-- A chunk and what became of its units. Counters change with the units, so that no page counts rows.
CREATE TABLE score_chunks (
  sheet     INTEGER NOT NULL,
  chunk     INTEGER NOT NULL,
  first_row INTEGER NOT NULL,
  last_row  INTEGER NOT NULL,
  rows      INTEGER NOT NULL,
  units     INTEGER NOT NULL,
  scored    INTEGER NOT NULL DEFAULT 0,
  written   INTEGER NOT NULL DEFAULT 0,
  failed    INTEGER NOT NULL DEFAULT 0,
  edited    INTEGER NOT NULL DEFAULT 0,
  cached    INTEGER NOT NULL DEFAULT 0,
  asked     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (sheet, chunk)
) STRICT, WITHOUT ROWID;

-- A text. `filled` lists the targets that had a value before.
CREATE TABLE score_rows (
  sheet  INTEGER NOT NULL,
  row    INTEGER NOT NULL,
  text   TEXT NOT NULL,
  filled TEXT,
  PRIMARY KEY (sheet, row)
) STRICT, WITHOUT ROWID;

-- What became of a unit. state: 1 scored, 2 written, 3 failed, 4 edited by somebody meanwhile.
CREATE TABLE score_units (
  sheet       INTEGER NOT NULL,
  row         INTEGER NOT NULL,
  block       INTEGER NOT NULL,
  state       INTEGER NOT NULL,
  cells       TEXT,
  model       TEXT,
  cost_micros INTEGER,
  reason      TEXT,
  PRIMARY KEY (sheet, row, block)
) STRICT, WITHOUT ROWID;

-- The few units that are not simply written: to be written, or to be looked at and tried again.
CREATE INDEX score_units_open ON score_units (sheet, state, row, block) WHERE state <> 2;

-- Answers by everything that shapes them.
CREATE TABLE score_cache (
  key   BLOB PRIMARY KEY,
  cells TEXT NOT NULL,
  model TEXT NOT NULL,
  at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX score_cache_at ON score_cache (at);

-- When a sheet elsewhere was written, so that all processes together keep to its quota.
CREATE TABLE score_writes (
  account TEXT NOT NULL,
  at      INTEGER NOT NULL
) STRICT;
CREATE INDEX score_writes_at ON score_writes (account, at);
