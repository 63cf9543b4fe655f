//! Asking a model, whatever it takes: cache, rate control, money, the call, the check of what came back, the repair.
//! [`Llm::ask`] is the life of one request.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use crate::cache::{Cache, CacheCounts, CacheMode, Flights};
use crate::clock::WallClock;
use crate::error::{Class, Error, Result};
use crate::file::LlmFile;
use crate::http::is_this_machine;
use crate::ledger::{Event, Ledger, Scope};
use crate::local;
use crate::money::NanoUsd;
use crate::price::{Price, Prices, provider_of};
use crate::profile::{self, Profile, ProviderKind};
use crate::provider::{ModelInfo, Provider};
use crate::rate::{AdaptiveConcurrency, Controller, Engine, Learnt, RouteLimits, Urgency};
use crate::route::{Route, RouteNames, SIM_MODEL_PREFIX};
use crate::schema::Compiled;
use crate::types::{Answer, Request};

mod call;
mod check;
mod results;
mod stream;

pub use call::Room;

/// How the models of a program are set up.
pub struct LlmOptions {
    /// Profiles by name.
    pub profiles: BTreeMap<String, ProfileSetup>,
    /// Providers that are connected already, by the profile they stand for.
    pub providers: BTreeMap<String, Arc<dyn Provider>>,
    /// Where answers, spending and learnt limits are kept.
    pub file: LlmFile,
    /// Response cache.
    pub cache: Cache,
    /// What models cost.
    pub prices: Prices,
    /// The time of day.
    pub clock: Arc<dyn WallClock>,
    /// Most to be spent on a day, over all runs.
    pub day_cap: Option<NanoUsd>,
    /// Waits between two looks at a batch are multiplied by this: 1, or less for a simulator whose day is shorter.
    pub poll_scale: f64,
}

/// A profile with how it is used.
#[derive(Debug, Clone)]
pub struct ProfileSetup {
    /// Where and who.
    pub profile: Profile,
    /// How fast it may be asked.
    pub limits: RouteLimits,
    /// It runs on a machine of one's own, and costs nothing.
    pub free: bool,
}

impl ProfileSetup {
    /// An OpenAI-compatible server at an address, without a key. One on this very machine costs nothing where it is known to
    /// run models: a gateway passes calls on to a provider that bills them.
    async fn at(url: &str) -> Self {
        let mut profile = Profile::new(url, ProviderKind::OpenAi);
        profile.base_url = url.to_owned();
        let nearby = url.parse().is_ok_and(|url| is_this_machine(&url));
        let found = if nearby { local::detect(url).await.ok().flatten() } else { None };
        let engine = match &found {
            Some(found) => Engine::Local { slots: found.slots.map(|slots| slots as usize) },
            None if nearby => Engine::Local { slots: None },
            None => Engine::Hosted,
        };
        let free = found.is_some_and(|found| found.kind.runs_models());
        Self { profile, limits: RouteLimits { engine, ..RouteLimits::default() }, free }
    }
}

/// The name of a route, by which is kept what was learnt of it.
fn identity(profile: &Profile, model: &str) -> String {
    format!("{}|{model}", profile.route_identity())
}

/// The limits of a profile; a local engine is asked how much it does at once.
async fn limits_of(setup: &ProfileSetup) -> RouteLimits {
    let mut limits = setup.limits.clone();
    if limits.engine == (Engine::Local { slots: None }) {
        let engine = local::detect(&setup.profile.base_url).await.ok().flatten();
        let slots = engine.and_then(|engine| engine.slots).map(|slots| slots as usize);
        limits.engine = Engine::Local { slots };
    }
    limits
}

/// All models of a program. Cheap to clone.
#[derive(Clone)]
pub struct Llm {
    inner: Arc<Inner>,
}

struct Inner {
    options: LlmOptions,
    ledger: Ledger,
    flights: Flights<Answered>,
    routes: Mutex<HashMap<(String, String), Route>>,
    /// The day whose cap is set.
    capped: Mutex<Option<Scope>>,
    /// When to write down what was learnt of limits.
    save_at: Mutex<Instant>,
    /// What new routes may use of their limits.
    first_share: Mutex<f64>,
}

/// A request with what surrounds it.
#[derive(Clone)]
pub struct Ask {
    /// The model to ask.
    pub route: Route,
    /// Asked when the first gives no usable answer.
    pub fallback: Option<Route>,
    /// What to ask.
    pub request: Request,
    /// What the answer must look like.
    pub schema: Option<Arc<Compiled>>,
    /// Use of the response cache.
    pub cache: CacheMode,
    /// Who asks; names the calls in the ledger.
    pub call: Call,
    /// Where spending counts.
    pub scopes: Vec<Scope>,
    /// Whose turn it is among those who wait for the same model.
    pub run: Arc<str>,
    /// Who waits for the answer. Where it is a person, a 429 is theirs to hear of, and a route that was closed for a refused key is
    /// tried again: one call shows whether the key was mended.
    pub urgency: Urgency,
}

/// The run of a job that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The job. Calls of its earlier runs that never came to an end may have been billed.
    pub job: String,
    /// The number of its run.
    pub fence: u64,
}

impl Call {
    /// The name of its `number`th call.
    pub fn name(&self, number: u32) -> String {
        format!("{}/{}/{number}", self.job, self.fence)
    }
}

/// A usable answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// The answer; its usage is that of all calls that led to it.
    pub answer: Answer,
    /// As JSON, when a schema was asked for.
    pub json: Option<serde_json::Value>,
    /// What all calls cost; `None` when the model has no price.
    pub cost: Option<NanoUsd>,
    /// It cost nothing: it was known, or somebody else asked the same at the same time.
    pub cached: bool,
    /// Calls that led to it.
    pub calls: u32,
}

/// How often what was learnt of limits is written down.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// Comes true when a caller gives up.
type Stop<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Llm {
    /// The models of a program.
    pub fn new(options: LlmOptions) -> Self {
        let ledger = Ledger::new(options.file.clone());
        let inner = Inner {
            ledger,
            flights: Flights::default(),
            routes: Mutex::default(),
            capped: Mutex::default(),
            save_at: Mutex::new(Instant::now() + SAVE_EVERY),
            first_share: Mutex::new(1.0),
            options,
        };
        Self { inner: Arc::new(inner) }
    }

    /// What was spent.
    pub fn ledger(&self) -> &Ledger {
        &self.inner.ledger
    }

    /// What models cost.
    pub fn prices(&self) -> &Prices {
        &self.inner.options.prices
    }

    /// The last error of the file that keeps what is spent, for as long as it cannot be written: nothing is asked then.
    pub fn outage(&self) -> watch::Receiver<Option<String>> {
        self.inner.options.file.outage()
    }

    /// By how much waits for batches are shortened.
    pub fn poll_scale(&self) -> f64 {
        self.inner.options.poll_scale
    }

    /// The route to a model of a profile.
    pub async fn route(&self, profile: &str, model: &str) -> Result<Route> {
        let key = (profile.to_owned(), model.to_owned());
        if let Some(route) = self.known_routes().get(&key) {
            return Ok(route.clone());
        }
        let route = self.new_route(profile, model).await?;
        // Somebody else may have been faster: there is one route for all.
        Ok(self.known_routes().entry(key).or_insert(route).clone())
    }

    /// Has new routes use this share of their limits until they are told another: whoever shares them with other processes
    /// does not know yet what those leave.
    pub fn start_routes_at(&self, share: f64) {
        *self.inner.first_share.lock().unwrap_or_else(PoisonError::into_inner) = share;
    }

    /// All routes that were asked for.
    pub fn routes(&self) -> Vec<Route> {
        self.known_routes().values().cloned().collect()
    }

    /// What this process did with the response cache.
    pub fn cache_counts(&self) -> CacheCounts {
        self.inner.options.cache.counts()
    }

    fn known_routes(&self) -> MutexGuard<'_, HashMap<(String, String), Route>> {
        self.inner.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn new_route(&self, name: &str, model: &str) -> Result<Route> {
        let setup = &*self.setup_or_address(name).await?;
        let provider = self.provider(name, setup)?;
        let identity = identity(&setup.profile, model);
        let limits = limits_of(setup).await;
        let controller = match self.kept(&identity).await {
            Some(learnt) => Controller::resume(limits, &learnt, self.now_ms()),
            None => Controller::new(limits),
        };
        if controller.demand().is_some() {
            controller.set_share(*self.inner.first_share.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let names = RouteNames {
            profile: name.to_owned(),
            model: model.to_owned(),
            base_url: setup.profile.base_url.clone(),
            identity,
        };
        Ok(Route::new(names, provider, controller, self.price_of(setup, model)))
    }

    /// A profile, or the server at an address.
    async fn setup_or_address(&self, name: &str) -> Result<Cow<'_, ProfileSetup>> {
        if name.contains("://") {
            return Ok(Cow::Owned(ProfileSetup::at(name).await));
        }
        self.setup(name).map(Cow::Borrowed)
    }

    fn setup(&self, name: &str) -> Result<&ProfileSetup> {
        let profiles = &self.inner.options.profiles;
        profiles.get(name).ok_or_else(|| {
            let known: Vec<&str> = profiles.keys().map(String::as_str).collect();
            Error::new(
                Class::BadRequest,
                format!("there is no profile {name:?}; known: {}", known.join(", ")),
            )
        })
    }

    fn provider(&self, name: &str, setup: &ProfileSetup) -> Result<Arc<dyn Provider>> {
        match self.inner.options.providers.get(name) {
            Some(provider) => Ok(Arc::clone(provider)),
            None => profile::connect(&setup.profile),
        }
    }

    /// The models that a profile's provider offers.
    pub async fn models(&self, profile: &str) -> Result<Vec<ModelInfo>> {
        self.provider(profile, self.setup(profile)?)?.models().await
    }

    /// Whether a profile's answers are made up, and so is what they cost.
    pub fn is_simulated(&self, profile: &str, model: &str) -> bool {
        let own = self.inner.options.profiles.get(profile);
        model.starts_with(SIM_MODEL_PREFIX)
            || own.is_some_and(|own| own.profile.provider == ProviderKind::Sim)
    }

    /// A model's price: nothing on a machine of one's own, made up for a simulator, by the table otherwise.
    fn price_of(&self, setup: &ProfileSetup, model: &str) -> Option<Price> {
        let list = if model.starts_with(SIM_MODEL_PREFIX) {
            Some("sim")
        } else if setup.free {
            return Some(Price::free());
        } else {
            provider_of(setup.profile.provider.as_str(), &setup.profile.base_url)
        };
        self.inner.options.prices.find(list.unwrap_or_default(), model).cloned()
    }

    /// Adaptive concurrency of a model on which calls were refused, as this process or the last one knows it.
    pub async fn adaptive_concurrency(&self, profile: &str, model: &str) -> Option<AdaptiveConcurrency> {
        let key = (profile.to_owned(), model.to_owned());
        let known = self.known_routes().get(&key).map(|route| route.controller().learnt(self.now_ms()));
        match known {
            Some(learnt) => learnt.adaptive,
            None => {
                self.kept(&identity(&self.setup_or_address(profile).await.ok()?.profile, model))
                    .await?
                    .adaptive
            }
        }
    }

    /// What was learnt of a route before. It is a help, not a need.
    async fn kept(&self, identity: &str) -> Option<Learnt> {
        let learnt = self.inner.options.file.get_learnt(identity).await.ok().flatten()?;
        serde_json::from_value(learnt).ok()
    }

    /// Writes down what was learnt of limits every now and then: whoever is killed does not do it at the end.
    async fn save_learnt_sometimes(&self) {
        let now = Instant::now();
        let is_due = {
            let mut save_at = self.inner.save_at.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = *save_at <= now;
            if is_due {
                *save_at = now + SAVE_EVERY;
            }
            is_due
        };
        if is_due {
            self.save_learnt().await;
        }
    }

    /// Writes down what was learnt of limits, so that the next start does not begin with a stampede.
    pub async fn save_learnt(&self) {
        for route in self.routes() {
            let learnt = route.controller().learnt(self.now_ms());
            let Ok(learnt) = serde_json::to_value(&learnt) else { continue };
            if let Err(error) = self.inner.options.file.put_learnt(route.identity(), &learnt).await {
                warn!(%error, "what was learnt of limits is not kept");
            }
        }
    }

    /// Asks until there is a usable answer, or none can be had. `stop` ends it as long as it waits its turn; a call
    /// that was sent is always waited for.
    pub async fn ask(&self, ask: Ask, stop: impl Future<Output = ()> + Send) -> Result<Answered> {
        let mut stop: Stop<'_> = Box::pin(stop);
        if ask.cache == CacheMode::Off {
            return self.converse(&ask, None, &mut stop).await;
        }
        let key = ask.route.cache_key(&ask.request);
        if let Some(known) = self.inner.options.cache.get(ask.cache, &key, self.now_ms()).await?
            && let Ok(json) = check::check(&ask, &known.answer)
        {
            self.count(&ask.scopes, Event::Cached);
            return Ok(Answered {
                answer: known.answer,
                json,
                cost: Some(NanoUsd::ZERO),
                cached: true,
                calls: 0,
            });
        }
        let asking = async {
            let answered = self.converse(&ask, None, &mut stop).await?;
            self.inner.options.cache.put(ask.cache, &key, &answered.answer, self.now_ms()).await;
            Ok(answered)
        };
        let flown = self.inner.flights.run(key, asking).await?;
        if !flown.shared {
            return Ok(flown.value);
        }
        self.count(&ask.scopes, Event::Cached);
        Ok(Answered { cost: Some(NanoUsd::ZERO), cached: true, calls: 0, ..flown.value })
    }

    /// Goes on from an answer that came another way, such as by a batch, and was booked there.
    pub async fn judge(
        &self,
        ask: Ask,
        answer: Answer,
        cost: Option<NanoUsd>,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Answered> {
        let mut stop: Stop<'_> = Box::pin(stop);
        let answered = self.converse(&ask, Some((answer, cost)), &mut stop).await?;
        let key = ask.route.cache_key(&ask.request);
        self.inner.options.cache.put(ask.cache, &key, &answered.answer, self.now_ms()).await;
        Ok(answered)
    }

    fn count(&self, scopes: &[Scope], event: Event) {
        for scope in scopes {
            self.ledger().count(scope, event);
        }
    }

    /// The time of day, in milliseconds since the epoch.
    pub fn now_ms(&self) -> i64 {
        self.inner.options.clock.now_ms()
    }
}
