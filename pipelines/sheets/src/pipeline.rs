//! The stages of one chunk, from its texts to its cells, with bounded queues between them.
//!
//! ```text
//! Producer ──► InvokerPool ──► ValidationPool ──► Writer
//!    │             ▲  lane for another try │        ▲
//!    └── known from the cache ─────────────┼────────┘
//! ```

use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::{Class, Error as LlmError, Route};
use longhaul_pipeline::RunId;
use longhaul_pipeline::run::status::is_paused;
use longhaul_queue::{JobContext, Queue};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;

use super::gauges::{Gauges, Rest};
use super::invoker::InvokerPool;
use super::live::LiveSheet;
use super::producer::{Producer, Wanted};
use super::tables::{AnsweredBy, Chunk};
use super::unit::Unit;
use super::validation::Validator;
use super::writer::{Ended, Writer};
use super::{Error, Result, Sheets, chunk};

/// Queues before the invokers and before the judges hold so many units for each invoker.
const QUEUED_PER_INVOKER: usize = 2;
/// Least and greatest time between two looks whether the sheet is paused.
const PAUSE_LOOK_GAP: Duration = Duration::from_millis(500);
const PAUSE_LOOK_AT_LEAST: Duration = Duration::from_secs(2);
/// Units on their way to the writer.
const WRITER_QUEUE: usize = 100;

/// Why the work ends before all is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// Somebody cancelled or paused, or the worker drains.
    Told,
    /// The next call might exceed a limit on spending.
    Budget(String),
    /// The provider does not accept the key.
    Auth(String),
    /// The account is out of money or of its daily quota.
    Quota(String),
    /// The provider does not answer.
    Outage {
        /// What it said, or the network.
        why: String,
        /// Until one call finds out whether it is over.
        probe_in: Duration,
    },
    /// The sink does not take cells, and time may heal it.
    Sink(String),
    /// The sink takes none before somebody does something: access, a column that is gone.
    Refused(String),
    /// The data store does not answer.
    Store(String),
    /// A stage is broken: units are missing, and nobody waits for them.
    Broken(String),
}

/// Tells all stages to end. The first reason counts.
pub(super) struct Stopper(watch::Sender<Option<Stop>>);

impl Stopper {
    fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    pub(super) fn set(&self, why: Stop) {
        self.0.send_if_modified(|stop| {
            let better =
                stop.is_none() || (matches!(why, Stop::Broken(_)) && !matches!(stop, Some(Stop::Broken(_))));
            if better {
                *stop = Some(why);
            }
            better
        });
    }

    pub(super) fn with_error(&self, error: &Error) {
        self.set(Stop::Store(error.to_string()));
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Returns once the work is to end.
    pub(super) fn reached(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.0.subscribe();
        async move {
            let _ = stop.wait_for(Option::is_some).await;
        }
    }

    /// Returns once units are missing.
    pub(super) async fn broken(&self) {
        let mut stop = self.0.subscribe();
        if stop.wait_for(|stop| matches!(stop, Some(Stop::Broken(_)))).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// What all stages of one run share.
pub(super) struct Shared {
    pub(super) sheets: Sheets,
    pub(super) sheet: Arc<LiveSheet>,
    pub(super) stop: Stopper,
    pub(super) gauges: Arc<Gauges>,
    /// Number of the run.
    pub(super) fence: u64,
    /// Whether chunks are over: names of calls tell, because runs of two jobs may have one number.
    pub(super) filling: bool,
    expected: watch::Sender<Option<u64>>,
    context: JobContext,
    /// Units that were through before, and all.
    before: (u64, u64),
    /// No answer came for so long that the units are taken for the cause.
    unanswered_for_long: bool,
}

impl Shared {
    /// Says how many units there are.
    pub(super) fn expect(&self, units: u64) {
        self.expected.send_replace(Some(units));
    }

    /// Whether an error is an outage's and not the unit's. What was sent and not answered for a day is the unit's.
    pub(super) fn is_outage(&self, error: &LlmError) -> bool {
        error.outage.is_some() && (error.class == Class::Unreachable || !self.unanswered_for_long)
    }

    /// A unit that is to be asked again, the other model's turn included; the unit itself when nothing is left to try.
    pub(super) fn try_again(&self, unit: Unit, hopeless: bool) -> Result<Unit, Unit> {
        unit.again(self.sheet.stored.settings.work.unit_retries, self.sheet.fallback.is_some(), hopeless)
    }

    /// Chunks that some rows belong to.
    pub(super) async fn chunks_of(&self, first: u64, last: u64) -> Result<Vec<Chunk>> {
        self.sheets.inner.tables.chunks_between(self.sheet.stored.seq, first, last).await
    }

    /// Tells how far the run is.
    pub(super) fn report(&self, ended: Ended, lag: Duration) {
        self.gauges.writer_lag_ms.set(u64::try_from(lag.as_millis()).unwrap_or(u64::MAX));
        let (before, all) = self.before;
        self.context.progress_with(before + ended.scored + ended.failed, all, self.gauges.to_string());
    }
}

/// Runs the wanted units through all stages. Answers what became of them, and why not all were asked, if so.
pub(super) async fn run(
    sheets: &Sheets,
    context: &JobContext,
    sheet: Arc<LiveSheet>,
    wanted: Wanted,
) -> Result<(Ended, Option<Stop>)> {
    let (rows, before) = match &wanted {
        Wanted::Chunk { chunk, failed } => {
            ((chunk.first_row, chunk.last_row), (through(chunk, *failed), chunk.units))
        }
        Wanted::Failed { .. } | Wanted::Nothing => {
            let totals = sheets.inner.tables.totals(sheet.stored.seq).await?;
            (
                (totals.first_row, totals.last_row),
                (totals.units - totals.failed.min(totals.units), totals.units),
            )
        }
    };
    let work = &sheet.stored.settings.work;
    let queued = QUEUED_PER_INVOKER * work.concurrency;
    let (expected, units) = watch::channel(None);
    let shared = Arc::new(Shared {
        sheets: sheets.clone(),
        stop: Stopper::new(),
        gauges: Arc::clone(&sheets.inner.gauges),
        fence: context.fence(),
        filling: !matches!(wanted, Wanted::Chunk { .. }),
        expected,
        context: context.clone(),
        before,
        unanswered_for_long: chunk::is_unanswered_for_long(context),
        sheet,
    });
    let (invoke, to_invoke) = mpsc::channel(queued);
    let (validate, to_validate) = mpsc::channel(queued);
    let (write, to_write) = mpsc::channel(WRITER_QUEUE);
    // No bound of its own: a unit is in it instead of under way.
    let (again, lane) = mpsc::unbounded_channel();
    // Dropped last: after it nobody counts any more.
    let _rest = Rest(Arc::clone(&sheets.inner.gauges));
    // Dropped with this future, and all that runs with it.
    let mut stages = JoinSet::new();
    let producer = Producer { shared: Arc::clone(&shared), invoke, write: write.clone(), produced: 0 };
    stages.spawn(producer.run(wanted));
    let incoming = Arc::new(Mutex::new(to_validate));
    for _ in 0..validators() {
        let (shared, incoming) = (Arc::clone(&shared), Arc::clone(&incoming));
        stages.spawn(Validator { shared, incoming, again: again.clone(), write: write.clone() }.run());
    }
    let pool = InvokerPool { shared: Arc::clone(&shared), invoke: to_invoke, lane, again, validate, write };
    stages.spawn(pool.run());
    let writer = Writer::new(Arc::clone(&shared), to_write, units, rows).run();
    let run = RunId::named(&shared.sheet.stored.id);
    let paused = paused(&sheets.inner.queue, &run);
    tokio::pin!(writer, paused);
    let mut told = false;
    let ended = loop {
        tokio::select! {
            ended = &mut writer => break ended,
            () = context.cancelled(), if !told => {
                told = true;
                shared.stop.set(Stop::Told);
            }
            () = &mut paused, if !told => {
                told = true;
                shared.stop.set(Stop::Told);
            }
            // Units of a stage that is gone are missing in the count for ever.
            Some(Err(panic)) = stages.join_next() => {
                shared.stop.set(Stop::Broken(format!("a stage panicked: {panic}")));
            }
        }
    };
    let stop = shared.stop.0.borrow().clone();
    Ok((ended?, stop))
}

/// Returns once somebody has paused the sheet: a chunk is long, and nobody who pauses wants to pay for the rest of it. The job is then
/// given back to the paused queue.
async fn paused(queue: &Queue, run: &RunId) {
    let mut changes = queue.changes();
    loop {
        changes.mark_unchanged();
        // A store that cannot be read now is read at the next look.
        if let Ok(true) = is_paused(queue, run).await {
            return;
        }
        tokio::time::sleep(PAUSE_LOOK_GAP).await;
        let _ = tokio::time::timeout(PAUSE_LOOK_AT_LEAST, changes.changed()).await;
    }
}

/// Units of a chunk that are not asked in this run: what failed counts as through only where it is not tried again.
fn through(chunk: &Chunk, failed_again: bool) -> u64 {
    let failed = if failed_again { chunk.failed } else { 0 };
    (chunk.settled() + chunk.scored).saturating_sub(failed)
}

/// As many judges as cores.
fn validators() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl LiveSheet {
    /// Who answers a unit.
    pub(super) fn answered_by(&self, unit: &Unit) -> AnsweredBy {
        let route = self.route_for(unit);
        let fallback = unit.fallback && self.fallback.is_some();
        AnsweredBy { profile: route.profile().to_owned(), model: route.model().to_owned(), fallback }
    }

    /// The answer to a unit that the cache has of the model whose turn it is.
    pub(super) async fn cached(&self, sheets: &Sheets, unit: &Unit) -> Result<Option<Vec<Value>>> {
        let key = self.prompt.key(&unit.text, unit.block, self.route_for(unit));
        let now = sheets.inner.queue.clock().now();
        let keys = vec![(key, self.stored.targets(unit.block).len())];
        let found = sheets.inner.tables.cached(keys, now).await?;
        found.note(&sheets.inner.gauges);
        Ok(found.get(&key).map(<[Value]>::to_vec))
    }

    /// The model whose turn it is.
    pub(super) fn route_for(&self, unit: &Unit) -> &Route {
        match &self.fallback {
            Some(fallback) if unit.fallback => fallback,
            _ => &self.route,
        }
    }
}
