//! What tests of pipelines share: a clock that follows tokio's paused time, models that the test holds in its hand, workers that
//! can be killed, and ways to wait without sleeping.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use longhaul_llm::cache::{Cache, CacheOptions};
use longhaul_llm::clock::WallClock;
use longhaul_llm::price::Prices;
use longhaul_llm::profile::ProviderKind;
use longhaul_llm::rate::RouteLimits;
use longhaul_llm::{Class, Error, Llm, LlmFile, LlmOptions, Profile, ProfileSetup, Provider};
use longhaul_queue::{Clock, Result, Shutdown, Timestamp, Worker, WorkerOptions, WorkerReport};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Double;

/// No test waits longer than this, of the machine's time, for something that should come.
const PATIENCE: Duration = Duration::from_secs(60);
/// When the tests take place.
const START_MS: i64 = 1_800_000_000_000;

/// The heartbeat's thread knows nothing of paused time, so leases must outlast whatever is leapt over.
pub const LEASE: Duration = Duration::from_secs(365 * 24 * 3600);

pub const PROFILE: &str = "sim";
pub const MODEL: &str = "sim-small";
pub const SEED: u64 = 1;

/// The time of day as tokio tells it: paused where the test is.
#[derive(Clone, Copy)]
pub struct PausedClock(Instant);

impl PausedClock {
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

#[async_trait]
impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(START_MS) + self.0.elapsed()
    }

    async fn sleep_until(&self, until: Timestamp) {
        tokio::time::sleep(until.since(self.now())).await;
    }
}

impl WallClock for PausedClock {
    fn now_ms(&self) -> i64 {
        self.now().as_millis()
    }
}

/// A worker that runs in the background.
pub struct Started {
    shutdown: Shutdown,
    task: JoinHandle<Result<WorkerReport>>,
}

impl Started {
    pub fn new(worker: Worker) -> Self {
        let shutdown = Shutdown::new();
        let task = tokio::spawn(worker.run(shutdown.clone()));
        Self { shutdown, task }
    }

    pub async fn drain(self) -> WorkerReport {
        self.shutdown.drain();
        soon(self.task).await.unwrap().unwrap()
    }

    /// As if the process had died: nothing is settled.
    pub async fn kill(self) {
        self.task.abort();
        assert!(soon(self.task).await.is_err());
    }
}

/// A future that must end soon. Paused time may leap while the file of spending works, so this goes by the machine's.
pub async fn soon<F: Future>(future: F) -> F::Output {
    let late = late();
    tokio::select! {
        output = future => output,
        _ = late => panic!("this should have happened by now"),
    }
}

/// Whether a future ended soon.
pub async fn patient(future: impl Future) -> bool {
    let late = late();
    tokio::select! {
        _ = future => true,
        _ = late => false,
    }
}

fn late() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let steps = 600;
        for _ in 0..steps {
            std::thread::sleep(PATIENCE / steps);
            if sender.is_closed() {
                return;
            }
        }
        let _ = sender.send(());
    });
    receiver
}

/// The models of a process.
pub fn llm(file: &LlmFile, double: &Double, clock: PausedClock) -> Llm {
    let setup = ProfileSetup {
        profile: Profile::new(PROFILE, ProviderKind::Sim),
        limits: RouteLimits::default(),
        free: false,
    };
    Llm::new(LlmOptions {
        profiles: BTreeMap::from([(PROFILE.to_owned(), setup)]),
        providers: BTreeMap::from([(PROFILE.to_owned(), Arc::new(double.clone()) as Arc<dyn Provider>)]),
        cache: Cache::new(file.clone(), CacheOptions::default()),
        file: file.clone(),
        prices: Prices::built_in().unwrap(),
        clock: Arc::new(clock),
        day_cap: None,
        poll_scale: 0.01,
    })
}

/// Options of workers that outlast any leap of time.
pub fn options() -> WorkerOptions {
    WorkerOptions { lease: LEASE, ..WorkerOptions::default() }
}

/// What a provider's calls end with in an outage: no connection, no answer, an error of its own.
pub fn outages() -> [Error; 3] {
    [
        Error::new(Class::Unreachable, "cannot connect to the.provider:443: refused"),
        Error::new(Class::Network, "no answer from the.provider:443 within 600000 ms").maybe_billed(),
        Error::new(Class::Overloaded, "no healthy upstream").with_status(503),
    ]
}
