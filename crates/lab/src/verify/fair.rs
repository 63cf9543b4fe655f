//! Fairness: two tenants on one queue, one with a hundred times the jobs of the other, and worker processes that know
//! nothing of them. With fair keys the small one must not wait behind the large one's backlog, and no key may run more jobs
//! than its queue allows. The order is proved by what the jobs themselves noted; how long the small one took is told beside it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use longhaul_queue::job::Retention;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::QueueChange;
use longhaul_queue::{
    Clock as _, Failure, JobContext, Json, NewJob, ProcessId, Queue, State, SystemClock, Timestamp, Worker,
};
use longhaul_stores::shown;
use serde::{Deserialize, Serialize};
use tokio::process::Child;

use super::Fair;
use super::report::Report;
use crate::servers::{self, Purpose};
use crate::{Host, Scratch};

const KIND: &str = "verify.turn";
const QUEUE: &str = "tenants";
/// The slots of one process.
const SLOTS: u32 = 2;
/// The large tenant has so many times the jobs of the small one.
const TIMES: u32 = 100;
/// At most so many of one key run in the last part.
const KEY_LIMIT: u32 = 3;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(120);

/// What a job is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Turn {
    key: String,
    millis: u64,
}

/// When it did so, by its own clock: from after its claim to before its settlement.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ran {
    key: String,
    from: Timestamp,
    to: Timestamp,
}

/// Registers the kind.
pub(super) fn register(worker: &mut Worker) {
    worker.handle(KIND, |_: JobContext, turn: Turn| async move {
        let from = SystemClock.now();
        tokio::time::sleep(Duration::from_millis(turn.millis)).await;
        Ok::<_, Failure>(Ran { key: turn.key, from, to: SystemClock.now() })
    });
}

/// Verifies.
pub async fn run(host: &Host, args: &Fair) -> Result<Report> {
    let server = servers::start(args.own, Purpose::Faults).await?;
    let scratch = match &server {
        Some(server) => Scratch::at(host, args.keep.as_deref(), Some(server.url())).await?,
        None => Scratch::new(host, args.keep.as_deref()).await?,
    };
    let slots = args.processes * SLOTS;
    host.note(format_args!(
        "{} processes of {SLOTS} slots on {}; the small tenant has {} jobs of about {} ms, the large one {}",
        args.processes,
        shown(scratch.url()),
        args.jobs,
        args.job_ms,
        args.jobs * TIMES,
    ));
    let workers = start(&scratch, args.processes).await?;
    let play = Play { queue: scratch.queue().clone(), args };
    let mut report = Report::new("fair");
    report.fact("slots", u64::from(slots));
    let mut rounds = Vec::new();
    let mut crowded = Vec::new();
    for round in 0..args.rounds {
        let (solo, _) = play.small(&format!("solo-{round}")).await?;
        let large = play.large(round, slots).await?;
        let process = format!("beside-{round}");
        let (beside, wait) = play.small(&process).await?;
        crowded.extend(play.crowding(&process, &large, slots).await?);
        scratch.queue().cancel_process(large).await?;
        play.until(idle).await?;
        host.note(format_args!(
            "round {round}: {} ms alone; beside the large one {} ms, of which its last job waited {} ms",
            ms(solo),
            ms(beside),
            ms(wait)
        ));
        rounds.push(Round { solo, beside, wait });
    }
    tell(&mut report, &mut rounds);
    report.check("the large tenant got no more turns than the small one", crowded);
    report.check("no key ran more jobs than its queue allows", play.limits().await?);
    drop(workers);
    Ok(report.finish(host, scratch).await)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How long the small tenant took.
#[derive(Clone, Copy)]
struct Round {
    /// Alone, from the enqueue to the last end.
    solo: Duration,
    /// The same beside the large one.
    beside: Duration,
    /// The longest wait of its jobs there, from the enqueue to the start.
    wait: Duration,
}

impl Round {
    fn percent(self, time: Duration) -> u64 {
        (100.0 * time.as_secs_f64() / self.solo.as_secs_f64().max(0.001)).round() as u64
    }
}

fn tell(report: &mut Report, rounds: &mut [Round]) {
    rounds.sort_by_key(|round| round.percent(round.wait));
    let (Some(least), Some(most)) = (rounds.first(), rounds.last()) else { return };
    let median = rounds[rounds.len() / 2];
    report.fact("small tenant alone in ms", ms(median.solo));
    report.fact("beside the large one in ms", ms(median.beside));
    report.fact("longest wait beside the large one in ms", ms(median.wait));
    report.fact("percent of its time alone that it waited", median.percent(median.wait));
    report.fact("least", least.percent(least.wait));
    report.fact("greatest", most.percent(most.wait));
    report.fact("percent of its time alone that it took", median.percent(median.beside));
}

/// Starts workers and waits until all have said that they are there.
async fn start(scratch: &Scratch, processes: u32) -> Result<Vec<Child>> {
    let slots = SLOTS.to_string();
    let words = ["work", "--instrument", "verify", "--queue", QUEUE, "--concurrency", &slots];
    let workers = (0..processes).map(|number| scratch.spawn(&words, &format!("worker-{number}.log")));
    let workers = workers.collect::<Result<Vec<_>>>()?;
    let deadline = Instant::now() + PATIENCE;
    while scratch.queue().store().workers(scratch.queue().clock().now()).await?.len() < processes as usize {
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
    args: &'a Fair,
}

impl Play<'_> {
    fn jobs(&self, key: &str, process: &str, count: u32) -> Result<Vec<NewJob>> {
        let job = |number: u32| {
            // From half to one and a half times as long, in an order that is always the same: jobs that all ended at once
            // would leave no slot free in between.
            let millis = u64::from(self.args.job_ms / 2 + self.args.job_ms * (number * 37 % 101) / 100);
            let payload = Json::of(&Turn { key: key.to_owned(), millis })?;
            Ok(NewJob::new(KIND, payload)
                .queue(QUEUE)
                .process(process)
                .fair_key(key)
                .retention(Retention::UntilConsumed { ttl: None }))
        };
        (0..count).map(job).collect()
    }

    /// How long the small tenant's jobs take, from their enqueue to their last end and to their last start.
    async fn small(&self, process: &str) -> Result<(Duration, Duration)> {
        let jobs = self.jobs("small", process, self.args.jobs)?;
        let (started, enqueued_at) = (Instant::now(), SystemClock.now());
        self.queue.enqueue_many(jobs).await?;
        let id = ProcessId::from(process);
        self.until(async |queue: &Queue| Ok(queue.process(&id).await?.unfinished() == 0)).await?;
        let took = started.elapsed();
        let starts = self.ran(&id).await?.into_iter().map(|ran| ran.from);
        Ok((took, starts.max().unwrap_or(enqueued_at).since(enqueued_at)))
    }

    /// The large tenant's backlog, once twice as many of its jobs have started as there are slots.
    async fn large(&self, round: u32, slots: u32) -> Result<ProcessId> {
        let process = format!("large-{round}");
        self.queue.enqueue_many(self.jobs("large", &process, self.args.jobs * TIMES)?).await?;
        let id = ProcessId::from(process);
        self.until(async |queue: &Queue| {
            // Counted are starts: that all slots run at one moment is seldom seen where a claim takes as long as a job.
            let counts = queue.process(&id).await?.counts;
            Ok(counts[State::Running as usize] + counts[State::Succeeded as usize] >= 2 * u64::from(slots))
        })
        .await?;
        Ok(id)
    }

    async fn until(&self, is_so: impl AsyncFn(&Queue) -> Result<bool>) -> Result<()> {
        // As long as one slot would take for a part that is never larger than this, and some more.
        let work = Duration::from_millis(u64::from(self.args.jobs) * u64::from(self.args.job_ms) * 2);
        let deadline = Instant::now() + PATIENCE + work;
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
        let small = self.ran(&ProcessId::from(small)).await?;
        let starts = || small.iter().map(|ran| ran.from);
        let (Some(first), Some(last)) = (starts().min(), starts().max()) else {
            return Ok(vec!["the small tenant's jobs did not start".to_owned()]);
        };
        let large = self.ran(large).await?;
        let others = large.iter().filter(|ran| ran.from > first && ran.from < last).count();
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
        let all = self.ran(&process).await?;
        let most = ["one", "two"].map(|key| {
            let of_key: Vec<Ran> = all.iter().filter(|ran| ran.key == key).cloned().collect();
            (key, most_at_once(&of_key))
        });
        let beyond = most.into_iter().filter(|(_, most)| *most > KEY_LIMIT as usize);
        Ok(beyond.map(|(key, most)| format!("{most} jobs of key {key} ran at once")).collect())
    }

    /// What the jobs of a process that have succeeded noted.
    async fn ran(&self, process: &ProcessId) -> Result<Vec<Ran>> {
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let page = self.queue.store().results(process.clone(), after, PAGE_MAX).await?;
            for result in page.items.into_iter().filter_map(|job| job.result) {
                all.push(result.to()?);
            }
            match page.next {
                Some(next) => after = next,
                None => return Ok(all),
            }
        }
    }
}

/// The most that ran at one time. An end and a start within the same millisecond may have come in either order.
fn most_at_once(all: &[Ran]) -> usize {
    let running = |at| all.iter().filter(|ran| ran.from <= at && ran.to > at).count();
    all.iter().map(|ran| running(ran.from)).max().unwrap_or(0)
}
