-- Fair keys: jobs of one queue with different keys take turns.

-- The job's fair key, as its options have it; NULL without one.
ALTER TABLE lh_jobs ADD COLUMN fair_key TEXT;

-- Jobs without a key keep an index of their own. A job stands in one of these two while it is ready, so a key costs no
-- job without one an entry. The keys are tested first: for most jobs that is all there is to test.
DROP INDEX lh_jobs_ready;
CREATE INDEX lh_jobs_ready ON lh_jobs (queue, kind, suspect, priority, run_at) WHERE fair_key IS NULL AND state = 2;

-- A claim goes from key to key, and to the first job of each, by one seek each.
CREATE INDEX lh_jobs_turns ON lh_jobs (queue, kind, suspect, fair_key, priority, run_at)
    WHERE fair_key IS NOT NULL AND state = 2;

-- How many jobs of each key run is counted here; these are no more than there are slots.
CREATE INDEX lh_jobs_running ON lh_jobs (queue, fair_key) WHERE fair_key IS NOT NULL AND state = 3;

ALTER TABLE lh_queues ADD COLUMN max_running_per_key INTEGER;
ALTER TABLE lh_queues ADD COLUMN ageing_ms INTEGER;
-- Whose turn it was last, empty for jobs without a key. NULL: the queue never had a fair key, and claims need no turns.
-- A queue with nothing but this has no settings.
ALTER TABLE lh_queues ADD COLUMN last_key TEXT;

-- Small values that processes share; a write names the version that it replaces.
CREATE TABLE lh_records (name TEXT PRIMARY KEY, version INTEGER NOT NULL, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
