-- Which process made a call that is not settled: what a dead one left open may have been billed, and nobody will come to say.
-- Empty: made before there was this column, or in memory.
ALTER TABLE calls ADD COLUMN owner TEXT NOT NULL DEFAULT '';
