//! `verify fair`: two tenants on one queue, one with a hundred times the jobs of the other, and worker processes that know
//! nothing of them. With fair keys the small one must not wait behind the large one's backlog, and no key may run more jobs
//! than its queue allows. The order is proved from the store; how long the small one took is told beside it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use longhaul_queue::job::Retention;
use longhaul_queue::store::{Filter, ListRequest, QueueChange};
use longhaul_queue::{Job, Json, NewJob, ProcessId, Queue, State};
use tokio::process::Child;

use super::report::Report;
use super::server::Server;
use crate::app::App;
use crate::args::FairArgs;
use crate::commands::fleet::Stage;
use crate::exit::Code;
use crate::store;

const QUEUE: &str = "tenants";
/// The slots of one process.
const SLOTS: u32 = 2;
/// The large tenant has so many times the jobs of the small one.
const TIMES: u32 = 100;
/// At most so many of one key run in the last part.
const KEY_LIMIT: u32 = 3;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the command.
pub(super) async fn run(app: &App, args: &FairArgs) -> Result<Code> {
    let server = match args.own {
        Some(kind) => Some(Server::start(kind).await?),
        None => None,
    };
    let mut stage = Stage::at(
        app,
        args.keep.as_deref(),
        match &server {
            Some(server) => Some(server.url()),
            None => app.settings.flag("store.url")?.map(str::to_owned),
        },
    )
    .await?;
    let slots = args.processes * SLOTS;
    app.out.note(format_args!(
        "{} processes of {SLOTS} slots on {}; the small tenant has {} jobs of about {} ms, the large one {}",
        args.processes,
        store::shown(stage.url()),
        args.jobs,
        args.job_ms,
        args.jobs * TIMES,
    ));
    let workers = start(&stage, args.processes).await?;
    let play = Play { queue: stage.queue().clone(), args };
    let mut report = Report::new("fair");
    report.fact("slots", u64::from(slots));
    let mut rounds = Vec::new();
    let mut crowded = Vec::new();
    for round in 0..args.rounds {
        let solo = play.small(&format!("solo-{round}")).await?;
        let large = play.large(round, slots).await?;
        let process = format!("beside-{round}");
        let beside = play.small(&process).await?;
        crowded.extend(play.crowding(&process, &large, slots).await?);
        stage.queue().cancel_process(large).await?;
        play.until(idle).await?;
        app.out.note(format_args!(
            "round {round}: {} ms alone, {} ms beside the large one",
            ms(solo),
            ms(beside)
        ));
        rounds.push((solo, beside));
    }
    tell(&mut report, &mut rounds);
    report.check("the large tenant got no more turns than the small one", crowded);
    report.check("no key ran more jobs than its queue allows", play.limits().await?);
    drop(workers);
    report.finish(app, &mut stage)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn tell(report: &mut Report, rounds: &mut [(Duration, Duration)]) {
    rounds.sort_by(|a, b| ratio(*a).total_cmp(&ratio(*b)));
    let Some(&median) = rounds.get(rounds.len() / 2) else { return };
    let percent = |round| (100.0 * ratio(round)).round() as u64;
    report.fact("small tenant alone in ms", ms(median.0));
    report.fact("beside the large one in ms", ms(median.1));
    report.fact("ratio in percent", percent(median));
    if let (Some(&least), Some(&most)) = (rounds.first(), rounds.last()) {
        report.fact("least ratio in percent", percent(least));
        report.fact("greatest ratio in percent", percent(most));
    }
}

fn ratio((solo, beside): (Duration, Duration)) -> f64 {
    beside.as_secs_f64() / solo.as_secs_f64().max(0.001)
}

/// Starts workers and waits until all have said that they are there.
async fn start(stage: &Stage, processes: u32) -> Result<Vec<Child>> {
    let slots = SLOTS.to_string();
    let words = ["work", "--queue", QUEUE, "--concurrency", &slots];
    let workers = (0..processes).map(|number| stage.spawn(&words, &format!("worker-{number}.log")));
    let workers = workers.collect::<Result<Vec<_>>>()?;
    let deadline = Instant::now() + PATIENCE;
    while stage.queue().store().workers(stage.queue().clock().now()).await?.len() < processes as usize {
        if Instant::now() > deadline {
            bail!("the workers did not start within {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(workers)
}

async fn idle(queue: &Queue) -> Result<bool> {
    let counts = queue.store().counts().await?;
    Ok(counts.iter().all(|count| count.state.is_terminal() || count.jobs == 0))
}

struct Play<'a> {
    queue: Queue,
    args: &'a FairArgs,
}

impl Play<'_> {
    fn jobs(&self, key: &str, process: &str, count: u32) -> Result<Vec<NewJob>> {
        let job = |number: u32| {
            // From half to one and a half times as long, in an order that is always the same: jobs that all ended at once
            // would leave no slot free in between.
            let millis = self.args.job_ms / 2 + self.args.job_ms * (number * 37 % 101) / 100;
            let payload = Json::of(&serde_json::json!({ "for": format!("{millis}ms") }))?;
            Ok(NewJob::new("sleep", payload)
                .queue(QUEUE)
                .process(process)
                .fair_key(key)
                .retention(Retention::UntilConsumed { ttl: None }))
        };
        (0..count).map(job).collect()
    }

    /// The small tenant's jobs, from their enqueue to their last end.
    async fn small(&self, process: &str) -> Result<Duration> {
        let jobs = self.jobs("small", process, self.args.jobs)?;
        let started = Instant::now();
        self.queue.enqueue_many(jobs).await?;
        let id = ProcessId::from(process);
        self.until(async |queue: &Queue| Ok(queue.process(&id).await?.unfinished() == 0)).await?;
        Ok(started.elapsed())
    }

    /// The large tenant's backlog, once it has taken all slots.
    async fn large(&self, round: u32, slots: u32) -> Result<ProcessId> {
        let process = format!("large-{round}");
        self.queue.enqueue_many(self.jobs("large", &process, self.args.jobs * TIMES)?).await?;
        let id = ProcessId::from(process);
        self.until(async |queue: &Queue| {
            Ok(queue.process(&id).await?.counts[State::Running as usize] >= u64::from(slots))
        })
        .await?;
        Ok(id)
    }

    async fn until(&self, is_so: impl AsyncFn(&Queue) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(&self.queue).await? {
            if Instant::now() > deadline {
                bail!("the jobs did not end within {} s; the logs tell why", PATIENCE.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Jobs of the large tenant that started while ones of the small one were waiting, beyond one for each of its starts
    /// and what one round of claims may hold.
    async fn crowding(&self, small: &str, large: &ProcessId, slots: u32) -> Result<Vec<String>> {
        let small = self.all(&ProcessId::from(small)).await?;
        let starts = small.iter().filter_map(|job| job.started_at);
        let (Some(first), Some(last)) = (small.iter().map(|job| job.created_at).min(), starts.max()) else {
            return Ok(vec!["the small tenant's jobs did not start".to_owned()]);
        };
        let meanwhile = |job: &&Job| job.started_at.is_some_and(|at| at > first && at < last);
        let others = self.all(large).await?.iter().filter(meanwhile).count();
        let allowed = small.len() + slots as usize;
        Ok((others > allowed)
            .then(|| {
                format!("{others} jobs of the large one started before {} of the small one had", small.len())
            })
            .into_iter()
            .collect())
    }

    /// Two keys under a limit: as many as it says ever run at once.
    async fn limits(&self) -> Result<Vec<String>> {
        let limit = QueueChange {
            name: QUEUE.to_owned(),
            max_running_per_key: Some(Some(KEY_LIMIT)),
            ..QueueChange::default()
        };
        self.queue.set_queue(limit).await?;
        let process = ProcessId::from("limited");
        for key in ["one", "two"] {
            self.queue.enqueue_many(self.jobs(key, process.as_str(), self.args.jobs)?).await?;
        }
        self.until(async |queue: &Queue| Ok(queue.process(&process).await?.unfinished() == 0)).await?;
        let mut by_key: BTreeMap<String, Vec<Job>> = BTreeMap::new();
        for job in self.all(&process).await? {
            by_key.entry(job.options.fair_key.clone().unwrap_or_default()).or_default().push(job);
        }
        let most = by_key.iter().map(|(key, jobs)| (key, most_at_once(jobs)));
        let beyond = most.filter(|(_, most)| *most > KEY_LIMIT as usize);
        Ok(beyond.map(|(key, most)| format!("{most} jobs of key {key} ran at once")).collect())
    }

    async fn all(&self, process: &ProcessId) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        let mut cursor = None;
        loop {
            let filter = Filter { process_id: Some(process.clone()), ..Filter::default() };
            let page =
                self.queue.list(ListRequest { filter, cursor, limit: 1_000, newest_first: false }).await?;
            jobs.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(jobs);
            }
        }
    }
}

/// The most jobs that ran at one time. An end and a start within the same millisecond may have come in either order.
fn most_at_once(jobs: &[Job]) -> usize {
    let starts = jobs.iter().filter_map(|job| job.started_at);
    let running = |at| {
        let runs = |job: &&Job| {
            job.started_at.is_some_and(|start| start <= at) && job.finished_at.is_some_and(|end| end > at)
        };
        jobs.iter().filter(runs).count()
    };
    starts.map(running).max().unwrap_or(0)
}
