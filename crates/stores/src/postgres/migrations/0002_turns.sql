-- Fair keys: those of a queue take turns. Jobs with a key have an index of their own, so that a queue without keys is
-- claimed from as before, and a keyed claim steps from key to key however many jobs each has.
ALTER TABLE lh_jobs ADD COLUMN fair_key text COLLATE "C";
DROP INDEX lh_jobs_ready;
CREATE INDEX lh_jobs_ready ON lh_jobs (queue, kind, suspect, priority, run_at, seq) WHERE state = 2 AND fair_key IS NULL;
CREATE INDEX lh_jobs_keyed ON lh_jobs (queue, kind, suspect, fair_key, priority, run_at, seq)
    WHERE state = 2 AND fair_key IS NOT NULL;
-- Counts the running jobs of each key.
CREATE INDEX lh_jobs_running_keys ON lh_jobs (queue, fair_key) WHERE state = 3 AND fair_key IS NOT NULL;

-- last_key: whose turn it was last, '' for jobs without a key; NULL when the queue never had a fair key. It stays when
-- the settings go.
ALTER TABLE lh_queues ADD COLUMN max_running_per_key bigint, ADD COLUMN ageing bigint, ADD COLUMN last_key text COLLATE "C";

-- Small values that processes share, written by who knows their version.
CREATE TABLE lh_records (name text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, value text NOT NULL);
