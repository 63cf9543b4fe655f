-- The prefix lh_ leaves the file's other names to its owner: an application may keep its own tables beside these.

-- The narrow row that a claim touches. Values live beside it, so that a claim or settle never rewrites them. Only the
-- short payload of a lone enqueue stands in it: a row of its own would be one more page for that enqueue to log.
CREATE TABLE lh_jobs (
    seq         INTEGER PRIMARY KEY,        -- submission order, never reused; see lh_meta.deleted_seq
    id          BLOB    NOT NULL,           -- UUID, 16 bytes
    queue       TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    state       INTEGER NOT NULL,           -- 0 blocked 1 scheduled 2 ready 3 running 4 parked 5 succeeded 6 failed 7 cancelled
    priority    INTEGER NOT NULL,
    run_at      INTEGER NOT NULL,           -- all times: milliseconds since the epoch, UTC
    fence       INTEGER NOT NULL,           -- raised by claim and by nothing else
    flags       INTEGER NOT NULL,           -- which side tables hold rows of this job; see rows.rs
    process     TEXT,
    attempt     INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    throttles   INTEGER NOT NULL,
    continues   INTEGER NOT NULL,
    parks       INTEGER NOT NULL,
    waits_for   INTEGER NOT NULL,           -- dependencies not yet satisfied
    cancel      INTEGER NOT NULL,           -- 1: a running job that somebody wants to end
    created_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER,
    expires_at  INTEGER,
    worker      TEXT,                       -- who runs it, or ran it last
    -- When a sweep must look at the row: the promoter at a scheduled or parked job, the rescuer at a running one (this
    -- is the end of its lease), the pruner at an ended one. A job is one of these at a time, so one column and one
    -- index serve all three, and every index less is felt in each enqueue, claim and settle.
    due_at      INTEGER,
    suspect     INTEGER GENERATED ALWAYS AS (crashes > 0) VIRTUAL,
    -- Last, so that nothing else is read past them. Both are NULL when they are in lh_bodies.
    options     TEXT,                       -- JobOptions as JSON; NULL when all are at their default
    payload     TEXT
) STRICT;

CREATE UNIQUE INDEX lh_jobs_id ON lh_jobs (id);

-- The claim's order. It leads with the kind as well as the queue, so that a worker for one kind never walks over the
-- backlog of another; jobs whose worker died stand apart, because they are claimed one at a time; and it is partial,
-- so that neither ended nor waiting jobs slow a claim.
CREATE INDEX lh_jobs_ready ON lh_jobs (queue, kind, suspect, priority, run_at) WHERE state = 2;

-- Nothing is swept inside a claim: promoter, rescuer and pruner come here.
CREATE INDEX lh_jobs_due ON lh_jobs (state, due_at) WHERE due_at IS NOT NULL;

CREATE INDEX lh_jobs_process ON lh_jobs (process) WHERE process IS NOT NULL;
-- Failures are what people look for; the index costs nothing while all goes well.
CREATE INDEX lh_jobs_ended_badly ON lh_jobs (state) WHERE state >= 6;

-- Waiting jobs that are cancelled unless they run by then. A row here is a reminder to look at the job.
CREATE TABLE lh_expiries (look_at INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (look_at, seq)) STRICT, WITHOUT ROWID;

-- Running jobs that somebody wants to end, by who runs them.
CREATE TABLE lh_cancels (worker TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (worker, seq)) STRICT, WITHOUT ROWID;

-- What does not stand in the job's row; written once, at enqueue.
CREATE TABLE lh_bodies (
    seq     INTEGER PRIMARY KEY,
    options TEXT,                           -- before the payload, so that reading them never walks a large value's
                                            -- overflow pages
    payload TEXT NOT NULL
) STRICT;

CREATE TABLE lh_data (seq INTEGER PRIMARY KEY, data TEXT NOT NULL) STRICT;

CREATE TABLE lh_results (seq INTEGER PRIMARY KEY, result TEXT, error TEXT) STRICT;

-- What a parked job waits for, and what woke it until its next settlement.
CREATE TABLE lh_parks (
    seq   INTEGER PRIMARY KEY,
    key   TEXT,
    park  TEXT,
    wake  TEXT
) STRICT;
CREATE INDEX lh_parks_key ON lh_parks (key) WHERE key IS NOT NULL;

-- The first signal for a key counts, and outlives its delivery so that a repeat is recognised.
CREATE TABLE lh_signals (key TEXT PRIMARY KEY, signal TEXT NOT NULL, expires_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX lh_signals_expiry ON lh_signals (expires_at);

-- An edge also carries the parent's end, so that deleting a parent never starves a child.
CREATE TABLE lh_edges (
    child      INTEGER NOT NULL,
    position   INTEGER NOT NULL,            -- in the child's depends_on
    parent     INTEGER NOT NULL,
    parent_id  BLOB    NOT NULL,
    on_failure INTEGER NOT NULL,            -- 0 cancel 1 run 2 hold
    satisfied  INTEGER NOT NULL,
    ended      INTEGER,                     -- the parent's terminal state
    result     TEXT,
    PRIMARY KEY (child, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX lh_edges_parent ON lh_edges (parent);

-- Jobs that wait for a whole process.
CREATE TABLE lh_waiters (child INTEGER PRIMARY KEY, process TEXT NOT NULL, satisfied INTEGER NOT NULL) STRICT;
CREATE INDEX lh_waiters_process ON lh_waiters (process) WHERE satisfied = 0;

-- One row for a past run, save a plain success, which the job row itself tells.
CREATE TABLE lh_runs (
    seq        INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    worker     TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    outcome    TEXT    NOT NULL,
    error      TEXT,
    usage      TEXT,
    PRIMARY KEY (seq, fence)
) STRICT, WITHOUT ROWID;

CREATE TABLE lh_progress (seq INTEGER PRIMARY KEY, progress TEXT NOT NULL) STRICT;
CREATE TABLE lh_logs (seq INTEGER NOT NULL, line INTEGER NOT NULL, at INTEGER NOT NULL, text TEXT NOT NULL, PRIMARY KEY (seq, line)) STRICT, WITHOUT ROWID;
CREATE TABLE lh_tags (tag TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (tag, seq)) STRICT, WITHOUT ROWID;

-- Unique keys outlive their job where a window says so.
CREATE TABLE lh_uniques (
    queue      TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    job_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    ended      INTEGER,                     -- the terminal state; NULL while the job is unfinished
    taken_until INTEGER,                    -- end of the window
    PRIMARY KEY (queue, kind, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX lh_uniques_expiry ON lh_uniques (taken_until) WHERE ended IS NOT NULL;

-- Maintained with every change; nothing counts rows.
CREATE TABLE lh_counts (
    queue TEXT NOT NULL, kind TEXT NOT NULL, state INTEGER NOT NULL, jobs INTEGER NOT NULL,
    PRIMARY KEY (queue, state, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE lh_process_counts (
    process TEXT NOT NULL, helper INTEGER NOT NULL, state INTEGER NOT NULL, jobs INTEGER NOT NULL,
    PRIMARY KEY (process, helper, state)
) STRICT, WITHOUT ROWID;
CREATE TABLE lh_ledger (
    day INTEGER NOT NULL, queue TEXT NOT NULL, kind TEXT NOT NULL, state INTEGER NOT NULL, jobs INTEGER NOT NULL,
    PRIMARY KEY (day, queue, kind, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE lh_queues (name TEXT PRIMARY KEY, paused INTEGER NOT NULL, max_running INTEGER, retention TEXT) STRICT, WITHOUT ROWID;
CREATE TABLE lh_processes (id TEXT PRIMARY KEY, sealed INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE lh_schedules (name TEXT PRIMARY KEY, next_at INTEGER NOT NULL, schedule TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE lh_workers (id TEXT PRIMARY KEY, seen_at INTEGER NOT NULL, info TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- A ring: the pruner keeps the newest.
CREATE TABLE lh_events (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, changes TEXT NOT NULL, more INTEGER NOT NULL) STRICT;

-- The highest place of a job that was deleted while it was the last one: places are never given twice.
INSERT INTO lh_meta (key, value) VALUES ('deleted_seq', 0);
