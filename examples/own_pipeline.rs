//! A pipeline that is not Longhaul's: it counts the words of text files. A run has a unit for each file, and a unit keeps a checkpoint after
//! each line. The program is all of `longhaul`, and this pipeline with it:
//!
//! ```console
//! $ cargo build -p longhaul --example own_pipeline
//! $ own_pipeline start README.md docs/*.md      # prints the run's name: words-…
//! $ own_pipeline work --drain                   # kill -9 it, start it again: it goes on at the next line
//! $ own_pipeline runs results words-…           # ls, show, wait, pause, resume, cancel, retry and rm know it too
//! $ own_pipeline up                             # /api/v1/runs, /api/v1/events, /metrics, webhooks
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use longhaul::clap::{Arg, ArgMatches, Command, value_parser};
use longhaul::{PipelineParts, Program};
use longhaul_pipeline::{About, Error, Listener, Pipeline, Result, RunId, run, unit_jobs};
use longhaul_queue::{Failure, JobContext, Json, KindOptions, NewJob, Queue, Worker};
use serde::{Deserialize, Serialize};
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// The names. Nothing else in the program may begin like the two prefixes.
const ABOUT: About = About {
    name: "words",
    prefix: "words-",
    kind_prefix: "words.",
    manifest: RUN,
    unit: "file",
    queues: &[],
};
/// Counts one file.
const FILE: &str = "words.file";
/// Holds the settings of a run, waits for its files and ends it.
const RUN: &str = "words.run";

fn main() -> ExitCode {
    let files = Arg::new("files").required(true).num_args(1..).value_parser(value_parser!(PathBuf));
    let command = Command::new("start").about("Counts the words of files, as a run").arg(files);
    Program::new().pipeline(&ABOUT, Words::open).start_command(command, start).main()
}

/// Starts a run. Its name follows from its input: the same files again are the same run, found instead of made.
async fn start(parts: PipelineParts, args: ArgMatches) -> Result<RunId> {
    let files: Vec<&PathBuf> = args.get_many("files").into_iter().flatten().collect();
    let files = files.into_iter().map(std::path::absolute).collect::<std::io::Result<Vec<_>>>();
    let files = files.map_err(|error| Error::Place(error.to_string()))?;
    let id = RunId::derived(&ABOUT, &format!("{files:?}"));
    let title = format!("words of {} files", files.len());
    let mut jobs = Vec::new();
    for (number, file) in (0..).zip(&files) {
        let unit = NewJob::new(FILE, Json::of(file)?).id(id.job(number));
        let mut unit = unit.queue(id.as_str()).process(id.process());
        unit.options.title = Some(file.display().to_string());
        jobs.push(unit);
    }
    jobs.push(run::manifest(&ABOUT, &id, Json::of(&files)?, title));
    // One transaction: there is the whole run, or none.
    parts.queue.enqueue_many(jobs).await?;
    Ok(id)
}

/// The pipeline. What it does not say is done as for every pipeline whose units are jobs: status, cancel, retry, results, removal.
#[derive(Clone)]
struct Words {
    queue: Queue,
    listener: Arc<dyn Listener>,
}

impl Words {
    async fn open(parts: PipelineParts) -> Result<Arc<dyn Pipeline>> {
        Ok(Arc::new(Self { queue: parts.queue, listener: parts.listener }))
    }
}

impl Pipeline for Words {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn register(&self, worker: &mut Worker) {
        worker.handle(FILE, count);
        let words = self.clone();
        worker.handle_with(RUN, KindOptions::default(), move |context: JobContext, _: Json| {
            let words = words.clone();
            async move { unit_jobs::end(&words, &*words.listener, &context).await }
        });
    }

    fn queue(&self) -> &Queue {
        &self.queue
    }
}

/// The checkpoint of a file, and its result.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Counted {
    lines: u64,
    words: u64,
    /// Lines that were counted each time when somebody took over from a worker that died.
    resumed_at: Vec<u64>,
}

async fn count(context: JobContext, file: PathBuf) -> std::result::Result<Counted, Failure> {
    let unreadable = |error: std::io::Error| Failure::fatal(format!("{}: {error}", file.display()));
    let mut lines = BufReader::new(File::open(&file).await.map_err(unreadable)?).lines();
    let mut counted: Counted = context.data()?.unwrap_or_default();
    if counted.lines > 0 {
        counted.resumed_at.push(counted.lines);
    }
    let mut number = 0;
    while let Some(line) = lines.next_line().await.map_err(unreadable)? {
        number += 1;
        if number <= counted.lines {
            continue;
        }
        counted.lines = number;
        counted.words += line.split_whitespace().count() as u64;
        // From here on this line is never counted again, whatever happens.
        context.save(&counted).await?;
    }
    Ok(counted)
}
