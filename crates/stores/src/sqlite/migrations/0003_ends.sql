-- What children learn of a failed parent, and when a waiting job was last moved.

-- Why the parent did not succeed, as its row had it.
ALTER TABLE lh_edges ADD COLUMN error TEXT;

-- When the job came to wait as it does now; NULL: with its enqueue. Of a job that runs or has ended the times of its run tell, so
-- neither an enqueue nor a claim nor a success writes this.
ALTER TABLE lh_jobs ADD COLUMN moved_at INTEGER;
