-- Rows all of whose units have ended, units that the fallback answered, and when something changed last.
ALTER TABLE score_chunks ADD COLUMN processed_rows INTEGER NOT NULL DEFAULT 0;
ALTER TABLE score_chunks ADD COLUMN by_fallback INTEGER NOT NULL DEFAULT 0;
ALTER TABLE score_chunks ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;

-- How long units have been coming in, pauses left out, and when the last ones did: what an ETA is made of.
ALTER TABLE score_sheets ADD COLUMN worked_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE score_sheets ADD COLUMN settled_at INTEGER;
ALTER TABLE score_sheets ADD COLUMN settled_units INTEGER NOT NULL DEFAULT 0;

-- The only chunk whose blanks are gone over at the end, after somebody asked for it alone.
ALTER TABLE score_sheets ADD COLUMN fill_chunk INTEGER;

-- Who answered: the profile beside the model.
ALTER TABLE score_units ADD COLUMN profile TEXT;
