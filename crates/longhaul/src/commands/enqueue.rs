//! `enqueue`: one job from arguments, or many from JSONL on stdin.

use std::io::{BufRead, Read};

use anyhow::{Context as _, Result};
use longhaul_api::Listed;
use longhaul_api::job_in::{JobIn, ParentIn, ParentRule, Refs};
use longhaul_api::job_out::EnqueuedOut;
use longhaul_queue::job::{JobOptions, Unique, UniquePolicy, Window};
use longhaul_queue::limits::INSERT_MAX;
use longhaul_queue::store::{Enqueued, InsertOutcome};
use longhaul_queue::{JobId, Json, ProcessId, Queue};

use crate::app::{App, resolve_all};
use crate::args::{EnqueueArgs, JobFlags};
use crate::exit::{Code, Failure, is_closed_pipe};
use crate::jobspec;
use crate::output::{Format, Table, counted, write_stdout};
use crate::parse;

/// Text of one submission; more is sent in several.
const BATCH_BYTES_MAX: usize = 64_000_000;
/// What a line may hold beside its payload.
const LINE_EXTRA_BYTES_MAX: usize = 1_000_000;

/// Runs the command.
pub(crate) async fn run(app: &App, args: &EnqueueArgs) -> Result<Code> {
    let payload = if args.kind == "-" { Json::null() } else { app.json_argument(args.payload.as_deref())? };
    if args.kind == "-" && args.payload.is_some() {
        return Err(Failure::new(
            Code::Usage,
            "`enqueue -` reads jobs from stdin and takes no JSON argument",
        )
        .into());
    }
    let queue = app.queue_or_new().await?;
    warn_of_memory(app, &queue);
    let job = job_of(app, &queue, &args.kind, payload, &args.flags).await?;
    if args.kind == "-" {
        return many(app, &queue, &job).await;
    }
    let job = jobspec::new_job(job, &Refs::default(), app.now());
    let job = job.map_err(|misfit| Failure::new(Code::Usage, misfit.text))?;
    let enqueued = queue.enqueue(job).await?;
    remark(app, &enqueued);
    let written = app.out.one(&EnqueuedOut::from(enqueued), || enqueued.id.to_string());
    written.map_err(|error| unprinted(error, &format!("job {} is stored", enqueued.id)))?;
    Ok(Code::Ok)
}

/// What is stored stays stored when its ids cannot be written, and a repetition would store it again: so say it.
fn unprinted(error: anyhow::Error, stored: &str) -> anyhow::Error {
    if is_closed_pipe(&error) {
        return error;
    }
    Failure::new(Code::Failure, format!("{stored}, but the output could not be written: {error:#}"))
        .hint("do not repeat the command; longhaul jobs ls lists the newest jobs")
        .into()
}

fn warn_of_memory(app: &App, queue: &Queue) {
    if !queue.store().caps().shared {
        app.out.warn("memory:// ends with this command, and the job with it; use sqlite://PATH to keep it");
    }
}

/// Says so when a job was there already: scripts must not take its id for that of a new one.
fn remark(app: &App, enqueued: &Enqueued) {
    let Enqueued { id, state, .. } = enqueued;
    let text = match enqueued.how {
        InsertOutcome::Inserted => return,
        InsertOutcome::Duplicate => format!("job {id} was there already with the same content ({state})"),
        InsertOutcome::Skipped => format!("the unique key is taken by job {id} ({state}); no job was added"),
        InsertOutcome::Replaced => format!("the unique key is taken by job {id}; it got the new payload"),
        InsertOutcome::Debounced => format!("the unique key is taken by job {id}; its start was pushed back"),
    };
    app.out.note(text);
}

/// What the options say of one job, or of all lines.
async fn job_of(app: &App, queue: &Queue, kind: &str, payload: Json, flags: &JobFlags) -> Result<JobIn> {
    let now = app.now();
    let time = |option: &str, text: Option<&String>| {
        let usage = |problem: String| Failure::new(Code::Usage, format!("{option}: {problem}"));
        text.map(|text| parse::time(text, now).map_err(usage)).transpose()
    };
    let on_failure = flags.on_failure.unwrap_or_default();
    let parents = resolve_all(queue, &flags.after).await?;
    let rule = |id: JobId| ParentIn::Rule(ParentRule { job: id.to_string(), on_failure });
    let unique = flags.unique.as_ref().map(|key| Unique {
        key: key.clone(),
        window: flags.unique_window.map(|length| Window::Enqueue { length }),
        policy: UniquePolicy::Skip,
    });
    let options = JobOptions {
        title: flags.title.clone(),
        owner: flags.owner.clone(),
        tags: flags.tags.clone(),
        trace: flags.trace.clone().or_else(|| app.trace.traceparent_if_wanted()),
        max_attempts: flags.max_attempts,
        retry: flags.retry.clone(),
        run_limit: flags.run_limit,
        fair_key: flags.fair_key.clone(),
        unique,
        retention: flags.retention,
        ..JobOptions::default()
    };
    Ok(JobIn {
        id: flags.id,
        queue: flags.queue.clone(),
        process_id: flags.process.clone().map(ProcessId::from),
        priority: flags.priority,
        run_at: time("--at", flags.at.as_ref())?.or_else(|| flags.delay.map(|delay| now + delay)),
        expires_at: time("--expires", flags.expires.as_ref())?,
        depends_on: parents.into_iter().map(rule).collect(),
        after_process: flags.after_process.clone().map(ProcessId::from),
        options: options.into(),
        ..JobIn::new(kind, payload)
    })
}

/// Lines become submissions of at most [`INSERT_MAX`] jobs, each stored all or none.
async fn many(app: &App, queue: &Queue, defaults: &JobIn) -> Result<Code> {
    if defaults.id.is_some() {
        return Err(Failure::new(
            Code::Usage,
            "--id names one job; with `enqueue -` put `id` into the lines",
        )
        .into());
    }
    let mut lines = Lines::new(app.limits()?.value_bytes_max + LINE_EXTRA_BYTES_MAX);
    let mut refs = Refs::default();
    let mut all = Vec::new();
    loop {
        let before = lines.number;
        let result = next_batch(app, queue, defaults, &mut lines, &mut refs).await;
        let batch = result.map_err(|error| with_stored(error, all.len(), before))?;
        if batch.is_empty() {
            break;
        }
        for enqueued in &batch {
            remark(app, enqueued);
        }
        all.extend(batch);
    }
    let stored = || match (all.first(), all.last()) {
        (Some(first), Some(last)) if all.len() > 1 => {
            format!("{} from {} to {} are stored", counted(all.len() as u64, "job"), first.id, last.id)
        }
        (first, _) => {
            format!("job {} is stored", first.map_or_else(String::new, |first| first.id.to_string()))
        }
    };
    print_many(app, &all).map_err(|error| unprinted(error, &stored()))?;
    let new = all.iter().filter(|enqueued| enqueued.how == InsertOutcome::Inserted).count();
    app.out.note(format_args!("{} enqueued", counted(new as u64, "job")));
    Ok(if all.is_empty() { Code::NothingMatched } else { Code::Ok })
}

fn print_many(app: &App, all: &[Enqueued]) -> Result<()> {
    if app.out.format == Format::Text {
        return write_stdout(&all.iter().map(|enqueued| format!("{}\n", enqueued.id)).collect::<String>());
    }
    let shown = Listed::whole(all.iter().copied().map(EnqueuedOut::from).collect());
    app.out.listed(&shown, || Table::new(&[]))
}

fn with_stored(error: anyhow::Error, stored: usize, lines: usize) -> anyhow::Error {
    if stored == 0 {
        error
    } else {
        error.context(format!("the first {stored} jobs (lines 1 to {lines}) are stored, nothing after them"))
    }
}

async fn next_batch(
    app: &App,
    queue: &Queue,
    defaults: &JobIn,
    lines: &mut Lines,
    refs: &mut Refs,
) -> Result<Vec<Enqueued>> {
    let now = app.now();
    let mut read = Vec::new();
    let mut bytes = 0;
    while read.len() < INSERT_MAX && bytes < BATCH_BYTES_MAX {
        let Some((number, line)) = lines.next()? else { break };
        bytes += line.len();
        let mut job = jobspec::read(&line).map_err(|problem| at_line(number, &problem))?;
        refs.add(&mut job, || JobId::generate(now, fastrand::u128(..)))
            .map_err(|misfit| at_line(number, &misfit.to_string()))?;
        read.push((number, jobspec::with_defaults(job, defaults)));
    }
    let mut jobs = Vec::with_capacity(read.len());
    for (number, job) in read {
        let job = jobspec::new_job(job, refs, now).map_err(|misfit| at_line(number, &misfit.to_string()))?;
        queue.limits().check_job(&job).map_err(|error| at_line(number, &error.to_string()))?;
        jobs.push(job);
    }
    if jobs.is_empty() { Ok(Vec::new()) } else { Ok(queue.enqueue_many(jobs).await?) }
}

fn at_line(number: usize, problem: &str) -> Failure {
    Failure::new(Code::Usage, format!("line {number}: {problem}"))
        .hint("one JSON object a line; the fields are listed in docs/enqueue.md")
}

/// Lines of stdin with their numbers; empty ones are passed over.
struct Lines {
    number: usize,
    bytes_max: usize,
}

impl Lines {
    fn new(bytes_max: usize) -> Self {
        Self { number: 0, bytes_max }
    }

    fn next(&mut self) -> Result<Option<(usize, String)>> {
        loop {
            let mut line = String::new();
            let limit = self.bytes_max as u64 + 1;
            let read = std::io::stdin().lock().by_ref().take(limit).read_line(&mut line);
            if read.with_context(|| format!("reading line {} of stdin", self.number + 1))? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if line.len() > self.bytes_max {
                return Err(at_line(self.number, &format!("longer than {} bytes", self.bytes_max)).into());
            }
            if !line.trim().is_empty() {
                return Ok(Some((self.number, line)));
            }
        }
    }
}
