//! What tests of pipelines share: a clock that follows tokio's paused time, and models of one provider.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use longhaul_llm::cache::{Cache, CacheOptions};
use longhaul_llm::clock::WallClock;
use longhaul_llm::price::Prices;
use longhaul_llm::profile::ProviderKind;
use longhaul_llm::rate::RouteLimits;
use longhaul_llm::{Class, Error, LlmFile, LlmOptions, Profile, ProfileSetup, Provider};
use longhaul_queue::{Clock, Timestamp, WorkerOptions};
use tokio::time::Instant;

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

/// The models of a process: one provider, in the profile [`PROFILE`].
pub fn llm_options(
    file: &LlmFile,
    provider: impl Provider + 'static,
    clock: impl WallClock + 'static,
) -> LlmOptions {
    let setup = ProfileSetup {
        profile: Profile::new(PROFILE, ProviderKind::Sim),
        limits: RouteLimits::default(),
        free: false,
    };
    LlmOptions {
        profiles: BTreeMap::from([(PROFILE.to_owned(), setup)]),
        providers: BTreeMap::from([(PROFILE.to_owned(), Arc::new(provider) as Arc<dyn Provider>)]),
        cache: Cache::new(file.clone(), CacheOptions::default()),
        file: file.clone(),
        prices: Prices::built_in().unwrap(),
        clock: Arc::new(clock),
        day_cap: None,
        poll_scale: 0.01,
    }
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
