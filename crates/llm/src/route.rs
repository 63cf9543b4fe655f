//! A model behind an address and a key, with what it costs and how fast it may be asked. There is one per provider,
//! base URL, key and model in a program, however many runs use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::cache::Key;
use crate::error::{Class, Error, Result};
use crate::money::NanoUsd;
use crate::price::Price;
use crate::provider::{BatchCaps, Caps, Provider, Reply};
use crate::rate::Controller;
use crate::tokens;
use crate::types::{Answer, Endpoint, Request, Usage};

mod batch;

/// Models of the simulator are named so, also where it is asked over HTTP: made-up answers must be told from others.
pub const SIM_MODEL_PREFIX: &str = "sim-";

/// How long a provider may take to say that it is there.
const PING_WAIT: Duration = Duration::from_secs(10);

/// How a call is billed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Billing {
    /// On its own.
    Sync,
    /// As part of a provider batch.
    Batch,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Route {
    inner: Arc<Inner>,
}

/// What a route is called, and where.
#[derive(Debug, Clone)]
pub struct RouteNames {
    /// The profile.
    pub profile: String,
    /// The model.
    pub model: String,
    /// The address.
    pub base_url: String,
    /// Provider, address, digest of the key, model.
    pub identity: String,
}

struct Inner {
    names: RouteNames,
    provider: Arc<dyn Provider>,
    caps: Caps,
    controller: Controller,
    price: Option<Price>,
    /// Whether there was a connection, and whether one could not be made before that.
    reached: AtomicBool,
    unreached: AtomicBool,
}

impl Route {
    /// A route.
    pub fn new(
        names: RouteNames,
        provider: Arc<dyn Provider>,
        controller: Controller,
        price: Option<Price>,
    ) -> Self {
        let caps = provider.caps();
        let (reached, unreached) = Default::default();
        Self { inner: Arc::new(Inner { names, provider, caps, controller, price, reached, unreached }) }
    }

    /// The name of an answer in the response cache. Whose key asks does not shape it.
    pub fn cache_key(&self, request: &Request) -> Key {
        Key::new(self.inner.caps.dialect, &self.inner.names.base_url, request)
    }

    /// The profile's name.
    pub fn profile(&self) -> &str {
        &self.inner.names.profile
    }

    /// The model.
    pub fn model(&self) -> &str {
        &self.inner.names.model
    }

    /// Provider, address, digest of the key, model.
    pub fn identity(&self) -> &str {
        &self.inner.names.identity
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.inner.provider
    }

    /// What the provider can do.
    pub fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    /// Its batch API's limits, if it has one for this.
    pub fn batch_limits(&self, endpoint: Endpoint) -> Option<&BatchCaps> {
        self.inner.caps.batches_of(endpoint)
    }

    /// One call, whatever it asks for. Nothing is booked here.
    pub(crate) async fn call(&self, request: &Request) -> Result<Reply<Answer>> {
        let reply = match request {
            Request::Chat(request) => self.inner.provider.complete(request).await,
            Request::Embed(request) => {
                let embedded = self.inner.provider.embed(request).await;
                embedded.map(|Reply { value, rate }| Reply { value: value.into(), rate })
            }
        };
        self.note(&reply);
        reply
    }

    /// Notes whether a call had a connection.
    fn note<T>(&self, reply: &Result<T>) {
        let connected = !matches!(reply, Err(error) if error.class == Class::Unreachable);
        let heard = if connected { &self.inner.reached } else { &self.inner.unreached };
        heard.store(true, Ordering::Relaxed);
    }

    /// Whether all calls so far failed to connect: the address is wrong, or nothing was started there, rather than a provider
    /// that went away.
    pub fn is_unreached(&self) -> bool {
        self.inner.unreached.load(Ordering::Relaxed) && !self.inner.reached.load(Ordering::Relaxed)
    }

    /// Whether calls wait for the end of an outage.
    pub fn is_out(&self) -> bool {
        self.controller().outage().is_some()
    }

    /// Its address.
    pub fn base_url(&self) -> &str {
        &self.inner.names.base_url
    }

    /// Whether anybody is there: a call that costs nothing, and needs no model.
    pub async fn ping(&self) -> Result<()> {
        match timeout(PING_WAIT, self.inner.provider.models()).await {
            Ok(models) => models.map(drop),
            Err(_) => {
                let text = format!(
                    "no answer within {} s to the request for the list of models",
                    PING_WAIT.as_secs()
                );
                Err(Error::new(Class::Network, text))
            }
        }
    }

    /// Whether its answers are made up.
    pub fn is_simulated(&self) -> bool {
        self.inner.caps.simulated || self.inner.names.model.starts_with(SIM_MODEL_PREFIX)
    }

    /// How fast it may be asked.
    pub fn controller(&self) -> &Controller {
        &self.inner.controller
    }

    /// What it costs; `None` is unpriced.
    pub fn price(&self) -> Option<&Price> {
        self.inner.price.as_ref()
    }

    /// Whether it costs nothing, which is not the same as having no price.
    pub fn is_free(&self) -> bool {
        self.inner.price.as_ref().is_some_and(Price::is_free)
    }

    /// Lets calls through again after the key or the account was mended.
    pub fn reopen(&self) {
        self.inner.controller.reopen();
    }

    /// What so many tokens cost.
    pub fn cost(&self, usage: &Usage, billing: Billing) -> Option<NanoUsd> {
        self.inner.price.as_ref().map(|price| price.cost(usage, billing == Billing::Batch))
    }

    /// The most that a request can cost. No token has less than a byte, so that text in any language is covered; what is
    /// expected is a fourth of it.
    pub fn ceiling(&self, request: &Request, billing: Billing) -> Option<NanoUsd> {
        let price = self.inner.price.as_ref()?;
        let input = tokens::most(request);
        let in_batch = billing == Billing::Batch;
        Some(price.ceiling(input, request.max_tokens(), request.choices(), in_batch))
    }
}
