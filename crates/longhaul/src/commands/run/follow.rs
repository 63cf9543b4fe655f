//! Following a run: its progress on stderr until it ends, is held, or somebody presses Ctrl-C.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use longhaul_prompts::progress::{self, Listener, Progress as RunProgress, Status as RunStatus};
use longhaul_prompts::{Bulk, Mode, Run, gate::Held};
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Job, State, Timestamp, WorkerId};

use crate::app::App;
use crate::exit::Code;
use crate::progress::{Fact, Progress, Rate, Status};

use super::outage;
use crate::commands::interrupts::Interrupts;
use crate::commands::provider_outage::{OutageNotice, never_reached, tell_silence};
use crate::commands::working::Working;

/// How following ended.
pub(crate) enum Shown {
    /// The run has ended or cannot go on.
    Ended(Box<RunProgress>),
    /// Nothing was ever reached at the provider's address.
    NeverReached,
    /// Somebody does not want to wait.
    Interrupted,
    /// The worker ended by itself, which it does only with an error.
    WorkerEnded,
}

/// Shows the progress of a run.
struct Bar<'a> {
    app: &'a App,
    drawn: Mutex<Drawn>,
    outage: OutageNotice,
}

struct Drawn {
    progress: Progress,
    rate: Rate,
    at: Option<Instant>,
    /// When a request ended last, and how many had by then.
    moved: (Instant, u64),
}

/// Least time between two drawings.
const DRAW_EVERY: Duration = Duration::from_millis(50);
/// A run that does not move for so long is asked why.
const STUCK_AFTER: Duration = Duration::from_secs(3);
/// Unfinished requests among which a reason is looked for.
const TROUBLES_LOOKED_AT: usize = 20;

impl<'a> Bar<'a> {
    fn new(app: &'a App, progress: Progress) -> Self {
        let drawn = Drawn { progress, rate: Rate::default(), at: None, moved: (Instant::now(), 0) };
        Self { app, drawn: Mutex::new(drawn), outage: OutageNotice::default() }
    }

    fn drawn(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears of every request that ends and draws as often as an eye can follow; the end is always drawn.
impl Listener for Bar<'_> {
    fn progressed(&self, progress: &RunProgress) {
        let outage = progress.message.as_deref().filter(|_| progress.held == Some(Held::Outage));
        self.outage.look(self.app, outage, progress.ended());
        let (mut drawn, now) = (self.drawn(), Instant::now());
        if drawn.moved.1 != progress.ended() {
            drawn.moved = (now, progress.ended());
        }
        let moving = progress.status == RunStatus::Running && progress.ended() < progress.total;
        if moving && drawn.at.is_some_and(|at| now - at < DRAW_EVERY) {
            return;
        }
        drawn.at = Some(now);
        let rate = drawn.rate.update(progress.ended());
        let status = Status {
            done: progress.ended(),
            total: progress.total,
            failed: progress.failed + progress.cancelled,
            running: progress.running,
        };
        drawn.progress.update_with(status, &facts(progress, rate));
    }
}

fn facts(progress: &RunProgress, rate: f64) -> Vec<Fact> {
    let spent = &progress.spent;
    let fact = |name, value: String, text: String| Fact { name, value, text };
    let mut facts = vec![fact("rate", format!("{rate:.1}"), format!("{rate:.0} req/s"))];
    let tokens = spent.usage.total();
    facts.push(fact("tokens", tokens.to_string(), format!("{} tokens", crate::output::short_count(tokens))));
    facts.push(Fact::cost(spent, progress.estimated(), progress.projected()));
    for (name, count, text) in [
        ("throttled", spent.throttled, "429s"),
        ("cached", spent.cached, "cached"),
        ("retried", spent.retried, "retried"),
    ] {
        if count > 0 {
            facts.push(fact(name, count.to_string(), format!("{text} {count}")));
        }
    }
    if progress.mode == Mode::Batch && progress.parked > 0 {
        let text = format!("{} wait for a provider batch, usually 1 to 24 h", progress.parked);
        facts.push(fact("in_batch", progress.parked.to_string(), text));
        if let Some(there) = progress.at_provider.filter(|there| there.answered > 0) {
            let text = format!("{} answered there", there.answered);
            facts.push(fact("answered_in_batch", there.answered.to_string(), text));
        }
    }
    facts
}

/// Shows a run until it has ended or cannot go on by itself. `worker` is the one of this command, if it has one.
pub(crate) async fn show(
    app: &App,
    bulk: &Bulk,
    run: &Run,
    worker: Option<&WorkerId>,
) -> Result<RunProgress> {
    let bar = Bar::new(app, app.progress()?);
    let route = bulk.llm().route(&run.settings.profile, &run.settings.model).await?;
    let asks = worker.is_some() && run.settings.mode == Mode::Sync;
    let silence = || {
        let (at, ended) = bar.drawn().moved;
        (at.elapsed(), ended)
    };
    tokio::select! {
        progress = progress::watch(bulk, run, &bar) => Ok(progress?),
        never = tell_troubles(bulk, run, &bar, worker) => never,
        never = outage::tell(app, bulk) => match never {},
        never = tell_silence(app, &route, &bar.outage, silence), if asks => match never {},
    }
}

/// Says why requests are tried again while none of them ends: a wait without a reason looks like a hang. Ends only with
/// an error of the store.
async fn tell_troubles(
    bulk: &Bulk,
    run: &Run,
    bar: &Bar<'_>,
    worker: Option<&WorkerId>,
) -> Result<RunProgress> {
    let (out, mut told) = (&bar.app.out, None);
    loop {
        tokio::time::sleep(STUCK_AFTER).await;
        let since = bar.drawn().moved.0.elapsed();
        if since < STUCK_AFTER || bar.outage.is_told() {
            continue;
        }
        // One that runs may have failed before, and wait for its turn at a provider that is overloaded.
        let filter = Filter {
            states: vec![State::Scheduled, State::Ready, State::Running],
            process_id: Some(run.id.process()),
            ..Filter::default()
        };
        let waiting = ListRequest { filter, newest_first: false, cursor: None, limit: TROUBLES_LOOKED_AT };
        let page = bulk.queue().list(waiting).await?;
        let error = page.items.iter().find_map(|job| job.error.as_ref());
        let text = match (error, worker.and_then(|worker| free_at(&page.items, worker))) {
            (Some(error), _) => format!("requests are tried again: {}", error.text),
            (None, Some(until)) => {
                let left = (until.as_millis() - bar.app.now().as_millis()).max(0) / 1000 + 1;
                format!("another process has requests under way; if it was killed, they are free in {left} s")
            }
            (None, None) => continue,
        };
        // The seconds that are left change with each look, the reason does not.
        let reason = error.map(|error| error.text.clone());
        if told != Some(reason.clone()) {
            out.warn(format_args!("no answer for {} s, {text}", since.as_secs()));
            told = Some(reason);
        }
    }
}

/// When a request is free that another process has under way, if this one's worker has none: a slow answer of its own is no
/// reason to speak of others.
fn free_at(jobs: &[Job], worker: &WorkerId) -> Option<Timestamp> {
    let running = || jobs.iter().filter(|job| job.state == State::Running);
    if running().any(|job| job.worker.as_ref() == Some(worker)) {
        return None;
    }
    running().find_map(|job| job.lease_until)
}

/// Shows a run until it ends, or until Ctrl-C: the first one lets calls under way come to their end.
pub(super) async fn until_the_end(
    app: &App,
    bulk: &Bulk,
    run: &Run,
    mut working: Option<&mut Working>,
    interrupts: &mut Interrupts,
) -> Result<Shown> {
    let route = bulk.llm().route(&run.settings.profile, &run.settings.model).await?;
    let worker = working.as_deref().map(|working| working.id().clone());
    tokio::select! {
        progress = show(app, bulk, run, worker.as_ref()) => return Ok(Shown::Ended(Box::new(progress?))),
        () = never_reached(&route), if worker.is_some() => return Ok(Shown::NeverReached),
        () = ended(working.as_deref_mut()) => return Ok(Shown::WorkerEnded),
        () = interrupts.next() => {}
    }
    if let Some(working) = working {
        interrupts.drain(app, working).await;
    }
    Ok(Shown::Interrupted)
}

/// Returns when the worker has ended; never where there is none.
async fn ended(working: Option<&mut Working>) {
    match working {
        Some(working) => working.ended().await,
        None => std::future::pending().await,
    }
}

/// The exit code of a run that stands so.
pub(crate) fn code_of(progress: &RunProgress) -> Code {
    match (progress.status, progress.held) {
        (RunStatus::Completed, _) => Code::Ok,
        (RunStatus::PartlyFailed | RunStatus::Failed | RunStatus::Cancelled, _) => Code::JobsFailed,
        (RunStatus::Held, Some(Held::Budget)) => Code::Budget,
        (RunStatus::Held, Some(Held::Auth | Held::Quota)) => Code::Config,
        (RunStatus::Held, Some(Held::Outage)) => Code::Unreachable,
        (RunStatus::Held, Some(Held::BatchLimit | Held::Ambiguous) | None)
        | (RunStatus::Running | RunStatus::Paused, _) => Code::Failure,
    }
}
