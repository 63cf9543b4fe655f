-- One schema holds one installation. Names are bytewise ordered (COLLATE "C"), as every other store orders them.

-- A job with all its values. Large ones are moved out of the row by TOAST, and an update leaves them where they are; a
-- table of their own would cost each enqueue and each claim another heap and another index.
CREATE TABLE lh_jobs (
    seq         bigint   NOT NULL,          -- submission order and commit order, never reused; see lh_meta
    id          uuid     NOT NULL,
    run_at      bigint   NOT NULL,          -- all times: milliseconds since the epoch, UTC
    created_at  bigint   NOT NULL,
    started_at  bigint,
    finished_at bigint,
    expires_at  bigint,
    -- When a sweep must look at the row: the promoter at a scheduled or parked job, the rescuer at a running one (this
    -- is the end of its lease), the pruner at an ended one.
    due_at      bigint,
    fence       bigint   NOT NULL DEFAULT 0, -- raised by claim and by nothing else
    priority    integer  NOT NULL,
    flags       integer  NOT NULL,          -- what else there is of this job; see rows.rs
    attempt     integer  NOT NULL DEFAULT 0,
    crashes     integer  NOT NULL DEFAULT 0,
    throttles   integer  NOT NULL DEFAULT 0,
    continues   integer  NOT NULL DEFAULT 0,
    parks       integer  NOT NULL DEFAULT 0,
    waits_for   integer  NOT NULL DEFAULT 0, -- dependencies not yet satisfied
    state       smallint NOT NULL,          -- 0 blocked 1 scheduled 2 ready 3 running 4 parked 5 succeeded 6 failed 7 cancelled
    suspect     smallint NOT NULL GENERATED ALWAYS AS (CASE WHEN crashes > 0 THEN 1 ELSE 0 END) STORED,
    cancel      boolean  NOT NULL DEFAULT false, -- a running job that somebody wants to end
    queue       text     COLLATE "C" NOT NULL,
    kind        text     COLLATE "C" NOT NULL,
    process     text     COLLATE "C",
    worker      text     COLLATE "C",       -- who runs it, or ran it last
    park_key    text     COLLATE "C",
    park        text,                       -- Park as JSON, while parked
    wake        text,                       -- what ended the park, until its run has answered
    error       text,
    options     text,                       -- JobOptions as JSON; NULL when all are at their default
    data        text,
    result      text,
    payload     text     NOT NULL
) WITH (
    -- Room for the versions that claim and settlement make: on the same page they cost a third less of the log.
    fillfactor = 60,
    -- Every job is updated twice and deleted: dead rows are what slows a claim, so vacuum comes early.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 1,
    -- A value that would make the row longer than this stands beside it, where claim and settle do not copy it.
    toast_tuple_target = 1024
);
ALTER TABLE lh_jobs ADD PRIMARY KEY (seq);

-- Ids, apart from the jobs: an index of ids on lh_jobs would be written again with each claim and each settlement.
CREATE TABLE lh_ids (id uuid PRIMARY KEY, seq bigint NOT NULL);

-- The claim's order. It leads with the kind as well as the queue, so that a worker for one kind never walks over the
-- backlog of another; jobs whose worker died stand apart, because few of them are claimed at a time; and it is partial,
-- so that neither ended nor waiting jobs slow a claim.
CREATE INDEX lh_jobs_ready ON lh_jobs (queue, kind, suspect, priority, run_at, seq) WHERE state = 2;

-- Nothing is swept inside a claim: promoter, rescuer and pruner come here.
CREATE INDEX lh_jobs_due ON lh_jobs (state, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX lh_jobs_expiry ON lh_jobs (expires_at, seq) WHERE expires_at IS NOT NULL AND started_at IS NULL AND state < 3;

CREATE INDEX lh_jobs_process ON lh_jobs (process, seq) WHERE process IS NOT NULL;
-- Failures are what people look for; the index costs nothing while all goes well.
CREATE INDEX lh_jobs_ended_badly ON lh_jobs (state, seq) WHERE state >= 6;
CREATE INDEX lh_jobs_park ON lh_jobs (park_key, seq) WHERE park_key IS NOT NULL;
CREATE INDEX lh_jobs_cancel ON lh_jobs (worker) WHERE cancel;

-- The highest seq given. An enqueue holds this row until it has committed, so that places are given in the order in
-- which they become visible: whoever has read up to one has missed none before it.
CREATE TABLE lh_meta (key text PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 10);
INSERT INTO lh_meta (key, value) VALUES ('seq', 0), ('event', 0);

-- The first signal for a key counts, and outlives its delivery so that a repeat is recognised.
CREATE TABLE lh_signals (key text COLLATE "C" PRIMARY KEY, signal text NOT NULL, expires_at bigint NOT NULL);
CREATE INDEX lh_signals_expiry ON lh_signals (expires_at);

-- An edge also carries the parent's end, so that deleting a parent never starves a child.
CREATE TABLE lh_edges (
    child      bigint   NOT NULL,
    position   integer  NOT NULL,           -- in the child's depends_on
    parent     bigint   NOT NULL,
    parent_id  uuid     NOT NULL,
    on_failure smallint NOT NULL,           -- 0 cancel 1 run 2 hold
    satisfied  boolean  NOT NULL DEFAULT false,
    ended      smallint,                    -- the parent's terminal state
    result     text,
    PRIMARY KEY (child, position)
);
CREATE INDEX lh_edges_parent ON lh_edges (parent);

-- Jobs that wait for a whole process.
CREATE TABLE lh_waiters (child bigint PRIMARY KEY, process text COLLATE "C" NOT NULL, satisfied boolean NOT NULL);
CREATE INDEX lh_waiters_process ON lh_waiters (process) WHERE NOT satisfied;

-- One row for a past run, save a plain success, which the job row itself tells.
CREATE TABLE lh_runs (
    seq        bigint NOT NULL,
    fence      bigint NOT NULL,
    worker     text   NOT NULL,
    started_at bigint NOT NULL,
    ended_at   bigint NOT NULL,
    outcome    text   NOT NULL,
    error      text,
    usage      text,
    PRIMARY KEY (seq, fence)
);

CREATE TABLE lh_progress (seq bigint PRIMARY KEY, progress text NOT NULL);
CREATE TABLE lh_logs (seq bigint NOT NULL, line bigint NOT NULL, entry text NOT NULL, PRIMARY KEY (seq, line));
CREATE TABLE lh_tags (tag text COLLATE "C" NOT NULL, seq bigint NOT NULL, PRIMARY KEY (tag, seq));

-- Unique keys outlive their job where a window says so.
CREATE TABLE lh_uniques (
    queue       text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    job_id      uuid     NOT NULL,
    seq         bigint   NOT NULL,
    ended       smallint,                   -- the terminal state; NULL while the job is unfinished
    taken_until bigint,                     -- end of the window
    PRIMARY KEY (queue, kind, key)
);
CREATE INDEX lh_uniques_expiry ON lh_uniques (taken_until) WHERE ended IS NOT NULL;

-- Maintained counters without a row that every transaction fights for: a transaction adds what it changed as rows of
-- its own, the truth is the sum of both tables, and now and then one session folds the one into the other.
--   what 0: name is a queue, part is 0        jobs by queue, kind, state
--   what 1: name is a process, part is helper jobs by process and state
--   what 2: name is a queue, part is the day  ended jobs by day, queue, kind, state
CREATE TABLE lh_totals (
    what smallint NOT NULL, name text COLLATE "C" NOT NULL, part bigint NOT NULL, state smallint NOT NULL,
    kind text COLLATE "C" NOT NULL, jobs bigint NOT NULL,
    PRIMARY KEY (what, name, part, state, kind)
);
CREATE TABLE lh_deltas (
    what smallint NOT NULL, name text COLLATE "C" NOT NULL, part bigint NOT NULL, state smallint NOT NULL,
    kind text COLLATE "C" NOT NULL, jobs bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 1);

CREATE TABLE lh_queues (name text COLLATE "C" PRIMARY KEY, paused boolean NOT NULL, max_running bigint, retention text);
CREATE TABLE lh_processes (id text COLLATE "C" PRIMARY KEY, sealed boolean NOT NULL);
CREATE TABLE lh_schedules (name text COLLATE "C" PRIMARY KEY, next_at bigint NOT NULL, schedule text NOT NULL);
CREATE TABLE lh_workers (id text COLLATE "C" PRIMARY KEY, seen_at bigint NOT NULL, info text NOT NULL);

-- What a transaction changed, as it wrote it. Numbers are given later, by one session at a time, to what is committed
-- by then: so no event appears behind a number that a reader has passed.
CREATE TABLE lh_news (id bigint GENERATED ALWAYS AS IDENTITY, at bigint NOT NULL, changes text NOT NULL, more bigint NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 1);
-- A ring: the newest are kept.
CREATE TABLE lh_events (id bigint PRIMARY KEY, at bigint NOT NULL, changes text NOT NULL, more bigint NOT NULL);
