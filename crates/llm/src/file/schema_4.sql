-- A cap may let calls without a price pass, which it then does not count.
ALTER TABLE scopes ADD COLUMN allow_unpriced INTEGER NOT NULL DEFAULT 0;

-- What was decided about calls whose end nobody saw: who said when that they were billed or not.
CREATE TABLE decisions (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    decided_at INTEGER NOT NULL,
    decided_by TEXT    NOT NULL,
    verdict    TEXT    NOT NULL,            -- billed, not_billed or provider
    about      TEXT    NOT NULL,            -- which calls, in the words of the command
    calls      INTEGER NOT NULL,
    ceiling    INTEGER NOT NULL,            -- what counted against caps until then
    cost       INTEGER NOT NULL             -- what was booked in its place
) STRICT;
