//! Following a run: its progress on stderr until it ends, is held, or somebody presses Ctrl-C.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use longhaul_llm::Route;
use longhaul_pipeline::{FollowedRun, Hold, RunId, RunState, Status, watch};
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Job, State, Timestamp, WorkerId};

use super::interrupts::Interrupts;
use super::provider_outage::{OutageNotice, never_reached, tell_silence};
use super::store_outage;
use super::working::Working;
use crate::app::App;
use crate::exit::Code;
use crate::output::short_count;
use crate::pipelines;
use crate::progress::{Fact, Progress, Rate, Status as Bars};

/// How following ended.
pub(crate) enum Shown {
    /// The run has ended or cannot go on.
    Ended(Box<Status>),
    /// Nothing was ever reached at the provider's address.
    NeverReached,
    /// Somebody does not want to wait.
    Interrupted,
    /// The worker ended by itself, which it does only with an error.
    WorkerEnded,
}

/// Whom the worker of a command asks.
#[derive(Clone, Copy)]
pub(crate) struct Asks<'a> {
    pub(crate) route: &'a Route,
    /// Otherwise in provider batches, which are silent for hours.
    pub(crate) one_by_one: bool,
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
    /// When a unit ended last, and how many had by then.
    moved: (Instant, u64),
}

/// Least time between two drawings.
const DRAW_EVERY: Duration = Duration::from_millis(50);
/// A run that does not move for so long is asked why.
const STUCK_AFTER: Duration = Duration::from_secs(3);
/// Unfinished jobs among which a reason is looked for.
const TROUBLES_LOOKED_AT: usize = 20;

impl<'a> Bar<'a> {
    fn new(app: &'a App, progress: Progress) -> Self {
        let drawn = Drawn { progress, rate: Rate::default(), at: None, moved: (Instant::now(), 0) };
        Self { app, drawn: Mutex::new(drawn), outage: OutageNotice::default() }
    }

    fn drawn(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears of every unit that ends and draws as often as an eye can follow; the end is always drawn.
    fn look(&self, status: &Status) {
        let (standing, units) = (&status.standing, &status.standing.units);
        let outage = standing.message.as_deref().filter(|_| standing.hold == Some(Hold::Outage));
        self.outage.look(self.app, outage, units.ended());
        let (mut drawn, now) = (self.drawn(), Instant::now());
        if drawn.moved.1 != units.ended() {
            drawn.moved = (now, units.ended());
        }
        let moving = standing.state == RunState::Running && units.ended() < units.total;
        if moving && drawn.at.is_some_and(|at| now - at < DRAW_EVERY) {
            return;
        }
        drawn.at = Some(now);
        let rate = drawn.rate.update(units.ended());
        let bars = Bars {
            done: units.ended(),
            total: units.total,
            failed: units.failed + units.cancelled,
            running: units.running,
        };
        drawn.progress.update_with(bars, &facts(status, rate));
    }
}

fn facts(status: &Status, rate: f64) -> Vec<Fact> {
    let spent = &status.spent;
    let mut facts = vec![Fact::new("rate", format!("{rate:.1}"), format!("{rate:.0}/s"))];
    let tokens = spent.usage.total();
    facts.push(Fact::new("tokens", tokens.to_string(), format!("{} tokens", short_count(tokens))));
    facts.push(Fact::cost(spent, status.estimated(), status.projected()));
    facts.extend(Fact::counts(&[
        ("throttled", spent.throttled, "429s"),
        ("retried", spent.retried, "retried"),
    ]));
    facts.extend(pipelines::facts(status));
    facts
}

/// Shows a run until it has ended or cannot go on by itself. `worker` is the one of this command, if it has one, with whom it asks.
pub(crate) async fn show(
    app: &App,
    run: &dyn FollowedRun,
    worker: Option<(&WorkerId, Asks<'_>)>,
) -> Result<Status> {
    let bar = Bar::new(app, app.progress()?);
    let silence = || {
        let (at, ended) = bar.drawn().moved;
        (at.elapsed(), ended)
    };
    let silent = async {
        match worker {
            Some((_, Asks { route, one_by_one: true })) => {
                tell_silence(app, route, &bar.outage, silence).await
            }
            Some(_) | None => std::future::pending().await,
        }
    };
    tokio::select! {
        status = watch::watch(run, |status| bar.look(status)) => Ok(status?),
        never = tell_troubles(run, &bar, worker.map(|(worker, _)| worker)) => never,
        never = store_outage::tell(app, run) => match never {},
        never = silent => match never {},
    }
}

/// Says why units are tried again while none of them ends: a wait without a reason looks like a hang. Ends only with
/// an error of the store.
async fn tell_troubles(run: &dyn FollowedRun, bar: &Bar<'_>, worker: Option<&WorkerId>) -> Result<Status> {
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
            process_id: Some(run.id().process()),
            ..Filter::default()
        };
        let waiting = ListRequest { filter, newest_first: false, cursor: None, limit: TROUBLES_LOOKED_AT };
        let page = run.queue().list(waiting).await?;
        let error = page.items.iter().find_map(|job| job.error.as_ref());
        let text = match (error, worker.and_then(|worker| free_at(&page.items, worker))) {
            (Some(error), _) => format!("{}s are tried again: {}", run.unit(), error.text),
            (None, Some(until)) => {
                let left = (until.as_millis() - bar.app.now().as_millis()).max(0) / 1000 + 1;
                format!(
                    "another process has jobs of it under way; if it was killed, they are free in {left} s"
                )
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

/// When a job is free that another process has under way, if this one's worker has none: a slow answer of its own is no
/// reason to speak of others.
fn free_at(jobs: &[Job], worker: &WorkerId) -> Option<Timestamp> {
    let running = || jobs.iter().filter(|job| job.state == State::Running);
    if running().any(|job| job.worker.as_ref() == Some(worker)) {
        return None;
    }
    running().find_map(|job| job.lease_until)
}

/// Shows a run until it ends, or until Ctrl-C: the first one lets calls under way come to their end. `asks` is for the worker of this
/// command.
pub(crate) async fn until_the_end(
    app: &App,
    run: &dyn FollowedRun,
    (mut working, asks): (Option<&mut Working>, Asks<'_>),
    interrupts: &mut Interrupts,
) -> Result<Shown> {
    let worker = working.as_deref().map(|working| working.id().clone());
    let unreached = async {
        match &worker {
            Some(_) => never_reached(asks.route).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        status = show(app, run, worker.as_ref().map(|worker| (worker, asks))) => {
            return Ok(Shown::Ended(Box::new(status?)));
        }
        () = unreached => return Ok(Shown::NeverReached),
        () = ended(working.as_deref_mut()) => return Ok(Shown::WorkerEnded),
        () = interrupts.next() => {}
    }
    if let Some(working) = working {
        interrupts.drain(app, working).await;
    }
    Ok(Shown::Interrupted)
}

/// Says that a run of a server goes on although nobody follows it any more.
pub(crate) fn stopped(app: &App, run: &RunId) -> Code {
    app.out.note(format_args!("stopped following; {run} continues on the server"));
    app.out.hint(format_args!("follow it again with the same command, or longhaul runs wait {run}"));
    Code::Interrupted
}

/// Returns when the worker has ended; never where there is none.
async fn ended(working: Option<&mut Working>) {
    match working {
        Some(working) => working.ended().await,
        None => std::future::pending().await,
    }
}

/// The exit code of a run that stands so.
pub(crate) fn code_of(status: &Status) -> Code {
    match (status.standing.state, status.standing.hold) {
        (RunState::Completed, _) => Code::Ok,
        (RunState::PartlyFailed | RunState::Failed | RunState::Cancelled, _) => Code::JobsFailed,
        (RunState::Held, Some(Hold::Budget)) => Code::Budget,
        (RunState::Held, Some(Hold::Auth | Hold::Quota)) => Code::Config,
        (RunState::Held, Some(Hold::Outage)) => Code::Unreachable,
        (RunState::Held, Some(Hold::BatchLimit | Hold::Ambiguous | Hold::Sink) | None)
        | (RunState::Running | RunState::Paused, _) => Code::Failure,
    }
}
