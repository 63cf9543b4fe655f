//! Enqueue: jobs, their edges and unique keys, all or none. First a plan, made from what is stored, then a few
//! statements that write all of it, however many jobs there are.

use std::collections::{HashMap, HashSet};

use longhaul_queue::graph::{self as graph_rules, Edge};
use longhaul_queue::job::{Dependency, JobId, NewJob, ProcessId, UniquePolicy};
use longhaul_queue::store::{Enqueued, InsertOutcome, refusals, rules};
use longhaul_queue::{Json, State, Timestamp};

use super::error::{DbError, DbResult};
use super::rows::{
    JobRow, by_ids, flag, jobs_by_id, millis, on_failure_number, options_text, read_id, read_json,
    read_on_failure, read_state, state_number, uuid, uuids,
};
use super::tx::Tx;
use super::unique::{self, Scope};
use super::{columns, graph, insert_fast, process};
use crate::changes::JobKey;
use crate::insert_batcher::reaches_out;

/// Stores jobs in the order given; parents may stand after their children.
pub(super) async fn insert(tx: &mut Tx<'_>, jobs: &[NewJob], now: Timestamp) -> DbResult<Vec<Enqueued>> {
    graph_rules::check(jobs)?;
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    if !tx.is_alone() && jobs.iter().any(reaches_out) {
        return Err(DbError::Alone);
    }
    if tx.may_restart() {
        return Ok(insert_fast::insert(tx, &[(jobs, now)]).await?.pop().unwrap_or_default());
    }
    let ids = jobs.iter().map(id_of).collect::<DbResult<Vec<_>>>()?;
    let last_seq = lock_seq(tx).await?;
    let stored = jobs_by_id(tx, &ids).await?;
    check_duplicates(tx, jobs, &stored).await?;
    let mut plan = Plan { last_seq, new: Vec::new(), members: HashMap::new(), taken: HashMap::new() };
    let holders = unique::holders(tx, jobs).await?;
    let mut enqueued = Vec::with_capacity(jobs.len());
    for (id, job) in ids.into_iter().zip(jobs) {
        if plan.members.contains_key(&id) {
            return Err(refusals::given_twice(id).into());
        }
        if let Some(row) = stored.get(&id) {
            enqueued.push(Enqueued { id, seq: row.seq, state: row.state, how: InsertOutcome::Duplicate });
        } else if let Some(second) = plan.second_enqueue(tx, job, &holders, now).await? {
            enqueued.push(second);
        } else {
            enqueued.push(plan.add(id, job, now));
        }
    }
    let causes = plan.link(tx).await?;
    plan.write(tx, now).await?;
    for (child, parent, state) in &causes {
        graph::cancel_by_parent(tx, *child, *parent, *state, now).await?;
    }
    let settled = causes.is_empty() && enqueued.iter().all(|entry| entry.how == InsertOutcome::Inserted);
    if settled {
        plan.tell_states(&mut enqueued, now);
    } else {
        read_states(tx, &mut enqueued).await?;
    }
    Ok(enqueued)
}

pub(super) fn id_of(job: &NewJob) -> DbResult<JobId> {
    job.id.ok_or_else(|| refusals::no_id(&job.kind).into())
}

/// The highest place given so far. The row stays locked until the commit: see the migration.
pub(super) async fn lock_seq(tx: &Tx<'_>) -> DbResult<i64> {
    let row = tx.one("SELECT value FROM lh_meta WHERE key = 'seq' FOR UPDATE", &[]).await?;
    let row = row.ok_or_else(|| super::error::corrupt("lh_meta", "seq is missing"))?;
    Ok(row.try_get(0)?)
}

/// A repeated enqueue must mean the same as the first.
async fn check_duplicates(tx: &Tx<'_>, jobs: &[NewJob], stored: &HashMap<JobId, JobRow>) -> DbResult<()> {
    if stored.is_empty() {
        return Ok(());
    }
    let seqs: Vec<i64> = stored.values().map(|row| row.seq).collect();
    let mut payloads = HashMap::new();
    for row in tx.all("SELECT seq, payload FROM lh_jobs WHERE seq = ANY ($1)", &[&seqs]).await? {
        payloads.insert(row.try_get::<_, i64>(0)?, Json::trusted(row.try_get::<_, String>(1)?));
    }
    let mut parents: HashMap<i64, Vec<Dependency>> = HashMap::new();
    let sql =
        "SELECT child, parent_id, on_failure FROM lh_edges WHERE child = ANY ($1) ORDER BY child, position";
    for row in tx.all(sql, &[&seqs]).await? {
        let dependency = Dependency { job_id: read_id(&row, 1)?, on_failure: read_on_failure(&row, 2)? };
        parents.entry(row.try_get(0)?).or_default().push(dependency);
    }
    let mut after = HashMap::new();
    for row in tx.all("SELECT child, process FROM lh_waiters WHERE child = ANY ($1)", &[&seqs]).await? {
        after.insert(row.try_get::<_, i64>(0)?, row.try_get::<_, String>(1)?);
    }
    for job in jobs {
        let Some(row) = job.id.and_then(|id| stored.get(&id)) else { continue };
        let payload = payloads.get(&row.seq).cloned().unwrap_or_else(Json::null);
        let stored = NewJob {
            id: Some(row.id),
            queue: row.queue.clone(),
            priority: row.priority,
            helper: row.has(flag::HELPER),
            process_id: row.process.clone().map(ProcessId::from),
            after_process: after.get(&row.seq).cloned().map(ProcessId::from),
            depends_on: parents.get(&row.seq).cloned().unwrap_or_default(),
            options: row.options()?,
            ..NewJob::new(row.kind.clone(), payload)
        };
        if !rules::same_content(&stored, job) {
            return Err(refusals::other_content(row.id).into());
        }
    }
    Ok(())
}

/// A job that will be stored.
struct New<'j> {
    id: JobId,
    seq: i64,
    job: &'j NewJob,
    payload: &'j Json,
    run_at: Timestamp,
    waits_for: usize,
    /// It waits for a process that is not done.
    waits_for_process: bool,
    parents: Vec<NewEdge<'j>>,
}

impl New<'_> {
    fn state(&self, now: Timestamp) -> State {
        rules::first_state(self.waits_for > 0, self.run_at, now)
    }
}

/// An edge that will be stored, with what the parent has done before.
struct NewEdge<'j> {
    dependency: &'j Dependency,
    parent: i64,
    satisfied: bool,
    ended: Option<State>,
    result: Option<Json>,
}

/// A parent that is stored already.
struct Parent {
    seq: i64,
    state: State,
    result: Option<Json>,
}

/// Jobs that may be stored, with what will become of each.
struct Plan<'j> {
    last_seq: i64,
    new: Vec<New<'j>>,
    /// Where a member stands in `new`.
    members: HashMap<JobId, usize>,
    /// Keys taken by members, by where these stand in `new`.
    taken: HashMap<Scope<'j>, usize>,
}

impl<'j> Plan<'j> {
    fn add(&mut self, id: JobId, job: &'j NewJob, now: Timestamp) -> Enqueued {
        self.last_seq += 1;
        let (seq, index) = (self.last_seq, self.new.len());
        self.members.insert(id, index);
        if let Some(scope) = unique::scope_of(job) {
            self.taken.insert(scope, index);
        }
        self.new.push(New {
            id,
            seq,
            job,
            payload: &job.payload,
            run_at: job.run_at.unwrap_or(now),
            waits_for: 0,
            waits_for_process: false,
            parents: Vec::new(),
        });
        Enqueued { id, seq, state: State::Blocked, how: InsertOutcome::Inserted }
    }

    /// What an enqueue does whose unique key is taken; `None` when it is free.
    async fn second_enqueue(
        &mut self,
        tx: &mut Tx<'_>,
        job: &'j NewJob,
        holders: &HashMap<Scope<'j>, unique::Holder>,
        now: Timestamp,
    ) -> DbResult<Option<Enqueued>> {
        let Some(scope) = unique::scope_of(job) else { return Ok(None) };
        let policy = job.options.unique.as_ref().map_or(UniquePolicy::Skip, |unique| unique.policy);
        if let Some(&index) = self.taken.get(&scope) {
            let member = &mut self.new[index];
            // A member of the same submission still waits, whatever its parents will do to it.
            let how = match policy {
                UniquePolicy::Skip => InsertOutcome::Skipped,
                UniquePolicy::Replace => {
                    member.payload = &job.payload;
                    InsertOutcome::Replaced
                }
                UniquePolicy::Debounce { wait, cap } => {
                    member.run_at = unique::pushed_back(now, member.run_at, now + wait, cap);
                    InsertOutcome::Debounced
                }
            };
            return Ok(Some(Enqueued { id: member.id, seq: member.seq, state: State::Blocked, how }));
        }
        let Some(holder) = holders.get(&scope).filter(|holder| holder.is_taken(now)) else { return Ok(None) };
        let Some(row) = unique::holding_row(tx, holder).await? else {
            // The window outlives the job, which was consumed.
            let state = holder.ended.unwrap_or(State::Succeeded);
            return Ok(Some(Enqueued { id: holder.id, seq: holder.seq, state, how: InsertOutcome::Skipped }));
        };
        let how = unique::second_enqueue(tx, &row, job, policy, now).await?;
        Ok(Some(Enqueued { id: row.id, seq: row.seq, state: row.state, how }))
    }

    /// Finds out what the new jobs wait for; all of it must be stored, or be stored with them. Returns those that fall
    /// with a parent, with that parent's end.
    async fn link(&mut self, tx: &Tx<'_>) -> DbResult<Vec<(i64, JobId, State)>> {
        let waiting = |new: &New<'_>| !new.job.depends_on.is_empty() || new.job.after_process.is_some();
        if !self.new.iter().any(waiting) {
            return Ok(Vec::new());
        }
        let stored = self.stored_parents(tx).await?;
        let seqs: HashMap<JobId, i64> = self.new.iter().map(|new| (new.id, new.seq)).collect();
        let mut open: HashMap<&str, bool> = HashMap::new();
        for process in self.new.iter().filter_map(|new| new.job.after_process.as_ref()) {
            if !open.contains_key(process.as_str()) {
                open.insert(process.as_str(), self.is_open(tx, process).await?);
            }
        }
        let mut causes = Vec::new();
        for new in &mut self.new {
            for dependency in &new.job.depends_on {
                let edge = new_edge(new.id, dependency, &seqs, &stored)?;
                let cancels = edge
                    .ended
                    .is_some_and(|ended| graph_rules::edge(ended, dependency.on_failure) == Edge::Cancels);
                if let (true, Some(ended)) = (cancels, edge.ended)
                    && causes.last().is_none_or(|(child, _, _)| *child != new.seq)
                {
                    causes.push((new.seq, dependency.job_id, ended));
                }
                new.parents.push(edge);
            }
            let process = new.job.after_process.as_ref();
            new.waits_for_process = process.is_some_and(|process| open.get(process.as_str()) == Some(&true));
            let unsatisfied = new.parents.iter().filter(|edge| !edge.satisfied).count();
            new.waits_for = unsatisfied + usize::from(new.waits_for_process);
        }
        Ok(causes)
    }

    async fn stored_parents(&self, tx: &Tx<'_>) -> DbResult<HashMap<JobId, Parent>> {
        let all = self.new.iter().flat_map(|new| &new.job.depends_on).map(|dependency| dependency.job_id);
        let others: HashSet<JobId> = all.filter(|id| !self.members.contains_key(id)).collect();
        if others.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<JobId> = others.into_iter().collect();
        let sql = concat!(
            "UPDATE lh_jobs SET flags = flags | $2 WHERE ",
            by_ids!(),
            " RETURNING id, seq, state, CASE WHEN state = 5 THEN result END"
        );
        let mut parents = HashMap::new();
        for row in tx.all(sql, &[&uuids(&ids), &flag::CHILDREN]).await? {
            let parent =
                Parent { seq: row.try_get(1)?, state: read_state(&row, 2)?, result: read_json(&row, 3)? };
            parents.insert(read_id(&row, 0)?, parent);
        }
        Ok(parents)
    }

    /// Whether a process still has something to wait for. Refused when there is no such process, or when it is that of
    /// the waiting job itself.
    async fn is_open(&self, tx: &Tx<'_>, process: &ProcessId) -> DbResult<bool> {
        let waits = |new: &&New<'_>| new.job.after_process.as_ref() == Some(process);
        let belongs = |new: &&New<'_>| new.job.process_id.as_ref() == Some(process);
        let done = process::is_done(tx, process.as_str()).await?;
        if done.is_none()
            && !self.new.iter().any(|new| belongs(&new))
            && let Some(first) = self.new.iter().find(waits)
        {
            return Err(refusals::no_process(first.id, process).into());
        }
        if let Some(own) = self.new.iter().filter(waits).find(|new| belongs(new) && !new.job.helper) {
            return Err(refusals::own_process(own.id, process).into());
        }
        let joined = self.new.iter().any(|new| belongs(&new) && !new.job.helper);
        Ok(joined || done == Some(false))
    }

    async fn write(&self, tx: &mut Tx<'_>, now: Timestamp) -> DbResult<()> {
        if self.new.is_empty() {
            return Ok(());
        }
        let named = |new: &New<'j>| new.parents.iter().map(|edge| edge.dependency.job_id).collect::<Vec<_>>();
        let parents: HashSet<JobId> = self.new.iter().flat_map(named).collect();
        let mut jobs = columns::Jobs::default();
        let mut edges = columns::Edges::default();
        for new in &self.new {
            let state = new.state(now);
            let children = if parents.contains(&new.id) { flag::CHILDREN } else { 0 };
            jobs.seq.push(new.seq);
            jobs.id.push(uuid(new.id));
            jobs.queue.push(&new.job.queue);
            jobs.kind.push(&new.job.kind);
            jobs.state.push(state_number(state));
            jobs.priority.push(new.job.priority);
            jobs.run_at.push(new.run_at.as_millis());
            jobs.flags.push(flag::of_new(new.job) | children);
            jobs.process.push(new.job.process_id.as_ref().map(ProcessId::as_str));
            jobs.waits_for.push(i32::try_from(new.waits_for).unwrap_or(i32::MAX));
            jobs.expires_at.push(millis(new.job.expires_at));
            jobs.due_at.push(millis(Some(new.run_at).filter(|_| state == State::Scheduled)));
            jobs.options.push(options_text(&new.job.options)?);
            jobs.payload.push(new.payload.as_str());
            jobs.created_at.push(now.as_millis());
            jobs.fair_key.push(new.job.options.fair_key.as_deref());
            for (position, edge) in (0..).zip(&new.parents) {
                edges.child.push(new.seq);
                edges.position.push(position);
                edges.parent.push(edge.parent);
                edges.parent_id.push(uuid(edge.dependency.job_id));
                edges.on_failure.push(on_failure_number(edge.dependency.on_failure));
                edges.satisfied.push(edge.satisfied);
                edges.ended.push(edge.ended.map(state_number));
                edges.result.push(edge.result.as_ref().map(Json::as_str));
            }
            let process = new.job.process_id.as_ref().map(ProcessId::as_str);
            let (queue, kind) = (new.job.queue.as_str(), new.job.kind.as_str());
            let subject = JobKey { id: new.id, queue, kind, process, helper: new.job.helper };
            tx.moved(subject, None, Some(state));
        }
        jobs.write(tx, self.last_seq).await?;
        edges.write(tx).await?;
        self.write_rest(tx, now).await
    }

    /// What few jobs have: waits for a process, tags, unique keys.
    async fn write_rest(&self, tx: &Tx<'_>, now: Timestamp) -> DbResult<()> {
        for new in &self.new {
            if let Some(process) = &new.job.after_process {
                let sql = "INSERT INTO lh_waiters (child, process, satisfied) VALUES ($1, $2, $3)";
                tx.run(sql, &[&new.seq, &process.as_str(), &!new.waits_for_process]).await?;
            }
            unique::hold(tx, new.job, new.id, new.seq, now).await?;
        }
        write_tags(tx, self.new.iter().map(|new| (new.seq, new.job))).await
    }

    /// Where the new jobs stand, when all of the submission are new and nothing has moved them since.
    fn tell_states(&self, enqueued: &mut [Enqueued], now: Timestamp) {
        for (entry, new) in enqueued.iter_mut().zip(&self.new) {
            entry.state = new.state(now);
        }
    }
}

pub(super) async fn write_tags<'j>(
    tx: &Tx<'_>,
    jobs: impl Iterator<Item = (i64, &'j NewJob)>,
) -> DbResult<()> {
    let (mut tags, mut tagged) = (Vec::new(), Vec::new());
    for (seq, job) in jobs {
        for tag in &job.options.tags {
            tags.push(tag.as_str());
            tagged.push(seq);
        }
    }
    if tags.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO lh_tags (tag, seq) SELECT * FROM unnest($1::text[], $2::bigint[]) ON CONFLICT DO NOTHING";
    tx.run(sql, &[&tags, &tagged]).await?;
    Ok(())
}

fn new_edge<'j>(
    child: JobId,
    dependency: &'j Dependency,
    members: &HashMap<JobId, i64>,
    stored: &HashMap<JobId, Parent>,
) -> DbResult<NewEdge<'j>> {
    let open = |parent: i64| NewEdge { dependency, parent, satisfied: false, ended: None, result: None };
    let parent_id = dependency.job_id;
    if let Some(seq) = members.get(&parent_id) {
        return Ok(open(*seq));
    }
    let Some(parent) = stored.get(&parent_id) else {
        return Err(refusals::no_parent(child, parent_id).into());
    };
    let ended = Some(parent.state).filter(|state| state.is_terminal());
    Ok(match graph_rules::edge(parent.state, dependency.on_failure) {
        Edge::Open => open(parent.seq),
        Edge::Satisfied => {
            NewEdge { satisfied: true, ended, result: parent.result.clone(), ..open(parent.seq) }
        }
        Edge::Cancels | Edge::Holds => NewEdge { ended, ..open(parent.seq) },
    })
}

/// Where all of them stand at the end of the enqueue.
async fn read_states(tx: &Tx<'_>, enqueued: &mut [Enqueued]) -> DbResult<()> {
    let seqs: Vec<i64> = enqueued.iter().map(|entry| entry.seq).collect();
    let mut states = HashMap::new();
    for row in tx.all("SELECT seq, state FROM lh_jobs WHERE seq = ANY ($1)", &[&seqs]).await? {
        states.insert(row.try_get::<_, i64>(0)?, read_state(&row, 1)?);
    }
    for entry in enqueued {
        entry.state = states.get(&entry.seq).copied().unwrap_or(entry.state);
    }
    Ok(())
}
