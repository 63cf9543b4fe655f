-- Money is in nano-dollars from here on.
ALTER TABLE score_units RENAME COLUMN cost_micros TO cost_nanos;
UPDATE score_units SET cost_nanos = cost_nanos * 1000;
